//! Bounds of the ranges in specs.

use kube::api::PostParams;
use kube::core::response::Status;
use serde_json::{Value, json};

use crate::subject::{Subject, answered, burst, causes, object};
use crate::validation::merge;

/// Response to a dry run that creates an object whose spec is a valid one with `changes` merged in.
async fn tried(subject: &Subject, kind: &str, changes: &Value) -> Result<(), Status> {
    let mut spec = match kind {
        "BurstJob" => burst(),
        "VramLease" => json!({"slice": {"vram": "1Gi"}}),
        _ => json!({"vram": "1Gi"}),
    };
    merge(&mut spec, changes);
    let made = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": spec});
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    answered(subject.own(kind).create(&dry, &object(made)).await).map(drop)
}

/// Distinct names of parameters or lists of a product.
fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("p{number}"))
}

fn parameters(count: usize) -> Value {
    let parameters: serde_json::Map<String, Value> = names(count).map(|name| (name, json!({"type": "u32", "cel": "index"}))).collect();
    json!({"chunks": {"parameters": parameters}})
}

fn named(name: &str) -> Value {
    json!({"chunks": {"parameters": {name: {"type": "u32", "cel": "index"}}}})
}

/// A spec of one parameter with a formula of `characters` characters.
fn formula(characters: usize) -> Value {
    let text = format!("{}1", "1+".repeat((characters - 1) / 2));
    json!({"chunks": {"parameters": {"p": {"type": "u32", "cel": format!("{text:<characters$}")}}}})
}

/// A spec of one parameter with a list of `values` values.
fn list(values: usize) -> Value {
    json!({"chunks": {"parameters": {"p": {"type": "u32", "list": vec![1; values]}}}})
}

/// A product of `lists` lists, the first with `values` values.
fn product(lists: usize, values: usize) -> Value {
    let lists: Vec<Value> = names(lists)
        .enumerate()
        .map(|(place, name)| json!({"name": name, "type": "u32", "list": vec![1; if place == 0 { values } else { 1 }]}))
        .collect();
    json!({"chunks": {"count": "<absent>", "product": lists}})
}

fn arguments(count: usize) -> Value {
    json!({"kernel": {"args": vec![json!({"scalar": {"type": "u32", "value": 1}}); count]}})
}

/// A kernel with one output of `elements` elements of four bytes each, and its aggregate.
fn aggregated(elements: u64, aggregate: Value) -> Value {
    json!({"kernel": {"args": [{"output": {"type": "u32", "count": elements}}]}, "aggregate": aggregate})
}

fn bytes(base64: usize) -> Value {
    json!({"kernel": {"args": [{"constant": {"base64": "A".repeat(base64)}}]}})
}

fn ptx(characters: usize) -> Value {
    json!({"kernel": {"ptx": {"inline": "/".repeat(characters)}}})
}

/// The limits in docs/limits.md: field, last accepted value and first rejected value.
#[expect(clippy::too_many_lines, reason = "a table")]
pub async fn the_bounds_of_every_range_are_accepted_and_values_beyond_are_rejected(subject: &Subject) {
    const MAX_NAME_LENGTH: &str = "n23456789_123456789_123456789_123456789_123456789_123456789_123";
    let output = |elements: u64| json!({"kernel": {"args": [{"output": {"type": "u32", "count": elements}}]}});
    let top = |k| aggregated(1, json!({"topK": {"output": 0, "k": k}}));
    let sum = |elements| aggregated(elements, json!({"sum": {"output": 0}}));
    let retries = |most| json!({"retryPolicy": {"maxRetries": most}});
    let lease = |seconds| json!({"lease": {"ttlSeconds": seconds}});
    let shared = |bytes| json!({"kernel": {"dynamicSharedBytes": bytes}});
    let grid = |sizes: &[u64]| json!({"kernel": {"grid": sizes}});
    let block = |sizes: &[u64]| json!({"kernel": {"block": sizes}});
    let session = |seconds, idle_seconds| json!({"ttlSeconds": seconds, "idleTimeoutSeconds": idle_seconds});
    for (kind, field, taken, refused) in [
        (
            "BurstJob",
            "spec.chunks.count",
            json!({"chunks": {"count": 10_000_000}}),
            json!({"chunks": {"count": 10_000_001}}),
        ),
        (
            "BurstJob",
            "spec.maxFailedChunks",
            json!({"maxFailedChunks": 10_000_000}),
            json!({"maxFailedChunks": 10_000_001}),
        ),
        (
            "BurstJob",
            "spec.slices.max",
            json!({"slices": {"max": 100_000}}),
            json!({"slices": {"max": 100_001}}),
        ),
        ("BurstJob", "spec.kernel.ptx.inline", ptx(128 << 10), ptx((128 << 10) + 1)),
        (
            "BurstJob",
            "spec.kernel.args[0].constant.base64",
            bytes(128 << 10),
            bytes((128 << 10) + 4),
        ),
        ("BurstJob", "spec.kernel.args[0].output", output(8 << 20), output((8 << 20) + 1)),
        ("BurstJob", "spec.kernel.args", arguments(64), arguments(65)),
        ("BurstJob", "spec.chunks.parameters", parameters(32), parameters(33)),
        ("BurstJob", "spec.chunks.parameters", list(4_096), list(4_097)),
        ("BurstJob", "spec.chunks.parameters", formula(1_024), formula(1_025)),
        (
            "BurstJob",
            "spec.chunks.parameters",
            named(MAX_NAME_LENGTH),
            named(&format!("{MAX_NAME_LENGTH}4")),
        ),
        ("BurstJob", "spec.chunks.parameters", named("_1"), named("1_")),
        ("BurstJob", "spec.chunks.parameters", named("output"), named("output10")),
        ("BurstJob", "spec.chunks.parameters", named("indices"), named("index")),
        ("BurstJob", "spec.chunks.product", product(16, 1), product(17, 1)),
        ("BurstJob", "spec.chunks.product[0].list", product(1, 4_096), product(1, 4_097)),
        ("BurstJob", "spec.kernel.block", block(&[1_024, 1, 1]), block(&[1_025, 1, 1])),
        ("BurstJob", "spec.kernel.block", block(&[1, 1_024, 1]), block(&[1, 1_025, 1])),
        ("BurstJob", "spec.kernel.block", block(&[16, 1, 64]), block(&[1, 1, 65])),
        ("BurstJob", "spec.kernel.block", block(&[32, 32]), block(&[32, 33])),
        ("BurstJob", "spec.kernel.grid", grid(&[2_147_483_647]), grid(&[2_147_483_648])),
        (
            "BurstJob",
            "spec.kernel.grid",
            grid(&[2_147_483_647, 65_535, 65_535]),
            grid(&[1, 65_536, 1]),
        ),
        ("BurstJob", "spec.kernel.grid", grid(&[1, 1, 65_535]), grid(&[1, 1, 65_536])),
        (
            "BurstJob",
            "spec.kernel.dynamicSharedBytes",
            shared(227 << 10),
            shared((227 << 10) + 1),
        ),
        ("BurstJob", "spec.retryPolicy.maxRetries", retries(1_000), retries(1_001)),
        (
            "BurstJob",
            "spec.chunkTimeoutSeconds",
            json!({"chunkTimeoutSeconds": 86_400}),
            json!({"chunkTimeoutSeconds": 86_401}),
        ),
        ("BurstJob", "spec.aggregate.topK.k", top(100), top(101)),
        ("BurstJob", "spec.aggregate.sum.output", sum(256), sum(257)),
        (
            "BurstJob",
            "spec.priority",
            json!({"priority": 1_000_000}),
            json!({"priority": 1_000_001}),
        ),
        (
            "BurstJob",
            "spec.priority",
            json!({"priority": -1_000_000}),
            json!({"priority": -1_000_001}),
        ),
        ("BurstJob", "spec.lease.ttlSeconds", lease(86_400), lease(86_401)),
        ("BurstJob", "spec.lease.ttlSeconds", lease(5), lease(4)),
        (
            "VramLease",
            "spec.slices.max",
            json!({"slices": {"max": 100_000}}),
            json!({"slices": {"max": 100_001}}),
        ),
        (
            "VramLease",
            "spec.ttlSeconds",
            json!({"ttlSeconds": 86_400}),
            json!({"ttlSeconds": 86_401}),
        ),
        ("VramLease", "spec.ttlSeconds", json!({"ttlSeconds": 5}), json!({"ttlSeconds": 4})),
        ("GpuSession", "spec.ttlSeconds", session(2_592_000, 60), session(2_592_001, 60)),
        ("GpuSession", "spec.ttlSeconds", session(10, 1), session(9, 1)),
        (
            "GpuSession",
            "spec.idleTimeoutSeconds",
            session(2_592_000, 604_800),
            session(2_592_000, 604_801),
        ),
        ("GpuSession", "spec.idleTimeoutSeconds", session(60, 1), session(60, 0)),
        ("GpuSession", "spec.idleTimeoutSeconds", session(60, 60), session(60, 61)),
        (
            "GpuSession",
            "spec.disconnectTimeoutSeconds",
            json!({"disconnectTimeoutSeconds": 1}),
            json!({"disconnectTimeoutSeconds": 0}),
        ),
        (
            "GpuSession",
            "spec.disconnectTimeoutSeconds",
            json!({"disconnectTimeoutSeconds": 604_800}),
            json!({"disconnectTimeoutSeconds": 604_801}),
        ),
    ] {
        if let Err(status) = tried(subject, kind, &taken).await {
            panic!("{kind}, {field}: {}", status.message);
        }
        let Err(status) = tried(subject, kind, &refused).await else {
            panic!("{kind}, {field}: what is beyond the limit is taken")
        };
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{kind}, {field}");
        let fields: Vec<String> = causes(&status).into_iter().map(|(_, field, _)| field).collect();
        assert!(fields.iter().any(|named| named.starts_with(field)), "{kind}, {field}: {fields:?}");
    }
}
