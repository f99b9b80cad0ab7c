//! Client of the gateway's REST API for sessions, workers and bursts. Bodies are Kubernetes objects in JSON.

use std::{
    io,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use url::form_urlencoded;

use crate::{
    Error, Loss,
    connection::{Connection, SERVER_NAME, Trust},
    credentials::Token,
    transport::Peer,
};

/// Maximum length of a response body in bytes, enough for a list of tens of thousands of sessions.
const ANSWER_BYTES: usize = 256 << 20;
/// Timeout of a request, in addition to the time for which the gateway waits on request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time to wait until an object of the name of a new one has been deleted, and interval at which the name is tried.
const DELETED_TIMEOUT: Duration = Duration::from_secs(10);
const DELETED_POLL: Duration = Duration::from_millis(50);
/// Maximum duration of one long poll. A longer wait uses several requests.
const LONG_POLL: Duration = Duration::from_secs(30);

/// A gateway, or the API of `sahasra up`.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub(crate) peer: Peer,
    pub(crate) token: Token,
}

impl Gateway {
    /// TLS is verified with the CA certificates in `authorities_pem`, or with those of the system if there are none. Fails with
    /// [`Error::Configuration`] when the URL or the certificates cannot be used.
    pub fn new(url: &str, token: Token, authorities_pem: Option<&str>) -> Result<Self, Error> {
        Ok(Self {
            peer: Peer::new(url, authorities_pem)?,
            token,
        })
    }

    /// A gateway with the token of [`Token::find`]. TLS is verified with the server's certificate of the user's [`Connection`] to this URL, if
    /// there is one; or else with `authorities_pem`, those of the connection, or those of the system. Fails as [`Gateway::new`] and
    /// [`Token::find`] do.
    pub fn find(url: &str, authorities_pem: Option<&str>) -> Result<Self, Error> {
        let token = Token::find(url)?;
        let connected = Connection::to(url).map(|connection| connection.trust()).transpose()?;
        let trust = match (connected, authorities_pem) {
            (Some(server @ Trust::Server(_)), _) => server,
            (_, Some(authorities)) => Trust::Authority(authorities.to_owned()),
            (connected, None) => connected.unwrap_or_default(),
        };
        Self::trusting(url, token, &trust)
    }

    /// A gateway that is verified with these certificates. Fails as [`Gateway::new`] does.
    pub fn trusting(url: &str, token: Token, trust: &Trust) -> Result<Self, Error> {
        match trust {
            Trust::System => Self::new(url, token, None),
            Trust::Authority(authorities) => Self::new(url, token, Some(authorities)),
            Trust::Server(certificate) => Self::new(url, token, Some(certificate))?.named(SERVER_NAME),
        }
    }

    /// Sets the name for which the gateway's certificate must be valid, for a URL with an IP address, as with a port-forward. Fails with
    /// [`Error::Configuration`] when `server_name` is invalid.
    pub fn named(self, server_name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: self.peer.named(server_name)?,
            ..self
        })
    }

    pub fn url(&self) -> &str {
        self.peer.url.as_str()
    }

    /// A warning if the token goes to another machine without TLS, where others can read it on the way.
    pub fn exposure(&self) -> Option<String> {
        let is_exposed = self.peer.is_exposed() && !self.token.is_absent();
        is_exposed.then(|| {
            let host = self.peer.authority();
            format!("the token for {host} is sent unencrypted, and others may read it on the way: use https://{host}")
        })
    }

    /// Returns the load of every worker, as the operator reports it.
    pub async fn workers(&self) -> Result<Value, Error> {
        self.get("/workers", TIMEOUT).await
    }

    pub async fn sessions(&self, namespace: &str) -> Result<Value, Error> {
        self.get(&collection(namespace, "sessions")?, TIMEOUT).await
    }

    /// Creates a `GpuSession` with this metadata, which has a `name` or a `generateName`, and this spec.
    pub async fn create_session(&self, namespace: &str, metadata: &Value, spec: &Value) -> Result<Value, Error> {
        self.create(&collection(namespace, "sessions")?, metadata, spec).await
    }

    /// Creates a session of engine `cuda` and returns its name. Annotations say which program uses it, and on which host.
    pub async fn create_cuda_session(&self, namespace: &str, session: &CudaSession) -> Result<String, Error> {
        let mut spec = json!({"engine": "cuda", "vram": session.vram});
        if let Some(class) = &session.class {
            spec["class"] = json!(class);
        }
        if let Some(time) = session.idle_timeout {
            spec["idleTimeoutSeconds"] = json!(time.as_secs());
        }
        if let Some(time) = session.disconnect_timeout {
            spec["disconnectTimeoutSeconds"] = json!(time.as_secs());
        }
        if let Some(time) = session.ttl {
            spec["ttlSeconds"] = json!(time.as_secs());
        }
        let mut metadata = named(None, session.prefix);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        metadata["annotations"] = json!({"sahasra.dev/program": session.program, "sahasra.dev/host": host});
        let created = self.create_session(namespace, &metadata, &spec).await?;
        let name = created["metadata"]["name"].as_str().map(str::to_owned);
        name.ok_or_else(|| Error::protocol("the gateway returned a session without a name"))
    }

    pub async fn session(&self, namespace: &str, name: &str) -> Result<Value, Error> {
        self.get(&object(namespace, "sessions", name)?, TIMEOUT).await
    }

    /// Waits until a session has a device. Fails with [`Error::NoCapacity`] and the reason when it has none in time, with [`Error::Ended`] or
    /// [`Error::WorkerLost`] when the session failed.
    pub async fn session_placed(&self, namespace: &str, name: &str, time: Duration) -> Result<Value, Error> {
        let over = |session: &Value| is_true(session, "Placed") || is_true(session, "Failed");
        let session = self.until(&object(namespace, "sessions", name)?, "Placed", over, time).await?;
        if let Some(end) = session_end(&session) {
            return Err(end);
        }
        if is_true(&session, "Placed") {
            return Ok(session);
        }
        let why = condition(&session, "Placed").and_then(|placed| placed["message"].as_str());
        Err(Error::NoCapacity(why.unwrap_or("timed out waiting for the operator").to_owned()))
    }

    /// Waits until a session has failed or `time` has elapsed.
    pub async fn session_failed(&self, namespace: &str, name: &str, time: Duration) -> Result<Value, Error> {
        let over = |session: &Value| is_true(session, "Failed");
        self.until(&object(namespace, "sessions", name)?, "Failed", over, time).await
    }

    /// Deletes a session. A session that does not exist is not an error.
    pub async fn delete_session(&self, namespace: &str, name: &str) -> Result<(), Error> {
        self.delete(&object(namespace, "sessions", name)?).await
    }

    /// Creates a `BurstJob` with this spec, under `name` or a generated name.
    pub async fn create_burst(&self, namespace: &str, name: Option<&str>, spec: &Value) -> Result<Value, Error> {
        let metadata = named(name, "burst");
        self.create(&collection(namespace, "bursts")?, &metadata, spec).await
    }

    /// Waits until a burst has ended, and returns the `BurstJob`. It has ended when `Complete` or `Failed` is true, or when its current
    /// spec was rejected (`Accepted` is false). Also returns it when `time` has elapsed.
    pub async fn burst_over(&self, namespace: &str, name: &str, time: Duration) -> Result<Value, Error> {
        let over = |burst: &Value| is_true(burst, "Complete") || is_true(burst, "Failed") || is_refused(burst);
        self.until(&object(namespace, "bursts", name)?, "Complete", over, time).await
    }

    pub async fn burst_results_csv(&self, namespace: &str, name: &str) -> Result<String, Error> {
        let path = format!("{}/results?format=csv", object(namespace, "bursts", name)?);
        let body = self.exchange(Method::GET, &path, None, TIMEOUT).await?;
        String::from_utf8(body.into()).map_err(|_| Error::protocol("invalid results: expected text"))
    }

    /// Deletes a burst. A burst that does not exist is not an error.
    pub async fn delete_burst(&self, namespace: &str, name: &str) -> Result<(), Error> {
        self.delete(&object(namespace, "bursts", name)?).await
    }

    /// Polls an object for a condition until `over` is true of the object or `time` has elapsed.
    async fn until(&self, path: &str, condition: &str, over: impl Fn(&Value) -> bool, time: Duration) -> Result<Value, Error> {
        let end = tokio::time::Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now()).min(LONG_POLL);
            let seconds = left.as_secs_f64().ceil().max(1.0);
            let query = format!("{path}?waitFor={condition}&timeoutSeconds={seconds}");
            let object = self.get(&query, left + TIMEOUT).await?;
            if over(&object) || tokio::time::Instant::now() >= end {
                return Ok(object);
            }
        }
    }

    /// Creates an object. Waits for up to [`DELETED_TIMEOUT`] while an object of its name is being deleted.
    async fn create(&self, path: &str, metadata: &Value, spec: &Value) -> Result<Value, Error> {
        let body = json!({"metadata": metadata, "spec": spec});
        let end = Instant::now() + DELETED_TIMEOUT;
        loop {
            match self.call(Method::POST, path, Some(&body), TIMEOUT).await {
                // The API server's words: the reason is that of any name that is taken.
                Err(Error::Http { status: 409, message, .. }) if message.contains("object is being deleted") && Instant::now() < end => {
                    tokio::time::sleep(DELETED_POLL).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn get(&self, path: &str, time: Duration) -> Result<Value, Error> {
        self.call(Method::GET, path, None, time).await
    }

    async fn delete(&self, path: &str) -> Result<(), Error> {
        match self.exchange(Method::DELETE, path, None, TIMEOUT).await {
            Ok(_) | Err(Error::Http { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>, time: Duration) -> Result<Value, Error> {
        let answer = self.exchange(method, path, body, time).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            Error::protocol(format!(
                "invalid response of {} to {path}: expected JSON: {error}",
                self.peer.authority()
            ))
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>, time: Duration) -> Result<Bytes, Error> {
        let exchanged = self.exchange_at_leisure(method, path, body);
        let late = |_| Error::unreachable(self.peer.authority(), io::ErrorKind::TimedOut.into());
        tokio::time::timeout(time, exchanged).await.map_err(late)?
    }

    async fn exchange_at_leisure(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, Error> {
        let broken = |error: hyper::Error| Error::unreachable(self.peer.authority(), io::Error::other(error));
        let (mut send, connection) = http1::handshake(TokioIo::new(self.peer.connect().await?)).await.map_err(broken)?;
        let driver = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(self.peer.path(path))
            .header(header::HOST, self.peer.authority())
            .header(header::CONNECTION, "close")
            .header(header::ACCEPT, "application/json, text/csv");
        if let Some(bearer) = self.token.bearer()? {
            request = request.header(header::AUTHORIZATION, bearer);
        }
        let content = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request
            .body(Full::new(content))
            .map_err(|error| Error::Configuration(error.to_string()))?;
        let response = send.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        driver.abort();
        let broken = |error| Error::unreachable(self.peer.authority(), io::Error::other(error));
        let answer = answer.map_err(broken)?.to_bytes();
        if !status.is_success() {
            return Err(Error::http(status, &answer));
        }
        Ok(answer)
    }
}

/// A session of engine `cuda` to create for a program.
#[derive(Clone, Debug, Default)]
pub struct CudaSession {
    /// Start of the session's name.
    pub prefix: &'static str,
    pub program: String,
    /// Amount of memory, as in the spec of a `GpuSession`.
    pub vram: String,
    /// Class of the device; any if absent.
    pub class: Option<String>,
    /// Times of the spec; the defaults of a `GpuSession` if absent.
    pub idle_timeout: Option<Duration>,
    pub disconnect_timeout: Option<Duration>,
    pub ttl: Option<Duration>,
}

/// Metadata of an object with this name, or with a generated name that starts with `prefix` and a hyphen.
pub fn named(name: Option<&str>, prefix: &str) -> Value {
    match name {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": format!("{prefix}-")}),
    }
}

/// Returns the error for a session that failed according to its conditions or is being deleted, or `None` for any other session.
pub fn session_end(session: &Value) -> Option<Error> {
    let Some(failed) = condition(session, "Failed").filter(|failed| failed["status"] == "True") else {
        let metadata = &session["metadata"];
        return metadata["deletionTimestamp"].is_string().then(|| {
            let name = |field: &str| metadata[field].as_str().unwrap_or_default();
            Error::Ended {
                reason: "Deleted".to_owned(),
                message: format!("{}/{} was deleted", name("namespace"), name("name")),
            }
        });
    };
    let reason = failed["reason"].as_str().unwrap_or("Failed").to_owned();
    let message = failed["message"].as_str().unwrap_or_default().to_owned();
    Some(if reason == "WorkerLost" || reason == "ExecutorLost" {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (metadata, status) = (&session["metadata"], &session["status"]);
        let name = [text(&metadata["namespace"]), text(&metadata["name"])];
        let place = [text(&status["worker"]), text(&status["device"])];
        let joined = |parts: [String; 2]| if parts[1].is_empty() { String::new() } else { parts.join("/") };
        Error::WorkerLost(Box::new(Loss {
            session: joined(name),
            worker: joined(place),
            operation: String::new(),
            reason: message,
            is_executor: reason == "ExecutorLost",
        }))
    } else {
        Error::Ended { reason, message }
    })
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Returns whether a burst's current spec was rejected. Conditions that were observed for an earlier generation do not count.
fn is_refused(burst: &Value) -> bool {
    condition(burst, "Accepted").is_some_and(|accepted| {
        let observed = &accepted["observedGeneration"];
        accepted["status"] == "False" && (observed.is_null() || *observed == burst["metadata"]["generation"])
    })
}

fn collection(namespace: &str, kind: &str) -> Result<String, Error> {
    Ok(format!("/v1/namespaces/{}/{kind}", segment(namespace)?))
}

fn object(namespace: &str, kind: &str, name: &str) -> Result<String, Error> {
    Ok(format!("{}/{}", collection(namespace, kind)?, segment(name)?))
}

pub(crate) fn stream_path(namespace: &str, name: &str) -> Result<String, Error> {
    Ok(format!("{}/stream", object(namespace, "sessions", name)?))
}

fn segment(name: &str) -> Result<String, Error> {
    if name.is_empty() || name == "." || name == ".." {
        return Err(Error::Invalid(format!("invalid name {name:?}")));
    }
    Ok(form_urlencoded::byte_serialize(name.as_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_session_names_its_cause() {
        let failed =
            |reason: &str| json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": "why"}]}});
        assert!(matches!(session_end(&failed("WorkerLost")), Some(Error::WorkerLost(loss)) if loss.reason == "why"));
        let executor = session_end(&failed("ExecutorLost")).unwrap().about("team/mine", "node-1/cpu-0", "");
        let said = "the executor on node-1/cpu-0 of session team/mine has ended, with all data of the session: why";
        assert_eq!(executor.to_string(), said);
        assert!(matches!(session_end(&failed("TtlExpired")), Some(Error::Ended { reason, .. }) if reason == "TtlExpired"));
        let mut placed = json!({"status": {"conditions": [{"type": "Failed", "status": "False"}, {"type": "Placed", "status": "True"}]}});
        assert!(session_end(&placed).is_none() && is_true(&placed, "Placed"));
        placed["metadata"] = json!({"namespace": "team", "name": "mine", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(
            session_end(&placed).unwrap().to_string(),
            "the session ended: Deleted: team/mine was deleted"
        );
        // A failure takes precedence over the deletion, because it is the reason for it.
        let mut failed = failed("WorkerLost");
        failed["metadata"] = placed["metadata"].clone();
        assert!(matches!(session_end(&failed), Some(Error::WorkerLost(_))));
    }

    #[test]
    fn a_rejected_burst_has_ended() {
        let burst = |status: &str, generation: u64| {
            let accepted = json!({"type": "Accepted", "status": status, "observedGeneration": 2});
            json!({"metadata": {"generation": generation}, "status": {"conditions": [accepted]}})
        };
        assert!(is_refused(&burst("False", 2)));
        assert!(!is_refused(&burst("True", 2)));
        assert!(!is_refused(&burst("False", 3)), "the new spec has not been looked at");
        assert!(!is_refused(&json!({"metadata": {"generation": 1}})));
    }

    #[test]
    fn a_token_without_tls_is_exposed_unless_it_stays_on_this_machine() {
        let exposure = |url: &str, token| Gateway::new(url, token, None).unwrap().exposure();
        for url in ["http://gateway.example", "http://192.0.2.7:8000"] {
            let told = exposure(url, Token::text("secret")).unwrap();
            assert!(
                told.contains("unencrypted") && told.contains("use https://") && !told.contains("secret"),
                "{told}"
            );
            assert_eq!(exposure(url, Token::default()), None);
        }
        for url in [
            "http://127.0.0.1:8000",
            "http://[::1]:8000",
            "http://localhost:8000",
            "https://gateway.example",
        ] {
            assert_eq!(exposure(url, Token::text("secret")), None, "{url}");
        }
    }

    #[test]
    fn names_cannot_leave_their_path() {
        assert_eq!(stream_path("a b", "../x").unwrap(), "/v1/namespaces/a+b/sessions/..%2Fx/stream");
        assert!(stream_path("default", "..").is_err());
        assert!(stream_path("", "x").is_err());
    }
}
