//! Writes the checkpoint and its objects in the object store: index objects, sets, the manifest and `failed.csv`.
//!
//! The objects are written first, then the ConfigMap that names them, so every object that a ConfigMap names exists. An object that no
//! ConfigMap names does not count, and no name is used twice.

use std::{sync::Arc, time::Duration};

use object_store::{GetOptions, ObjectStore, ObjectStoreExt, WriteMultipart, path::Path};
use sahasra_crds::{
    MAX_CONFIG_MAP_BYTES,
    burst_job::KeptResults,
    conditions::{ADMITTED, CHECKPOINTED},
};
use sahasra_results::table::Columns;
use sahasra_service::{causes, tasks};
use sahasra_wire::burst::Store;
use tokio::time::timeout;

use super::{
    Coordinator, CoordinatorError,
    writes::{Covered, Written},
};
use crate::{
    burst::{
        checkpoint::{self, Checkpoint, Contents, MAX_CSV_BYTES, Named, Results, StoredSets},
        objects::{Objects, WriteError},
        results_store::{self, FAILED_CSV, MANIFEST},
        status::Verdict,
    },
    fault::Step,
};

/// Maximum size of a set that is read from the store. Ten million indices without any pattern take 1.25 MB.
const MAX_SET_BYTES: u64 = 2 << 20;
const READ_WITHIN: Duration = Duration::from_secs(60);
const READ_SETS: &str = "read the checkpoint's sets in the store of spec.output";
/// Bytes of `failed.csv` per part of its upload. Not less than the minimum size of a part on S3.
const CSV_PART_BYTES: usize = 8 << 20;

/// Converts an error of the store into a message for the job's user, with a remedy.
fn store(operation: &'static str) -> impl Fn(object_store::Error) -> WriteError {
    move |source| WriteError::Store {
        operation,
        source: sahasra_store::summary(&source).into(),
    }
}

struct Saving {
    contents: Contents,
    /// Objects to write to the store first, with their names.
    objects: Vec<Named>,
    /// Sets of the previous checkpoint. They can be deleted once this checkpoint is written.
    stale: Option<StoredSets>,
    folder: Option<Arc<dyn ObjectStore>>,
    api: Objects,
    version: Option<String>,
    term: u64,
}

impl Saving {
    /// Writes the objects and the ConfigMap. Returns the resource version of the ConfigMap.
    async fn write(self) -> Result<String, WriteError> {
        for (name, bytes) in self.objects {
            let folder = self.folder.as_ref().expect("objects are made for a store that is open");
            let written = folder.put(&Path::from(name.as_str()), bytes.into()).await;
            written.map_err(store("write to the store of spec.output"))?;
        }
        let version = self.api.write_checkpoint(self.version.as_deref(), self.term, self.contents).await?;
        if let (Some(stale), Some(folder)) = (self.stale, self.folder) {
            // Spawned, so that a slow store does not delay the acknowledgement of the results that the checkpoint covers.
            tasks::spawn(delete_sets(stale, folder));
        }
        Ok(version)
    }
}

/// Deletes the sets of an earlier checkpoint. A set that cannot be deleted only wastes space.
async fn delete_sets(stale: StoredSets, folder: Arc<dyn ObjectStore>) {
    for (_, name) in stale.names() {
        if let Err(error) = folder.delete(&Path::from(name.as_str())).await {
            tracing::debug!(
                name,
                error = &error as &dyn std::error::Error,
                "failed to delete a set of an earlier checkpoint"
            );
        }
    }
}

/// Reads the sets of a checkpoint. Returns them with their keys in the ConfigMap.
async fn read_sets(sets: &StoredSets, folder: &dyn ObjectStore) -> Result<Vec<(String, Vec<u8>)>, WriteError> {
    let read = store(READ_SETS);
    let mut all = Vec::new();
    for (key, name) in sets.names() {
        let path = Path::parse(&name).map_err(|error| read(error.into()))?;
        let options = GetOptions::new().with_range(Some(0..MAX_SET_BYTES));
        let found = folder.get_opts(&path, options).await.map_err(&read)?;
        let bytes = sahasra_store::bytes_within(found, MAX_SET_BYTES).await.map_err(&read)?;
        all.push((key.clone(), bytes.to_vec()));
    }
    Ok(all)
}

impl Coordinator {
    /// The job's own folder in the store. The UID separates it from the folders of other jobs, including earlier jobs of the same name.
    pub(super) fn store_folder(&self) -> Option<Store> {
        let store = self.burst.store.as_ref()?;
        let owner = self.owner();
        let name = self.job.borrow().metadata.name.clone().unwrap_or_default();
        Some(Store {
            url: format!("{}/{}/{name}/{}", store.url.trim_end_matches('/'), owner.namespace, owner.uid),
            options: store.options.clone(),
        })
    }

    /// The job's folder in the store, which is opened on first use.
    fn folder(&mut self) -> Result<Option<Arc<dyn ObjectStore>>, WriteError> {
        if self.folder.is_none()
            && let Some(Store { url, options }) = self.store_folder()
        {
            let opened = sahasra_store::open(&self.context.settings.stores, &url, &options);
            self.folder = Some(opened.map_err(|source| WriteError::Store {
                operation: "open the store of spec.output",
                source: source.into(),
            })?);
        }
        Ok(self.folder.clone())
    }

    /// Creates the checkpoint of the current state, with additional `texts` for humans.
    fn snapshot(&mut self, texts: Vec<(&str, String)>) -> Result<(Saving, Covered), WriteError> {
        let folder = self.folder()?;
        let number = self.checkpoint_number;
        self.checkpoint_number += 1;
        let mut objects = Vec::new();
        let results = match &self.results {
            Results::Store(index) if !self.segments.is_empty() => {
                let mut index = index.clone();
                index.add(self.term, number);
                let name = results_store::index_name(self.term, number);
                objects.push((name, results_store::index_object(&self.segments)));
                Results::Store(index)
            }
            other => other.clone(),
        };
        let index = match &results {
            Results::Store(index) => Some(index.clone()),
            Results::Inline(_) | Results::Nowhere => None,
        };
        let checkpoint = Checkpoint {
            uid: self.owner().uid,
            term: self.term,
            completed: self.account.completed().clone(),
            failed: self.account.causes().clone(),
            failures: self.account.failures().to_vec(),
            retried: self.account.counts().retried,
            peak_slices: self.peak_slices,
            aggregator: self.aggregator.clone(),
            results,
        };
        let mut indices = checkpoint.completed.clone();
        indices.unite(self.account.failed_set());
        let mut contents = checkpoint.encode();
        let mut sets = None;
        if folder.is_some()
            && let Some((moved, parts)) = contents.move_sets(results_store::sets_folder(self.term, number))
        {
            sets = Some(moved);
            objects.extend(parts);
        }
        for (key, text) in texts {
            contents.data.insert(key.to_owned(), text);
        }
        let bytes = contents.bytes();
        if bytes > MAX_CONFIG_MAP_BYTES {
            return Err(WriteError::TooLarge(bytes));
        }
        let covered = Covered {
            indices,
            sequences: self.sequences(),
            segments: self.segments.len(),
            index,
            sets,
            bytes,
        };
        let saving = Saving {
            contents,
            objects,
            stale: self.stored_sets.clone(),
            folder,
            api: self.objects.clone(),
            version: self.checkpoint_version.clone(),
            term: self.term,
        };
        Ok((saving, covered))
    }

    pub(super) fn start_checkpoint(&mut self) {
        let snapshot = self.snapshot(Vec::new());
        if let Ok((_, covered)) = &snapshot {
            self.checkpoint_pace.carried(covered.bytes, self.now());
        }
        self.writes.spawn(tasks::tied(async move {
            Written::Checkpoint(match snapshot {
                Ok((saving, covered)) => saving.write().await.map(|version| (version, Box::new(covered))),
                Err(error) => Err(error),
            })
        }));
    }

    /// Writes the checkpoint, with additional `texts` for humans, and waits for it.
    pub(super) async fn write_checkpoint_now(&mut self, texts: Vec<(&str, String)>) -> Result<(), WriteError> {
        let (saving, covered) = self.snapshot(texts)?;
        self.budget.spend();
        let version = saving.write().await?;
        self.checkpoint_written(version, covered);
        Ok(())
    }

    pub(super) fn checkpoint_written(&mut self, version: String, covered: Covered) {
        self.context.settings.faults.reached(Step::Checkpoint);
        self.checkpoint_version = Some(version);
        self.covered.unite(&covered.indices);
        self.segments.drain(..covered.segments.min(self.segments.len()));
        if let Some(index) = covered.index {
            self.results = Results::Store(index);
        }
        self.stored_sets = covered.sets;
        self.saving_failed = None;
        self.acknowledge(covered.sequences);
    }

    /// Handles a failed checkpoint: reports the error and lets the checkpoint be retried, or ends the burst if it can never be saved.
    pub(super) fn not_saved(&mut self, error: WriteError) -> Result<(), CoordinatorError> {
        if let Some(refusal) = error.refusal() {
            tracing::warn!(error = %causes(&error), "checkpoint permanently rejected");
            self.refused = Some(refusal);
            return Ok(());
        }
        match error {
            WriteError::Fenced(_) | WriteError::Gone | WriteError::NamesTaken { .. } => Err(error.into()),
            error => {
                tracing::warn!(error = %causes(&error), "failed to save progress, retrying");
                self.saving_failed = Some(Verdict::new(
                    CHECKPOINTED,
                    false,
                    error.reason(),
                    format!("failed to save progress: {}: retrying", causes(&error)),
                ));
                Ok(())
            }
        }
    }

    /// Reads and restores the checkpoint of a predecessor, if there is one.
    pub(super) async fn read_checkpoint(&mut self) -> Result<(), CoordinatorError> {
        let Some((mut contents, version)) = self.objects.read_checkpoint().await? else {
            return Ok(());
        };
        self.checkpoint_version = Some(version);
        let sets = contents.stored_sets()?;
        if let Some(sets) = &sets {
            let missing = || WriteError::Store {
                operation: "open the store of spec.output",
                source: "the checkpoint requires it and the job specifies none".into(),
            };
            let folder = self.folder()?.ok_or_else(missing)?;
            let late = |_| WriteError::Store {
                operation: READ_SETS,
                source: format!("timed out after {} s", READ_WITHIN.as_secs()).into(),
            };
            let read = timeout(READ_WITHIN, read_sets(sets, &*folder)).await.map_err(late)??;
            contents.binary_data.extend(read);
        }
        self.stored_sets = sets;
        let (uid, total) = (self.owner().uid, self.burst.total);
        let checkpoint = Checkpoint::decode(&contents, &uid, total, &self.aggregator, &self.results)?;
        self.restore(checkpoint);
        Ok(())
    }

    /// Reports in the status why the checkpoint of a predecessor cannot be used. The reconciler retries with a growing backoff.
    pub(super) async fn tell_unreadable(&mut self, error: &CoordinatorError) {
        let message = format!(
            "{}: retrying; delete the ConfigMap {} to restart the burst from its first chunk",
            causes(error),
            self.objects.results_name()
        );
        let verdict = Verdict::new(ADMITTED, false, "InvalidCheckpoint", message);
        if let Err(error) = self.write_status_now(&[verdict]).await {
            tracing::debug!(error = %causes(&error), "failed to report the invalid checkpoint in the status");
        }
    }

    /// Writes the final list of a burst to the store: its manifest of segments, or its failed chunks. Returns the URL of the list, if there
    /// is one.
    pub(super) async fn publish(&mut self) -> Result<Option<String>, WriteError> {
        let (Some(folder), Some(Store { url, .. })) = (self.folder()?, self.store_folder()) else {
            return Ok(None);
        };
        let counts = self.account.counts();
        let name = match (&self.results, self.burst.results) {
            (Results::Store(index), _) => {
                let kernel = self.job.borrow().spec.kernel.clone();
                let manifest = results_store::manifest(&kernel, counts.total, counts.succeeded, counts.failed, index);
                let written = folder.put(&Path::from(MANIFEST), manifest.into()).await;
                written.map_err(store("write the manifest to the store of spec.output"))?;
                MANIFEST
            }
            (_, KeptResults::Failed) => {
                let upload = folder.put_multipart(&Path::from(FAILED_CSV)).await;
                let mut upload = WriteMultipart::new(upload.map_err(store("write failed.csv to the store of spec.output"))?);
                for part in results_store::failed_csv(self.account.causes(), self.account.failed_set(), CSV_PART_BYTES) {
                    upload.put(part.into());
                    upload
                        .wait_for_capacity(1)
                        .await
                        .map_err(store("write failed.csv to the store of spec.output"))?;
                }
                let written = upload.finish().await;
                written.map_err(store("write failed.csv to the store of spec.output"))?;
                FAILED_CSV
            }
            _ => return Ok(None),
        };
        Ok(Some(format!("{url}/{name}")))
    }

    /// Files for humans in the ConfigMap: `results.csv`, and `failed.csv` if there is no store for it.
    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        let mut texts = Vec::new();
        if let Results::Inline(records) = &self.results {
            let columns = Columns {
                program: &self.burst.chunks,
                layout: &self.burst.layout,
            };
            let csv = columns.text(self.account.completed(), records, MAX_CSV_BYTES);
            texts.extend(csv.map(|csv| (checkpoint::CSV, csv)));
        }
        if self.burst.results == KeptResults::Failed && self.burst.store.is_none() {
            let mut parts = results_store::failed_csv(self.account.causes(), self.account.failed_set(), MAX_CSV_BYTES);
            let mut text = parts.next().unwrap_or_default();
            // Only a burst that has failed can have more failures than the limit. The failures with the lowest indices are listed.
            if text.len() > MAX_CSV_BYTES {
                let end = text[..MAX_CSV_BYTES].rfind('\n').map_or(0, |end| end + 1);
                text.truncate(end);
            }
            texts.push((FAILED_CSV, text));
        }
        texts
    }
}

#[cfg(test)]
mod tests;
