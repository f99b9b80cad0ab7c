//! Object stores for results, opened with the job's own credentials only.
//!
//! A job names a folder by URL and a Secret of its namespace with settings for it. [`open`] makes a store of the two; the
//! agent writes [`segment`]s there, the operator checkpoints. The process has rights of its own (an
//! instance role, a workload identity, files): settings that would use them are rejected, and a job without credentials
//! is anonymous. The same holds for the process's place in the network: requests go to the clouds' own stores and to
//! [`endpoints`] that the administrator allows.

use std::{
    collections::BTreeMap,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use object_store::{
    ClientOptions, GetResult, ObjectStore, ObjectStoreScheme, RetryConfig,
    aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder,
    client::{HttpClient, HttpConnector, HttpError},
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    path::Path,
    prefix::PrefixStore,
};
use url::Url;

mod args;
pub mod endpoints;
mod guard;
pub mod segment;

pub use args::StoreArgs;
pub use endpoints::{Endpoint, EndpointError, Endpoints, Forbidden};
use guard::Guard;

/// What the administrator of this process allows.
#[derive(Clone, Debug)]
pub struct StorePolicy {
    file_root: Option<PathBuf>,
    endpoints: Endpoints,
    connector: Connector,
}

impl Default for StorePolicy {
    fn default() -> Self {
        Self::new(None, Endpoints::default())
    }
}

/// Makes the HTTP clients of all stores that are opened with one policy.
#[derive(Clone, Debug)]
struct Connector(Arc<dyn HttpConnector>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.0.connect(options)
    }
}

impl StorePolicy {
    /// Files below `file_root`, nowhere when absent; and over the network the clouds' own stores and `endpoints`.
    pub fn new(file_root: Option<PathBuf>, endpoints: Endpoints) -> Self {
        let connector = Arc::new(Guard::new(endpoints.clone()));
        Self {
            file_root,
            ..Self::over(endpoints, connector)
        }
    }

    /// No files; requests to the clouds' own stores and to `endpoints` go through `connector`, where the network is not the process's own.
    pub fn over(endpoints: Endpoints, connector: Arc<dyn HttpConnector>) -> Self {
        Self {
            file_root: None,
            endpoints,
            connector: Connector(connector),
        }
    }

    /// `file://` URLs are allowed below this folder, which is made when missing; nowhere when absent.
    pub fn file_root(&self) -> Option<&FilePath> {
        self.file_root.as_deref()
    }
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text is no URL.
    #[error("store URL {url:?} cannot be read")]
    Url {
        /// The text.
        url: String,
        /// Why.
        source: url::ParseError,
    },
    /// No kind of store has such URLs.
    #[error("store URL {0:?} is none of s3://, gs://, az:// or file://")]
    Scheme(String),
    /// A file outside the allowed folder.
    #[error(
        "file stores are not allowed here, or not in {0:?}: --file-store-root (fileStore in the chart's values) is the folder below which they are"
    )]
    FileNotAllowed(String),
    /// The URL names a folder where an object is wanted.
    #[error("store URL {0:?} names no object")]
    NoObject(String),
    /// A setting that is unknown or would use rights that are not the job's.
    #[error("store setting {0:?} is unknown or not a job's to use")]
    Setting(String),
    /// A setting names an endpoint that the administrator does not allow.
    #[error("store setting {setting:?}: {forbidden}")]
    Endpoint {
        /// Name of the setting.
        setting: String,
        /// Why the endpoint is not allowed.
        forbidden: Forbidden,
    },
    /// A setting that should be a URL, or hold one, cannot be read.
    #[error("store setting {0:?} cannot be read")]
    Unreadable(String),
    /// The store's own refusal.
    #[error("store cannot be opened")]
    Store(#[from] object_store::Error),
    /// The folder cannot be made, or the file not be found.
    #[error("file or folder cannot be reached")]
    Folder(#[from] std::io::Error),
}

/// Settings of a job for S3, lowercase and without `aws_`.
const S3_SETTINGS: &[&str] = &[
    "access_key_id",
    "secret_access_key",
    "session_token",
    "token",
    "region",
    "default_region",
    "endpoint",
    "endpoint_url",
    "allow_http",
    "virtual_hosted_style_request",
    "unsigned_payload",
    "checksum_algorithm",
    "skip_signature",
    "disable_tagging",
    "request_payer",
    "server_side_encryption",
    "sse_kms_key_id",
    "sse_bucket_key_enabled",
    "sse_customer_key_base64",
];

/// For Google Cloud Storage, without `google_`.
const GCS_SETTINGS: &[&str] = &["service_account_key", "bearer_token", "base_url", "allow_http", "skip_signature"];

/// For Azure, without `azure_` and `storage_`.
const AZURE_SETTINGS: &[&str] = &[
    "account_name",
    "account_key",
    "access_key",
    "sas_key",
    "sas_token",
    "bearer_token",
    "token",
    "client_id",
    "client_secret",
    "tenant_id",
    "authority_id",
    "endpoint",
    "use_emulator",
    "allow_http",
    "skip_signature",
    "disable_tagging",
];

/// Gives up well before a burst's results pile up: what is not written then is reported and tried again later.
fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

/// The settings with their prefixes off, each one known.
fn checked(options: &BTreeMap<String, String>, prefixes: &[&str], known: &[&str]) -> Result<BTreeMap<String, String>, OpenError> {
    let mut settings = BTreeMap::new();
    for (key, value) in options {
        let lowercase = key.to_ascii_lowercase();
        let mut name = lowercase.as_str();
        for prefix in prefixes {
            name = name.strip_prefix(prefix).unwrap_or(name);
        }
        if !known.contains(&name) {
            return Err(OpenError::Setting(key.clone()));
        }
        settings.insert(name.to_owned(), value.clone());
    }
    Ok(settings)
}

/// Each endpoint that the settings name is allowed: found here it is told with its setting, before anything is asked of it.
fn check_endpoints(endpoints: &Endpoints, settings: &BTreeMap<String, String>) -> Result<(), OpenError> {
    let check = |setting: &str, text: &str| {
        let url = Url::parse(text).map_err(|_| OpenError::Unreadable(setting.to_owned()))?;
        endpoints.check(&url).map_err(|forbidden| OpenError::Endpoint {
            setting: setting.to_owned(),
            forbidden,
        })
    };
    for setting in ["endpoint", "endpoint_url", "base_url"] {
        if let Some(text) = settings.get(setting) {
            check(setting, text)?;
        }
    }
    if let Some(key) = settings.get("service_account_key") {
        let setting = "service_account_key";
        let key: ServiceAccount = serde_json::from_str(key).map_err(|_| OpenError::Unreadable(setting.to_owned()))?;
        if let Some(text) = key.gcs_base_url {
            check(setting, &text)?;
        }
    }
    if settings.get("use_emulator").is_some_and(|value| value != "false") {
        check("use_emulator", EMULATOR)?;
    }
    Ok(())
}

/// Where `object_store` expects Azure's emulator.
const EMULATOR: &str = "http://127.0.0.1:10000";

/// What is of interest here of a Google service account's key.
#[derive(serde::Deserialize)]
struct ServiceAccount {
    gcs_base_url: Option<String>,
}

/// A description of a store's error for the job's user. Without the store's own text, which may hold data that only this process can read.
pub fn summary(error: &object_store::Error) -> String {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => "there is no such object or bucket".to_owned(),
        Error::PermissionDenied { .. } => "the store refuses: check the rights of the keys in the Secret".to_owned(),
        Error::Unauthenticated { .. } => "the store does not know the keys: check the Secret".to_owned(),
        other => {
            let causes = std::iter::successors(Some(other as &(dyn std::error::Error + 'static)), |error| error.source());
            for cause in causes {
                if let Some(forbidden) = cause.downcast_ref::<Forbidden>() {
                    return forbidden.to_string();
                }
                if let Some(object_store::client::HttpErrorKind::Connect) = cause.downcast_ref::<HttpError>().map(HttpError::kind) {
                    return "the store cannot be reached: check its endpoint".to_owned();
                }
                if let Some(object_store::client::HttpErrorKind::Timeout) = cause.downcast_ref::<HttpError>().map(HttpError::kind) {
                    return "the store did not answer in time".to_owned();
                }
                if let Some(error) = cause.downcast_ref::<std::io::Error>() {
                    return error.to_string();
                }
            }
            // The guard leaves no text of the store's in it.
            other.to_string()
        }
    }
}

/// The bytes of an object, of which there are `most` or fewer: a store that sends more than it said is cut off.
///
/// # Errors
/// What the store reports; an error without a source for what is longer.
pub async fn bytes_within(found: GetResult, most: u64) -> Result<Bytes, object_store::Error> {
    let mut stream = found.into_stream();
    let mut bytes = BytesMut::new();
    while let Some(piece) = stream.try_next().await? {
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(object_store::Error::Generic {
                store: "store",
                source: format!("the store sent more than the {most} bytes that it announced").into(),
            });
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

/// Opens the folder that `url` names with the job's `options`: names of objects are relative to it.
///
/// # Errors
/// [`OpenError`]. Whether the rights suffice shows at the first use.
pub fn open(policy: &StorePolicy, url: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn ObjectStore>, OpenError> {
    // The HTTP client asks the process for its TLS provider; an error says that it has one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    open_parsed(policy, &parse(url)?, options, Missing::Make)
}

/// Opens the folder of the object that `url` names, for reading: the folder, and the object's name in it.
///
/// # Errors
/// As [`open`]; and when a `file://` folder does not exist.
pub fn open_object(policy: &StorePolicy, url: &str, options: &BTreeMap<String, String>) -> Result<(Arc<dyn ObjectStore>, Path), OpenError> {
    let mut folder = parse(url)?;
    let whole = Path::from_url_path(folder.path()).map_err(object_store::Error::from)?;
    let name = whole.filename().ok_or_else(|| OpenError::NoObject(url.to_owned()))?.to_owned();
    // Only ever shorter: what the policy allows for the folder it allows for what lies in it.
    folder
        .path_segments_mut()
        .map_err(|()| OpenError::Scheme(url.to_owned()))?
        .pop_if_empty()
        .pop();
    let store = open_parsed(policy, &folder, options, Missing::Refuse)?;
    // Other writers of a shared folder can place a symbolic link there, to files that only this process may read.
    if let (Ok(file), Some(root)) = (parse(url)?.to_file_path(), policy.file_root())
        && folder.scheme() == "file"
        && !file.canonicalize()?.starts_with(root.canonicalize()?)
    {
        return Err(OpenError::FileNotAllowed(folder.path().to_owned()));
    }
    Ok((store, Path::from(name)))
}

fn parse(url: &str) -> Result<Url, OpenError> {
    Url::parse(url).map_err(|source| OpenError::Url {
        url: url.to_owned(),
        source,
    })
}

/// What becomes of a `file://` folder that does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Refuse,
}

fn open_parsed(
    policy: &StorePolicy,
    parsed: &Url,
    options: &BTreeMap<String, String>,
    missing: Missing,
) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let url = parsed.as_str();
    let scheme = || OpenError::Scheme(url.to_owned());
    let (kind, folder) = ObjectStoreScheme::parse(parsed).map_err(|_| scheme())?;
    match kind {
        ObjectStoreScheme::Local => open_folder(policy, parsed, missing),
        ObjectStoreScheme::AmazonS3 => {
            let settings = checked(options, &["aws_"], S3_SETTINGS)?;
            check_endpoints(&policy.endpoints, &settings)?;
            let mut builder = AmazonS3Builder::new().with_url(url).with_retry(retries());
            builder = builder.with_http_connector(policy.connector.clone());
            for (name, value) in &settings {
                builder = builder.with_config(name.parse()?, value);
            }
            if !settings.contains_key("access_key_id") {
                builder = builder.with_skip_signature(true);
            }
            Ok(Arc::new(PrefixStore::new(builder.build()?, folder)))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let settings = checked(options, &["google_"], GCS_SETTINGS)?;
            check_endpoints(&policy.endpoints, &settings)?;
            let mut builder = GoogleCloudStorageBuilder::new().with_url(url).with_retry(retries());
            builder = builder.with_http_connector(policy.connector.clone());
            for (name, value) in &settings {
                builder = builder.with_config(name.parse()?, value);
            }
            if !settings.contains_key("service_account_key") && !settings.contains_key("bearer_token") {
                builder = builder.with_skip_signature(true);
            }
            Ok(Arc::new(PrefixStore::new(builder.build()?, folder)))
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let settings = checked(options, &["azure_", "storage_"], AZURE_SETTINGS)?;
            check_endpoints(&policy.endpoints, &settings)?;
            let mut builder = MicrosoftAzureBuilder::new().with_url(url).with_retry(retries());
            builder = builder.with_http_connector(policy.connector.clone());
            for (name, value) in &settings {
                builder = builder.with_config(name.parse()?, value);
            }
            let rights = [
                "account_key",
                "access_key",
                "sas_key",
                "sas_token",
                "bearer_token",
                "token",
                "client_secret",
            ];
            if !rights.iter().any(|right| settings.contains_key(*right)) {
                builder = builder.with_skip_signature(true);
            }
            Ok(Arc::new(PrefixStore::new(builder.build()?, folder)))
        }
        _ => Err(scheme()),
    }
}

fn open_folder(policy: &StorePolicy, url: &Url, missing: Missing) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let refused = || OpenError::FileNotAllowed(url.path().to_owned());
    let root = policy.file_root().ok_or_else(refused)?;
    std::fs::create_dir_all(root)?;
    let root = root.canonicalize()?;
    let wanted = url.to_file_path().map_err(|()| refused())?;
    // The URL parser has resolved `..`; a link below the root must lead to within it.
    let below = wanted
        .strip_prefix(&root)
        .or_else(|_| wanted.strip_prefix(policy.file_root().unwrap_or(&root)))
        .map_err(|_| refused())?;
    let folder = root.join(below);
    let existing = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&root);
    if !existing.canonicalize()?.starts_with(&root) {
        return Err(refused());
    }
    if missing == Missing::Make {
        std::fs::create_dir_all(&folder)?;
    }
    let store = LocalFileSystem::new_with_prefix(&folder)?;
    Ok(Arc::new(PrefixStore::new(store, Path::default())))
}

#[cfg(test)]
mod tests;
