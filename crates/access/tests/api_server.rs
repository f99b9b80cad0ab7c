//! Access checks against two API servers: the embedded one over HTTPS, and one with canned responses.
#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::StatusCode;
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use sahasra_access::{Access, AccessError};
use sahasra_e2e::ApiServer;
use sahasra_local::{ControlPlane, Options};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn the_embedded_api_accepts_only_its_own_token() {
    let control_plane = ControlPlane::new(Options::default());
    let server = ApiServer::bind(&control_plane, "127.0.0.1:0".parse().unwrap(), "secret".to_owned())
        .await
        .unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig("default")).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    // The kubeconfig contains a valid token, which must not be used.
    let access = Access::of_api_server(config).unwrap();
    access.check_stream("secret", "default", "mine").await.unwrap();
    let error = access.check_stream("wrong", "default", "mine").await.unwrap_err();
    assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{error}");
    let error = access.check_stream("not\na token", "default", "mine").await.unwrap_err();
    assert_eq!(error.status(), StatusCode::UNAUTHORIZED, "{error}");
    stop.cancel();
    serving.await.unwrap();
}

/// Starts a server that sends the same response to every request. Returns its address and the counter of its requests.
fn server(status: &'static str, body: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            // Read until the end of the JSON body, which has no blank line after it.
            while !String::from_utf8_lossy(&request).contains("\"subresource\":\"stream\"") {
                match stream.read(&mut buffer) {
                    Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                    _ => break,
                }
            }
            let text = String::from_utf8_lossy(&request).to_lowercase();
            assert!(text.contains("authorization: bearer token"), "{text}");
            assert!(!text.contains("agents-own"), "{text}");
            counted.fetch_add(1, Ordering::SeqCst);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    (address, asked)
}

fn config(address: SocketAddr) -> Config {
    let mut config = Config::new(format!("http://{address}").parse().unwrap());
    config.auth_info = AuthInfo {
        token: Some("agents-own".to_owned().into()),
        ..AuthInfo::default()
    };
    config
}

const ALLOWED: &str = r#"{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{},"status":{"allowed":true}}"#;
const DENIED: &str = r#"{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{},
    "status":{"allowed":false,"reason":"no rule"}}"#;
const BROKEN: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcd is away","code":500}"#;

#[tokio::test]
async fn an_allowed_verdict_is_cached_for_that_action_only() {
    let (address, asked) = server("201 Created", ALLOWED);
    let access = Access::of_api_server(config(address)).unwrap();
    for _ in 0..3 {
        access.check_stream("token", "team", "mine").await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    access.check_stream("token", "team", "other").await.unwrap();
    access.check_stream("token2", "team", "mine").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_yes_is_forgotten_after_seconds() {
    let (address, asked) = server("201 Created", ALLOWED);
    let access = Access::of_api_server(config(address)).unwrap();
    access.check_stream("token", "team", "mine").await.unwrap();
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(6)).await;
    tokio::time::resume();
    access.check_stream("token", "team", "mine").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_no_is_forbidden_with_the_servers_reason() {
    let (address, _) = server("201 Created", DENIED);
    let access = Access::of_api_server(config(address)).unwrap();
    let error = access.check_stream("token", "team", "mine").await.unwrap_err();
    assert_eq!(error.status(), StatusCode::FORBIDDEN);
    assert!(error.to_string().contains("(no rule)"), "{error}");
}

#[tokio::test]
async fn a_failed_review_gives_no_verdict_and_is_repeated() {
    let (address, asked) = server("500 Internal Server Error", BROKEN);
    let access = Access::of_api_server(config(address)).unwrap();
    for _ in 0..2 {
        let error = access.check_stream("token", "team", "mine").await.unwrap_err();
        assert!(matches!(error, AccessError::Unavailable(_)), "{error}");
        assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(asked.load(Ordering::SeqCst) >= 2);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let access = Access::of_api_server(config(closed)).unwrap();
    let error = access.check_stream("token", "team", "mine").await.unwrap_err();
    assert_eq!(error.status(), StatusCode::SERVICE_UNAVAILABLE, "{error}");
}
