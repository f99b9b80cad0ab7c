//! Results of a burst as CSV and JSON.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Method, header};
use serde_json::json;

use crate::{
    cluster::Cluster,
    objects::{BURSTS, burst, condition},
};

/// Counts of a burst whose chunks all succeeded.
fn succeeded(chunks: usize) -> serde_json::Value {
    json!({"total": chunks, "pending": 0, "running": 0, "succeeded": chunks, "failed": 0, "retried": 0})
}

#[tokio::test]
async fn results_are_returned_as_csv_or_json_or_else_the_reason_is_given() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("search"))).await;
    let path = format!("{BURSTS}/search/results");
    let early = cluster.get(&path).await;
    assert!(early.refusal(409).contains("waitFor=Complete"));
    assert_eq!(early.json()["reason"], "NotFinished");
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"state": "Complete", "conditions": [condition("Complete", "AllChunksDone")]}),
        )
        .await;
    assert_eq!(cluster.get(&path).await.json()["reason"], "NoResults");
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"results": {"configMap": "search-results", "bytes": 8}, "chunks": succeeded(2)}),
        )
        .await;
    cluster.get(&path).await.refusal(404);
    let csv = "index,rate,output0\n0,0.5,1.25\n1,0.25,NaN\n";
    let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"results.csv": csv}});
    cluster.apply("ConfigMap", "search-results", data).await;
    let as_csv = cluster.get(&path).await;
    assert_eq!((as_csv.status.as_u16(), &as_csv.body[..]), (200, csv.as_bytes()));
    assert_eq!(as_csv.headers[header::CONTENT_TYPE], "text/csv; charset=utf-8");
    let rows = cluster.get(&format!("{path}?format=json")).await.json();
    assert_eq!(
        rows,
        json!([{"index": 0, "rate": 0.5, "output0": 1.25}, {"index": 1, "rate": 0.25, "output0": "NaN"}])
    );
    assert!(
        cluster
            .get(&format!("{path}?format=xml"))
            .await
            .refusal(400)
            .contains("csv or json")
    );
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"results": {"url": "s3://bucket/search/manifest.json"}}),
        )
        .await;
    let elsewhere = cluster.get(&path).await;
    assert!(
        elsewhere
            .refusal(409)
            .contains("in the segments that s3://bucket/search/manifest.json lists")
    );
    assert_eq!(elsewhere.json()["reason"], "ResultsInStore");
}

/// Reason, field, value and message of the rejection of a request for results.
async fn refused(cluster: &Cluster, name: &str) -> (String, String, String, String) {
    let answer = cluster.get(&format!("{BURSTS}/{name}/results")).await;
    let message = answer.refusal(409);
    let status = answer.json();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    let cause = &status["details"]["causes"][0];
    (text(&status["reason"]), text(&cause["field"]), text(&cause["message"]), message)
}

#[tokio::test]
async fn missing_results_are_reported_with_what_is_kept_and_where() {
    let cluster = Cluster::start().await;
    let url = "file:///stores/team/job/failed.csv";
    for (name, kept, in_store) in [("none", "None", false), ("failed", "Failed", false), ("stored", "Failed", true)] {
        let mut job = burst(name);
        job["spec"]["results"] = json!(kept);
        if in_store {
            job["spec"]["output"] = json!({"store": {"url": "file:///stores"}});
        }
        assert_eq!(cluster.call(Method::POST, BURSTS, Some(&job)).await.status, 201);
        // Rejected at once, because these results will never exist.
        let (reason, field, value, early) = refused(&cluster, name).await;
        assert_eq!(
            (reason.as_str(), field.as_str(), value.as_str()),
            ("NoResults", "spec.results", kept),
            "{early}"
        );
        let complete = json!({
            "state": "Complete", "conditions": [condition("Complete", "AllChunksDone")],
            "results": {"configMap": format!("{name}-results"), "url": in_store.then_some(url)},
        });
        cluster.report("BurstJob", name, complete).await;
        let (reason, field, value, message) = refused(&cluster, name).await;
        if in_store {
            assert!(early.contains("failed.csv in its store"), "{early}");
            assert_eq!(
                (reason.as_str(), field.as_str(), value.as_str()),
                ("ResultsInStore", "status.results.url", url)
            );
            assert!(message.contains(url) && !message.contains("segments"), "{message}");
        } else {
            assert_eq!(
                (reason.as_str(), field.as_str(), value.as_str()),
                ("NoResults", "spec.results", kept)
            );
            let is_listed = kept == "Failed";
            assert_eq!(
                message.contains("key failed.csv of the ConfigMap failed-results"),
                is_listed,
                "{message}"
            );
            let nameless = "key failed.csv of the ConfigMap that status.results.configMap names";
            assert_eq!(early.contains(nameless), is_listed, "{early}");
        }
    }
}

#[tokio::test]
async fn a_request_for_results_of_a_rejected_burst_fails_with_the_reason() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("wrong"))).await;
    let mut refusal = condition("Accepted", "InvalidPtx");
    refusal["status"] = json!("False");
    refusal["message"] = json!("spec.kernel.ptx is CUDA C: compile it");
    cluster
        .report("BurstJob", "wrong", json!({"state": "Pending", "conditions": [refusal]}))
        .await;
    let (reason, field, value, message) = refused(&cluster, "wrong").await;
    assert_eq!(
        (reason.as_str(), field.as_str(), value.as_str()),
        ("NotAccepted", "status.conditions", "InvalidPtx")
    );
    assert_eq!(message, "wrong is not accepted, InvalidPtx: spec.kernel.ptx is CUDA C: compile it");
}

#[tokio::test]
async fn results_whose_text_is_too_long_for_the_config_map_are_complete() {
    const CHUNKS: usize = 131_072;
    let cluster = Cluster::start().await;
    let mut job = burst("large");
    job["spec"]["chunks"] = json!({"count": CHUNKS});
    job["spec"]["kernel"]["args"] = json!([{"output": {"type": "f32", "count": 1}}]);
    assert_eq!(cluster.call(Method::POST, BURSTS, Some(&job)).await.status, 201);
    let results = json!({"configMap": "large-results", "bytes": 4 * CHUNKS});
    let status = json!({"state": "Complete", "conditions": [condition("Complete", "AllChunksDone")], "results": results, "chunks": succeeded(CHUNKS)});
    cluster.report("BurstJob", "large", status).await;
    let records: Vec<u8> = (0..CHUNKS).flat_map(|chunk| (chunk as f32).to_le_bytes()).collect();
    let counted = sahasra_results::IndexSet::full(CHUNKS as u64).encode();
    let encoded = |bytes: &[u8]| STANDARD.encode(bytes);
    let data = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {},
        "binaryData": {"results": encoded(&records), "counted": encoded(&counted)},
    });
    cluster.apply("ConfigMap", "large-results", data).await;
    let path = format!("{BURSTS}/large/results");
    let csv = cluster.get(&path).await;
    let text = String::from_utf8(csv.body.to_vec()).expect("text");
    assert_eq!((csv.status.as_u16(), text.lines().count()), (200, CHUNKS + 1));
    assert!(text.ends_with("131071,131071\n"));
    let rows = cluster.get(&format!("{path}?format=json")).await.json();
    assert_eq!(rows.as_array().map(Vec::len), Some(CHUNKS));
    assert_eq!(rows[CHUNKS - 1], json!({"index": 131_071, "output0": 131_071}));

    let broken = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "binaryData": {"results": "AAAA"}});
    cluster.apply("ConfigMap", "broken-results", broken).await;
    let results = json!({"configMap": "broken-results", "bytes": 4 * CHUNKS});
    cluster.report("BurstJob", "large", json!({"results": results})).await;
    let refused = cluster.get(&path).await;
    assert!(refused.refusal(500).contains("does not hold the results of large"), "{refused:?}");
}

#[tokio::test]
async fn results_that_are_not_whole_are_an_error() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("cut"))).await;
    let status = json!({
        "state": "Complete", "conditions": [condition("Complete", "AllChunksDone")],
        "chunks": succeeded(2),
    });
    cluster.report("BurstJob", "cut", status).await;
    let path = format!("{BURSTS}/cut/results");
    for (name, csv, told) in [
        ("empty", "", "is truncated"),
        ("cut", "index,output0\n0,1\n1,", "is truncated"),
        ("none", "index,output0\n", "has 0 rows where 2 chunks succeeded"),
        ("one", "index,output0\n0,1\n", "has 1 rows where 2 chunks succeeded"),
    ] {
        let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"results.csv": csv}});
        cluster.apply("ConfigMap", name, data).await;
        cluster
            .report("BurstJob", "cut", json!({"results": {"configMap": name, "bytes": 8}}))
            .await;
        for format in ["csv", "json"] {
            let message = cluster.get(&format!("{path}?format={format}")).await.refusal(500);
            assert!(
                message.contains(&format!("the ConfigMap {name} does not hold the results of cut: ")) && message.contains(told),
                "{message}"
            );
        }
    }
}
