//! A minimal coordinator: unary calls, and streams whose frames a test sends and receives itself.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper_rustls::{DefaultServerNameResolver, HttpsConnector};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};
use sahasra_wire::{
    CONTENT_TYPE, Message,
    burst::{
        Acknowledge, ChunkRange, ClientFrame, FailureCode, Open, Opened, Program, ServerFrame, Submit, Withdraw, client_frame, server_frame,
    },
    frame::{self, Decoder},
    grants::{
        AcquireRequest, AcquireResponse, Grant, Owner, Refusal, ReleaseRequest, ReleaseResponse, RenewOwner, RenewRequest, RenewResponse,
    },
    inventory::Inventory,
    path,
};
use tokio::sync::mpsc;

/// Timeout of each step of a test, generous for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Name of the device of the CPU backend.
pub(crate) const DEVICE: &str = "cpu-0";
/// Size of a slice in the tests: 1 GiB has 1024 slices.
pub(crate) const SLICE: u64 = 1 << 20;

type Body = BoxBody<Bytes, std::convert::Infallible>;

#[derive(Clone)]
pub(crate) struct Coordinator {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    tls: Arc<ClientConfig>,
    url: String,
    pub boot_id: String,
    pub owner: Owner,
}

pub(crate) fn owner(uid: &str, term: u64) -> Owner {
    Owner {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("BurstJob/{uid}"),
        term,
    }
}

pub(crate) fn range(first: u64, count: u64, attempt: u32) -> ChunkRange {
    ChunkRange {
        device: DEVICE.to_owned(),
        first,
        count,
        attempt,
    }
}

/// Returns a connection pool for one coordinator.
fn connections(tls: &Arc<ClientConfig>) -> Client<HttpsConnector<HttpConnector>, Body> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    let connector = HttpsConnector::new(tcp, Arc::clone(tls), false, Arc::new(DefaultServerNameResolver::default()));
    Client::builder(TokioExecutor::new()).http2_only(true).build(connector)
}

impl Coordinator {
    pub(crate) async fn new(url: &str, uid: &str) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        Self::through_tls(url, uid, Arc::new(config)).await
    }

    /// Creates a coordinator that connects through TLS.
    pub(crate) async fn through_tls(url: &str, uid: &str, tls: Arc<ClientConfig>) -> Self {
        let mut coordinator = Self::silent(url, uid, tls);
        coordinator.boot_id = coordinator.inventory().await.boot_id;
        coordinator
    }

    /// Creates a coordinator that has sent no request yet.
    pub(crate) fn silent(url: &str, uid: &str, tls: Arc<ClientConfig>) -> Self {
        Self {
            client: connections(&tls),
            tls,
            url: url.to_owned(),
            boot_id: String::new(),
            owner: owner(uid, 1),
        }
    }

    /// Returns a coordinator of another owner over the same connection.
    pub(crate) fn of_owner(&self, uid: &str) -> Self {
        Self {
            owner: owner(uid, 1),
            ..self.clone()
        }
    }

    /// Returns another coordinator of the same owner, with its own connection.
    pub(crate) fn of_term(&self, term: u64) -> Self {
        Self {
            owner: owner(&self.owner.uid, term),
            client: connections(&self.tls),
            ..self.clone()
        }
    }

    pub(crate) async fn request(&self, method: Method, path: &str, content_type: &str, body: Bytes) -> (StatusCode, Bytes) {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", content_type)
            .body(Full::new(body).boxed())
            .unwrap();
        let answered = async {
            let response = self.client.request(request).await.unwrap();
            (response.status(), response.into_body().collect().await.unwrap().to_bytes())
        };
        let answered = tokio::time::timeout(TIMEOUT, answered).await;
        answered.unwrap_or_else(|_| panic!("the agent does not answer {path}"))
    }

    async fn call<A: Message + Default>(&self, path: &str, message: &impl Message) -> A {
        let body = Bytes::from(message.encode_to_vec());
        let (status, body) = self.request(Method::POST, path, CONTENT_TYPE, body).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        A::decode(body).unwrap()
    }

    pub(crate) async fn inventory(&self) -> Inventory {
        let (status, body) = self.request(Method::GET, path::INVENTORY, CONTENT_TYPE, Bytes::new()).await;
        assert_eq!(status, StatusCode::OK);
        Inventory::decode(body).unwrap()
    }

    pub(crate) async fn metrics(&self) -> String {
        let (status, body) = self.request(Method::GET, "/metrics", "", Bytes::new()).await;
        assert_eq!(status, StatusCode::OK);
        String::from_utf8(body.to_vec()).unwrap()
    }

    pub(crate) fn acquisition(&self, slices: u32, ttl: Duration) -> AcquireRequest {
        AcquireRequest {
            owner: self.owner.clone(),
            boot_id: self.boot_id.clone(),
            device: DEVICE.to_owned(),
            slice_bytes: SLICE,
            slices,
            at_least: 1,
            ttl_milliseconds: ttl.as_millis() as u64,
            grace_milliseconds: 2_000,
            session: None,
        }
    }

    pub(crate) async fn try_acquire(&self, request: &AcquireRequest) -> Result<Grant, Refusal> {
        let response: AcquireResponse = self.call(path::ACQUIRE, request).await;
        match (response.grant, response.refusal) {
            (Some(grant), None) => Ok(grant),
            (None, Some(refusal)) => Err(refusal),
            other => panic!("exactly one must be there: {other:?}"),
        }
    }

    pub(crate) async fn acquire(&self, slices: u32, ttl: Duration) -> Grant {
        self.try_acquire(&self.acquisition(slices, ttl)).await.unwrap()
    }

    pub(crate) async fn renew(&self, grants: &[&Grant], ttl: Duration) -> RenewResponse {
        let owner = RenewOwner {
            owner: self.owner.clone(),
            grants: grants.iter().map(|grant| grant.id.clone()).collect(),
            ttl_milliseconds: ttl.as_millis() as u64,
            session: None,
        };
        self.renew_as(owner).await
    }

    pub(crate) async fn renew_as(&self, owner: RenewOwner) -> RenewResponse {
        self.call(path::RENEW, &RenewRequest { owners: vec![owner] }).await
    }

    pub(crate) async fn release(&self) -> ReleaseResponse {
        self.release_as(ReleaseRequest {
            owner: self.owner.clone(),
            ..ReleaseRequest::default()
        })
        .await
    }

    pub(crate) async fn release_as(&self, request: ReleaseRequest) -> ReleaseResponse {
        self.call(path::RELEASE, &request).await
    }

    /// Waits until no slice is leased.
    pub(crate) async fn until_free(&self) {
        let start = tokio::time::Instant::now();
        loop {
            let inventory = self.inventory().await;
            if inventory.devices.iter().all(|device| device.leased_bytes == 0) {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{:?}", inventory.grants);
            tokio::task::yield_now().await;
        }
    }

    /// Opens a stream and sends its first frame.
    pub(crate) async fn stream(&self, program: Program) -> Stream {
        self.stream_as(Open {
            owner: self.owner.clone(),
            boot_id: self.boot_id.clone(),
            program,
            covered: Vec::new(),
        })
        .await
    }

    pub(crate) async fn stream_as(&self, open: Open) -> Stream {
        let (sender, frames) = mpsc::channel::<Bytes>(64);
        let frames = futures::stream::unfold(frames, |mut frames| async move {
            let frame: Bytes = frames.recv().await?;
            Some((Ok(Frame::data(frame)), frames))
        });
        let request = Request::post(format!("{}{}", self.url, path::BURSTS))
            .header("content-type", CONTENT_TYPE)
            .body(StreamBody::new(frames).boxed())
            .unwrap();
        let stream = async {
            let response = self.client.request(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body()
        };
        let first = frame::encode(&ClientFrame::from(client_frame::Kind::Open(Box::new(open))));
        sender.send(first).await.unwrap();
        Stream {
            sender,
            body: tokio::time::timeout(TIMEOUT, stream).await.expect("the agent answers"),
            decoder: Decoder::default(),
        }
    }
}

/// A stream. Dropping it breaks it.
pub(crate) struct Stream {
    sender: mpsc::Sender<Bytes>,
    body: Incoming,
    decoder: Decoder,
}

/// Results of each index, and the highest sequence number received.
#[derive(Default, Debug)]
pub(crate) struct Collected {
    pub results: BTreeMap<u64, (u32, Vec<u8>)>,
    pub failures: BTreeMap<u64, (FailureCode, String)>,
    pub returned: Vec<ChunkRange>,
    /// Number of chunks that were returned for lack of slices.
    pub returned_without_slices: u64,
    pub segments: Vec<String>,
    pub sequence: u64,
    /// Indices that arrived more than once.
    pub repeated: Vec<u64>,
}

fn chunks(ranges: &[ChunkRange]) -> u64 {
    ranges.iter().map(|range| range.count).sum()
}

impl Collected {
    pub(crate) fn answered(&self) -> u64 {
        (self.results.len() + self.failures.len()) as u64 + chunks(&self.returned)
    }

    /// Returns the number of failed chunks by cause.
    pub(crate) fn causes(&self) -> BTreeMap<(FailureCode, &str), usize> {
        let mut causes = BTreeMap::new();
        for (code, message) in self.failures.values() {
            *causes.entry((*code, message.as_str())).or_default() += 1;
        }
        causes
    }

    pub(crate) fn add(&mut self, kind: server_frame::Kind) {
        match kind {
            server_frame::Kind::Results(results) => {
                assert!(results.sequence > self.sequence, "sequence numbers grow");
                self.sequence = results.sequence;
                if !results.segment.is_empty() {
                    self.segments.push(results.segment);
                }
                for run in results.runs {
                    let size = run.outputs.len() / run.count as usize;
                    for place in 0..run.count {
                        let start = place as usize * size;
                        let outputs = run.outputs[start..start + size].to_vec();
                        if self.results.insert(run.first + place, (run.attempt, outputs)).is_some() {
                            self.repeated.push(run.first + place);
                        }
                    }
                }
            }
            server_frame::Kind::Failures(failures) => {
                assert!(failures.sequence > self.sequence, "sequence numbers grow");
                self.sequence = failures.sequence;
                for failure in failures.failures {
                    for index in failure.first..failure.first + failure.count {
                        if self.failures.insert(index, (failure.code(), failure.message.clone())).is_some() {
                            self.repeated.push(index);
                        }
                    }
                }
            }
            server_frame::Kind::Returned(returned) => {
                self.returned_without_slices += u64::from(returned.without_slices) * chunks(&returned.ranges);
                self.returned.extend(returned.ranges);
            }
            other => panic!("unexpected frame {other:?}"),
        }
    }
}

impl Stream {
    pub(crate) async fn send(&self, kind: client_frame::Kind) {
        let frame = frame::encode(&ClientFrame::from(kind));
        self.sender.send(frame).await.expect("the agent reads");
    }

    pub(crate) async fn submit(&self, ranges: Vec<ChunkRange>) {
        self.send(client_frame::Kind::Submit(Submit { ranges })).await;
    }

    pub(crate) async fn acknowledge(&self, sequence: u64) {
        self.send(client_frame::Kind::Acknowledge(Acknowledge { sequence })).await;
    }

    pub(crate) async fn withdraw(&self) {
        self.send(client_frame::Kind::Withdraw(Withdraw::default())).await;
    }

    /// Returns the next frame, or `None` when the agent has ended the stream.
    pub(crate) async fn next(&mut self) -> Option<server_frame::Kind> {
        loop {
            if let Some(frame) = self.decoder.next_message::<ServerFrame>().unwrap() {
                return Some(frame.kind.expect("a frame has content"));
            }
            let next = tokio::time::timeout(TIMEOUT, self.body.frame());
            match next.await.expect("the agent goes on")? {
                Ok(frame) => self.decoder.extend(frame.into_data().unwrap_or_default()),
                Err(_) => return None,
            }
        }
    }

    pub(crate) async fn opened(&mut self) -> Opened {
        match self.next().await {
            Some(server_frame::Kind::Opened(opened)) => opened,
            other => panic!("the stream was not accepted: {other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self) -> Refusal {
        loop {
            match self.next().await {
                Some(server_frame::Kind::Refused(refusal)) => return refusal,
                Some(_) => {}
                None => panic!("the stream ended without a word"),
            }
        }
    }

    /// Receives frames until this number of chunks is answered.
    pub(crate) async fn collect(&mut self, chunks: u64) -> Collected {
        let mut collected = Collected::default();
        self.collect_into(&mut collected, chunks).await;
        collected
    }

    pub(crate) async fn collect_into(&mut self, collected: &mut Collected, chunks: u64) {
        while collected.answered() < chunks {
            let kind = self.next().await.expect("the stream goes on");
            collected.add(kind);
        }
    }
}
