//! Client of the gateway's REST API. Objects are passed to and from Python as JSON text.

use std::time::Duration;

use pyo3::{prelude::*, types::PyList};
use sahasra_client::{Error, Token, named};
use serde_json::Value;

use crate::failure::{raise, run, run_or_undo};

/// A gateway, or the API of `sahasra up`.
#[pyclass(frozen, module = "sahasra._native")]
pub(crate) struct Gateway(pub(crate) sahasra_client::Gateway);

/// Checks the argument `authority`, whether or not the connection will use TLS.
#[pyfunction]
pub(crate) fn check_authority(py: Python<'_>, authority: &str) -> PyResult<()> {
    sahasra_client::check_authorities(authority).map_err(|error| {
        let told = format!("argument `authority`: {error}: pass the text of a PEM file, not its path");
        raise(py, &Error::Configuration(told))
    })
}

fn spec(py: Python<'_>, text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| raise(py, &Error::Invalid(error.to_string())))
}

fn name_of(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

impl Gateway {
    /// Runs a request, and returns the object of its answer as JSON text.
    fn text<F>(&self, py: Python<'_>, request: impl FnOnce(sahasra_client::Gateway) -> F) -> PyResult<String>
    where
        F: Future<Output = Result<Value, Error>> + Send + 'static,
    {
        let request = request(self.0.clone());
        run(py, async move { request.await.map(|object| object.to_string()) })
    }
}

#[pymethods]
impl Gateway {
    #[new]
    #[pyo3(signature = (url, token=None, authority=None, server_name=None))]
    fn new(py: Python<'_>, url: &str, token: Option<&str>, authority: Option<&str>, server_name: Option<&str>) -> PyResult<Self> {
        let made = match token {
            Some(token) => sahasra_client::Gateway::new(url, Token::text(token), authority),
            None => sahasra_client::Gateway::find(url, authority),
        };
        let made = made.and_then(|gateway| match server_name {
            Some(server_name) => gateway.named(server_name),
            None => Ok(gateway),
        });
        made.map(Self).map_err(|error| raise(py, &error))
    }

    #[getter]
    fn url(&self) -> &str {
        self.0.url()
    }

    /// Warning about a token that is sent unencrypted.
    #[getter]
    fn exposure(&self) -> Option<String> {
        self.0.exposure()
    }

    fn workers(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, |gateway| async move { gateway.workers().await })
    }

    fn sessions(&self, py: Python<'_>, namespace: String) -> PyResult<String> {
        self.text(py, |gateway| async move { gateway.sessions(&namespace).await })
    }

    fn session(&self, py: Python<'_>, namespace: String, name: String) -> PyResult<String> {
        self.text(py, |gateway| async move { gateway.session(&namespace, &name).await })
    }

    fn create_session(&self, py: Python<'_>, namespace: String, name: Option<String>, text: &str) -> PyResult<String> {
        let spec = spec(py, text)?;
        let (gateway, undoing, there) = (self.0.clone(), self.0.clone(), namespace.clone());
        let made = run_or_undo(
            py,
            async move { gateway.create_session(&namespace, &named(name.as_deref(), "session"), &spec).await },
            |created| async move { undoing.delete_session(&there, name_of(&created)).await },
        );
        made.map(|made| made.to_string())
    }

    fn session_placed(&self, py: Python<'_>, namespace: String, name: String, seconds: f64) -> PyResult<String> {
        let time = duration(seconds);
        self.text(py, |gateway| async move { gateway.session_placed(&namespace, &name, time).await })
    }

    fn delete_session(&self, py: Python<'_>, namespace: String, name: String) -> PyResult<()> {
        let gateway = self.0.clone();
        run(py, async move { gateway.delete_session(&namespace, &name).await })
    }

    /// Creates a burst. Adds its name to `created` before raising a signal that arrived in the meantime, so that the caller knows what to
    /// delete.
    fn create_burst(
        &self,
        py: Python<'_>,
        namespace: String,
        name: Option<String>,
        text: &str,
        created: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let spec = spec(py, text)?;
        let (gateway, undoing, there) = (self.0.clone(), self.0.clone(), namespace.clone());
        let made = run_or_undo(
            py,
            async move { gateway.create_burst(&namespace, name.as_deref(), &spec).await },
            |created| async move { undoing.delete_burst(&there, name_of(&created)).await },
        )?;
        created.append(name_of(&made))
    }

    fn burst_over(&self, py: Python<'_>, namespace: String, name: String, seconds: f64) -> PyResult<String> {
        let time = duration(seconds);
        self.text(py, |gateway| async move { gateway.burst_over(&namespace, &name, time).await })
    }

    fn burst_results_csv(&self, py: Python<'_>, namespace: String, name: String) -> PyResult<String> {
        let gateway = self.0.clone();
        run(py, async move { gateway.burst_results_csv(&namespace, &name).await })
    }

    fn delete_burst(&self, py: Python<'_>, namespace: String, name: String) -> PyResult<()> {
        let gateway = self.0.clone();
        run(py, async move { gateway.delete_burst(&namespace, &name).await })
    }
}

/// Converts seconds to a duration between 0 and 15 million seconds (about half a year), which is long enough to represent infinity.
pub(crate) fn duration(seconds: f64) -> Duration {
    Duration::from_secs_f64(if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, 15e6) })
}
