//! Fetches what a spec refers to: PTX, inputs, the store's settings. All of it bounded.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client};
use object_store::ObjectStoreExt;
use sahasra_crds::burst_job::{BurstJobSpec, BytesSource, PtxSource, kernel::ConfigMapKeyReference};
use sahasra_service::causes;
use sahasra_store::StorePolicy;

/// Largest PTX read from a store, in bytes: what NVCC makes of a large library.
const MAX_PTX_BYTES: u64 = 8 << 20;
/// Largest input read from a store, in bytes: with the PTX it fits a frame to an agent.
const MAX_INPUT_BYTES: u64 = 48 << 20;

/// Everything that the spec refers to.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The PTX text.
    pub ptx: Bytes,
    /// For each argument that has bytes, those; else empty.
    pub inputs: Vec<Bytes>,
    /// Settings of the object store, from the Secret.
    pub store_options: BTreeMap<String, String>,
}

/// Why something that the spec refers to is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// It is not there, or not as it must be; the user must do something.
    #[error("{path}: {message}")]
    Missing {
        /// The field.
        path: String,
        /// CamelCase cause.
        reason: &'static str,
        /// What is wrong, and the remedy.
        message: String,
    },
    /// The API server did not answer.
    #[error("read {path}")]
    Api {
        /// The field.
        path: String,
        /// Why.
        source: kube::Error,
    },
}

impl ObserveError {
    /// Category for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "reference",
            Self::Api { .. } => "api",
        }
    }
}

/// Fetches all of it.
pub async fn observe(client: &Client, stores: &StorePolicy, namespace: &str, spec: &BurstJobSpec) -> Result<Observed, ObserveError> {
    let reader = Reader {
        stores,
        config_maps: Api::namespaced(client.clone(), namespace),
        secrets: Api::namespaced(client.clone(), namespace),
    };
    let store_options = match spec.output.as_ref().and_then(|output| output.store.secret_ref.as_ref()) {
        Some(reference) => reader.secret("spec.output.store.secretRef", &reference.name).await?,
        None => BTreeMap::new(),
    };
    if let Some(output) = &spec.output {
        let opened = sahasra_store::open(stores, &output.store.url, &store_options);
        opened.map_err(|error| missing("spec.output.store", "StoreInvalid", causes(&error)))?;
    }
    let ptx = reader.ptx(&spec.kernel.ptx, &store_options).await?;
    let mut inputs = Vec::with_capacity(spec.kernel.args.len());
    let mut total = 0;
    for (index, argument) in spec.kernel.args.iter().enumerate() {
        let path = format!("spec.kernel.args[{index}]");
        let bytes = match (&argument.input, &argument.constant) {
            (Some(input), _) => reader.bytes(&format!("{path}.input.from"), &input.from, &store_options).await?,
            (_, Some(source)) => reader.bytes(&format!("{path}.constant"), source, &store_options).await?,
            _ => Bytes::new(),
        };
        total += bytes.len() as u64;
        if total > MAX_INPUT_BYTES {
            return Err(missing(
                &path,
                "InputTooLarge",
                format!("the inputs take more than {} MiB in all", MAX_INPUT_BYTES >> 20),
            ));
        }
        inputs.push(bytes);
    }
    Ok(Observed {
        ptx,
        inputs,
        store_options,
    })
}

struct Reader<'a> {
    stores: &'a StorePolicy,
    config_maps: Api<ConfigMap>,
    secrets: Api<Secret>,
}

impl Reader<'_> {
    async fn ptx(&self, source: &PtxSource, options: &BTreeMap<String, String>) -> Result<Bytes, ObserveError> {
        let path = "spec.kernel.ptx";
        match (&source.inline, &source.config_map_key_ref, &source.url) {
            (Some(text), ..) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            (_, Some(reference), _) => self.config_map(&format!("{path}.configMapKeyRef"), reference).await,
            (_, _, Some(url)) => fetch(self.stores, &format!("{path}.url"), url, options, MAX_PTX_BYTES).await,
            _ => Err(missing(
                path,
                "InvalidSpec",
                "give exactly one of inline, configMapKeyRef, url".into(),
            )),
        }
    }

    async fn bytes(&self, path: &str, source: &BytesSource, options: &BTreeMap<String, String>) -> Result<Bytes, ObserveError> {
        match (&source.base64, &source.config_map_key_ref, &source.url) {
            (Some(text), ..) => {
                let decoded: Result<ByteString, _> = serde_json::from_value(serde_json::Value::String(text.clone()));
                let wrong = |_| missing(&format!("{path}.base64"), "InvalidSpec", "it is not standard base64".into());
                Ok(decoded.map_err(wrong)?.0.into())
            }
            (_, Some(reference), _) => self.config_map(&format!("{path}.configMapKeyRef"), reference).await,
            (_, _, Some(url)) => fetch(self.stores, &format!("{path}.url"), url, options, MAX_INPUT_BYTES).await,
            _ => Err(missing(
                path,
                "InvalidSpec",
                "give exactly one of base64, configMapKeyRef, url".into(),
            )),
        }
    }

    async fn config_map(&self, path: &str, reference: &ConfigMapKeyReference) -> Result<Bytes, ObserveError> {
        let found = self
            .config_maps
            .get_opt(&reference.name)
            .await
            .map_err(|source| ObserveError::Api {
                path: path.to_owned(),
                source,
            })?;
        let Some(found) = found else {
            let message = format!("there is no ConfigMap {:?} in the job's namespace: create it", reference.name);
            return Err(missing(&format!("{path}.name"), "ConfigMapMissing", message));
        };
        let text = found.data.and_then(|mut data| data.remove(&reference.key)).map(Bytes::from);
        let binary = found
            .binary_data
            .and_then(|mut data| data.remove(&reference.key))
            .map(|bytes| Bytes::from(bytes.0));
        text.or(binary).ok_or_else(|| {
            let message = format!("the ConfigMap {:?} has no key {:?}", reference.name, reference.key);
            missing(&format!("{path}.key"), "ConfigMapKeyMissing", message)
        })
    }

    async fn secret(&self, path: &str, name: &str) -> Result<BTreeMap<String, String>, ObserveError> {
        let found = self.secrets.get_opt(name).await.map_err(|source| ObserveError::Api {
            path: path.to_owned(),
            source,
        })?;
        let Some(found) = found else {
            let message = format!("there is no Secret {name:?} in the job's namespace: create it");
            return Err(missing(&format!("{path}.name"), "SecretMissing", message));
        };
        let mut options = BTreeMap::new();
        for (key, value) in found.data.unwrap_or_default() {
            let text = String::from_utf8(value.0).map_err(|_| {
                missing(
                    &format!("{path}.name"),
                    "InvalidSecret",
                    format!("the key {key:?} of Secret {name:?} is not text"),
                )
            })?;
            options.insert(key, text.trim_end().to_owned());
        }
        Ok(options)
    }
}

/// Reads an object with the job's own rights: never with this process's, which may read every Secret.
async fn fetch(stores: &StorePolicy, path: &str, url: &str, options: &BTreeMap<String, String>, limit: u64) -> Result<Bytes, ObserveError> {
    let failed = |error: object_store::Error| missing(path, "StoreUnreadable", error.to_string());
    let (store, key) =
        sahasra_store::open_object(stores, url, options).map_err(|error| missing(path, "StoreUnreadable", causes(&error)))?;
    let found = store.get(&key).await.map_err(failed)?;
    if found.meta.size > limit {
        let message = format!("the object has {} bytes, more than {limit}", found.meta.size);
        return Err(missing(path, "InputTooLarge", message));
    }
    found.bytes().await.map_err(failed)
}

fn missing(path: &str, reason: &'static str, message: String) -> ObserveError {
    ObserveError::Missing {
        path: path.to_owned(),
        reason,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_reads_no_file_that_is_only_this_process_s_to_read() {
        let directory = tempfile::tempdir().expect("a folder");
        let token = directory.path().join("token");
        std::fs::write(&token, "the operator's own").expect("written");
        let allowed = directory.path().join("results");
        std::fs::create_dir(&allowed).expect("made");
        let nothing = BTreeMap::new();
        for stores in [StorePolicy::default(), StorePolicy { file_root: Some(allowed) }] {
            let url = format!("file://{}", token.display());
            let outcome = fetch(&stores, "spec.kernel.ptx.url", &url, &nothing, MAX_PTX_BYTES).await;
            let Err(ObserveError::Missing { reason, message, .. }) = outcome else {
                panic!("it was read: {outcome:?}")
            };
            assert_eq!(reason, "StoreUnreadable");
            assert!(!message.contains("own"), "{message}");
        }
    }

    #[tokio::test]
    async fn an_object_below_the_shared_folder_is_read_up_to_the_limit() {
        let directory = tempfile::tempdir().expect("a folder");
        std::fs::write(directory.path().join("kernel.ptx"), "0123456789").expect("written");
        let stores = StorePolicy {
            file_root: Some(directory.path().to_owned()),
        };
        let url = format!("file://{}/kernel.ptx", directory.path().display());
        let read = fetch(&stores, "spec.kernel.ptx.url", &url, &BTreeMap::new(), 10)
            .await
            .expect("read");
        assert_eq!(&read[..], b"0123456789");
        let outcome = fetch(&stores, "spec.kernel.ptx.url", &url, &BTreeMap::new(), 9).await;
        assert!(
            matches!(
                outcome,
                Err(ObserveError::Missing {
                    reason: "InputTooLarge",
                    ..
                })
            ),
            "{outcome:?}"
        );
    }
}
