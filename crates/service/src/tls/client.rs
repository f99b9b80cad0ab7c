//! Client side of TLS.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Renewing, Source, TlsError, authority, certificates, private_key, provider};

/// Authority that a client trusts, and the client's own certificate.
#[derive(Clone, Debug)]
pub struct Trust {
    /// PEM file with the certificates of the authority that issues server certificates.
    pub authority: PathBuf,
    /// Name that a server's certificate must be valid for; the host of the URL if absent.
    pub server_name: Option<ServerName<'static>>,
    /// Certificate for servers that request one.
    pub identity: Option<Identity>,
    /// ALPN identifier (RFC 7301 §6) of the protocol over TLS: `h2`, `http/1.1`.
    pub protocol: &'static str,
}

/// PEM files of a client's own certificate chain and key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Source for Trust {
    type Made = Arc<ClientConfig>;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|identity| [&identity.certificate, &identity.key]);
        std::iter::once(&self.authority).chain(identity).map(PathBuf::as_path).collect()
    }

    fn make(&self, contents: &[Vec<u8>]) -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Use)?
            .with_root_certificates(authority(&self.authority, &contents[0])?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = certificates(certificate, &contents[1])?;
                let key = private_key(key, &contents[2])?;
                builder.with_client_auth_cert(chain, key).map_err(TlsError::Use)?
            }
        };
        config.alpn_protocols = vec![self.protocol.as_bytes().to_vec()];
        Ok(Arc::new(config))
    }
}

/// Performs TLS handshakes as a client, with the current certificates.
pub type Connector = Renewing<Trust>;

impl Connector {
    pub fn config(&self) -> Arc<ClientConfig> {
        self.current()
    }

    /// Name that a server's certificate must be valid for, if its URL has this host: a name or an address, IPv6 also in brackets.
    pub fn server_name(&self, host: &str) -> io::Result<ServerName<'static>> {
        if let Some(name) = &self.source.server_name {
            return Ok(name.clone());
        }
        let host = host.trim_matches(['[', ']']);
        ServerName::try_from(host.to_owned()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?}: {error}")))
    }

    /// Performs the TLS handshake on a connection to `host`. [`fault`] tells whether an error was one of TLS.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = self.server_name(host)?;
        TlsConnector::from(self.config()).connect(name, stream).await
    }
}

/// A TLS error and the side that caused it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The server's certificate is valid for other names.
    #[error("{0}")]
    Name(String),
    /// The server's certificate is rejected for another reason, such as its authority or its validity period.
    #[error("{0}")]
    Certificate(String),
    /// The server rejects the client's certificate.
    #[error("{0}")]
    Identity(String),
    /// Any other TLS error, for example because the peer does not speak TLS.
    #[error("{0}")]
    Protocol(String),
}

/// Prefix of rustls's message for a received alert.
const ALERT: &str = "received fatal alert: ";
/// Alerts with which a server rejects the client's certificate (RFC 8446 §6.2).
const REFUSALS: [Alert; 9] = [
    Alert::BadCertificate,
    Alert::UnsupportedCertificate,
    Alert::CertificateRevoked,
    Alert::CertificateExpired,
    Alert::CertificateUnknown,
    Alert::UnknownCA,
    Alert::AccessDenied,
    Alert::DecryptError,
    Alert::CertificateRequired,
];

/// The TLS error in the source chain of `error`, at any depth, or `None` if there is none.
pub fn fault(error: &(dyn Error + 'static)) -> Option<TlsFault> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(TlsFault::from(error));
        }
        // An HTTP/2 error that ends the connection keeps only the text of its source.
        let text = error.to_string();
        if let Some(at) = text.find(ALERT)
            && REFUSALS
                .iter()
                .any(|alert| text[at + ALERT.len()..].starts_with(&format!("{alert:?}")))
        {
            return Some(TlsFault::Identity(text[at..].to_owned()));
        }
        // The `source` of an I/O error skips the error that it wraps, so look at the wrapped error directly.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

impl From<&rustls::Error> for TlsFault {
    fn from(error: &rustls::Error) -> Self {
        let text = error.to_string();
        match error {
            rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
                Self::Name(text)
            }
            rustls::Error::InvalidCertificate(_) => Self::Certificate(text),
            rustls::Error::AlertReceived(alert) if REFUSALS.contains(alert) => Self::Identity(text),
            _ => Self::Protocol(text),
        }
    }
}
