//! A client's side.

use std::{
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Renewing, Source, TlsError, authority, certificates, private_key, provider};

/// Authority that a client trusts, and its own certificate.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Certificates of the authority that servers' certificates are of, PEM.
    pub authority: PathBuf,
    /// Name that a server's certificate has to be for; the URL's host when absent.
    pub server_name: Option<ServerName<'static>>,
    /// Certificate for servers that request one.
    pub identity: Option<Identity>,
    /// The protocol above, as ALPN calls it (RFC 7301 §6): `h2`, `http/1.1`.
    pub protocol: &'static str,
}

/// Where a client's own certificate stands.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The chain, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
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

/// Makes connections, with certificates as they are now. Clones share them.
#[derive(Clone)]
pub struct Connector(Renewing<Trust>);

impl std::fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Connector").field(&self.0.source).finish()
    }
}

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(trust: Trust) -> Result<Self, TlsError> {
        Renewing::new(trust).map(Self)
    }

    /// Takes what changes in the files, looking every `interval`, until dropped: connections from then on see it.
    pub async fn renew(&self, interval: Duration) {
        self.0.renew(interval).await;
    }

    /// What a connection is made with now.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.current()
    }

    /// The name that a server's certificate has to be for, where its URL has this host. An address of IPv6 may stand in brackets.
    ///
    /// # Errors
    /// When the host is neither a name nor an address.
    pub fn server_name(&self, host: &str) -> io::Result<ServerName<'static>> {
        if let Some(name) = &self.0.source.server_name {
            return Ok(name.clone());
        }
        let host = host.trim_matches(['[', ']']);
        ServerName::try_from(host.to_owned()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?}: {error}")))
    }

    /// The handshake, on a connection to `host`.
    ///
    /// # Errors
    /// The connection's; a [`fault`] where TLS is what went wrong.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = self.server_name(host)?;
        TlsConnector::from(self.config()).connect(name, stream).await
    }
}

/// What went wrong with TLS, and on whose side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The server's certificate is for other names.
    #[error("{0}")]
    Name(String),
    /// The server's certificate is not accepted for another reason: its authority, its time.
    #[error("{0}")]
    Certificate(String),
    /// The server does not accept this side's certificate.
    #[error("{0}")]
    Identity(String),
    /// The other side speaks something else.
    #[error("{0}")]
    Protocol(String),
}

/// Prefix of rustls's message for an alert.
const ALERT: &str = "received fatal alert: ";
/// What a client reads when the server does not accept its certificate (RFC 8446 §6.2).
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

/// The TLS that an error is about, if it is, however deep it lies.
pub fn fault(error: &(dyn Error + 'static)) -> Option<TlsFault> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(TlsFault::from(error));
        }
        // HTTP/2 keeps of an error that ends the connection the text alone.
        let text = error.to_string();
        if let Some(at) = text.find(ALERT)
            && REFUSALS
                .iter()
                .any(|alert| text[at + ALERT.len()..].starts_with(&format!("{alert:?}")))
        {
            return Some(TlsFault::Identity(text[at..].to_owned()));
        }
        // Of what it was made of an I/O error names the cause alone as its source.
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
