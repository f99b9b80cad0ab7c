//! The options of a process that opens stores.

use std::path::PathBuf;

use clap::Args;

use crate::{Endpoint, StorePolicy};

/// Which stores jobs may name.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// Folder below which jobs may name files and keep results under file:// URLs; nowhere when absent.
    #[arg(long, env = "SAHASRA_FILE_STORE_ROOT", value_name = "FOLDER")]
    pub file_store_root: Option<PathBuf>,
    /// Endpoint of stores that jobs may name beside the clouds' own, such as https://minio.storage.svc:9000, https://*.example.com or http://*:*; may be repeated. This machine, its links and metadata services must be named exactly.
    #[arg(
        long = "store-endpoint",
        env = "SAHASRA_STORE_ENDPOINTS",
        value_name = "ENDPOINT",
        value_delimiter = ','
    )]
    pub store_endpoints: Vec<Endpoint>,
}

impl StoreArgs {
    pub fn policy(&self) -> StorePolicy {
        StorePolicy::new(self.file_store_root.clone(), self.store_endpoints.iter().cloned().collect())
    }
}
