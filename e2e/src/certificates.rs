//! Keys and certificates: for a control plane a certificate authority, the API server's certificate, client certificates and the key that
//! signs ServiceAccount tokens; for a pool the certificates of agents that speak TLS and of their operator. All are generated for each
//! control plane and live as long as its folder.

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

/// A certificate or a kubeconfig could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("generate {what}")]
    Generate { what: &'static str, source: rcgen::Error },
    #[error("write {}", path.display())]
    Write {
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
}

/// Certificate authority of a control plane, and the files that its servers read.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Authority {
    /// Creates the authority and writes `ca.crt`, `apiserver.{crt,key}` and `service-account.{key,pub}` to `directory`.
    pub(crate) fn create(directory: &Path) -> Result<Self, CertificateError> {
        let authority = Self {
            issuer: issuer()?,
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

    /// Path of a file of this authority.
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

    /// Creates a client certificate for `user` (the common name) in `group` (the organisation); returns certificate and key as PEM.
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
        sign(&self.issuer, params, what)
    }
}

/// Certificates by which agents and operator authenticate each other: one for all agents and one for the operator, each with an authority of
/// its own.
pub struct WorkerCertificates {
    workers: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl std::fmt::Debug for WorkerCertificates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The private key must not appear in logs.
        formatter
            .debug_struct("WorkerCertificates")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl WorkerCertificates {
    /// The only name in the agents' certificate. The agents' endpoints are addresses, so clients need this name to
    /// verify the certificate.
    pub const NAME: &str = "sahasra-worker";

    /// Creates `directory`, and in it `ca.crt`, `worker.{crt,key}`, `clients.crt` and `operator.{crt,key}`.
    ///
    /// # Errors
    /// [`CertificateError`] when a certificate cannot be generated or a file cannot be written.
    pub fn create(directory: &Path) -> Result<Self, CertificateError> {
        std::fs::create_dir_all(directory).map_err(|source| CertificateError::Write {
            path: directory.to_owned(),
            source,
        })?;
        let made = Self {
            workers: issuer()?,
            directory: directory.to_owned(),
        };
        write(&made.path("ca.crt"), &made.workers.pem())?;
        made.renew()?;
        let operators = issuer()?;
        write(&made.path("clients.crt"), &operators.pem())?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "sahasra-operator");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = sign(&operators, &params, "the operator's certificate")?;
        write(&made.path("operator.crt"), &certificate)?;
        write(&made.path("operator.key"), &key)?;
        Ok(made)
    }

    /// Replaces the agents' certificate by a new one.
    ///
    /// # Errors
    /// [`CertificateError`] when a certificate cannot be generated or a file cannot be written.
    pub fn renew(&self) -> Result<(), CertificateError> {
        const WHAT: &str = "the workers' certificate";
        let params = CertificateParams::new(vec![Self::NAME.to_owned()]);
        let mut params = params.map_err(|source| CertificateError::Generate { what: WHAT, source })?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = sign(&self.workers, &params, WHAT)?;
        write(&self.path("worker.key"), &key)?;
        write(&self.path("worker.crt"), &certificate)
    }

    /// Path of one of the files.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Certificate of the agents' authority, PEM.
    #[must_use]
    pub fn authority(&self) -> String {
        self.workers.pem()
    }

    /// Arguments of an agent that speaks TLS and accepts operators by their client certificate only.
    #[must_use]
    pub fn agent_arguments(&self) -> Vec<String> {
        self.arguments(&[
            ("--tls-cert-file", "worker.crt"),
            ("--tls-private-key-file", "worker.key"),
            ("--client-ca-file", "clients.crt"),
        ])
    }

    /// Arguments of a gateway that verifies the agents.
    #[must_use]
    pub fn gateway_arguments(&self) -> Vec<String> {
        self.knowing(Self::NAME)
    }

    fn knowing(&self, name: &str) -> Vec<String> {
        let name = ["--worker-server-name".to_owned(), name.to_owned()];
        [self.arguments(&[("--worker-ca-file", "ca.crt")]), name.to_vec()].concat()
    }

    /// Arguments of an operator that verifies agents under this name, and authenticates to them with its certificate.
    #[must_use]
    pub fn operator_arguments(&self, name: &str) -> Vec<String> {
        let shown = self.arguments(&[
            ("--worker-client-cert-file", "operator.crt"),
            ("--worker-client-key-file", "operator.key"),
        ]);
        [self.knowing(name), shown].concat()
    }

    fn arguments(&self, files: &[(&str, &str)]) -> Vec<String> {
        let file = |(flag, name): &(&str, &str)| [(*flag).to_owned(), self.path(name).display().to_string()];
        files.iter().flat_map(file).collect()
    }
}

fn issuer() -> Result<CertifiedIssuer<'static, KeyPair>, CertificateError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "sahasra-e2e");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = generate_key("the authority's key")?;
    CertifiedIssuer::self_signed(params, key).map_err(|source| CertificateError::Generate {
        what: "the authority's certificate",
        source,
    })
}

fn sign(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    params: &CertificateParams,
    what: &'static str,
) -> Result<(String, String), CertificateError> {
    let key = generate_key(what)?;
    let certificate = params.signed_by(&key, issuer);
    let certificate = certificate.map_err(|source| CertificateError::Generate { what, source })?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Writes a kubeconfig for `user` in `group`, with a client certificate, to `path`, as JSON (a subset of YAML).
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
