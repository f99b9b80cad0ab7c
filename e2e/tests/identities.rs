//! The processes of a pool run under the chart's identities.

use sahasra_e2e::{ControlPlane, NAMESPACE};

#[tokio::test]
async fn a_pools_processes_are_the_charts_service_accounts_with_its_roles() {
    let control_plane = ControlPlane::shared().await.expect("a control plane starts");
    let identities = control_plane.apply_chart_identities().await.expect("the chart's identities");
    control_plane.create_node("node-of-identities", &[]).await.expect("a node");
    let agent = control_plane
        .agent_kubeconfig(&identities, "node-of-identities")
        .await
        .expect("a token");
    for (kubeconfig, account, right) in [
        (&identities.operator, "sahasra-operator", "patch burstjobs --subresource=status"),
        (&agent, "sahasra-worker", "create gpuworkers"),
    ] {
        let kubectl = async |arguments: &str| {
            let output = control_plane
                .kubectl_as(kubeconfig, arguments.split(' '))
                .await
                .expect("kubectl runs");
            output.stdout.trim_end().to_owned()
        };
        let who = kubectl("auth whoami -o jsonpath={.status.userInfo.username}").await;
        assert_eq!(who, format!("system:serviceaccount:{NAMESPACE}:{account}"));
        assert_eq!(kubectl(&format!("auth can-i {right}")).await, "yes", "{who}: {right}");
        assert_eq!(kubectl("auth can-i create clusterroles").await, "no", "{who}");
    }
}
