//! The command `sahasra-operator uninstall-check`: checks whether the operator can be uninstalled. Objects that hold VRAM need the operator
//! to release it. Without an operator they would never change again, and their deletion would hang.

use std::{fmt::Debug, time::Duration};

use anyhow::{Context as _, bail};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PartialObjectMeta},
};
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use tokio::time::{Instant, sleep};

use crate::objects::{code, has_finalizer};

/// Poll interval. An object that is being deleted needs a moment.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of objects that a report names.
const NAMED: usize = 10;
const PAGE: u32 = 500;

/// Waits up to `within` until no object holds VRAM.
///
/// # Errors
/// Objects still hold VRAM after `within`; the error names them and the remedy. Or the API server cannot be reached.
pub(crate) async fn run(client: &Client, within: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let held = held(client).await.context("failed to list the objects that hold VRAM")?;
        if held.is_empty() {
            println!("no BurstJob, GpuSession or VramLease holds VRAM");
            return Ok(());
        }
        if began.elapsed() >= within {
            bail!(report(&held));
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn held(client: &Client) -> Result<Vec<String>, kube::Error> {
    let mut held = of::<BurstJob>(client).await?;
    held.extend(of::<GpuSession>(client).await?);
    held.extend(of::<VramLease>(client).await?);
    Ok(held)
}

/// Kind, namespace and name of the objects of a kind that hold VRAM. Leases that a burst or a session controls are left out, because they
/// are deleted with their owner.
async fn of<K: Resource<DynamicType = ()> + Clone + Debug>(client: &Client) -> Result<Vec<String>, kube::Error> {
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let mut found = Vec::new();
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = match api.list_metadata(&parameters).await {
            Ok(page) => page,
            // If the kind is not defined, no object of it exists.
            Err(error) if code(&error) == 404 => return Ok(found),
            Err(error) => return Err(error),
        };
        let holders = page.items.iter().filter(|object| {
            let is_owned = object.owner_references().iter().any(|owner| owner.controller == Some(true));
            has_finalizer(*object) && !is_owned
        });
        found.extend(holders.map(|object| {
            let namespace = object.namespace().unwrap_or_default();
            format!("{} {namespace}/{}", K::kind(&()), object.name_any())
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

fn report(held: &[String]) -> String {
    let mut named: Vec<&str> = held.iter().map(String::as_str).take(NAMED).collect();
    let more = format!("{} more", held.len().saturating_sub(NAMED));
    if held.len() > NAMED {
        named.push(&more);
    }
    format!(
        "{} objects hold VRAM or wait for it: {}. Delete them, or wait until they finish, before you uninstall the operator: \
         kubectl delete burstjobs,gpusessions,vramleases --all --all-namespaces",
        held.len(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::{Patch, PatchParams, PostParams};
    use sahasra_crds::FINALIZER;
    use sahasra_local::{ControlPlane, Options};
    use serde_json::json;

    #[tokio::test]
    async fn an_uninstall_is_allowed_once_nothing_holds_vram() {
        let control_plane = ControlPlane::new(Options::default());
        let client = control_plane.client("default");
        run(&client, Duration::ZERO).await.expect("nothing is held");

        let leases: Api<VramLease> = Api::namespaced(client.clone(), "default");
        let lease = |name: &str, finalizers: serde_json::Value| -> VramLease {
            let lease = json!({
                "apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease",
                "metadata": {"name": name, "finalizers": finalizers},
                "spec": {"slice": {"vram": "64Mi"}, "slices": {"min": 1, "max": 1}},
            });
            serde_json::from_value(lease).expect("a lease")
        };
        let create = PostParams::default();
        leases.create(&create, &lease("waits", json!([]))).await.expect("made");
        run(&client, Duration::ZERO).await.expect("what waits holds nothing");
        leases.create(&create, &lease("holds", json!([FINALIZER]))).await.expect("made");
        let error = run(&client, Duration::ZERO).await.expect_err("one holds something").to_string();
        assert!(
            error.starts_with("1 objects hold VRAM or wait for it: VramLease default/holds. Delete"),
            "{error}"
        );

        // The check waits for an object whose VRAM is released in the meantime.
        let free = async {
            let patch = Patch::Merge(json!({"metadata": {"finalizers": []}}));
            leases.patch("holds", &PatchParams::default(), &patch).await.expect("patched");
        };
        let (outcome, ()) = tokio::join!(run(&client, Duration::from_secs(60)), free);
        outcome.expect("nothing is held any more");
    }

    #[test]
    fn a_report_names_some_and_counts_the_rest() {
        let held: Vec<String> = (0..12).map(|index| format!("BurstJob default/job-{index}")).collect();
        let report = report(&held);
        assert!(
            report.contains("job-9, 2 more. Delete") && report.starts_with("12 objects"),
            "{report}"
        );
    }
}
