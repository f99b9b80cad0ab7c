//! The checkpoint: the state of a burst that survives a crash, in one ConfigMap, written atomically by compare-and-set.
//!
//! `data["checkpoint.json"]` contains the term, the failures, the aggregator and the index objects of the store that count (see
//! [`results_store`](super::results_store)). `binaryData` contains sets of indices (see [`IndexSet::encode`]): `counted` has the indices
//! that succeeded or failed, and `failed.CODE` those that failed with this code. Because most indices are counted in the end, even if they
//! are scattered, the sets together take little more space than the failed ones alone. If results are kept in the ConfigMap, `results` has
//! one record for each chunk in the order of the index, with zeros for chunks without a result. A finished burst adds `results.csv` or
//! `failed.csv` for humans. Sets that are too large for a ConfigMap are moved to the store, if there is one.
//!
//! A user with the right to write ConfigMaps in the namespace can change the checkpoint, so its content is validated as untrusted input.

use std::collections::{BTreeMap, BTreeSet};

use sahasra_crds::burst_job::status::{ChunkFailure, MAX_FAILURES};
use sahasra_results::{COUNTED, FAILED, RESULTS};
pub use sahasra_results::{CSV, MAX_CSV_BYTES, MAX_INLINE_RESULT_BYTES};
use sahasra_wire::burst::FailureCode;
use serde::{Deserialize, Serialize};

use super::{
    aggregate::Aggregator,
    index_set::{DecodeError, IndexSet},
    results_store::SegmentIndex,
};

/// Maximum bytes of the sets in the ConfigMap of a burst with a store. Larger sets are moved to the store, because every checkpoint writes
/// them again and etcd keeps each version for minutes.
const MAX_INLINE_SET_BYTES: usize = 64 << 10;

const STATE: &str = "checkpoint.json";

#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// UID of the `BurstJob`, so that the ConfigMap of another job with the same name is not used.
    pub uid: String,
    pub term: u64,
    pub completed: IndexSet,
    pub failed: BTreeMap<FailureCode, IndexSet>,
    /// The first failures, at most [`MAX_FAILURES`].
    pub failures: Vec<ChunkFailure>,
    /// Number of attempts after the first.
    pub retried: u64,
    pub peak_slices: u64,
    pub aggregator: Aggregator,
    pub results: Results,
}

/// Location of the results of a burst.
#[derive(Clone, Debug, PartialEq)]
pub enum Results {
    /// Results are kept in the checkpoint, as one record for each chunk.
    Inline(Vec<u8>),
    Store(SegmentIndex),
    Nowhere,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub data: BTreeMap<String, String>,
    /// `binaryData`, before base64 encoding.
    pub binary_data: BTreeMap<String, Vec<u8>>,
}

/// Reasons why a ConfigMap is not a valid checkpoint of the burst.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("key {0} not found")]
    Missing(&'static str),
    #[error("failed to parse {STATE}")]
    State(#[from] serde_json::Error),
    #[error("failed to decode a set of indices")]
    Indices(#[from] DecodeError),
    #[error("checkpoint inconsistent with the job: {0}")]
    Contradiction(&'static str),
    #[error("checkpoint belongs to the BurstJob with UID {0}")]
    OtherJob(String),
    #[error("checkpoint has {found} bytes of results, expected {expected}")]
    Size { found: usize, expected: usize },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    uid: String,
    term: u64,
    failures: Vec<ChunkFailure>,
    retried: u64,
    #[serde(default)]
    peak_slices: u64,
    aggregator: Aggregator,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<BTreeMap<u64, String>>,
    /// Folder and keys of the sets that are in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sets: Option<StoredSets>,
}

/// Sets in the store: one object for each, named by its key within the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSets {
    /// Folder within the job's folder.
    pub folder: String,
    /// Keys of the sets, which are also the names of the objects in the folder.
    pub keys: Vec<String>,
}

impl StoredSets {
    /// Pairs of key and object name.
    pub fn names(&self) -> impl Iterator<Item = (&String, String)> {
        self.keys.iter().map(|key| (key, format!("{}/{key}", self.folder)))
    }
}

pub type Named = (String, Vec<u8>);

impl Contents {
    /// Size in bytes, as the API server counts it.
    pub fn bytes(&self) -> usize {
        let data = self.data.iter().map(|(key, value)| key.len() + value.len());
        let binary = self.binary_data.iter().map(|(key, value)| key.len() + value.len());
        data.chain(binary).sum()
    }

    /// Moves the sets to `folder` in the store if they are too large for the ConfigMap. Returns the moved sets and the objects to write to
    /// the store, or `None` if the sets stay.
    pub fn move_sets(&mut self, folder: String) -> Option<(StoredSets, Vec<Named>)> {
        let is_set = |key: &str| key == COUNTED || key.starts_with(FAILED);
        let bytes: usize = (self.binary_data.iter())
            .filter(|(key, _)| is_set(key))
            .map(|(_, value)| value.len())
            .sum();
        if bytes <= MAX_INLINE_SET_BYTES {
            return None;
        }
        let (moved, kept) = std::mem::take(&mut self.binary_data).into_iter().partition(|(key, _)| is_set(key));
        let moved: BTreeMap<String, Vec<u8>> = moved;
        self.binary_data = kept;
        let sets = StoredSets {
            folder,
            keys: moved.keys().cloned().collect(),
        };
        if let Some(text) = self.data.get_mut(STATE)
            && let Ok(mut state) = serde_json::from_str::<State>(text)
        {
            state.sets = Some(sets.clone());
            *text = state.text();
        }
        let objects = sets.names().map(|(key, name)| (name, moved[key].clone())).collect();
        Some((sets, objects))
    }

    /// The sets that are in the store, if any.
    ///
    /// # Errors
    /// [`CheckpointError`] if the state does not parse or its list of sets is not valid.
    pub fn stored_sets(&self) -> Result<Option<StoredSets>, CheckpointError> {
        let text = self.data.get(STATE).ok_or(CheckpointError::Missing(STATE))?;
        let sets = serde_json::from_str::<State>(text)?.sets;
        let is_set = |key: &String| key == COUNTED || key.strip_prefix(FAILED).is_some_and(|label| code(label).is_some());
        // Every key is one of a few, and none repeats. This bounds what is fetched, whatever the ConfigMap contains.
        let is_sound =
            |sets: &StoredSets| sets.keys.iter().all(is_set) && sets.keys.iter().collect::<BTreeSet<_>>().len() == sets.keys.len();
        match sets {
            Some(sets) if !is_sound(&sets) => Err(CheckpointError::Contradiction("its list of stored sets")),
            sets => Ok(sets),
        }
    }
}

impl State {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("the state is plain data with text keys")
    }
}

impl Checkpoint {
    /// Encodes the checkpoint as the contents of its ConfigMap.
    pub fn encode(&self) -> Contents {
        let state = State {
            uid: self.uid.clone(),
            term: self.term,
            failures: self.failures.clone(),
            retried: self.retried,
            peak_slices: self.peak_slices,
            aggregator: self.aggregator.clone(),
            index: match &self.results {
                Results::Inline(_) | Results::Nowhere => None,
                Results::Store(index) => Some(index.to_state()),
            },
            sets: None,
        };
        let mut counted = self.completed.clone();
        let mut binary_data = BTreeMap::new();
        for (code, failed) in &self.failed {
            counted.unite(failed);
            binary_data.insert(format!("{FAILED}{}", code.label()), failed.encode());
        }
        binary_data.insert(COUNTED.to_owned(), counted.encode());
        if let Results::Inline(records) = &self.results {
            binary_data.insert(RESULTS.to_owned(), records.clone());
        }
        Contents {
            data: BTreeMap::from([(STATE.to_owned(), state.text())]),
            binary_data,
        }
    }

    /// Decodes the output of [`Checkpoint::encode`] for the burst `uid` of `total` chunks. `aggregator` and `results` must be those of a
    /// burst that has not counted any result.
    ///
    /// # Errors
    /// [`CheckpointError`] if no coordinator of this burst can have written the contents.
    pub fn decode(contents: &Contents, uid: &str, total: u64, aggregator: &Aggregator, results: &Results) -> Result<Self, CheckpointError> {
        let binary = |key: &'static str| contents.binary_data.get(key).ok_or(CheckpointError::Missing(key));
        let state: State = serde_json::from_str(contents.data.get(STATE).ok_or(CheckpointError::Missing(STATE))?)?;
        if state.uid != uid {
            return Err(CheckpointError::OtherJob(state.uid));
        }
        let listed = |failure: &ChunkFailure| {
            let is_below = u64::try_from(failure.index).is_ok_and(|index| index < total);
            is_below && failure.attempts >= 0 && code(&failure.code).is_some()
        };
        if state.failures.len() > MAX_FAILURES || !state.failures.iter().all(listed) {
            return Err(CheckpointError::Contradiction("its list of failures"));
        }
        if !state.aggregator.continues(aggregator, total) {
            return Err(CheckpointError::Contradiction("its aggregate"));
        }
        let (completed, failed) = sets(contents, total)?;
        let results = match (results, &state.index) {
            (Results::Store(_), Some(index)) => {
                let index = SegmentIndex::from_state(index, state.term, total);
                Results::Store(index.ok_or(CheckpointError::Contradiction("its index of segments"))?)
            }
            (Results::Inline(zeros), None) => {
                let records = binary(RESULTS)?.clone();
                if records.len() != zeros.len() {
                    return Err(CheckpointError::Size {
                        found: records.len(),
                        expected: zeros.len(),
                    });
                }
                Results::Inline(records)
            }
            (Results::Nowhere, None) => Results::Nowhere,
            _ => return Err(CheckpointError::Contradiction("where its results are")),
        };
        Ok(Self {
            uid: state.uid,
            term: state.term,
            completed,
            failed,
            failures: state.failures,
            retried: state.retried,
            peak_slices: state.peak_slices,
            aggregator: state.aggregator,
            results,
        })
    }
}

/// Decodes the indices that succeeded, and those that failed, by cause.
fn sets(contents: &Contents, total: u64) -> Result<(IndexSet, BTreeMap<FailureCode, IndexSet>), CheckpointError> {
    let counted = contents.binary_data.get(COUNTED).ok_or(CheckpointError::Missing(COUNTED))?;
    let counted = IndexSet::decode(counted, total)?;
    let mut completed = counted.clone();
    let mut failed = BTreeMap::new();
    let mut sum = 0;
    for (key, bytes) in &contents.binary_data {
        let Some(label) = key.strip_prefix(FAILED) else { continue };
        let code = code(label).ok_or(CheckpointError::Contradiction("a cause of failures"))?;
        let set = IndexSet::decode(bytes, total)?;
        sum += set.len();
        completed.subtract(&set);
        failed.insert(code, set);
    }
    // Each failed index must be counted, and must have exactly one cause.
    if completed.len() + sum != counted.len() {
        return Err(CheckpointError::Contradiction("its sets of indices"));
    }
    Ok((completed, failed))
}

fn code(label: &str) -> Option<FailureCode> {
    FailureCode::all().find(|code| code.label() == label)
}

#[cfg(test)]
mod tests;
