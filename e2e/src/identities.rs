//! ServiceAccounts of the chart and their rights.
//!
//! Operator and agents run as processes and not in pods, but with the chart's own rights: helm renders the chart, and its RBAC objects and
//! admission policies are applied.

use std::path::PathBuf;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use serde_json::Value;

use crate::control_plane::{ControlPlane, ControlPlaneError};
use crate::kubectl::{self, CommandError};
use crate::tools;

/// Namespace in which Sahasra is installed.
pub const NAMESPACE: &str = "sahasra-system";
/// Kinds of the chart's objects that define identities and rights.
const KINDS: [&str; 7] = [
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Identities of the chart's workloads.
#[derive(Debug, Clone)]
pub struct Identities {
    /// Kubeconfig of the ServiceAccount of the operator's Deployment.
    pub operator: PathBuf,
    /// Name of the ServiceAccount of the agents' DaemonSet.
    pub agent_account: String,
}

impl ControlPlane {
    /// Renders the chart (`helm/sahasra`) and applies its ServiceAccounts, roles, bindings and admission policies in [`NAMESPACE`].
    ///
    /// # Errors
    /// When the chart cannot be rendered or the API server rejects its objects.
    pub async fn apply_chart_identities(&self) -> Result<Identities, ControlPlaneError> {
        let chart = tools::workspace_root().join("helm/sahasra");
        let arguments = [
            "template".as_ref(),
            "sahasra".as_ref(),
            chart.as_os_str(),
            "--namespace".as_ref(),
            NAMESPACE.as_ref(),
            // The control plane has the CRDs already.
            "--set=crds.install=false".as_ref(),
        ];
        let rendered = kubectl::run(&tools::helm().await?, self.kubeconfig(), arguments, "")
            .await?
            .success()?;
        // kubectl converts the rendered YAML to JSON objects in the form that a server accepts.
        let convert = [
            "create",
            "--namespace",
            NAMESPACE,
            "--dry-run=client",
            "--validate=false",
            "-o",
            "json",
            "-f",
            "-",
        ];
        let listed = self.kubectl_with_input(convert, &rendered).await?.success()?;
        let objects = serde_json::Deserializer::from_str(&listed)
            .into_iter::<Value>()
            .collect::<Result<Vec<_>, _>>()
            .map_err(CommandError::Json)?;
        let objects: Vec<Value> = objects.into_iter().flat_map(items).collect();

        let namespace = format!(r#"{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{NAMESPACE}"}}}}"#);
        let wanted = objects
            .iter()
            .filter(|object| KINDS.iter().any(|kind| object["kind"] == *kind))
            .map(Value::to_string);
        let manifest: String = std::iter::once(namespace).chain(wanted).collect::<Vec<_>>().join("\n---\n");
        let apply = ["apply", "--server-side", "-f", "-"];
        self.kubectl_with_input(apply, &manifest).await?.success()?;

        let operator = service_account(&objects, "Deployment")?;
        Ok(Identities {
            operator: self.kubeconfig_for(NAMESPACE, &operator).await?,
            agent_account: service_account(&objects, "DaemonSet")?,
        })
    }

    /// Writes a kubeconfig for the agent on an existing Node. Its token is bound to the Node, as the token of a pod is bound to the pod.
    ///
    /// # Errors
    /// When the Node does not exist, or the API server rejects the request.
    pub async fn agent_kubeconfig(&self, identities: &Identities, node: &str) -> Result<PathBuf, ControlPlaneError> {
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: None,
        };
        self.bound_kubeconfig_for(NAMESPACE, &identities.agent_account, bound).await
    }
}

/// Items of a `List`, or the object itself.
fn items(mut object: Value) -> Vec<Value> {
    match object.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => vec![object],
    }
}

fn service_account(objects: &[Value], kind: &'static str) -> Result<String, ControlPlaneError> {
    let workload = objects.iter().find(|object| object["kind"] == kind);
    let account = workload.and_then(|object| object.pointer("/spec/template/spec/serviceAccountName")?.as_str());
    account.map(str::to_owned).ok_or(ControlPlaneError::Chart { kind })
}
