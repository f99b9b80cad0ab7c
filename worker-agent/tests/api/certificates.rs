//! Certificates that belong to one test.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::ClientConfig;
use sahasra_service::tls::{Connector, Identity, Trust};
use tempfile::TempDir;

/// Name in the agents' certificate, in addition to 127.0.0.1.
pub(crate) const NAME: &str = "sahasra-worker";

/// Two authorities, one of agents and one of operators, and their files.
pub(crate) struct Certificates {
    agents: CertifiedIssuer<'static, KeyPair>,
    operators: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let made = Self {
            agents: authority(),
            operators: authority(),
            folder: tempfile::tempdir().unwrap(),
        };
        made.write("ca.crt", &made.agents.pem());
        made.write("clients.crt", &made.operators.pem());
        made.renew();
        made.sign(&made.operators, "operator", ExtendedKeyUsagePurpose::ClientAuth);
        made.sign(&made.agents, "stranger", ExtendedKeyUsagePurpose::ClientAuth);
        made
    }

    /// Replaces the certificate of the agents.
    pub(crate) fn renew(&self) {
        self.sign(&self.agents, "tls", ExtendedKeyUsagePurpose::ServerAuth);
    }

    fn sign(&self, issuer: &CertifiedIssuer<'static, KeyPair>, file: &str, usage: ExtendedKeyUsagePurpose) {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        // The key is written first: with a key that does not match, the agent keeps its old certificate.
        self.write(&format!("{file}.key"), &key.serialize_pem());
        self.write(&format!("{file}.crt"), &params.signed_by(&key, issuer).unwrap().pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the certificate of the agents' authority, PEM.
    pub(crate) fn authority(&self) -> String {
        self.agents.pem()
    }

    /// Returns the arguments with which an agent speaks TLS.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let file = |flag: &str, name: &str| [flag.to_owned(), self.path(name).display().to_string()];
        [file("--tls-cert-file", "tls.crt"), file("--tls-private-key-file", "tls.key")].concat()
    }

    /// Returns the arguments with which an agent speaks TLS and requires a certificate on the operator's paths.
    pub(crate) fn guarded(&self) -> Vec<String> {
        let authority = self.path("clients.crt").display().to_string();
        [self.arguments(), vec!["--client-ca-file".to_owned(), authority]].concat()
    }

    /// Returns a connector that shows the named certificate, or none.
    pub(crate) fn connector(&self, identity: Option<&str>, protocol: &'static str) -> Connector {
        let identity = identity.map(|name| Identity {
            certificate: self.path(&format!("{name}.crt")),
            key: self.path(&format!("{name}.key")),
        });
        Connector::new(Trust {
            authority: self.path("ca.crt"),
            server_name: None,
            identity,
            protocol,
        })
        .unwrap()
    }

    /// Returns the TLS configuration of a coordinator.
    pub(crate) fn config(&self, identity: Option<&str>) -> Arc<ClientConfig> {
        self.connector(identity, "h2").config()
    }
}
