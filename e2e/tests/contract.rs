//! Runs the contract's cases against a real kube-apiserver, which is the reference for the embedded control plane.

use sahasra_contract::Subject;
use sahasra_e2e::ControlPlane;

async fn subject() -> Subject {
    let control_plane = ControlPlane::shared().await.expect("a control plane starts");
    let namespace = control_plane.create_namespace("contract").await.expect("a namespace");
    let client = control_plane.client().await.expect("a client");
    Subject { client, namespace }
}

sahasra_contract::contract!(subject);
