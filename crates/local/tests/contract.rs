//! The contract, kept by the embedded control plane.

use sahasra_contract::Subject;
use sahasra_local::{ControlPlane, Options};
use serde_json::json;

/// A control plane of its own, and a namespace in it.
async fn subject() -> Subject {
    let control_plane = ControlPlane::new(Options::default().clock(jiff::Timestamp::now));
    // Version 1 is forgotten here as it is on a server that runs for a while.
    control_plane.compact();
    let client = control_plane.client("default");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "contract"}});
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    let namespace = serde_json::from_value(namespace).expect("a namespace");
    namespaces
        .create(&kube::api::PostParams::default(), &namespace)
        .await
        .expect("it is made");
    Subject {
        client,
        namespace: "contract".to_owned(),
    }
}

sahasra_contract::contract!(subject);
