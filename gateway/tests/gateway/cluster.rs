//! An embedded control plane, a gateway in front of it, and a client of both.

use std::{future::Future, net::SocketAddr, time::Duration};

use base64::Engine;
use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use sahasra_e2e::ApiServer;
use sahasra_gateway::{Limits, args::Args, serve, tls::PlainOrTls};
use sahasra_local::{ControlPlane, Options};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Token of the only user.
pub(crate) const TOKEN: &str = "embedded-administrator";
/// Timeout for a machine under load.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// Control plane, gateway and client of a test; they end when this is dropped.
pub(crate) struct Cluster {
    pub control_plane: ControlPlane,
    pub address: SocketAddr,
    pub stop: CancellationToken,
    client: Client<HttpConnector, Full<Bytes>>,
    _folder: tempfile::TempDir,
    _stop: DropGuard,
}

/// An answer with its whole body.
#[derive(Debug)]
pub(crate) struct Answered {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answered {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/json", "{self:?}");
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Checks that the answer is a metav1 `Status` with this code, and returns its message.
    pub(crate) fn refusal(&self, code: u16) -> String {
        let status = self.json();
        assert_eq!(
            (self.status.as_u16(), status["code"].as_u64()),
            (code, Some(u64::from(code))),
            "{status}"
        );
        assert_eq!(
            (&status["kind"], &status["apiVersion"]),
            (&json!("Status"), &json!("v1")),
            "{status}"
        );
        let message = status["message"].as_str().expect("a message").to_owned();
        assert!(
            !status["reason"].as_str().unwrap_or_default().is_empty() && !message.is_empty(),
            "{status}"
        );
        message
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[], Limits::default()).await
    }

    /// Starts a cluster whose gateway has additional arguments and other limits.
    pub(crate) async fn start_with(arguments: &[&str], limits: Limits) -> Self {
        let options = Options {
            clock: std::sync::Arc::new(k8s_openapi::jiff::Timestamp::now),
            ..Options::default()
        };
        let control_plane = ControlPlane::new(options);
        let any_port = "127.0.0.1:0".parse().expect("an address");
        let server = ApiServer::bind(&control_plane, any_port, TOKEN.to_owned()).await.expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let authority = folder.path().join("ca.crt");
        std::fs::write(&authority, certificate(&server.kubeconfig("default"))).expect("written");
        let stop = CancellationToken::new();
        let url = server.url();
        tokio::spawn(server.serve(stop.clone()));
        let given = ["--api-server-url", &url, "--api-server-ca-file", authority.to_str().expect("UTF-8")];
        let address = gateway(&[&given, arguments].concat(), limits, stop.clone()).await;
        Self {
            control_plane,
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
            _folder: folder,
            _stop: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Sends a request with the valid token.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Answered {
        let mut request = Request::builder()
            .method(method)
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(path, request, body.into()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answered {
        self.call(Method::GET, path, None).await
    }

    /// Sends a request without adding a token.
    pub(crate) async fn send(&self, path: &str, request: http::request::Builder, body: Bytes) -> Answered {
        let uri = format!("http://{}{path}", self.address);
        let request = request.uri(uri).body(Full::new(body)).expect("a request");
        let answered = tokio::time::timeout(WITHIN, async {
            let answer = self.client.request(request).await.expect("an answer");
            let (parts, body) = answer.into_parts();
            Answered {
                status: parts.status,
                headers: parts.headers,
                body: body.collect().await.expect("a body").to_bytes(),
            }
        });
        answered
            .await
            .unwrap_or_else(|_| panic!("{path} is not answered within {WITHIN:?}"))
    }

    /// Creates an object in the namespace `default`, directly at the control plane.
    pub(crate) async fn apply(&self, kind: &str, name: &str, content: Value) {
        let mut object: DynamicObject = serde_json::from_value(content).expect("an object");
        object.metadata.name = Some(name.to_owned());
        let params = kube::api::PostParams::default();
        self.objects(kind).create(&params, &object).await.expect("created");
    }

    /// Merges a patch into an object's status, as the operator would.
    pub(crate) async fn report(&self, kind: &str, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.objects(kind).patch_status(name, &PatchParams::default(), &patch).await;
        patched.expect("patched");
    }

    pub(crate) fn objects(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = if kind == "ConfigMap" {
            ("", "v1")
        } else {
            ("sahasra.dev", "v1alpha1")
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.control_plane.client("default"), "default", &resource)
    }

    /// Value of a metric at `/metrics`, summed over all labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.send("/metrics", Request::builder(), Bytes::new()).await.body;
        let page = String::from_utf8(page.to_vec()).expect("text");
        let samples = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = rest.rsplit_once('}').map_or(rest, |(_, value)| value);
            value.trim().parse::<f64>().ok()
        });
        samples.sum()
    }
}

/// Starts a gateway on a port of its own, without TLS, until `stop` is cancelled.
pub(crate) async fn gateway(arguments: &[&str], limits: Limits, stop: CancellationToken) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let handshake = PlainOrTls::new(address, None, Duration::from_secs(30)).expect("loopback");
    let arguments = Args::try_parse_from([&["sahasra-gateway"], arguments].concat()).expect("arguments");
    tokio::spawn(async move {
        serve(arguments, limits, handshake, listener, stop).await.expect("it serves");
    });
    address
}

fn certificate(kubeconfig: &str) -> Vec<u8> {
    let kubeconfig: Value = serde_json::from_str(kubeconfig).expect("JSON");
    let encoded = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"]
        .as_str()
        .expect("an authority");
    base64::engine::general_purpose::STANDARD.decode(encoded).expect("base64")
}

/// Polls `look` until it returns `Some`.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let waited = tokio::time::timeout(WITHIN, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: not within {WITHIN:?}"))
}
