//! Simulated object store with the S3 protocol: requests are delayed, hang, are rejected and fail, and responses are lost.
//!
//! Operators and agents reach the store through their production client, with its retries. A request that reached the store is carried out,
//! whatever happens to its sender.

use std::{collections::BTreeMap, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService},
};
use sahasra_operator::burst::results_store::{FAILED_CSV, MANIFEST, SegmentIndex};
use serde_json::Value;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::world::{Node, World};

/// Prefix of the folders of bursts.
pub const URL_PREFIX: &str = "bursts";
/// Timeout of the client, the same as in production.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit in milliseconds after which a hanging request is carried out.
const HANGS: u64 = 45_000;

/// Bucket that a burst names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// The bucket accepts writes.
    Results,
    /// Writes to the bucket are forbidden.
    Forbidden,
    /// The bucket does not exist.
    Missing,
}

impl Bucket {
    /// Returns the name of the bucket.
    pub fn name(self) -> &'static str {
        match self {
            Self::Results => "results",
            Self::Forbidden => "forbidden",
            Self::Missing => "missing",
        }
    }
}

/// Current faults of the store.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Number of active faults for which no node can connect.
    pub down: u32,
    /// Number of active faults for which every request is rejected.
    pub refuses: u32,
    /// Requests answered with an error, per thousand.
    pub errors: u64,
    /// Requests that are carried out and whose response is lost, per thousand.
    pub losses: u64,
    /// Requests that are not answered, per thousand.
    pub hangs: u64,
    /// Longest delay in milliseconds in addition to the network's.
    pub delay: u64,
}

/// Objects of the bucket, by name.
#[derive(Debug, Default)]
pub struct Objects {
    by_name: BTreeMap<String, Bytes>,
    /// Parts of incomplete uploads, by number.
    uploads: BTreeMap<String, BTreeMap<u32, Bytes>>,
    started: u64,
}

/// Connection of one node to the store.
#[derive(Clone, Debug)]
pub struct Network {
    world: Arc<World>,
    from: Node,
}

impl Network {
    /// Creates the connection of the node `from`.
    pub fn new(world: &Arc<World>, from: Node) -> Arc<Self> {
        let world = Arc::clone(world);
        Arc::new(Self { world, from })
    }
}

impl HttpConnector for Network {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Network {
    // Signature that `async_trait` generates.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (answer, answered) = oneshot::channel();
        let network = self.clone();
        tokio::spawn(async move {
            let outcome = network.carry(request).await;
            let _ = answer.send(outcome);
        });
        Box::pin(async move {
            match timeout(TIMEOUT, answered).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(broken(HttpErrorKind::Interrupted)),
                Err(_) => Err(broken(HttpErrorKind::Timeout)),
            }
        })
    }
}

fn broken(kind: HttpErrorKind) -> HttpError {
    HttpError::new(kind, io::Error::other("the connection broke"))
}

fn status(status: StatusCode) -> HttpResponse {
    let mut response = Response::new(HttpResponseBody::from(Bytes::new()));
    *response.status_mut() = status;
    response
}

impl Network {
    async fn carry(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let world = &self.world;
        let now = world.conditions().store.clone();
        sleep(world.delay() + Duration::from_millis(world.below(now.delay))).await;
        if now.down > 0 {
            return Err(broken(HttpErrorKind::Connect));
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = head.uri.path().trim_start_matches('/').to_owned();
        let said = |what: StatusCode| world.note(format_args!("{} store {} {path}: {}", self.from, head.method, what.as_u16()));
        if world.happens(now.errors) {
            said(StatusCode::SERVICE_UNAVAILABLE);
            return Ok(status(StatusCode::SERVICE_UNAVAILABLE));
        }
        let bucket = path.split('/').next().unwrap_or_default();
        if now.refuses > 0 || bucket == Bucket::Forbidden.name() {
            said(StatusCode::FORBIDDEN);
            return Ok(status(StatusCode::FORBIDDEN));
        }
        if bucket != Bucket::Results.name() {
            said(StatusCode::NOT_FOUND);
            return Ok(status(StatusCode::NOT_FOUND));
        }
        let hangs = world.happens(now.hangs);
        if hangs {
            world.note(format_args!("{} store {} {path} hangs", self.from, head.method));
            sleep(Duration::from_millis(world.below(HANGS))).await;
        }
        let response = world
            .objects
            .lock()
            .answer(world, &head.method, &path, head.uri.query().unwrap_or_default(), body);
        said(response.status());
        if hangs {
            sleep(TIMEOUT).await;
        }
        sleep(world.delay()).await;
        if world.happens(now.losses) {
            return Err(broken(HttpErrorKind::Interrupted));
        }
        Ok(response)
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

impl Objects {
    fn answer(&mut self, world: &World, method: &Method, path: &str, query: &str, body: Bytes) -> HttpResponse {
        let upload = parameter(query, "uploadId");
        let answer = if *method == Method::POST && query.split('&').any(|part| part == "uploads" || part == "uploads=") {
            self.started += 1;
            let name = format!("upload-{}", self.started);
            self.uploads.insert(name.clone(), BTreeMap::new());
            format!("<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>").into()
        } else if let (&Method::PUT, Some(upload)) = (method, upload) {
            let number = parameter(query, "partNumber")
                .and_then(|number| number.parse().ok())
                .unwrap_or_default();
            self.uploads.entry(upload.to_owned()).or_default().insert(number, body);
            Bytes::new()
        } else if let (&Method::POST, Some(upload)) = (method, upload) {
            // On a repeated request after a lost response, the upload is complete already.
            if let Some(parts) = self.uploads.remove(upload) {
                let whole: Vec<u8> = parts.into_values().flatten().collect();
                self.put(world, path, whole.into());
            }
            "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>".into()
        } else if *method == Method::PUT {
            self.put(world, path, body);
            Bytes::new()
        } else if *method == Method::GET {
            match self.by_name.get(path) {
                Some(bytes) => bytes.clone(),
                None => return status(StatusCode::NOT_FOUND),
            }
        } else {
            return status(StatusCode::NOT_IMPLEMENTED);
        };
        let length = answer.len();
        let mut response = Response::new(HttpResponseBody::from(answer));
        let headers = response.headers_mut();
        headers.insert(header::ETAG, header::HeaderValue::from_static("\"object\""));
        headers.insert(header::CONTENT_LENGTH, length.into());
        response
    }

    /// Stores an object. Checks that segments and index objects never change.
    fn put(&mut self, world: &World, path: &str, body: Bytes) {
        let before = self.by_name.insert(path.to_owned(), body.clone());
        let may_change = path.ends_with(MANIFEST) || path.ends_with(FAILED_CSV);
        if before.is_some_and(|before| before != body) && !may_change {
            world.broken(format!("store: {path} was written with other contents"));
        }
    }

    /// Returns the object of this name, which includes the bucket.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.by_name.get(name)
    }
}

/// Checks after a write to a ConfigMap that the store holds the objects that its checkpoint names.
pub fn check_checkpoint(world: &World, path: &str, body: &[u8]) {
    if !path.contains("/configmaps") {
        return;
    }
    let named = || -> Option<Vec<String>> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let state: Value = serde_json::from_str(body.pointer("/data/checkpoint.json")?.as_str()?).ok()?;
        let numbers = serde_json::from_value(state.get("index")?.clone()).ok()?;
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
        let burst = text("/metadata/name")?.strip_suffix("-results")?;
        let namespace = path.split("/namespaces/").nth(1)?.split('/').next()?;
        let uid = state.get("uid")?.as_str()?;
        let folder = format!("{}/{URL_PREFIX}/{namespace}/{burst}/{uid}", Bucket::Results.name());
        let names = SegmentIndex::from_state(&numbers, u64::MAX, u64::MAX)?;
        Some(names.names().map(|name| format!("{folder}/{name}")).collect())
    };
    let objects = world.objects.lock();
    for name in named().unwrap_or_default() {
        if objects.get(&name).is_none() {
            world.broken(format!("store: a checkpoint names {name}, which is not there"));
        }
    }
}
