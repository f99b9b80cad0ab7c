//! Fetches the objects that a spec refers to: PTX, inputs, and the settings of the store. All sizes are limited.
//!
//! 1. [`survey`] reads the Secret, and the sizes of the objects in stores. It reads nothing large.
//! 2. [`Survey::read`] reads the ConfigMaps. The versions of all referenced objects are known then: [`References::version`].
//! 3. [`References::fetch`] reads the objects in stores, several at a time.
//!
//! An object that several arguments refer to is fetched and kept once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, ResourceExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, path::Path};
use sahasra_crds::{
    MAX_CONFIG_MAP_BYTES,
    burst_job::{
        ArgumentChoice, BurstJobSpec, BytesChoice, BytesSource, PtxChoice, PtxSource,
        kernel::{ConfigMapKeyReference, MAX_INPUT_BYTES, MAX_PTX_BYTES},
    },
};
use sahasra_parameters::NotOne;
use sahasra_service::causes;
use sahasra_store::{StorePolicy, summary};
use sha2::{Digest, Sha256};

/// Maximum number of concurrent requests to a store for one job.
const REQUESTS: usize = 4;

/// The content of everything that the spec refers to.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub ptx: Bytes,
    /// Bytes of each argument that has any; empty for other arguments.
    pub inputs: Vec<Bytes>,
    pub store_options: BTreeMap<String, String>,
}

/// An error in the spec, or in an object that it refers to; the user must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Invalid {
    pub path: String,
    /// Reason of the condition, in CamelCase.
    pub reason: &'static str,
    /// The problem and its remedy.
    pub message: String,
}

/// Reasons why an object that the spec refers to is not available.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The object does not exist or is not valid.
    #[error(transparent)]
    Missing(Invalid),
    #[error("failed to read {path}")]
    Api { path: String, source: kube::Error },
}

impl ObserveError {
    pub fn category(&self) -> &'static str {
        match self {
            Self::Missing(_) => "reference",
            Self::Api { .. } => "api",
        }
    }
}

/// Place of bytes that the spec refers to.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Text(&'a str),
    Base64(&'a str),
    Key(&'a ConfigMapKeyReference),
    Url(&'a str),
}

/// Bytes that the spec refers to, and the field with the reference.
#[derive(Clone, Debug)]
struct Wanted<'a> {
    path: String,
    place: Place<'a>,
}

fn of_ptx(source: &PtxSource) -> Result<Wanted<'_>, ObserveError> {
    let path = "spec.kernel.ptx";
    let choice = source.choice().map_err(|error| not_one(path, error))?;
    let place = match choice {
        PtxChoice::Inline(text) => Place::Text(text),
        PtxChoice::ConfigMapKeyRef(reference) => Place::Key(reference),
        PtxChoice::Url(url) => Place::Url(url),
    };
    let path = format!("{path}.{}", choice.name());
    Ok(Wanted { path, place })
}

fn of_bytes<'a>(path: &str, source: &'a BytesSource) -> Result<Wanted<'a>, ObserveError> {
    let choice = source.choice().map_err(|error| not_one(path, error))?;
    let place = match choice {
        BytesChoice::Base64(text) => Place::Base64(text),
        BytesChoice::ConfigMapKeyRef(reference) => Place::Key(reference),
        BytesChoice::Url(url) => Place::Url(url),
    };
    let path = format!("{path}.{}", choice.name());
    Ok(Wanted { path, place })
}

/// The bytes that an argument refers to, and their path within it.
fn bytes_of(argument: ArgumentChoice<'_>) -> Option<(&BytesSource, &'static str)> {
    match argument {
        ArgumentChoice::Input(input) => Some((&input.from, "input.from")),
        ArgumentChoice::Constant(source) => Some((source, "constant")),
        ArgumentChoice::Output(_) | ArgumentChoice::Parameter(_) | ArgumentChoice::ChunkIndex(_) | ArgumentChoice::Scalar(_) => None,
    }
}

/// The sizes of the referenced objects, and the settings for reading them.
#[derive(Debug)]
pub struct Survey<'a> {
    stores: &'a StorePolicy,
    config_maps: Api<ConfigMap>,
    store_options: BTreeMap<String, String>,
    /// UID and resource version of the Secret.
    secret: String,
    ptx: Wanted<'a>,
    /// Indexed by argument.
    inputs: Vec<Option<Wanted<'a>>>,
    objects: BTreeMap<&'a str, ObjectMeta>,
}

/// Reads the Secret, and the sizes and versions of the objects in stores.
///
/// # Errors
/// [`ObserveError`] if an object is not available, or the PTX or the inputs are too large.
pub async fn survey<'a>(
    client: &Client,
    stores: &'a StorePolicy,
    namespace: &str,
    spec: &'a BurstJobSpec,
) -> Result<Survey<'a>, ObserveError> {
    let (store_options, secret) = match spec.output.as_ref().and_then(|output| output.store.secret_ref.as_ref()) {
        Some(reference) => read_secret(&Api::namespaced(client.clone(), namespace), &reference.name).await?,
        None => Default::default(),
    };
    if let Some(output) = &spec.output {
        let opened = sahasra_store::open(stores, &output.store.url, &store_options);
        opened.map_err(|error| missing("spec.output.store", "InvalidStore", causes(&error)))?;
    }
    let ptx = of_ptx(&spec.kernel.ptx)?;
    let inputs = spec.kernel.args.iter().enumerate().map(|(index, argument)| {
        let path = format!("spec.kernel.args[{index}]");
        let choice = argument.choice().map_err(|error| not_one(&path, error))?;
        bytes_of(choice)
            .map(|(source, field)| of_bytes(&format!("{path}.{field}"), source))
            .transpose()
    });
    let mut survey = Survey {
        stores,
        config_maps: Api::namespaced(client.clone(), namespace),
        store_options,
        secret,
        inputs: inputs.collect::<Result<_, _>>()?,
        ptx,
        objects: BTreeMap::new(),
    };
    let requests: Vec<_> = survey.urls().into_iter().map(|(url, path)| survey.head(url, path)).collect();
    survey.objects = stream::iter(requests).buffer_unordered(REQUESTS).try_collect().await?;
    survey.check_sizes(&BTreeMap::new())?;
    Ok(survey)
}

impl<'a> Survey<'a> {
    fn wanted(&self) -> impl Iterator<Item = &Wanted<'a>> {
        std::iter::once(&self.ptx).chain(self.inputs.iter().flatten())
    }

    /// Each URL once, with the first field that refers to it.
    fn urls(&self) -> BTreeMap<&'a str, String> {
        let mut urls = BTreeMap::new();
        for wanted in self.wanted() {
            if let Place::Url(url) = wanted.place {
                urls.entry(url).or_insert_with(|| wanted.path.clone());
            }
        }
        urls
    }

    /// Whether the spec refers to objects in a store.
    pub fn has_objects(spec: &BurstJobSpec) -> bool {
        let mut arguments = spec.kernel.args.iter().filter_map(|argument| bytes_of(argument.choice().ok()?));
        spec.kernel.ptx.url.is_some() || arguments.any(|(source, _)| source.url.is_some())
    }

    /// Maximum bytes of the referenced objects. Memory for them must be reserved before more is read.
    pub fn bytes(&self) -> u64 {
        let name = |wanted: &Wanted<'a>| match wanted.place {
            Place::Key(reference) => Some(reference.name.as_str()),
            Place::Url(_) | Place::Text(_) | Place::Base64(_) => None,
        };
        let config_maps: BTreeSet<&str> = self.wanted().filter_map(name).collect();
        // A ConfigMap that has not been read yet counts with its maximum.
        let bytes = (config_maps.len() * MAX_CONFIG_MAP_BYTES) as u64 + self.objects.values().map(|meta| meta.size).sum::<u64>();
        bytes.min(MAX_PTX_BYTES + MAX_INPUT_BYTES)
    }

    /// Opens an object with the job's own credentials, never with those of this process, which may read every Secret.
    fn open(&self, url: &str, path: &str) -> Result<(Arc<dyn ObjectStore>, Path), ObserveError> {
        let opened = sahasra_store::open_object(self.stores, url, &self.store_options);
        opened.map_err(|error| unreadable(path, causes(&error)))
    }

    async fn head(&self, url: &'a str, path: String) -> Result<(&'a str, ObjectMeta), ObserveError> {
        let (store, key) = self.open(url, &path)?;
        let meta = store.head(&key).await.map_err(|error| unreadable(&path, summary(&error)))?;
        Ok((url, meta))
    }

    async fn get(&self, url: &'a str, path: String) -> Result<(&'a str, Bytes), ObserveError> {
        let (store, key) = self.open(url, &path)?;
        let found = store.get(&key).await.map_err(|error| unreadable(&path, summary(&error)))?;
        if self.objects.get(url).is_none_or(|meta| meta.size != found.meta.size) {
            return Err(unreadable(&path, "the object was modified while it was read".to_owned()));
        }
        let most = found.meta.size;
        let bytes = sahasra_store::bytes_within(found, most).await;
        Ok((url, bytes.map_err(|error| unreadable(&path, summary(&error)))?))
    }

    /// Checks that neither PTX nor inputs are too large, as far as their sizes are known.
    fn check_sizes(&self, keys: &BTreeMap<(&str, &str), Bytes>) -> Result<(), ObserveError> {
        let size = |wanted: &Wanted<'_>| match wanted.place {
            Place::Text(text) => text.len() as u64,
            Place::Base64(text) => text.len() as u64 / 4 * 3,
            Place::Key(reference) => keys
                .get(&(reference.name.as_str(), reference.key.as_str()))
                .map_or(0, |bytes| bytes.len() as u64),
            Place::Url(url) => self.objects.get(url).map_or(0, |meta| meta.size),
        };
        let ptx = size(&self.ptx);
        if ptx > MAX_PTX_BYTES {
            let message = format!("the PTX has {ptx} bytes, more than {MAX_PTX_BYTES}");
            return Err(missing(&self.ptx.path, "InputTooLarge", message));
        }
        let mut total = 0u64;
        for wanted in self.inputs.iter().flatten() {
            total = total.saturating_add(size(wanted));
            if total > MAX_INPUT_BYTES {
                let message = format!("the inputs take more than {} MiB in all", MAX_INPUT_BYTES >> 20);
                return Err(missing(&wanted.path, "InputTooLarge", message));
            }
        }
        Ok(())
    }

    /// Reads the ConfigMaps, each once.
    ///
    /// # Errors
    /// [`ObserveError`] if a ConfigMap or key is not available, or the PTX or the inputs are too large.
    pub async fn read(self) -> Result<References<'a>, ObserveError> {
        let mut keys: BTreeMap<(&'a str, &'a str), Bytes> = BTreeMap::new();
        let mut version = Sha256::new();
        version.update(&self.secret);
        let mut names: BTreeMap<&'a str, Vec<(&'a str, String)>> = BTreeMap::new();
        for wanted in self.wanted() {
            if let Place::Key(reference) = wanted.place {
                names
                    .entry(&reference.name)
                    .or_default()
                    .push((&reference.key, wanted.path.clone()));
            }
        }
        for (name, wanted) in names {
            let path = &wanted[0].1;
            let Some(found) = self.config_maps.get_opt(name).await.map_err(api(path))? else {
                let message = format!("ConfigMap {name:?} not found in the job's namespace: create it");
                return Err(missing(&format!("{path}.name"), "ConfigMapNotFound", message));
            };
            version.update(version_of(&found));
            let binary = found
                .binary_data
                .into_iter()
                .flatten()
                .map(|(key, bytes)| (key, Bytes::from(bytes.0)));
            let text = found.data.into_iter().flatten().map(|(key, text)| (key, Bytes::from(text)));
            let content: BTreeMap<String, Bytes> = binary.chain(text).collect();
            for (key, path) in wanted {
                let Some(bytes) = content.get(key) else {
                    let message = format!("key {key:?} not found in ConfigMap {name:?}");
                    return Err(missing(&format!("{path}.key"), "ConfigMapKeyNotFound", message));
                };
                keys.insert((name, key), bytes.clone());
            }
        }
        self.check_sizes(&keys)?;
        for (url, meta) in &self.objects {
            let tag = (meta.size, &meta.e_tag, &meta.version, meta.last_modified);
            version.update(format!("{url} {tag:?}\n"));
        }
        let version = version.finalize().to_vec();
        Ok(References {
            survey: self,
            keys,
            version,
        })
    }
}

/// The content of the ConfigMaps, and the versions of all referenced objects.
#[derive(Debug)]
pub struct References<'a> {
    survey: Survey<'a>,
    keys: BTreeMap<(&'a str, &'a str), Bytes>,
    version: Vec<u8>,
}

impl<'a> References<'a> {
    /// Digest of the versions of all referenced objects. An equal digest means equal content.
    pub fn version(&self) -> &[u8] {
        &self.version
    }

    /// Reads the objects in stores, each once, and returns the content of everything.
    ///
    /// # Errors
    /// [`ObserveError`] if an object is not available.
    pub async fn fetch(self) -> Result<Observed, ObserveError> {
        let Self { survey, keys, .. } = self;
        let requests: Vec<_> = survey.urls().into_iter().map(|(url, path)| survey.get(url, path)).collect();
        let objects: BTreeMap<&str, Bytes> = stream::iter(requests).buffer_unordered(REQUESTS).try_collect().await?;
        let bytes = |wanted: &Wanted<'_>| match wanted.place {
            Place::Text(text) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            Place::Base64(text) => {
                let decoded: Result<ByteString, _> = serde_json::from_value(serde_json::Value::String(text.to_owned()));
                let wrong = |_| missing(&wanted.path, "InvalidSpec", "invalid data: expected standard base64".into());
                Ok(Bytes::from(decoded.map_err(wrong)?.0))
            }
            Place::Key(reference) => Ok(keys[&(reference.name.as_str(), reference.key.as_str())].clone()),
            Place::Url(url) => Ok(objects[url].clone()),
        };
        let inputs = survey
            .inputs
            .iter()
            .map(|wanted| wanted.as_ref().map_or_else(|| Ok(Bytes::new()), bytes));
        Ok(Observed {
            ptx: bytes(&survey.ptx)?,
            inputs: inputs.collect::<Result<_, _>>()?,
            store_options: survey.store_options.clone(),
        })
    }
}

impl Observed {
    /// Bytes of memory in use. Content that several arguments refer to counts once.
    pub fn bytes(&self) -> u64 {
        let all = std::iter::once(&self.ptx).chain(&self.inputs);
        let sizes: BTreeMap<*const u8, u64> = all.map(|bytes| (bytes.as_ptr(), bytes.len() as u64)).collect();
        sizes.values().sum()
    }
}

/// The settings in a Secret, and a text that identifies this version of it.
async fn read_secret(secrets: &Api<Secret>, name: &str) -> Result<(BTreeMap<String, String>, String), ObserveError> {
    let path = "spec.output.store.secretRef";
    let Some(found) = secrets.get_opt(name).await.map_err(api(path))? else {
        let message = format!("Secret {name:?} not found in the job's namespace: create it");
        return Err(missing(&format!("{path}.name"), "SecretNotFound", message));
    };
    let version = version_of(&found);
    let mut options = BTreeMap::new();
    for (key, value) in found.data.unwrap_or_default() {
        let text = String::from_utf8(value.0).map_err(|_| {
            let message = format!("the key {key:?} of Secret {name:?} is not text");
            missing(&format!("{path}.name"), "InvalidSecret", message)
        })?;
        options.insert(key, text.trim_end().to_owned());
    }
    Ok((options, version))
}

fn version_of<K: ResourceExt>(object: &K) -> String {
    format!("{:?} {:?}\n", object.uid(), object.resource_version())
}

fn api(path: &str) -> impl FnOnce(kube::Error) -> ObserveError {
    let path = path.to_owned();
    |source| ObserveError::Api { path, source }
}

fn not_one(path: &str, error: NotOne) -> ObserveError {
    missing(path, "InvalidSpec", error.to_string())
}

pub(super) fn unreadable(path: &str, message: String) -> ObserveError {
    missing(path, "StoreReadFailed", message)
}

fn missing(path: &str, reason: &'static str, message: String) -> ObserveError {
    let path = path.to_owned();
    ObserveError::Missing(Invalid { path, reason, message })
}
