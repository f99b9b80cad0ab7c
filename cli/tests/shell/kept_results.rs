//! Results that a burst keeps for each setting, where they are stored, and that readers get them back as `docs/results.md` specifies.

use std::{collections::BTreeMap, fs, path::Path};

use crate::program::{Sahasra, text};
use serde_json::{Value, json};

/// PTX whose output is the chunk's index; with `traps` it traps at every odd index.
const ODD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n\
    .visible .entry odd(.param .u64 odd_out, .param .u32 odd_index, .param .u32 odd_traps)\n{\n\
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<3>;\n\
    ld.param.u64 %rd1, [odd_out]; ld.param.u32 %r1, [odd_index]; ld.param.u32 %r2, [odd_traps];\n\
    cvta.to.global.u64 %rd2, %rd1;\n\
    and.b32 %r3, %r1, %r2; setp.eq.u32 %p1, %r3, 0; @%p1 bra $store; trap;\n\
    $store: st.global.u32 [%rd2], %r1; ret;\n}\n";

/// A burst whose outputs are its indices; with `traps` every odd chunk fails.
fn job(chunks: u64, traps: bool, more: &Value) -> Value {
    let mut spec = json!({
        "kernel": {
            "ptx": {"inline": ODD}, "entry": "odd", "block": [1],
            "args": [{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}, {"scalar": {"type": "u32", "value": u8::from(traps)}}],
        },
        "chunks": {"count": chunks},
        "slice": {"vram": "4Mi"},
        "aggregate": {"sum": {"output": 0}},
    });
    let fields = more.as_object().expect("fields").clone();
    spec.as_object_mut().expect("fields").extend(fields);
    json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "kept"}, "spec": spec})
}

/// Runs the job; returns the finished object.
fn run(store: &Path, job: &Value) -> Value {
    let output = Sahasra::new(["run", "-", "-o", "json", "--file-store-root"])
        .arg(store)
        .output_with_input(&job.to_string());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Content of the file that a `file://` URL names.
fn read(url: &Value) -> String {
    let path = url.as_str().and_then(|url| url.strip_prefix("file://")).expect("a file");
    fs::read_to_string(path).expect("it is there")
}

#[test]
fn an_aggregate_over_results_that_nobody_keeps_has_no_limit_of_size() {
    const CHUNKS: u64 = 200_000;
    let store = tempfile::tempdir().expect("a folder");
    // 800 KB of results exceed a ConfigMap, and the job has no store.
    let done = run(store.path(), &job(CHUNKS, false, &json!({"results": "None"})));
    let status = &done["status"];
    assert_eq!(status["state"], "Complete", "{status}");
    assert_eq!(status["chunks"]["succeeded"], CHUNKS);
    assert_eq!(status["aggregate"]["values"][0].as_f64(), Some((CHUNKS * (CHUNKS - 1) / 2) as f64));
    assert_eq!((&status["results"]["bytes"], &status["results"]["url"]), (&json!(0), &Value::Null));
}

#[test]
fn requesting_results_that_are_not_kept_fails_with_a_message() {
    let output = Sahasra::new(["run", "-", "-o", "csv"]).output_with_input(&job(10, false, &json!({"results": "None"})).to_string());
    let said = text(&output.stderr);
    assert!(
        said.contains("the results of kept are not kept: results: All in its spec keeps them"),
        "{said}"
    );
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
}

#[test]
fn chunks_that_failed_in_turn_are_listed_and_the_others_counted() {
    const CHUNKS: u64 = 20_000;
    let store = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", store.path().display());
    let failing = json!({"results": "Failed", "maxFailedChunks": CHUNKS, "output": {"store": {"url": url}}});
    let done = run(store.path(), &job(CHUNKS, true, &failing));
    let status = &done["status"];
    assert_eq!(
        (&status["state"], &status["chunks"]["failed"]),
        (&json!("Complete"), &json!(CHUNKS / 2))
    );
    let even = (0..CHUNKS).step_by(2).sum::<u64>();
    assert_eq!(status["aggregate"]["values"][0].as_f64(), Some(even as f64));
    let listed = read(&status["results"]["url"]);
    let expected: String = (1..CHUNKS).step_by(2).map(|index| format!("{index},Trap\n")).collect();
    assert!(listed == format!("index,code\n{expected}"), "{}", &listed[..200]);
}

#[test]
fn results_in_a_store_are_listed_by_the_manifest_each_index_once() {
    const CHUNKS: u64 = 50_000;
    let store = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", store.path().display());
    let done = run(store.path(), &job(CHUNKS, false, &json!({"output": {"store": {"url": url}}})));
    let manifest = &done["status"]["results"]["url"];
    let folder = Path::new(manifest.as_str().and_then(|url| url.strip_prefix("file://")).expect("a file"))
        .parent()
        .expect("a folder")
        .to_owned();
    let manifest: Value = serde_json::from_str(&read(manifest)).expect("JSON");
    assert_eq!(
        (&manifest["chunks"], &manifest["succeeded"], &manifest["recordBytes"]),
        (&json!(CHUNKS), &json!(CHUNKS), &json!(4))
    );
    assert_eq!(manifest["outputs"], json!([{"type": "u32", "count": 1, "offset": 0}]));
    let mut found = BTreeMap::new();
    for index in manifest["index"].as_array().expect("a list") {
        let index = fs::read_to_string(folder.join(index.as_str().expect("a name"))).expect("it is there");
        let index: Value = serde_json::from_str(&index).expect("JSON");
        for segment in index["segments"].as_array().expect("a list") {
            let bytes = fs::read(folder.join(segment["name"].as_str().expect("a name"))).expect("it is there");
            assert_eq!((&bytes[..8], &bytes[8..16]), (&b"SAHASRA1"[..], &4_u64.to_le_bytes()[..]));
            let (entries, rest) = bytes[16..].as_chunks::<12>();
            assert!(rest.is_empty());
            let values: BTreeMap<u64, u32> = (entries.iter())
                .map(|entry| {
                    let (index, value) = entry.split_at(8);
                    let index = u64::from_le_bytes(index.try_into().expect("8 bytes"));
                    (index, u32::from_le_bytes(value.try_into().expect("4 bytes")))
                })
                .collect();
            for range in segment["indexes"].as_str().expect("text").split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (u64, u64) = (first.parse().expect("a number"), last.parse().expect("a number"));
                for index in first..=last {
                    assert_eq!(found.insert(index, values[&index]), None, "{index} counts twice");
                }
            }
        }
    }
    assert_eq!(found.len() as u64, CHUNKS);
    assert!(found.iter().all(|(index, value)| *index == u64::from(*value)));
}
