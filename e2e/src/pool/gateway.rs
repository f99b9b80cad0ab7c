//! The gateway as a process without an identity of its own, and who may do what through it.

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

/// The controller that fills aggregated roles takes its time on a machine under load.
const AGGREGATED_WITHIN: Duration = Duration::from_secs(120);

impl Server {
    /// Starts a gateway with more arguments, such as `--operator URL`. It is given the administrator's kubeconfig, whose client
    /// certificate it has to leave alone.
    ///
    /// # Errors
    /// When it does not start.
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

    /// `HOST:PORT` at which it listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.port.address()
    }
}

impl ControlPlane {
    /// A ServiceAccount `me` in the namespace, made where there is none, with the cluster's role `edit` there: its token, once the role says something of
    /// sessions.
    ///
    /// # Errors
    /// When something of it is refused, or the role is not filled in time.
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
            // Another test had the same control plane.
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

    /// Lets the ServiceAccount `me` of the namespace list the workers, which belong to the whole cluster.
    ///
    /// # Errors
    /// When that is refused.
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

/// The token in a kubeconfig of ours.
fn token(kubeconfig: &Path) -> Result<String, PoolError> {
    let text = std::fs::read_to_string(kubeconfig).map_err(ControlPlaneError::Directory)?;
    let parsed: Value = serde_json::from_str(&text).map_err(crate::kubectl::CommandError::Json)?;
    Ok(parsed["users"][0]["user"]["token"].as_str().unwrap_or_default().to_owned())
}
