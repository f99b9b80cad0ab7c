//! Results of finished bursts for scripts: BurstJob objects, and the results of their chunks.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use sahasra_crds::{BurstJob, burst_job::KeptResults, yaml::whole};
use sahasra_operator::burst::results_store::FAILED_CSV;
use sahasra_results::{CSV, Table, TableError};
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
pub(super) enum ResultsError {
    #[error("{0} has no results")]
    None(String),
    #[error("the results of {0} are not kept: results: All in its spec keeps them")]
    NotKept(String),
    #[error("the results of {name} are stored in {url}, not in its ConfigMap: docs/results.md describes how to read them from there")]
    Elsewhere { name: String, url: String },
    #[error("results of {name} not found: its ConfigMap {config_map} was deleted, as with the job's ttlSecondsAfterFinished")]
    Gone { name: String, config_map: String },
    #[error("ConfigMap {config_map} does not hold the results")]
    Damaged { config_map: String, source: TableError },
    #[error("the results of {0} were deleted with the job: its ttlSecondsAfterFinished expired before they could be read")]
    Job(String),
    #[error("failed to read the results")]
    Api(#[source] Box<kube::Error>),
}

/// Lines of the results of a finished job, formatted one at a time.
pub(super) type Lines = Box<dyn Iterator<Item = String>>;

/// Returns the results of a finished job as lines, header first: of the chunks that succeeded, or with `results: Failed` of those that
/// failed.
pub(super) async fn lines(client: &Client, job: &BurstJob) -> Result<Lines, ResultsError> {
    let name = job.metadata.name.clone().unwrap_or_default();
    if job.spec.results == KeptResults::None {
        return Err(ResultsError::NotKept(name));
    }
    let results = job.status.as_ref().and_then(|status| status.results.as_ref());
    if let Some(url) = results.and_then(|results| results.url.clone()) {
        return Err(ResultsError::Elsewhere { name, url });
    }
    let Some(config_map) = results.and_then(|results| results.config_map.clone()) else {
        return Err(ResultsError::None(name));
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), job.metadata.namespace.as_deref().unwrap_or_default());
    let found = config_maps
        .get_opt(&config_map)
        .await
        .map_err(|error| ResultsError::Api(Box::new(error)))?;
    let Some(found) = found else {
        return Err(ResultsError::Gone { name, config_map });
    };
    let mut texts = found.data.unwrap_or_default();
    if job.spec.results == KeptResults::Failed {
        let failed = texts.remove(FAILED_CSV).ok_or(ResultsError::None(name))?;
        return Ok(Box::new(std::iter::once(failed)));
    }
    if let Some(csv) = texts.remove(CSV) {
        return Ok(Box::new(std::iter::once(csv)));
    }
    // The text was too long for the ConfigMap, which has the records in any case.
    let binary_data = found.binary_data.unwrap_or_default().into_iter();
    let table = Table::of(&job.spec, binary_data.map(|(key, bytes)| (key, bytes.0)).collect());
    let table = table.map_err(|source| ResultsError::Damaged { config_map, source })?;
    Ok(Box::new(table.into_iter()))
}

/// Returns the jobs in the form of `kubectl get -o json`: a single job as itself, several as a `List`.
pub(super) fn objects(jobs: &[&BurstJob]) -> Value {
    let mut items: Vec<Value> = jobs.iter().map(|job| object(job)).collect();
    if items.len() == 1 {
        return items.remove(0);
    }
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

pub(super) fn object(job: &BurstJob) -> Value {
    let mut job = (*job).clone();
    job.metadata.managed_fields = None;
    let mut object = serde_json::to_value(job).unwrap_or_default();
    write_whole_numbers(&mut object);
    object
}

/// Replaces whole floating-point numbers by integers, since an API server writes 32 and not 32.0.
fn write_whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = whole(number) {
                *value = Value::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        _ => {}
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
