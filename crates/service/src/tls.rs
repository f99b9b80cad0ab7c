//! TLS of all processes: certificates and authorities in PEM files, which are reloaded when the files change.
//!
//! ```text
//! tls.crt, tls.key, client-ca.crt ── Files ──► Acceptor   a server's side of the handshake
//! ca.crt, tls.crt, tls.key ───────── Trust ──► Connector  a client's side of it
//! ```
//!
//! Both sides detect changes by comparing the contents of the files. Modification times are not used, because the volume of a Secret is
//! updated by replacing a symbolic link to a directory. Open connections keep the certificates of their handshake.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::RwLock;
use rustls::{
    RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

mod client;
mod server;

pub use client::{Connector, Identity, TlsFault, Trust, fault};
pub use rustls::pki_types::ServerName;
pub use server::{Acceptor, Files};

use crate::causes;

/// Poll interval of the files. Short against the minute or two that a kubelet takes to update a Secret's volume.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {what} in PEM format not found", path.display())]
    Pem {
        path: PathBuf,
        /// The expected item: certificate or private key.
        what: &'static str,
    },
    /// Certificate and key do not match, or are not supported.
    #[error("invalid certificate or key")]
    Use(#[source] rustls::Error),
    #[error("invalid CA certificate {}", path.display())]
    Authority {
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A list of files, and the value built from their contents.
pub trait Source {
    type Made: Clone;
    fn paths(&self) -> Vec<&Path>;
    /// Builds the value from the contents of the files, in the order of [`Source::paths`].
    fn make(&self, contents: &[Vec<u8>]) -> Result<Self::Made, TlsError>;
}

/// Contents of the files of a [`Source`], in the order of [`Source::paths`]. Compared to detect changes.
type Contents = Vec<Vec<u8>>;

/// The latest valid value of a [`Source`], such as the certificates in a list of files. Clones share it.
#[derive(Clone)]
pub struct Renewing<S: Source> {
    source: Arc<S>,
    current: Arc<RwLock<(Contents, S::Made)>>,
}

impl<S: Source + fmt::Debug> fmt::Debug for Renewing<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Renewing").field(&self.source).finish()
    }
}

impl<S: Source> Renewing<S> {
    pub fn new(source: S) -> Result<Self, TlsError> {
        let contents = read(&source)?;
        let made = source.make(&contents)?;
        Ok(Self {
            source: Arc::new(source),
            current: Arc::new(RwLock::new((contents, made))),
        })
    }

    fn current(&self) -> S::Made {
        self.current.read().1.clone()
    }

    /// Reads the files every `interval`, until the future is dropped, and replaces the value if they have changed. If the new contents are
    /// invalid, the previous value stays, and a warning is logged once for these contents.
    pub async fn renew(&self, interval: Duration) {
        let files = self
            .source
            .paths()
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let mut complained_of = None;
        loop {
            tokio::time::sleep(interval).await;
            let unchanged = |contents: &Contents| self.current.read().0 == *contents;
            let renewed = match read(&*self.source) {
                Ok(contents) if unchanged(&contents) || complained_of.as_ref() == Some(&Some(contents.clone())) => continue,
                Ok(contents) => match self.source.make(&contents) {
                    Ok(made) => Ok((contents, made)),
                    Err(error) => Err((error, Some(contents))),
                },
                Err(_) if complained_of == Some(None) => continue,
                Err(error) => Err((error, None)),
            };
            match renewed {
                Ok(renewed) => {
                    *self.current.write() = renewed;
                    complained_of = None;
                    tracing::info!(files, "certificate reloaded");
                }
                Err((error, contents)) => {
                    let error = causes(&error);
                    tracing::warn!(files, error, "failed to reload the certificate, keeping the previous one");
                    complained_of = Some(contents);
                }
            }
        }
    }
}

fn read<S: Source>(source: &S) -> Result<Contents, TlsError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|source| TlsError::Read {
            path: path.to_owned(),
            source,
        })
    };
    source.paths().into_iter().map(read).collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// All certificates in a PEM file, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.ok().filter(|certificates| !certificates.is_empty());
    certificates.ok_or_else(|| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
    })
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
    })
}

fn authority(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| TlsError::Authority {
            path: path.to_owned(),
            source: error.into(),
        })?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
