//! Objects in the form that clients send, and conditions in the form that the operator writes.

use serde_json::{Value, json};

pub(crate) const SESSIONS: &str = "/v1/namespaces/default/sessions";
pub(crate) const BURSTS: &str = "/v1/namespaces/default/bursts";

pub(crate) fn session(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"vram": "1Gi", "class": "g5"}})
}

/// A burst that the API server accepts; nothing runs it in these tests.
pub(crate) fn burst(name: &str) -> Value {
    json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": name},
        "spec": {
            "kernel": {"ptx": {"inline": ".version 7.0"}, "entry": "main", "block": [1], "args": [{"output": {"type": "f32"}}]},
            "chunks": {"count": 2}, "slice": {"vram": "64Mi"},
        },
    })
}

pub(crate) fn condition(kind: &str, reason: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}
