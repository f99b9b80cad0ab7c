use std::{net::SocketAddr, path::PathBuf, sync::Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use warp::Filter;

use super::*;
use crate::server::{self, Cleartext, Limits};

/// A certificate authority.
struct Signer(CertifiedIssuer<'static, KeyPair>);

impl Signer {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// A temporary directory with the certificate files of both sides.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Files of a server certificate for `localhost`. Writes the certificate of its authority to `ca.crt`.
    fn server(&self, signer: &Signer) -> Files {
        let (certificate, key) = signer.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
        self.write("ca.crt", &signer.0.pem());
        Files {
            certificate: self.write("tls.crt", &certificate),
            key: self.write("tls.key", &key),
            client_authority: None,
        }
    }

    fn trust(&self) -> Trust {
        Trust {
            authority: self.0.path().join("ca.crt"),
            server_name: None,
            identity: None,
            protocol: "http/1.1",
        }
    }

    fn identity(&self, signer: &Signer) -> Identity {
        let (certificate, key) = signer.sign("operator", ExtendedKeyUsagePurpose::ClientAuth);
        Identity {
            certificate: self.write("client.crt", &certificate),
            key: self.write("client.key", &key),
        }
    }
}

/// Starts a server that responds whether the client is certified.
async fn serve<H: server::Handshake>(handshake: H) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let routes = warp::ext::optional::<server::Certified>().map(|certified: Option<server::Certified>| match certified {
        Some(server::Certified) => "certified",
        None => "anybody",
    });
    tokio::spawn(server::serve(
        listener,
        handshake,
        warp::service(routes),
        Limits::default(),
        stop.clone(),
    ));
    (address, stop.drop_guard())
}

/// Sends a request for `localhost` to `address` and returns the response.
async fn ask(address: SocketAddr, connector: &Connector) -> Result<String, Option<TlsFault>> {
    let exchange = async {
        let mut stream = connector.connect("localhost", TcpStream::connect(address).await?).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| fault(&error))?;
    Ok(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn only_a_client_with_a_certificate_of_the_authority_is_certified() {
    let (folder, servers, clients) = (Folder::new(), Signer::new(), Signer::new());
    let files = Files {
        client_authority: Some(folder.write("clients.crt", &clients.0.pem())),
        ..folder.server(&servers)
    };
    let (address, _serving) = serve(Acceptor::new(files).unwrap()).await;
    let with = |identity| {
        Connector::new(Trust {
            identity,
            ..folder.trust()
        })
        .unwrap()
    };
    assert_eq!(ask(address, &with(None)).await.unwrap(), "anybody");
    assert_eq!(ask(address, &with(Some(folder.identity(&clients)))).await.unwrap(), "certified");
    // The authority of server certificates does not authenticate clients.
    let stranger = with(Some(folder.identity(&servers)));
    let since = tokio::time::Instant::now();
    loop {
        // The connection may break before the TLS alert with the reason arrives.
        match ask(address, &stranger).await.unwrap_err() {
            Some(fault) => break assert!(matches!(fault, TlsFault::Identity(_)), "{fault:?}"),
            None => assert!(since.elapsed() < Duration::from_secs(60), "no reason comes"),
        }
    }
}

#[tokio::test]
async fn a_client_reports_why_a_servers_certificate_is_invalid() {
    let (folder, signer) = (Folder::new(), Signer::new());
    let (address, _serving) = serve(Acceptor::new(folder.server(&signer)).unwrap()).await;
    let named = |name: &str| {
        Connector::new(Trust {
            server_name: Some(ServerName::try_from(name.to_owned()).unwrap()),
            ..folder.trust()
        })
    };
    assert_eq!(ask(address, &named("localhost").unwrap()).await.unwrap(), "anybody");
    let other = ask(address, &named("elsewhere").unwrap()).await.unwrap_err();
    assert!(
        matches!(&other, Some(TlsFault::Name(text)) if text.contains("elsewhere") && text.contains("localhost")),
        "{other:?}"
    );
    folder.write("ca.crt", &Signer::new().0.pem());
    let unknown = ask(address, &Connector::new(folder.trust()).unwrap()).await.unwrap_err();
    assert!(matches!(unknown, Some(TlsFault::Certificate(_))), "{unknown:?}");
    let (plain, _serving) = serve(Cleartext).await;
    let spoken = ask(plain, &Connector::new(folder.trust()).unwrap()).await.unwrap_err();
    assert!(matches!(spoken, Some(TlsFault::Protocol(_))), "{spoken:?}");
}

#[tokio::test]
async fn both_sides_take_new_files_and_keep_the_old_ones_while_they_are_half_written() {
    let (folder, old, new) = (Folder::new(), Signer::new(), Signer::new());
    let acceptor = Acceptor::new(folder.server(&old)).unwrap();
    let connector = Connector::new(folder.trust()).unwrap();
    let soon = Duration::from_millis(5);
    let (renewed, trusting) = (acceptor.clone(), connector.clone());
    tokio::spawn(async move { tokio::join!(renewed.renew(soon), trusting.renew(soon)) });
    let (address, _serving) = serve(acceptor).await;
    let before = Connector::new(folder.trust()).unwrap();
    assert_eq!(ask(address, &connector).await.unwrap(), "anybody");
    // A certificate without its key, as between the writes of the two files.
    folder.write("tls.key", &KeyPair::generate().unwrap().serialize_pem());
    for _ in 0..5 {
        tokio::time::sleep(2 * soon).await;
        assert_eq!(ask(address, &before).await.unwrap(), "anybody");
    }
    folder.server(&new);
    // Either side may reload its files first.
    let since = tokio::time::Instant::now();
    while ask(address, &connector).await.is_err() || ask(address, &before).await.is_ok() {
        assert!(since.elapsed() < Duration::from_secs(60), "they do not find to each other");
        tokio::time::sleep(soon).await;
    }
}

#[test]
fn a_tls_alert_is_recognised_by_its_text_in_an_http_error() {
    let told = io::Error::other("connection error: received fatal alert: UnknownCA");
    assert!(matches!(fault(&told), Some(TlsFault::Identity(text)) if text == "received fatal alert: UnknownCA"));
    assert_eq!(fault(&io::Error::other("received fatal alert: InternalError")), None);
    assert_eq!(fault(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
}

#[test]
fn files_that_hold_something_else_are_named() {
    let (folder, signer) = (Folder::new(), Signer::new());
    let right = folder.server(&signer);
    let problem = |files: Files| Acceptor::new(files).err().map(|error| causes(&error));
    assert_eq!(problem(right.clone()), None);
    let key = right.key.clone();
    assert!(
        problem(Files {
            certificate: key.clone(),
            ..right.clone()
        })
        .unwrap()
        .contains("tls.key: certificate in PEM format not found")
    );
    let certificate = right.certificate.clone();
    assert!(
        problem(Files {
            key: certificate.clone(),
            ..right.clone()
        })
        .unwrap()
        .contains("tls.crt: private key in PEM format not found")
    );
    let none = folder.0.path().join("none");
    assert!(
        problem(Files {
            certificate: none.clone(),
            ..right.clone()
        })
        .unwrap()
        .contains("none")
    );
    let (_, other) = signer.sign("localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let other = folder.write("other.key", &other);
    assert!(
        problem(Files {
            key: other,
            ..right.clone()
        })
        .is_some(),
        "a key of another certificate"
    );
    let client_authority = Some(key.clone());
    assert!(
        problem(Files { client_authority, ..right })
            .unwrap()
            .contains("tls.key: certificate in PEM format not found")
    );
    let trust = Trust {
        authority: key,
        ..folder.trust()
    };
    assert!(causes(&Connector::new(trust).err().unwrap()).contains("tls.key: certificate in PEM format not found"));
}

#[tokio::test]
async fn unchanged_files_are_not_loaded_again() {
    #[derive(Default)]
    struct Counting(Mutex<usize>);
    impl Source for Counting {
        type Made = ();
        fn paths(&self) -> Vec<&Path> {
            vec![Path::new("/dev/null")]
        }
        fn make(&self, _contents: &[Vec<u8>]) -> Result<(), TlsError> {
            *self.0.lock().unwrap() += 1;
            Ok(())
        }
    }
    let renewing = Renewing::new(Counting::default()).unwrap();
    let _ = tokio::time::timeout(Duration::from_millis(100), renewing.renew(Duration::from_millis(1))).await;
    assert_eq!(*renewing.source.0.lock().unwrap(), 1);
}
