//! Gateways as processes, and ServiceAccounts that use them.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::Value;

use super::{PoolError, Server};
use crate::control_plane::{ControlPlane, ControlPlaneError};
use crate::eventually::eventually;
use crate::ports::Port;
use crate::process::Specification;
use crate::tools;

/// Timeout of the controller that fills aggregated roles, for a machine under load.
const AGGREGATED_WITHIN: Duration = Duration::from_secs(120);

impl Server {
    /// Starts a gateway with additional arguments, such as `--operator-url URL`. It gets the administrator's kubeconfig, whose client certificate
    /// it must not use.
    ///
    /// # Errors
    /// When the gateway does not start.
    pub async fn gateway(control_plane: &ControlPlane, arguments: &[&str]) -> Result<Self, PoolError> {
        let port = Port::reserve()?;
        let program = tools::binaries().await?.join("sahasra-gateway");
        let specification = Specification::new("gateway", program, &control_plane.log_directory())
            .arguments(["--listen", &port.address()])
            .arguments(arguments)
            .environment("KUBECONFIG", control_plane.kubeconfig())
            .ready_at(format!("{}/readyz", port.url()));
        Ok(Self {
            process: specification.start().await?,
            port,
            tls: false,
        })
    }

    /// Address of the server, `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        self.port.address()
    }
}

impl ControlPlane {
    /// Returns a token of the ServiceAccount `me` in the namespace, which has the cluster role `edit` there. Creates the account if
    /// necessary, and waits until the aggregated role contains rights to sessions.
    ///
    /// # Errors
    /// When the API server rejects a request, or the role does not contain these rights in time.
    pub async fn editor(&self, namespace: &str) -> Result<String, PoolError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some("me".to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        let made = accounts.create(&PostParams::default(), &account).await;
        match made {
            Ok(_) => {}
            // Another test with the same control plane has created the account.
            Err(kube::Error::Api(status)) if status.code == 409 => return token(&self.kubeconfig_for(namespace, "me").await?),
            Err(error) => return Err(ControlPlaneError::from(error).into()),
        }
        let bind = format!("create rolebinding me --clusterrole=edit --serviceaccount={namespace}:me --namespace={namespace}");
        self.kubectl(bind.split(' ')).await?.success()?;
        let may = format!("auth can-i create gpusessions.sahasra.dev --namespace={namespace} --as=system:serviceaccount:{namespace}:me");
        let mut last = String::new();
        let allowed = eventually(AGGREGATED_WITHIN, async || {
            match self.kubectl(may.split(' ')).await {
                Ok(answer) if answer.is_success() => return Some(()),
                Ok(answer) => last = answer.to_string(),
                Err(error) => last = error.to_string(),
            }
            None
        });
        if allowed.await.is_none() {
            return Err(PoolError::ControlPlane(ControlPlaneError::NotReady {
                what: "the role edit",
                waited: AGGREGATED_WITHIN,
                last,
            }));
        }
        token(&self.kubeconfig_for(namespace, "me").await?)
    }

    /// Allows the ServiceAccount `me` of the namespace to list `GpuWorker` objects, which are cluster-scoped.
    ///
    /// # Errors
    /// When the API server rejects the role or the binding.
    pub async fn let_list_workers(&self, namespace: &str) -> Result<(), PoolError> {
        for command in [
            format!("create clusterrole workers-{namespace} --verb=list --resource=gpuworkers.sahasra.dev"),
            format!("create clusterrolebinding workers-{namespace} --clusterrole=workers-{namespace} --serviceaccount={namespace}:me"),
        ] {
            self.kubectl(command.split(' ')).await?.success()?;
        }
        Ok(())
    }
}

/// Token in a kubeconfig that this crate wrote.
fn token(kubeconfig: &Path) -> Result<String, PoolError> {
    let text = std::fs::read_to_string(kubeconfig).map_err(ControlPlaneError::Directory)?;
    let parsed: Value = serde_json::from_str(&text).map_err(crate::kubectl::CommandError::Json)?;
    Ok(parsed["users"][0]["user"]["token"].as_str().unwrap_or_default().to_owned())
}
