//! The listener with TLS.

use std::{sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName},
};
use sahasra_gateway::{Limits, args::Args, serve, tls::PlainOrTls};
use sahasra_service::tls::Files;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::cluster::eventually;

/// Requests `/healthz` over TLS as a client that trusts only this certificate; returns the answer.
async fn asked(address: std::net::SocketAddr, trusted: &CertificateDer<'static>) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = TcpStream::connect(address).await.expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut connection = TlsConnector::from(Arc::new(config)).connect(name, connection).await.ok()?;
    connection
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .ok()?;
    let mut answer = String::new();
    let _ = connection.read_to_string(&mut answer).await;
    Some(answer)
}

#[tokio::test]
async fn a_new_certificate_is_loaded_and_an_invalid_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Files {
        certificate: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
        client_authority: None,
    };
    let renew = |whole: bool| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(&files.certificate, made.cert.pem()).expect("written");
        if whole {
            std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
        }
        made.cert.der().clone()
    };
    let first = renew(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let handshake = PlainOrTls::new(address, Some(files.clone()), Duration::from_secs(30)).expect("a handshake");
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let renewing = handshake.clone();
    tokio::spawn(async move { renewing.renew(Duration::from_millis(10)).await });
    let arguments = <Args as clap::Parser>::parse_from(["sahasra-gateway", "--api-server-url", "http://127.0.0.1:1"]);
    tokio::spawn(async move {
        serve(arguments, Limits::default(), handshake, listener, stop)
            .await
            .expect("it serves")
    });

    let answer = asked(address, &first).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A certificate without its key, as between two writes: the previous certificate stays in use.
    let half = renew(false);
    for _ in 0..5 {
        assert!(asked(address, &half).await.is_none());
        assert!(asked(address, &first).await.is_some());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let second = renew(true);
    eventually("the new certificate is shown", async || asked(address, &second).await).await;
    assert!(asked(address, &first).await.is_none());

    // Plain HTTP on this port is not answered.
    let mut plain = TcpStream::connect(address).await.expect("it listens");
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}
