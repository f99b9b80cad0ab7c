//! Object stores for results, opened with the job's own rights and nobody else's.
//!
//! A job names a folder by URL and a Secret of its namespace with settings for it. [`open`] makes a store of the two; the
//! agent writes [`segment`]s there, the operator checkpoints. Whatever runs on this machine has rights of its own (an
//! instance role, a workload identity, files): settings that would borrow them are refused, and a job that brings no
//! rights acts as anyone from outside would.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use object_store::{
    ObjectStore, ObjectStoreScheme, RetryConfig, aws::AmazonS3Builder, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem, path::Path, prefix::PrefixStore,
};
use url::Url;

pub mod segment;

/// What the one who runs this process allows.
#[derive(Clone, Debug, Default)]
pub struct StorePolicy {
    /// `file://` URLs are allowed below this folder, which is made when missing; nowhere when absent.
    pub file_root: Option<PathBuf>,
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
    #[error("file stores are not allowed here, or not in {0:?}")]
    FileNotAllowed(String),
    /// The URL names a folder where an object is wanted.
    #[error("store URL {0:?} names no object")]
    NoObject(String),
    /// A setting that is unknown or would use rights that are not the job's.
    #[error("store setting {0:?} is unknown or not a job's to use")]
    Setting(String),
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
    // Whoever can write to a shared folder can put a link there, to what only this process may read.
    if let (Ok(file), Some(root)) = (parse(url)?.to_file_path(), &policy.file_root)
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
            let mut builder = AmazonS3Builder::new().with_url(url).with_retry(retries());
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
            let mut builder = GoogleCloudStorageBuilder::new().with_url(url).with_retry(retries());
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
            let mut builder = MicrosoftAzureBuilder::new().with_url(url).with_retry(retries());
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
    let root = policy.file_root.as_deref().ok_or_else(refused)?;
    std::fs::create_dir_all(root)?;
    let root = root.canonicalize()?;
    let wanted = url.to_file_path().map_err(|()| refused())?;
    // The URL parser has resolved `..`; a link below the root must lead to within it.
    let below = wanted
        .strip_prefix(&root)
        .or_else(|_| wanted.strip_prefix(policy.file_root.as_deref().unwrap_or(&root)))
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
mod tests {
    use super::*;
    use object_store::{ObjectStoreExt, PutPayload};

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn settings_that_borrow_the_agents_rights_are_refused() {
        let policy = StorePolicy::default();
        for (url, key) in [
            ("s3://bucket/job", "aws_web_identity_token_file"),
            ("s3://bucket/job", "container_credentials_full_uri"),
            ("s3://bucket/job", "metadata_endpoint"),
            ("gs://bucket/job", "google_service_account_path"),
            ("gs://bucket/job", "application_credentials"),
            ("az://container/job", "azure_federated_token_file"),
            ("az://container/job", "use_azure_cli"),
            ("az://container/job", "msi_endpoint"),
        ] {
            let outcome = open(&policy, url, &settings(&[(key, "x")]));
            assert!(matches!(outcome, Err(OpenError::Setting(name)) if name == key), "{key}");
        }
    }

    #[test]
    fn a_store_without_rights_is_opened_as_a_stranger() {
        let store = open(&StorePolicy::default(), "s3://bucket/job", &settings(&[("region", "eu-1")])).unwrap();
        assert!(format!("{store:?}").contains("skip_signature: true"), "{store:?}");
        let keys = settings(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "eu-1")]);
        let store = open(&StorePolicy::default(), "s3://bucket/job", &keys).unwrap();
        assert!(format!("{store:?}").contains("skip_signature: false"), "{store:?}");
    }

    #[test]
    fn other_schemes_are_refused() {
        for url in ["http://169.254.169.254/latest", "memory:///", "ftp://host/path", "nonsense"] {
            let outcome = open(&StorePolicy::default(), url, &BTreeMap::new());
            assert!(matches!(outcome, Err(OpenError::Scheme(_) | OpenError::Url { .. })), "{url}");
        }
    }

    #[tokio::test]
    async fn an_object_is_read_below_the_root_alone_and_no_folder_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/input 1.bin"), b"mine").unwrap();
        std::fs::write(directory.path().join("token"), b"the operator's own").unwrap();
        std::os::unix::fs::symlink(directory.path().join("token"), root.join("a/link")).unwrap();
        let policy = StorePolicy {
            file_root: Some(root.clone()),
        };
        let nothing = BTreeMap::new();
        let url = |path: &str| format!("file://{}/{path}", root.display());

        let (store, name) = open_object(&policy, &url("a/input%201.bin"), &nothing).unwrap();
        assert_eq!(&store.get(&name).await.unwrap().bytes().await.unwrap()[..], b"mine");

        for outside in ["../token", "a/../../token", "%2e%2e/token"] {
            let outcome = open_object(&policy, &url(outside), &nothing);
            assert!(matches!(outcome, Err(OpenError::FileNotAllowed(_))), "{outside}");
        }
        assert!(open_object(&StorePolicy::default(), &url("a/input%201.bin"), &nothing).is_err());
        assert!(open_object(&policy, &url("absent/x"), &nothing).is_err());
        assert!(!root.join("absent").exists());
        assert!(matches!(open_object(&policy, "s3://bucket", &nothing), Err(OpenError::NoObject(_))));
        let (store, name) = open_object(&policy, "s3://bucket/job/kernel.ptx", &nothing).unwrap();
        assert_eq!((name.as_ref(), format!("{store:?}").contains("job")), ("kernel.ptx", true));

        assert!(matches!(
            open_object(&policy, &url("a/link"), &nothing),
            Err(OpenError::FileNotAllowed(_))
        ));
    }

    #[tokio::test]
    async fn files_stay_below_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let outside = directory.path().join("outside");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let policy = StorePolicy {
            file_root: Some(root.clone()),
        };
        let url = |path: &std::path::Path| format!("file://{}", path.display());
        let store = open(&policy, &url(&root.join("job")), &BTreeMap::new()).unwrap();
        store.put(&Path::from("a/b"), PutPayload::from_static(b"x")).await.unwrap();
        assert_eq!(std::fs::read(root.join("job/a/b")).unwrap(), b"x");
        for path in [outside.clone(), root.join("../outside"), root.join("link/job")] {
            assert!(matches!(
                open(&policy, &url(&path), &BTreeMap::new()),
                Err(OpenError::FileNotAllowed(_))
            ));
        }
        assert!(!outside.join("job").exists(), "nothing is made outside");
        let none = StorePolicy::default();
        assert!(open(&none, &url(&root), &BTreeMap::new()).is_err());
    }
}
