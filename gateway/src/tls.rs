//! Who may reach the gateway's port: with a certificate anybody, without one this machine alone.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use sahasra_service::server::Handshake;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;

use crate::stall::Unstalled;

/// A client that takes nothing of an answer for so long is cut off.
pub const STALLED_FOR: Duration = Duration::from_secs(30);

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// An address that others reach, without a certificate.
    #[error(
        "{0} can be reached from other machines, and without TLS every token would be there for them to read: \
         give --tls-certificate FILE and --tls-key FILE, or listen on 127.0.0.1"
    )]
    NotLoopback(SocketAddr),
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no {what} in PEM", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Certificate and key do not serve together.
    #[error("certificate and key cannot be used")]
    Use(#[source] rustls::Error),
}

/// Where a certificate and its key stand.
#[derive(Clone, Debug)]
pub struct Files {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// The key, PEM.
    pub key: PathBuf,
}

/// The files' contents: what tells a change.
type Contents = (Vec<u8>, Vec<u8>);

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| TlsError::Read {
                path: path.clone(),
                source,
            })
        };
        Ok((read(&self.certificate)?, read(&self.key)?))
    }

    fn acceptor(&self, (certificate, key): &Contents) -> Result<TlsAcceptor, TlsError> {
        let wrong = |path: &PathBuf, what| TlsError::Pem { path: path.clone(), what };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or_else(|| wrong(&self.certificate, "certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong(&self.key, "private key"))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Use)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(TlsError::Use)?;
        // A WebSocket needs HTTP/1.1; clients that open one offer that alone.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// What accepted connections go through. Clones share the certificate.
#[derive(Clone)]
pub struct Door {
    tls: Option<Certified>,
    stalled_for: Duration,
}

#[derive(Clone)]
struct Certified {
    files: Files,
    current: Arc<RwLock<(Contents, TlsAcceptor)>>,
}

impl Door {
    /// A door at `address`: with TLS where there are files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(address: SocketAddr, files: Option<Files>, stalled_for: Duration) -> Result<Self, TlsError> {
        let Some(files) = files else {
            if !address.ip().is_loopback() {
                return Err(TlsError::NotLoopback(address));
            }
            return Ok(Self { tls: None, stalled_for });
        };
        let contents = files.read()?;
        let acceptor = files.acceptor(&contents)?;
        let tls = Certified {
            files,
            current: Arc::new(RwLock::new((contents, acceptor))),
        };
        Ok(Self {
            tls: Some(tls),
            stalled_for,
        })
    }

    /// Reads the files again every `interval` and takes what has changed: connections from then on see it. What cannot be used is
    /// complained of, and the certificate before it stays.
    pub async fn renew(&self, interval: Duration) {
        let Some(Certified { files, current }) = &self.tls else {
            return std::future::pending().await;
        };
        let mut complained_of = None;
        loop {
            tokio::time::sleep(interval).await;
            let read = files.read();
            let unchanged = |contents: &Contents| current.read().unwrap_or_else(PoisonError::into_inner).0 == *contents;
            let renewed = match read {
                Ok(contents) if unchanged(&contents) || complained_of.as_ref() == Some(&contents) => continue,
                Ok(contents) => files
                    .acceptor(&contents)
                    .map_err(|error| (error, Some(contents.clone())))
                    .map(|acceptor| (contents, acceptor)),
                Err(error) => Err((error, None)),
            };
            match renewed {
                Ok(renewed) => {
                    *current.write().unwrap_or_else(PoisonError::into_inner) = renewed;
                    complained_of = None;
                    tracing::info!(certificate = %files.certificate.display(), "the certificate has changed");
                }
                Err((error, contents)) => {
                    let error = crate::api::causes(&error);
                    tracing::warn!(error, "the certificate has changed into what cannot be used; the one before stays");
                    complained_of = contents;
                }
            }
        }
    }
}

impl Handshake for Door {
    type Stream = Unstalled<Either<Box<TlsStream<TcpStream>>, TcpStream>>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let stream = match &self.tls {
            None => Either::Right(stream),
            Some(tls) => {
                let acceptor = tls.current.read().unwrap_or_else(PoisonError::into_inner).1.clone();
                Either::Left(Box::new(acceptor.accept(stream).await?))
            }
        };
        Ok(Unstalled::new(stream, self.stalled_for))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_certificate_only_loopback_is_possible() {
        for right in ["127.0.0.1:8443", "[::1]:8443", "127.3.2.1:0"] {
            assert!(Door::new(right.parse().unwrap(), None, STALLED_FOR).is_ok(), "{right}");
        }
        for wrong in ["0.0.0.0:8443", "[::]:8443", "192.0.2.1:8443"] {
            let error = Door::new(wrong.parse().unwrap(), None, STALLED_FOR).err().unwrap().to_string();
            assert!(error.contains(wrong) && error.contains("--tls-certificate"), "{error}");
        }
    }

    #[test]
    fn files_that_hold_something_else_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (
            file("tls.crt", &made.cert.pem()),
            file("tls.key", &made.signing_key.serialize_pem()),
        );
        let address = "0.0.0.0:0".parse().unwrap();
        let door = |certificate: &PathBuf, key: &PathBuf| {
            let files = Files {
                certificate: certificate.clone(),
                key: key.clone(),
            };
            Door::new(address, Some(files), STALLED_FOR)
                .err()
                .map(|error| crate::api::causes(&error))
        };
        assert_eq!(door(&certificate, &key), None);
        assert!(door(&key, &key).unwrap().contains("tls.key holds no certificate"));
        assert!(door(&certificate, &certificate).unwrap().contains("tls.crt holds no private key"));
        assert!(door(&folder.path().join("none"), &key).unwrap().contains("none"));
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = file("other.key", &other.signing_key.serialize_pem());
        assert!(door(&certificate, &other).is_some(), "a key of another certificate");
    }
}
