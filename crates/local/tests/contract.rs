//! Runs the contract against the embedded control plane.

use sahasra_contract::Subject;
use sahasra_local::{ControlPlane, Options};
use serde_json::json;

/// A separate control plane with a namespace.
async fn subject() -> Subject {
    let control_plane = ControlPlane::new(Options {
        clock: std::sync::Arc::new(jiff::Timestamp::now),
        ..Options::default()
    });
    // The history of version 1 is dropped, like on a server that has run for a while.
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
