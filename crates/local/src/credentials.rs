//! Authentication by a single token over TLS with a self-signed certificate. The kubeconfig contains both.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("failed to create a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("failed to read a certificate or its key: expected PEM")]
    Pem(#[from] pem::Error),
    #[error("failed to configure TLS")]
    Tls(#[from] rustls::Error),
}

/// A self-signed certificate and its key, both in PEM.
#[derive(Clone)]
pub struct Certificate {
    pub certificate: String,
    pub key: String,
}

impl Certificate {
    /// Generates a certificate for these names. Fails if the system provides no randomness for the key.
    pub fn generate(names: Vec<SanType>) -> Result<Self, CredentialsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.distinguished_name.push(DnType::CommonName, "sahasra");
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Generates a certificate for a DNS name.
    pub fn for_name(name: &str) -> Result<Self, CredentialsError> {
        Self::generate(vec![SanType::DnsName(name.try_into()?)])
    }

    /// The certificate in DER. Fails if its text is no certificate in PEM.
    pub fn der(&self) -> Result<Vec<u8>, CredentialsError> {
        Ok(CertificateDer::from_pem_slice(self.certificate.as_bytes())?.to_vec())
    }

    /// Acceptor of TLS connections with this certificate, for HTTP/2 and HTTP/1.1.
    pub fn acceptor(&self) -> Result<TlsAcceptor, CredentialsError> {
        let chain = vec![CertificateDer::from_pem_slice(self.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

#[derive(Clone)]
pub struct Credentials {
    pub token: String,
    certificate: String,
    pub acceptor: TlsAcceptor,
}

impl Credentials {
    /// Generates a certificate for `localhost` and `address`. Fails if the system provides no randomness for the key.
    pub fn new(address: IpAddr, token: String) -> Result<Self, CredentialsError> {
        let certificate = Certificate::generate(vec![SanType::DnsName("localhost".try_into()?), SanType::IpAddress(address)])?;
        Ok(Self {
            token,
            acceptor: certificate.acceptor()?,
            certificate: certificate.certificate,
        })
    }

    /// A kubeconfig with full access to the server at `address`, in JSON, which is also YAML. Contains the token.
    pub fn kubeconfig(&self, address: SocketAddr, namespace: &str) -> String {
        let name = "sahasra";
        let cluster = json!({"server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(&self.certificate)});
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
            "current-context": name,
        });
        format!("{config:#}\n")
    }
}
