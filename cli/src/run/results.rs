//! Finished bursts as scripts want them: objects, and the results of their chunks.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use sahasra_crds::BurstJob;
use serde_json::{Value, json};

/// Key of the results in the ConfigMap that the status names.
const CSV: &str = "results.csv";

/// Why the results of chunks cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The job has none.
    #[error("{0} has no results")]
    None(String),
    /// They stand elsewhere.
    #[error("the results of {name} stand in {url}")]
    Elsewhere {
        /// The job.
        name: String,
        /// The list of their segments.
        url: String,
    },
    /// The ConfigMap is gone or has none.
    #[error("{0} has no {CSV}: they are too large for one, or gone with the job's ttlSecondsAfterFinished")]
    Missing(String),
    /// The API did not answer.
    #[error("the results cannot be read")]
    Api(#[source] Box<kube::Error>),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// `results.csv` of a finished job.
///
/// # Errors
/// [`ResultsError`].
pub async fn csv(client: &Client, job: &BurstJob) -> Result<String, ResultsError> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let results = job.status.as_ref().and_then(|status| status.results.as_ref());
    if let Some(url) = results.and_then(|results| results.url.clone()) {
        return Err(ResultsError::Elsewhere { name, url });
    }
    let Some(config_map) = results.and_then(|results| results.config_map.as_ref()) else {
        return Err(ResultsError::None(name));
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), job.metadata.namespace.as_deref().unwrap_or_default());
    let found = config_maps
        .get_opt(config_map)
        .await
        .map_err(|error| ResultsError::Api(Box::new(error)))?;
    let csv = found.and_then(|found| found.data?.remove(CSV));
    csv.ok_or_else(|| ResultsError::Missing(format!("ConfigMap {config_map}")))
}

/// The jobs as `kubectl get -o json` gives them: one as itself, several as a list.
pub fn objects(jobs: &[&BurstJob]) -> Value {
    let mut items: Vec<Value> = jobs.iter().map(|job| object(job)).collect();
    if items.len() == 1 {
        return items.remove(0);
    }
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

fn object(job: &BurstJob) -> Value {
    let mut job = (*job).clone();
    job.metadata.managed_fields = None;
    let mut object = serde_json::to_value(job).unwrap_or_default();
    write_whole_numbers(&mut object);
    object
}

/// An API server writes 32, not 32.0.
fn write_whole_numbers(value: &mut Value) {
    /// Every whole number below is exact in a double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < EXACT);
            if let Some(whole) = exact {
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        _ => {}
    }
}

/// Writes NAME.json and, where there is one, NAME.csv.
///
/// # Errors
/// [`ResultsError::Write`].
pub fn keep(folder: &Path, job: &BurstJob, csv: Option<&str>) -> Result<(), ResultsError> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let write = |path: PathBuf, text: &str| std::fs::write(&path, text).map_err(|source| ResultsError::Write { path, source });
    std::fs::create_dir_all(folder).map_err(|source| ResultsError::Write {
        path: folder.to_owned(),
        source,
    })?;
    write(folder.join(format!("{name}.json")), &format!("{:#}\n", object(job)))?;
    match csv {
        Some(csv) => write(folder.join(format!("{name}.csv")), csv),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_written_as_an_api_server_writes_them() {
        let mut value = json!({"a": [32.0, 0.5, -1.0, 3], "b": {"c": 1e300, "d": "1.0"}});
        write_whole_numbers(&mut value);
        assert_eq!(value.to_string(), r#"{"a":[32,0.5,-1,3],"b":{"c":1e+300,"d":"1.0"}}"#);
    }
}
