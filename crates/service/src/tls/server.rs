//! Server side of TLS.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{ServerConfig, server::WebPkiClientVerifier};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{Renewing, Source, TlsError, authority, certificates, private_key, provider};
use crate::server::Handshake;

/// PEM files of a server's certificate chain and key.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// PEM file with the certificates of the authority whose clients are [`Certified`](crate::server::Certified). Clients without a
    /// certificate are accepted too; clients with a certificate of another authority are rejected.
    pub client_authority: Option<PathBuf>,
}

impl Source for Files {
    type Made = TlsAcceptor;

    fn paths(&self) -> Vec<&Path> {
        let files = [&self.certificate, &self.key].into_iter().chain(&self.client_authority);
        files.map(PathBuf::as_path).collect()
    }

    fn make(&self, contents: &[Vec<u8>]) -> Result<TlsAcceptor, TlsError> {
        let chain = certificates(&self.certificate, &contents[0])?;
        let key = private_key(&self.key, &contents[1])?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Use)?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authority(path, &contents[2])?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .allow_unauthenticated()
                    .build();
                builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::Authority {
                    path: path.clone(),
                    source: error.into(),
                })?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Use)?;
        // Upgrading a connection requires HTTP/1.1; clients that upgrade offer only HTTP/1.1.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Performs TLS handshakes as a server, with the current certificate.
pub type Acceptor = Renewing<Files>;

impl Handshake for TlsAcceptor {
    type Stream = Box<TlsStream<TcpStream>>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        Ok(Box::new(self.accept(stream).await?))
    }
}

impl Handshake for Acceptor {
    type Stream = Box<TlsStream<TcpStream>>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        self.current().handshake(stream).await
    }

    fn is_certified(stream: &Self::Stream) -> bool {
        // A certificate that could not be verified has failed the handshake before.
        stream.get_ref().1.peer_certificates().is_some()
    }
}
