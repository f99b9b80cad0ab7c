//! The keys and certificates of one control plane: an authority, the API server's own certificate, client certificates and
//! the key that signs ServiceAccount tokens. All are made new for each control plane and live as long as its folder.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use kube::config::Kubeconfig;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

/// Name of the cluster, user and context in the kubeconfigs written here.
const NAME: &str = "e2e";

/// Why a certificate or a kubeconfig could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A key or certificate could not be generated.
    #[error("generate {what}")]
    Generate {
        /// What was being made.
        what: &'static str,
        /// rcgen's reason.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The certificate authority of one control plane and the files that its servers read.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    /// Makes the authority in `directory`, with `ca.crt`, `apiserver.{crt,key}` and `service-account.{key,pub}`
    /// there.
    pub(crate) fn create(directory: &Path) -> Result<Self, CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "sahasra-e2e");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = generate_key("the authority's key")?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(|source| CertificateError::Generate {
            what: "the authority's certificate",
            source,
        })?;
        let authority = Self {
            issuer,
            directory: directory.to_owned(),
        };

        write(&authority.path("ca.crt"), &authority.issuer.pem())?;
        let (certificate, key) = authority.server_certificate()?;
        write(&authority.path("apiserver.crt"), &certificate)?;
        write(&authority.path("apiserver.key"), &key)?;
        let signing_key = generate_key("the token signing key")?;
        write(&authority.path("service-account.key"), &signing_key.serialize_pem())?;
        write(&authority.path("service-account.pub"), &signing_key.public_key_pem())?;
        Ok(authority)
    }

    /// A file of this authority.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn server_certificate(&self) -> Result<(String, String), CertificateError> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "kubernetes.default.svc".to_owned()]).map_err(|source| {
            CertificateError::Generate {
                what: "the API server's names",
                source,
            }
        })?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params, "the API server's certificate")
    }

    /// A client certificate for `user` (the common name) in `group` (the organisation), with its key, both PEM.
    pub(crate) fn client_certificate(&self, user: &str, group: Option<&str>) -> Result<(String, String), CertificateError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params, "a client certificate")
    }

    fn sign(&self, params: &CertificateParams, what: &'static str) -> Result<(String, String), CertificateError> {
        let key = generate_key(what)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|source| CertificateError::Generate { what, source })?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// Writes a kubeconfig for `user` in `group`, with a client certificate, to `path`: JSON, which every reader of YAML takes.
pub(crate) fn write_kubeconfig(
    path: &Path,
    server: &str,
    authority: &Authority,
    user: &str,
    group: Option<&str>,
) -> Result<(), CertificateError> {
    let (certificate, key) = authority.client_certificate(user, group)?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": NAME, "cluster": {
            "server": server,
            "certificate-authority-data": ByteString(authority.issuer.pem().into_bytes()),
        }}],
        "users": [{ "name": NAME, "user": {
            "client-certificate-data": ByteString(certificate.into_bytes()),
            "client-key-data": ByteString(key.into_bytes()),
        }}],
        "contexts": [{ "name": NAME, "context": { "cluster": NAME, "user": NAME } }],
        "current-context": NAME,
    });
    write(path, &format!("{kubeconfig:#}\n"))
}

/// Writes a kubeconfig for the cluster of `other`'s current context, with a bearer token.
pub(crate) fn write_kubeconfig_with_token(path: &Path, other: &Kubeconfig, token: &str) -> Result<(), CertificateError> {
    let current = other.current_context.as_deref();
    let context = other.contexts.iter().find(|context| Some(context.name.as_str()) == current);
    let cluster = context
        .and_then(|context| context.context.as_ref())
        .map(|context| context.cluster.as_str());
    let clusters: Vec<_> = other.clusters.iter().filter(|named| Some(named.name.as_str()) == cluster).collect();
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": clusters,
        "users": [{ "name": NAME, "user": { "token": token } }],
        "contexts": [{ "name": NAME, "context": { "cluster": cluster, "user": NAME } }],
        "current-context": NAME,
    });
    write(path, &format!("{kubeconfig:#}\n"))
}

fn generate_key(what: &'static str) -> Result<KeyPair, CertificateError> {
    KeyPair::generate().map_err(|source| CertificateError::Generate { what, source })
}

fn write(path: &Path, text: &str) -> Result<(), CertificateError> {
    std::fs::write(path, text).map_err(|source| CertificateError::Write {
        path: path.to_owned(),
        source,
    })
}
