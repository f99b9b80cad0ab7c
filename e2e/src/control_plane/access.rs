//! Clients, identities and the few objects that tests without nodes have to create themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::{ControlPlane, ControlPlaneError};
use crate::certificates::write_kubeconfig_with_token;

/// Lifetime of tokens: longer than any test, so that no token has to be renewed.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

impl ControlPlane {
    /// Returns a client with an administrator's rights, bound to the calling test's runtime.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client, ControlPlaneError> {
        client_from(&self.kubeconfig).await
    }

    /// Returns a client with the rights of a kubeconfig's user.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client_as(&self, kubeconfig: &Path) -> Result<Client, ControlPlaneError> {
        client_from(kubeconfig).await
    }

    /// Writes a kubeconfig with a token of the existing ServiceAccount `name` in `namespace`, whose user has exactly the rights of that
    /// account. Returns its path.
    ///
    /// # Errors
    /// When the ServiceAccount does not exist, or the file cannot be written.
    pub async fn kubeconfig_for(&self, namespace: &str, name: &str) -> Result<PathBuf, ControlPlaneError> {
        self.write_kubeconfig(namespace, name, None).await
    }

    /// Writes a kubeconfig as [`ControlPlane::kubeconfig_for`] does, with a token that is bound to a Pod or a Node: the token has the node's
    /// name as a claim, and becomes invalid with the bound object.
    ///
    /// # Errors
    /// When the ServiceAccount or the bound object does not exist, or the file cannot be written.
    pub async fn bound_kubeconfig_for(
        &self,
        namespace: &str,
        name: &str,
        bound: BoundObjectReference,
    ) -> Result<PathBuf, ControlPlaneError> {
        self.write_kubeconfig(namespace, name, Some(bound)).await
    }

    async fn write_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        bound: Option<BoundObjectReference>,
    ) -> Result<PathBuf, ControlPlaneError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let file = match &bound {
            Some(bound) => format!("{namespace}.{name}.{}.kubeconfig", bound.name.as_deref().unwrap_or_default()),
            None => format!("{namespace}.{name}.kubeconfig"),
        };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                bound_object_ref: bound,
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await?;
        let token = answer.status.map(|status| status.token).unwrap_or_default();
        let administrator = read(&self.kubeconfig)?;
        let path = self.directory().join(file);
        write_kubeconfig_with_token(&path, &administrator, &token)?;
        Ok(path)
    }

    /// Creates a namespace whose name starts with `prefix` and returns the name.
    ///
    /// # Errors
    /// When the API server rejects the request.
    pub async fn create_namespace(&self, prefix: &str) -> Result<String, ControlPlaneError> {
        let namespaces: Api<Namespace> = Api::all(self.client().await?);
        let metadata = ObjectMeta {
            generate_name: Some(format!("{prefix}-")),
            ..ObjectMeta::default()
        };
        let made = namespaces
            .create(
                &PostParams::default(),
                &Namespace {
                    metadata,
                    ..Namespace::default()
                },
            )
            .await?;
        Ok(made.metadata.name.unwrap_or_default())
    }

    /// Creates a `Node` without a kubelet, for an agent to belong to.
    ///
    /// # Errors
    /// When the API server rejects the request.
    pub async fn create_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<Node, ControlPlaneError> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let labels = labels
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect::<BTreeMap<_, _>>();
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        Ok(nodes
            .create(
                &PostParams::default(),
                &Node {
                    metadata,
                    ..Node::default()
                },
            )
            .await?)
    }
}

fn read(kubeconfig: &Path) -> Result<Kubeconfig, ControlPlaneError> {
    Kubeconfig::read_from(kubeconfig).map_err(|error| ControlPlaneError::Kubeconfig(Box::new(error)))
}

pub(super) async fn config_from(kubeconfig: &Path) -> Result<Config, ControlPlaneError> {
    Config::from_custom_kubeconfig(read(kubeconfig)?, &KubeConfigOptions::default())
        .await
        .map_err(|error| ControlPlaneError::Kubeconfig(Box::new(error)))
}

pub(super) async fn client_from(kubeconfig: &Path) -> Result<Client, ControlPlaneError> {
    Ok(sahasra_kubernetes::client(config_from(kubeconfig).await?)?)
}
