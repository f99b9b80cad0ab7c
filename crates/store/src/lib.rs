//! Object stores for results, opened with the job's own credentials only.
//!
//! A job names a directory by URL, and a Secret in its namespace with the settings for it. [`open`] opens a store from both. The agent
//! writes [`segment`]s to the store, the operator writes checkpoints. The process itself has credentials (an instance role, a workload
//! identity, local files), so settings that would use them are rejected, and a job without credentials is anonymous. The process's position
//! in the network is protected the same way: requests go only to the clouds' own stores and to [`endpoints`] that the administrator allows.

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
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind},
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

/// Stores that the administrator of this process allows.
#[derive(Clone, Debug)]
pub struct StorePolicy {
    /// Directory below which `file://` URLs are allowed, created if missing. Without it no `file://` URL is allowed.
    file_root: Option<PathBuf>,
    endpoints: Endpoints,
    connector: Connector,
}

impl Default for StorePolicy {
    fn default() -> Self {
        Self::new(None, Endpoints::default())
    }
}

/// Creates the HTTP clients of all stores that are opened with one policy.
#[derive(Clone, Debug)]
struct Connector(Arc<dyn HttpConnector>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.0.connect(options)
    }
}

impl StorePolicy {
    /// Allows files below `file_root` (no files if absent), and over the network the clouds' own stores and `endpoints`.
    pub fn new(file_root: Option<PathBuf>, endpoints: Endpoints) -> Self {
        let connector = Arc::new(Guard::new(endpoints.clone()));
        Self {
            file_root,
            ..Self::over(endpoints, connector)
        }
    }

    /// Allows no files; requests to the clouds' own stores and to `endpoints` go through `connector`, for tests and simulations that
    /// replace the network.
    pub fn over(endpoints: Endpoints, connector: Arc<dyn HttpConnector>) -> Self {
        Self {
            file_root: None,
            endpoints,
            connector: Connector(connector),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("invalid store URL {url:?}")]
    Url { url: String, source: url::ParseError },
    #[error("invalid store URL {0:?}: expected s3://, gs://, az:// or file://")]
    Scheme(String),
    #[error("invalid path in store URL {url:?}")]
    Path { url: String, source: object_store::path::Error },
    #[error(
        "file stores are not allowed ({0:?}): set --file-store-root (fileStore in the chart's values) to the folder that contains them"
    )]
    NoFiles(String),
    #[error("file stores are not allowed in {path:?}: they must be below {}, also where links lead, which --file-store-root sets (fileStore in the chart's values)", root.display())]
    FileNotAllowed { path: String, root: PathBuf },
    #[error("invalid store URL {0:?}: expected the name of an object")]
    NoObject(String),
    /// The setting is unknown, or would use credentials that are not the job's.
    #[error("store setting {0:?} is unknown or not allowed for jobs")]
    Setting(String),
    #[error("store setting {setting:?}: {forbidden}")]
    Endpoint { setting: String, forbidden: Forbidden },
    #[error("invalid store setting {0:?}")]
    Unreadable(String),
    #[error("failed to open the store")]
    Store(#[from] object_store::Error),
    #[error("failed to open {}: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
}

fn unreachable(path: &FilePath) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Folder { path, source }
}

/// Settings that a job may use for S3, in lowercase and without the prefix `aws_`.
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

/// Settings that a job may use for Google Cloud Storage, without the prefix `google_`.
const GCS_SETTINGS: &[&str] = &["service_account_key", "bearer_token", "base_url", "allow_http", "skip_signature"];

/// Settings that a job may use for Azure, without the prefixes `azure_` and `storage_`.
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

/// Settings that give a job rights on Azure.
const AZURE_RIGHTS: &[&str] = &[
    "account_key",
    "access_key",
    "sas_key",
    "sas_token",
    "bearer_token",
    "token",
    "client_secret",
];

/// Limits retries, so that an unreachable store fails long before a burst's results pile up. A failed write is reported and repeated later.
fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    }
}

/// The settings without their prefixes. Fails if a setting is unknown.
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

/// Checks that all endpoints in the settings are allowed. This check runs before any request, so that its error can name the setting.
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

/// Address at which `object_store` expects Azure's emulator.
const EMULATOR: &str = "http://127.0.0.1:10000";

/// Fields of a Google service account's key that contain endpoints.
#[derive(serde::Deserialize)]
struct ServiceAccount {
    gcs_base_url: Option<String>,
}

/// A description of a store's error for the job's user. Omits the store's own text, which may contain data that only this process can read.
pub fn summary(error: &object_store::Error) -> String {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => "object or bucket not found".to_owned(),
        Error::PermissionDenied { .. } => "the store denied access: check the rights of the keys in the Secret".to_owned(),
        Error::Unauthenticated { .. } => "the store rejected the keys: check the Secret".to_owned(),
        other => {
            let causes = std::iter::successors(Some(other as &(dyn std::error::Error + 'static)), |error| error.source());
            for cause in causes {
                if let Some(forbidden) = cause.downcast_ref::<Forbidden>() {
                    return forbidden.to_string();
                }
                match cause.downcast_ref::<HttpError>().map(HttpError::kind) {
                    Some(HttpErrorKind::Connect) => return "failed to connect to the store: check its endpoint".to_owned(),
                    Some(HttpErrorKind::Timeout) => return "the store timed out".to_owned(),
                    _ => {}
                }
                if let Some(error) = cause.downcast_ref::<std::io::Error>() {
                    return error.to_string();
                }
            }
            // [`Guard`] has removed the store's own text.
            other.to_string()
        }
    }
}

/// Reads an object of at most `most` bytes. Fails if the store sends more.
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

/// Opens the directory that `url` names, with the job's `options`. Names of objects are relative to it. A missing `file://` directory is
/// created. Whether the credentials suffice is known only after the first request.
pub fn open(policy: &StorePolicy, url: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn ObjectStore>, OpenError> {
    // The HTTP client uses the process-wide TLS provider. An error only means that one is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    open_parsed(policy, &parse(url)?, options, true)
}

/// Opens the directory of the object that `url` names, for reading. Returns the directory and the object's name in it. Fails if a `file://`
/// directory does not exist.
pub fn open_object(policy: &StorePolicy, url: &str, options: &BTreeMap<String, String>) -> Result<(Arc<dyn ObjectStore>, Path), OpenError> {
    let mut folder = parse(url)?;
    let whole = Path::from_url_path(folder.path()).map_err(object_store::Error::from)?;
    let name = whole.filename().ok_or_else(|| OpenError::NoObject(url.to_owned()))?.to_owned();
    // Removing the last segment shortens the path, so a policy that allows this directory also allows the object.
    folder
        .path_segments_mut()
        .map_err(|()| OpenError::Scheme(url.to_owned()))?
        .pop_if_empty()
        .pop();
    let store = open_parsed(policy, &folder, options, false)?;
    // Other writers of a shared directory can place a symbolic link there that points to files that only this process may read.
    if let (Ok(file), Some(root)) = (parse(url)?.to_file_path(), &policy.file_root)
        && folder.scheme() == "file"
        && !real(&file)?.starts_with(real(root)?)
    {
        return Err(OpenError::FileNotAllowed {
            path: folder.path().to_owned(),
            root: root.to_owned(),
        });
    }
    Ok((store, Path::from(name)))
}

fn parse(url: &str) -> Result<Url, OpenError> {
    Url::parse(url).map_err(|source| OpenError::Url {
        url: url.to_owned(),
        source,
    })
}

/// Opens a directory. With `creates`, a missing `file://` directory is created.
fn open_parsed(
    policy: &StorePolicy,
    parsed: &Url,
    options: &BTreeMap<String, String>,
    creates: bool,
) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let url = parsed.as_str();
    Path::from_url_path(parsed.path()).map_err(|source| OpenError::Path {
        url: url.to_owned(),
        source,
    })?;
    let (kind, folder) = ObjectStoreScheme::parse(parsed).map_err(|_| OpenError::Scheme(url.to_owned()))?;
    // The builder, the prefixes of the settings, all settings, and those without which requests are anonymous.
    macro_rules! built {
        ($builder:ident, $prefixes:expr, $known:expr, $rights:expr) => {{
            let settings = checked(options, $prefixes, $known)?;
            check_endpoints(&policy.endpoints, &settings)?;
            let mut builder = $builder::new().with_url(url).with_retry(retries());
            builder = builder.with_http_connector(policy.connector.clone());
            for (name, value) in &settings {
                builder = builder.with_config(name.parse()?, value);
            }
            if !$rights.iter().any(|right| settings.contains_key(*right)) {
                builder = builder.with_skip_signature(true);
            }
            Ok(Arc::new(PrefixStore::new(builder.build()?, folder)))
        }};
    }
    match kind {
        ObjectStoreScheme::Local => open_folder(policy, parsed, creates),
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder, &["aws_"], S3_SETTINGS, ["access_key_id"]),
        ObjectStoreScheme::GoogleCloudStorage => {
            built!(
                GoogleCloudStorageBuilder,
                &["google_"],
                GCS_SETTINGS,
                ["service_account_key", "bearer_token"]
            )
        }
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder, &["azure_", "storage_"], AZURE_SETTINGS, AZURE_RIGHTS),
        _ => Err(OpenError::Scheme(url.to_owned())),
    }
}

fn real(path: &FilePath) -> Result<PathBuf, OpenError> {
    path.canonicalize().map_err(unreachable(path))
}

fn open_folder(policy: &StorePolicy, url: &Url, creates: bool) -> Result<Arc<dyn ObjectStore>, OpenError> {
    let root = policy
        .file_root
        .as_deref()
        .ok_or_else(|| OpenError::NoFiles(url.path().to_owned()))?;
    let refused = || OpenError::FileNotAllowed {
        path: url.path().to_owned(),
        root: root.to_owned(),
    };
    std::fs::create_dir_all(root).map_err(unreachable(root))?;
    let real_root = real(root)?;
    let wanted = url.to_file_path().map_err(|()| refused())?;
    // The URL parser has resolved `..`. A symbolic link below the root must point to a path within the root.
    let below = wanted
        .strip_prefix(&real_root)
        .or_else(|_| wanted.strip_prefix(root))
        .map_err(|_| refused())?;
    let folder = real_root.join(below);
    let existing = folder.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&real_root);
    if !real(existing)?.starts_with(&real_root) {
        return Err(refused());
    }
    if creates {
        std::fs::create_dir_all(&folder).map_err(unreachable(&folder))?;
    } else if let Err(error) = std::fs::metadata(&folder) {
        return Err(unreachable(&folder)(error));
    }
    let store = LocalFileSystem::new_with_prefix(&folder)?;
    Ok(Arc::new(PrefixStore::new(store, Path::default())))
}

#[cfg(test)]
mod tests;
