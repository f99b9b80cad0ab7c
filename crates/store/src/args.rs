//! The options of a process that opens stores.

use std::path::PathBuf;

use clap::Args;

use crate::{Endpoint, StorePolicy};

/// Stores that jobs may name.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// Folder in which jobs may read and write files by file:// URLs [default: none].
    #[arg(long, env = "SAHASRA_FILE_STORE_ROOT", value_name = "DIR")]
    pub file_store_root: Option<PathBuf>,
    /// Endpoint of stores that jobs may name in addition to those of the cloud providers, such as https://minio.storage.svc:9000, https://*.example.com or http://*:*; may be repeated. Local, link-local and metadata addresses must be given exactly.
    #[arg(long, env = "SAHASRA_ALLOWED_STORE_ENDPOINTS", value_name = "ENDPOINT", value_delimiter = ',')]
    pub allowed_store_endpoints: Vec<Endpoint>,
}

impl StoreArgs {
    pub fn policy(&self) -> StorePolicy {
        StorePolicy::new(self.file_store_root.clone(), self.allowed_store_endpoints.iter().cloned().collect())
    }
}
