//! Reads and writes a burst's objects: the job, its `VramLease` (the intent) and the ConfigMap of its checkpoint.
//!
//! Every write of the job and of the checkpoint is a compare-and-set on the resource version, by a coordinator that knows its term. After a
//! conflict, the object is read again; a higher term in the object ends this coordinator. The `VramLease` is for observers, because the
//! agents' ledgers are authoritative.

use std::sync::{Arc, OnceLock};

use k8s_openapi::{ByteString, api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use sahasra_crds::{
    BurstJob, BurstJobStatus, MAX_CONFIG_MAP_BYTES, VramLease, VramLeaseSpec, VramLeaseStatus,
    conditions::FAILED,
    vram_lease::{LeaseOwner, Renewal, SliceBounds},
};

use super::{checkpoint::Contents, status::Verdict};
use crate::{
    leases::Bounds,
    objects::{self, code},
};

/// Maximum number of attempts of a compare-and-set that conflicts with other writes.
const CONFLICTS: usize = 8;
/// Annotation of the ConfigMap with the term of the coordinator that wrote it.
const TERM: &str = "sahasra.dev/term";

const RESULTS: &str = "-results";

/// The creator of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The job's coordinator.
    Ours,
    /// The coordinator of an earlier job of the same name.
    Predecessors,
    /// Someone else, such as the user.
    Others,
}

/// Reasons why an object of a burst was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("failed to {operation}")]
    Api { operation: &'static str, source: kube::Error },
    #[error("failed to {operation}")]
    Store {
        operation: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the checkpoint has {0} bytes, exceeding the {MAX_CONFIG_MAP_BYTES} of a ConfigMap")]
    TooLarge(usize),
    #[error("{kind} {first} and {second} exist and are not the job's: delete or rename one of them")]
    NamesTaken { kind: &'static str, first: String, second: String },
    #[error("superseded by a coordinator of term {0}")]
    Fenced(u64),
    #[error("job not found")]
    Gone,
}

impl WriteError {
    /// Message for the user if the same write would be rejected again until something changes, such as a quota, a role, or the object: the
    /// API server's message, or the remedy.
    pub fn rejection(&self) -> Option<String> {
        match self {
            Self::Api {
                operation,
                source: kube::Error::Api(status),
            } if matches!(status.code, 400 | 403 | 413 | 422) => Some(format!("failed to {operation}: {}", status.message)),
            Self::NamesTaken { .. } => Some(self.to_string()),
            _ => None,
        }
    }

    /// Whether the API server rejected the content, as too large or invalid by the schema, so that no retry can succeed.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(code(source), 400 | 413 | 422))
    }

    /// Whether the user has to change an object, so that the operator is not at fault. A 403 does not count, because the operator may lack
    /// a role.
    pub fn is_user_error(&self) -> bool {
        matches!(self, Self::NamesTaken { .. }) || self.is_final()
    }

    pub fn category(&self) -> &'static str {
        match self {
            Self::Api { .. } => "api",
            Self::Store { .. } => "store",
            Self::TooLarge(_) => "size",
            Self::NamesTaken { .. } => "name",
            Self::Fenced(_) => "fenced",
            Self::Gone => "gone",
        }
    }

    /// Reason of the condition that reports that progress could not be saved.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Store { .. } => "StoreUnavailable",
            Self::TooLarge(_) => "CheckpointTooLarge",
            Self::Api { .. } | Self::NamesTaken { .. } | Self::Fenced(_) | Self::Gone => "ApiServerUnavailable",
        }
    }

    /// Condition of a burst that can never be saved, because a retry would be rejected again. `None` for errors that a retry may overcome.
    pub(super) fn refusal(&self) -> Option<Verdict> {
        let (reason, message) = match self {
            Self::TooLarge(bytes) => (
                self.reason(),
                format!(
                    "spec.output: the indices of succeeded and failed chunks have {bytes} bytes, exceeding the {MAX_CONFIG_MAP_BYTES} of \
                     a ConfigMap: set output.store, or lower spec.maxFailedChunks"
                ),
            ),
            error if error.is_final() => {
                let rejection = error.rejection().unwrap_or_default();
                let message = format!("{rejection}: set spec.output.store, or create smaller BurstJobs");
                ("CheckpointRejected", message)
            }
            _ => return None,
        };
        Some(Verdict::new(FAILED, true, reason, message))
    }
}

fn api(operation: &'static str) -> impl Fn(kube::Error) -> WriteError {
    move |source| WriteError::Api { operation, source }
}

/// The API clients for the objects of one job.
#[derive(Clone)]
pub struct Objects {
    jobs: Api<BurstJob>,
    leases: Api<VramLease>,
    config_maps: Api<ConfigMap>,
    owner: OwnerReference,
    /// Name of the checkpoint's ConfigMap, once it is known to be the job's.
    results: Arc<OnceLock<String>>,
}

impl Objects {
    pub fn new(client: &Client, job: &BurstJob) -> Self {
        let namespace = job.namespace().unwrap_or_default();
        let owner = OwnerReference {
            api_version: BurstJob::api_version(&()).into_owned(),
            kind: BurstJob::kind(&()).into_owned(),
            name: job.name_any(),
            uid: job.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(false),
        };
        Self {
            jobs: Api::namespaced(client.clone(), &namespace),
            leases: Api::namespaced(client.clone(), &namespace),
            config_maps: Api::namespaced(client.clone(), &namespace),
            owner,
            results: Arc::default(),
        }
    }

    /// Name of the checkpoint's ConfigMap: the first candidate until the ConfigMap has been read or written.
    pub fn results_name(&self) -> String {
        self.results.get().cloned().unwrap_or_else(|| {
            let [first, _] = self.results_names();
            first
        })
    }

    /// The two candidates for the name of the checkpoint's ConfigMap. The second is used if another owner has an object with the first
    /// name. The first is a derived name, too, if the job's name is too long.
    fn results_names(&self) -> [String; 2] {
        let plain = format!("{}{RESULTS}", self.owner.name);
        let derived = objects::derived_name(&self.owner.name, &self.owner.uid, RESULTS);
        if plain.len() <= objects::MAX_NAME {
            [plain, derived]
        } else {
            let other = objects::derived_name(&self.owner.name, &self.owner.uid, "-chunk-results");
            [derived, other]
        }
    }

    /// Adds the finalizer, which keeps the job until its VRAM is released. Writes nothing if the finalizer is present.
    pub async fn add_finalizer(&self, job: &BurstJob) -> Result<BurstJob, kube::Error> {
        objects::add_finalizer(&self.jobs, job).await
    }

    pub async fn remove_finalizer(&self) -> Result<(), WriteError> {
        for _ in 0..CONFLICTS {
            let found = self.jobs.get_opt(&self.owner.name).await.map_err(api("read the job"))?;
            let Some(job) = found.filter(|job| job.uid().as_deref() == Some(&self.owner.uid)) else {
                return Ok(());
            };
            match objects::remove_finalizer(&self.jobs, &job).await {
                Err(error) if code(&error) == 409 => {}
                outcome => return outcome.map_err(api("remove the finalizer")),
            }
        }
        Ok(())
    }

    /// Writes the status, whose `term` must be the writer's term. `version` is the last known resource version; after a conflict, the write
    /// is retried.
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
            let found = self.jobs.get_opt(&self.owner.name).await.map_err(api("read the job"))?;
            let found = found
                .filter(|job| job.uid().as_deref() == Some(&self.owner.uid))
                .ok_or(WriteError::Gone)?;
            let term = found.status.as_ref().map_or(0, |status| status.term);
            if term > status.term {
                return Err(WriteError::Fenced(u64::try_from(term).unwrap_or_default()));
            }
            version = found.resource_version().unwrap_or_default();
        }
        Err(failure.map_or(WriteError::Gone, api("write the status")))
    }

    /// Writes the status if the job still has this resource version.
    pub async fn try_write_status(&self, version: &str, status: &BurstJobStatus) -> Result<BurstJob, kube::Error> {
        objects::write_status(&self.jobs, &self.owner.name, Some(version), status).await
    }

    /// Writes the intent to acquire slices: the `VramLease`, owned by the job. Returns the lease.
    pub(crate) async fn write_intent(&self, job: &BurstJob, bounds: Bounds) -> Result<VramLease, WriteError> {
        let mut name = self.owner.name.clone();
        let mut races = 0;
        loop {
            match self.leases.create(&PostParams::default(), &self.lease(&name, job, bounds)).await {
                Ok(created) => return Ok(created),
                Err(error) if code(&error) == 409 && races < CONFLICTS => races += 1,
                Err(error) => return Err(api("create the VramLease")(error)),
            }
            let Some(found) = self.leases.get_opt(&name).await.map_err(api("read the VramLease"))? else {
                continue;
            };
            match self.whose(&found) {
                Whose::Ours if found.metadata.deletion_timestamp.is_none() => return Ok(found),
                // The garbage collector has not deleted it yet.
                Whose::Ours | Whose::Predecessors => self.delete_lease(&found).await?,
                Whose::Others if name == self.owner.name => name = objects::derived_name(&self.owner.name, &self.owner.uid, ""),
                Whose::Others => {
                    let (kind, first) = ("VramLease", self.owner.name.clone());
                    return Err(WriteError::NamesTaken { kind, first, second: name });
                }
            }
        }
    }

    fn lease(&self, name: &str, job: &BurstJob, bounds: Bounds) -> VramLease {
        let mut lease = VramLease::new(
            name,
            VramLeaseSpec {
                owner: LeaseOwner {
                    kind: Some(self.owner.kind.clone()),
                    name: Some(self.owner.name.clone()),
                },
                slice: job.spec.slice.clone(),
                engine: None,
                slices: SliceBounds {
                    min: i64::from(bounds.min),
                    max: i64::from(bounds.max),
                },
                ttl_seconds: job.spec.lease.ttl_seconds,
                renewal: Renewal::Automatic,
                keep_seconds: None,
            },
        );
        lease.metadata.owner_references = Some(vec![self.owner.clone()]);
        lease
    }

    /// Deletes this lease. Succeeds if it does not exist.
    async fn delete_lease(&self, lease: &VramLease) -> Result<(), WriteError> {
        let deleted = objects::delete_exactly(&self.leases, lease, DeleteParams::default()).await;
        deleted.map_err(api("delete the VramLease"))
    }

    /// Deletes the lease of the job if it is `known`, else all of the job's leases.
    pub async fn delete_leases(&self, known: Option<&VramLease>) -> Result<(), WriteError> {
        match known {
            Some(lease) => self.delete_lease(lease).await,
            None => self.delete_all_leases().await,
        }
    }

    /// Deletes all leases of the job, whatever their names, because the status may not name the lease any more, or not yet.
    pub async fn delete_all_leases(&self) -> Result<(), WriteError> {
        let leases = self.leases.list(&ListParams::default()).await.map_err(api("list the VramLeases"))?;
        for lease in &leases {
            if lease.owner_references().iter().any(|owner| owner.uid == self.owner.uid) {
                self.delete_lease(lease).await?;
            }
        }
        Ok(())
    }

    /// Writes the lease's status, which contains the coordinator's term. Returns the lease's generation, or `None` if the lease does not
    /// exist.
    pub async fn write_lease_status(&self, name: &str, status: &VramLeaseStatus) -> Result<Option<i64>, WriteError> {
        match objects::write_status(&self.leases, name, None, status).await {
            Ok(written) => Ok(written.metadata.generation),
            Err(error) if code(&error) == 404 => Ok(None),
            Err(error) => Err(api("write the VramLease's status")(error)),
        }
    }

    /// Reads the checkpoint's ConfigMap and its resource version, if it exists.
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

    /// Writes the checkpoint over resource version `version`, or as a new ConfigMap. Returns the new resource version.
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

    pub async fn delete_job(&self, job: &BurstJob) -> Result<(), WriteError> {
        let deleted = objects::delete_exactly(&self.jobs, job, DeleteParams::background()).await;
        deleted.map_err(api("delete the job"))
    }

    /// The creator of an object with one of the job's names. Objects that no `BurstJob` of this name controls must not be changed.
    fn whose<K: Resource>(&self, object: &K) -> Whose {
        let owners = object.owner_references();
        if owners.iter().any(|owner| owner.uid == self.owner.uid) {
            return Whose::Ours;
        }
        let made = |owner: &OwnerReference| {
            owner.controller == Some(true)
                && owner.kind == self.owner.kind
                && owner.name == self.owner.name
                && owner.api_version.split('/').next() == self.owner.api_version.split('/').next()
        };
        if owners.iter().any(made) {
            Whose::Predecessors
        } else {
            Whose::Others
        }
    }
}
