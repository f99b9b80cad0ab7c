//! Workers that use TLS.

use std::{fs, net::SocketAddr, path::PathBuf};

use futures::{SinkExt, StreamExt};
use http::Request;
use sahasra_gateway::Limits;
use sahasra_service::{
    server::Handshake,
    tls::{Acceptor, Files},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::{
    cluster::{Cluster, WITHIN},
    ends::{STREAM, request},
};

/// Name in the workers' certificate.
const NAME: &str = "sahasra-worker";

/// A self-signed certificate.
struct Certificate {
    folder: TempDir,
}

impl Certificate {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
        fs::write(folder.path().join("tls.crt"), made.cert.pem()).expect("written");
        fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem()).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn acceptor(&self) -> Acceptor {
        let files = Files {
            certificate: self.path("tls.crt"),
            key: self.path("tls.key"),
            client_authority: None,
        };
        Acceptor::new(files).expect("a certificate")
    }
}

/// A gateway with these arguments, and a session that is placed on `worker`.
async fn placed(arguments: &[&str], worker: SocketAddr) -> Cluster {
    let cluster = Cluster::start_with(arguments, Limits::default()).await;
    let session = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {}, "spec": {"vram": "1Gi"}});
    cluster.apply("GpuSession", "mine", session).await;
    cluster
        .report("GpuSession", "mine", json!({"endpoint": format!("https://{worker}")}))
        .await;
    cluster
}

#[tokio::test]
async fn bytes_are_relayed_in_both_directions_over_a_workers_tls() {
    let (certificate, listener) = (Certificate::new(), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let authority = certificate.path("tls.crt").display().to_string();
    let arguments = ["--worker-ca-file", &authority, "--worker-server-name", NAME];
    let cluster = placed(&arguments, listener.local_addr().expect("an address")).await;
    let accepting = async {
        let (connection, _) = listener.accept().await.expect("a connection");
        let mut worker = certificate.acceptor().handshake(connection).await.expect("a handshake");
        assert_eq!(worker.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(worker.read_u8().await.expect("a head")));
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n";
        worker.write_all(answer.as_bytes()).await.expect("sent");
        worker.flush().await.expect("sent");
        worker
    };
    let connection = TcpStream::connect(cluster.address).await.expect("it listens");
    let both = async { tokio::join!(tokio_tungstenite::client_async(request(&cluster), connection), accepting) };
    let (client, mut worker) = tokio::time::timeout(WITHIN, both).await.expect("they meet");
    let (mut client, _) = client.expect("a WebSocket");
    // The last part is smaller than any buffer, and must not wait for more data.
    let data: Vec<u8> = (0..(3 << 20) + 7).map(|at: usize| (at % 251) as u8).collect();
    let up = async {
        for piece in data.chunks(1 << 20) {
            client.send(Message::Binary(piece.to_vec().into())).await.expect("sent");
        }
        let mut heard = Vec::new();
        while heard.len() < data.len() {
            match client.next().await.expect("it goes on").expect("a message") {
                Message::Binary(bytes) => heard.extend_from_slice(&bytes),
                other => panic!("{other:?}"),
            }
        }
        heard
    };
    let echo = async {
        let mut heard = vec![0; data.len()];
        worker.read_exact(&mut heard).await.expect("it comes");
        worker.write_all(&heard).await.expect("sent");
        worker.flush().await.expect("sent");
    };
    let both = async { tokio::join!(up, echo) };
    let (heard, ()) = tokio::time::timeout(WITHIN, both).await.expect("all of it");
    assert!(heard == data);
    // When the worker closes its connection, the gateway closes the client's.
    drop(worker);
    loop {
        match tokio::time::timeout(WITHIN, client.next()).await.expect("it ends") {
            Some(Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed)) | None => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn a_worker_with_an_invalid_certificate_is_rejected_with_the_remedy() {
    let (certificate, listener) = (Certificate::new(), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let (address, acceptor) = (listener.local_addr().expect("an address"), certificate.acceptor());
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let _ = acceptor.handshake(connection).await;
        }
    });
    let (right, other) = (certificate.path("tls.crt").display().to_string(), Certificate::new());
    let other = other.path("tls.crt").display().to_string();
    for (arguments, remedy) in [
        (&[][..], "--worker-ca-file"),
        (&["--worker-ca-file", &other, "--worker-server-name", NAME], "--worker-ca-file"),
        // The endpoint's host, 127.0.0.1, is not a name in the certificate.
        (&["--worker-ca-file", &right], "--worker-server-name"),
    ] {
        let cluster = placed(arguments, address).await;
        let request = request(&cluster);
        let ask = Request::get(format!("http://{}{STREAM}", cluster.address));
        let ask = request.headers().iter().fold(ask, |ask, (name, value)| ask.header(name, value));
        let answer = cluster.send(STREAM, ask, bytes::Bytes::new()).await;
        let message = answer.refusal(502);
        assert!(
            message.contains(remedy) && message.contains("certificate"),
            "{arguments:?}: {message}"
        );
    }
}
