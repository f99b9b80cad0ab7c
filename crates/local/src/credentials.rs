//! Authentication by a single token over TLS with a self-signed certificate. The kubeconfig contains both.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("failed to create a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("failed to configure TLS")]
    Tls(#[from] rustls::Error),
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
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress(address));
        params.distinguished_name.push(DnType::CommonName, "sahasra");
        let certificate = params.self_signed(&key)?;
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, private)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            token,
            certificate: certificate.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
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
