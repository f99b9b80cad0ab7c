//! Reads and writes of a burst's objects: the job, its `VramLease` (the intent) and the ConfigMap of its checkpoint.
//!
//! Every write of the job and of the checkpoint is a compare-and-set, on the resource version, by a coordinator that knows
//! its term: where another has written in between, the object is read again, and a higher term there ends this coordinator.
//! The `VramLease` is for onlookers: the agents' ledgers are the truth.

use std::sync::{Arc, OnceLock};

use k8s_openapi::{ByteString, api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use sahasra_crds::{
    BurstJob, BurstJobStatus, VramLease, VramLeaseSpec, VramLeaseStatus,
    vram_lease::{LeaseOwner, Renewal, SliceBounds},
};
use serde_json::json;

use super::checkpoint::Contents;
use crate::objects::{self, code};

/// Times that a compare-and-set is tried again when others write in between.
const CONFLICTS: usize = 8;
/// Annotation of the ConfigMap: term of the coordinator that wrote it.
const TERM: &str = "sahasra.dev/term";

/// What the name of the checkpoint's ConfigMap ends with.
const RESULTS: &str = "-results";

/// Who made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// This job's coordinator.
    Ours,
    /// That of an earlier job of the same name.
    Predecessors,
    /// Neither: it is another's, such as the user's own.
    Others,
}

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server rejected the object or did not answer.
    #[error("{operation}")]
    Api {
        /// What was tried.
        operation: &'static str,
        /// Why.
        source: kube::Error,
    },
    /// Objects that are not the job's have each name that one of its might have.
    #[error("{kind} {first} and {second} exist and are not the job's: delete or rename one of them")]
    NamesTaken {
        /// Kind of the objects.
        kind: &'static str,
        /// One,
        first: String,
        /// and the other.
        second: String,
    },
    /// A coordinator of a higher term acts for the job.
    #[error("a coordinator of term {0} acts for the job")]
    Fenced(u64),
    /// The job is gone.
    #[error("the job is gone")]
    Gone,
}

impl WriteError {
    /// What to tell the user when the same write would fail again: the API server's own words, or the remedy.
    pub fn rejection(&self) -> Option<String> {
        match self {
            Self::Api {
                operation,
                source: source @ kube::Error::Api(status),
            } if objects::is_rejected(source) => Some(format!("{operation}: {}", status.message)),
            Self::NamesTaken { .. } => Some(self.to_string()),
            _ => None,
        }
    }

    /// Whether it is the contents that were rejected, which no retry changes: for too large, or against the schema.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Api { source, .. } if objects::is_invalid(source))
    }

    /// Whether the user has to change an object, which is no failure of the operator. A 403 may be a role that the operator lacks.
    pub fn is_user_error(&self) -> bool {
        matches!(self, Self::NamesTaken { .. }) || self.is_final()
    }

    /// Category for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::NamesTaken { .. } => "name",
            Self::Fenced(_) => "fenced",
            Self::Gone => "gone",
        }
    }
}

fn api(operation: &'static str) -> impl Fn(kube::Error) -> WriteError {
    move |source| WriteError::Api { operation, source }
}

/// The objects of one job.
#[derive(Clone)]
pub struct Objects {
    jobs: Api<BurstJob>,
    leases: Api<VramLease>,
    config_maps: Api<ConfigMap>,
    name: String,
    uid: String,
    owner: OwnerReference,
    /// Name of the checkpoint's ConfigMap, once it is known to be the job's.
    results: Arc<OnceLock<String>>,
}

impl Objects {
    /// Those of `job`.
    pub fn new(client: &Client, job: &BurstJob) -> Self {
        let namespace = job.namespace().unwrap_or_default();
        let name = job.name_any();
        let uid = job.uid().unwrap_or_default();
        let owner = OwnerReference {
            api_version: BurstJob::api_version(&()).into_owned(),
            kind: BurstJob::kind(&()).into_owned(),
            name: name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(false),
        };
        Self {
            jobs: Api::namespaced(client.clone(), &namespace),
            leases: Api::namespaced(client.clone(), &namespace),
            config_maps: Api::namespaced(client.clone(), &namespace),
            name,
            uid,
            owner,
            results: Arc::default(),
        }
    }

    /// Name of the checkpoint's ConfigMap.
    pub fn results_name(&self) -> String {
        self.results.get().cloned().unwrap_or_else(|| {
            let [first, _] = self.results_names();
            first
        })
    }

    /// The two candidates for the name: the second is for the case that another owner has the first. The first is derived, too, where the
    /// job's name is too long.
    fn results_names(&self) -> [String; 2] {
        let plain = format!("{}{RESULTS}", self.name);
        let derived = objects::derived_name(&self.name, &self.uid, RESULTS);
        if plain.len() <= objects::MAX_NAME {
            [plain, derived]
        } else {
            let other = objects::derived_name(&self.name, &self.uid, "-chunk-results");
            [derived, other]
        }
    }

    /// The job keeps standing until its VRAM is back. Writes only what is missing.
    pub async fn add_finalizer(&self, job: &BurstJob) -> Result<BurstJob, WriteError> {
        objects::hold(&self.jobs, job).await.map_err(|error| {
            if code(&error) == 404 {
                WriteError::Gone
            } else {
                api("add the finalizer")(error)
            }
        })
    }

    /// The job may go.
    pub async fn remove_finalizer(&self) -> Result<(), WriteError> {
        for _ in 0..CONFLICTS {
            let found = self.jobs.get_opt(&self.name).await.map_err(api("read the job"))?;
            let Some(job) = found.filter(|job| job.uid().as_deref() == Some(&self.uid)) else {
                return Ok(());
            };
            if self.try_remove_finalizer(&job).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// As [`Objects::remove_finalizer`] for a job as last read; `false` when it was written in between.
    pub async fn try_remove_finalizer(&self, job: &BurstJob) -> Result<bool, WriteError> {
        match objects::let_go(&self.jobs, job).await {
            Ok(()) => Ok(true),
            Err(error) if code(&error) == 409 => Ok(false),
            Err(error) => Err(api("remove the finalizer")(error)),
        }
    }

    /// Writes the status, whose `term` is that of the writer. Starts from resource version `version`.
    pub async fn write_status(&self, version: &str, status: &BurstJobStatus) -> Result<BurstJob, WriteError> {
        let mut version = version.to_owned();
        let mut failure = None;
        for _ in 0..CONFLICTS {
            match self.try_write_status(&version, status).await {
                Ok(job) => return Ok(job),
                Err(error) if code(&error) == 404 => return Err(WriteError::Gone),
                Err(error) if code(&error) == 409 => failure = Some(error),
                Err(error) => return Err(api("write the status")(error)),
            }
            let found = self.jobs.get_opt(&self.name).await.map_err(api("read the job"))?;
            let found = found
                .filter(|job| job.uid().as_deref() == Some(&self.uid))
                .ok_or(WriteError::Gone)?;
            let term = found.status.as_ref().map_or(0, |status| status.term);
            if term > status.term {
                return Err(WriteError::Fenced(u64::try_from(term).unwrap_or_default()));
            }
            version = found.resource_version().unwrap_or_default();
        }
        Err(failure.map_or(WriteError::Gone, api("write the status")))
    }

    /// Writes the status if the job still has that resource version.
    pub async fn try_write_status(&self, version: &str, status: &BurstJobStatus) -> Result<BurstJob, kube::Error> {
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        self.jobs
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// Writes what is about to be acquired: the `VramLease`, owned by the job. Gives it back as it stands there.
    pub async fn write_intent(&self, job: &BurstJob, min: u32, max: u32) -> Result<VramLease, WriteError> {
        let mut name = self.name.clone();
        let mut races = 0;
        loop {
            match self.leases.create(&PostParams::default(), &self.lease(&name, job, min, max)).await {
                Ok(created) => return Ok(created),
                Err(error) if code(&error) == 409 && races < CONFLICTS => races += 1,
                Err(error) => return Err(api("create the VramLease")(error)),
            }
            let Some(found) = self.leases.get_opt(&name).await.map_err(api("read the VramLease"))? else {
                continue;
            };
            match self.whose(&found) {
                Whose::Ours if found.metadata.deletion_timestamp.is_none() => return Ok(found),
                // The garbage collector has not reached it yet.
                Whose::Ours | Whose::Predecessors => self.delete_lease_of(&found).await?,
                Whose::Others if name == self.name => name = objects::derived_name(&self.name, &self.uid, ""),
                Whose::Others => {
                    let (kind, first) = ("VramLease", self.name.clone());
                    return Err(WriteError::NamesTaken { kind, first, second: name });
                }
            }
        }
    }

    fn lease(&self, name: &str, job: &BurstJob, min: u32, max: u32) -> VramLease {
        let mut lease = VramLease::new(
            name,
            VramLeaseSpec {
                owner: LeaseOwner {
                    kind: Some(self.owner.kind.clone()),
                    name: Some(self.name.clone()),
                },
                slice: job.spec.slice.clone(),
                engine: None,
                slices: SliceBounds {
                    min: i64::from(min),
                    max: i64::from(max),
                },
                ttl_seconds: job.spec.lease.ttl_seconds,
                renewal: Renewal::Automatic,
                keep_seconds: None,
            },
        );
        lease.metadata.owner_references = Some(vec![self.owner.clone()]);
        lease
    }

    async fn delete_lease_of(&self, lease: &VramLease) -> Result<(), WriteError> {
        let deleted = objects::delete_exactly(&self.leases, lease, DeleteParams::default()).await;
        deleted.map_err(api("delete the VramLease"))
    }

    /// Nothing is held any more, whatever the lease is called: the status may not name it any more, or not yet.
    pub async fn delete_leases(&self) -> Result<(), WriteError> {
        let leases = self.leases.list(&ListParams::default()).await.map_err(api("list the VramLeases"))?;
        for lease in &leases {
            if lease.owner_references().iter().any(|owner| owner.uid == self.uid) {
                self.delete_lease_of(lease).await?;
            }
        }
        Ok(())
    }

    /// Nothing is held any more.
    pub async fn delete_lease(&self, name: &str) -> Result<(), WriteError> {
        match self.leases.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == 404 => Ok(()),
            Err(error) => Err(api("delete the VramLease")(error)),
        }
    }

    /// Shows what is held. The coordinator's term stands inside; a lease that is gone is no error.
    /// Gives back the lease's generation.
    pub async fn write_lease_status(&self, name: &str, status: &VramLeaseStatus) -> Result<Option<i64>, WriteError> {
        let patch = Patch::Merge(json!({"status": status}));
        match self.leases.patch_status(name, &PatchParams::default(), &patch).await {
            Ok(written) => Ok(written.metadata.generation),
            Err(error) if code(&error) == 404 => Ok(None),
            Err(error) => Err(api("write the VramLease's status")(error)),
        }
    }

    /// The checkpoint's ConfigMap, if the job has one.
    pub async fn read_checkpoint(&self) -> Result<Option<(Contents, String)>, WriteError> {
        for name in self.results_names() {
            let found = self.config_maps.get_opt(&name).await.map_err(api("read the checkpoint"))?;
            let Some(found) = found.filter(|found| self.whose(found) == Whose::Ours) else {
                continue;
            };
            let _ = self.results.set(name);
            let version = found.resource_version().unwrap_or_default();
            let binary_data = found.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
            let contents = Contents {
                data: found.data.unwrap_or_default(),
                binary_data: binary_data.collect(),
            };
            return Ok(Some((contents, version)));
        }
        Ok(None)
    }

    /// Writes the checkpoint over `version`, or as a new ConfigMap. Gives back the new resource version.
    pub async fn write_checkpoint(&self, version: Option<&str>, term: u64, contents: Contents) -> Result<String, WriteError> {
        let [first, second] = self.results_names();
        let mut name = self.results_name();
        let binary_data = contents.binary_data.into_iter().map(|(key, value)| (key, ByteString(value)));
        let mut config_map = ConfigMap {
            metadata: ObjectMeta {
                owner_references: Some(vec![self.owner.clone()]),
                annotations: Some([(TERM.to_owned(), term.to_string())].into()),
                resource_version: version.map(str::to_owned),
                ..ObjectMeta::default()
            },
            data: Some(contents.data),
            binary_data: Some(binary_data.collect()),
            immutable: None,
        };
        let mut failure = None;
        for _ in 0..CONFLICTS {
            config_map.metadata.name = Some(name.clone());
            let written = match config_map.metadata.resource_version {
                None => self.config_maps.create(&PostParams::default(), &config_map).await,
                Some(_) => self.config_maps.replace(&name, &PostParams::default(), &config_map).await,
            };
            match written {
                Ok(written) => {
                    let _ = self.results.set(name);
                    return Ok(written.resource_version().unwrap_or_default());
                }
                Err(error) if matches!(code(&error), 404 | 409) => failure = Some(error),
                Err(error) => return Err(api("write the checkpoint")(error)),
            }
            let found = self.config_maps.get_opt(&name).await.map_err(api("read the checkpoint"))?;
            config_map.metadata.resource_version = None;
            let Some(found) = found else { continue };
            match self.whose(&found) {
                Whose::Ours => {
                    let other = found.annotations().get(TERM).and_then(|term| term.parse().ok()).unwrap_or(0);
                    if other > term {
                        return Err(WriteError::Fenced(other));
                    }
                    config_map.metadata.resource_version = found.resource_version();
                }
                Whose::Predecessors => {
                    let deleted = objects::delete_exactly(&self.config_maps, &found, DeleteParams::default()).await;
                    deleted.map_err(api("delete an earlier job's checkpoint"))?;
                }
                Whose::Others if name == first => name.clone_from(&second),
                Whose::Others => {
                    let kind = "ConfigMap";
                    return Err(WriteError::NamesTaken { kind, first, second });
                }
            }
        }
        Err(failure.map_or(WriteError::Gone, api("write the checkpoint")))
    }

    /// Deletes the job itself.
    pub async fn delete_job(&self) -> Result<(), WriteError> {
        let parameters = DeleteParams::background().preconditions(Preconditions {
            uid: Some(self.uid.clone()),
            resource_version: None,
        });
        match self.jobs.delete(&self.name, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(code(&error), 404 | 409) => Ok(()),
            Err(error) => Err(api("delete the job")(error)),
        }
    }

    /// Who made an object that has the name of one of this job's. What no `BurstJob` of this name controls is not touched.
    fn whose<K: Resource>(&self, object: &K) -> Whose {
        let owners = object.owner_references();
        if owners.iter().any(|owner| owner.uid == self.uid) {
            return Whose::Ours;
        }
        let made = |owner: &OwnerReference| {
            owner.controller == Some(true)
                && owner.kind == self.owner.kind
                && owner.name == self.name
                && owner.api_version.split('/').next() == self.owner.api_version.split('/').next()
        };
        if owners.iter().any(made) {
            Whose::Predecessors
        } else {
            Whose::Others
        }
    }
}
