//! Checks `/openapi.json`: every route is called, with and without a token, and must answer as documented.

use bytes::Bytes;
use http::{Method, Request, header};
use serde_json::{Value, json};

use crate::{
    cluster::{Answered, Cluster},
    objects::burst,
};

fn documented(document: &Value, operation: &Value, answer: &Answered, what: &str) {
    let code = answer.status.as_u16().to_string();
    let mut response = &operation["responses"][&code];
    assert!(!response.is_null(), "{what} answered {code}, which is not documented: {answer:?}");
    if let Some(reference) = response["$ref"].as_str() {
        response = document.pointer(&reference[1..]).expect("it leads somewhere");
    }
    let kind = answer.headers[header::CONTENT_TYPE].to_str().expect("text");
    let kind = kind.split(';').next().unwrap_or_default();
    assert!(
        response["content"].get(kind).is_some(),
        "{what}: {code} as {kind} is not documented: {response}"
    );
    if kind == "application/json" {
        let body = answer.json();
        let schema = &response["content"][kind]["schema"];
        let schema = schema["$ref"]
            .as_str()
            .map_or(schema, |reference| document.pointer(&reference[1..]).expect("it leads somewhere"));
        for field in schema["required"].as_array().into_iter().flatten() {
            assert!(
                body.get(field.as_str().unwrap_or_default()).is_some(),
                "{what}: {code} lacks {field}: {body}"
            );
        }
        if let Some(kind) = schema["properties"]["kind"]["const"].as_str() {
            assert_eq!(body["kind"], kind, "{what}: {code}");
        }
    }
}

#[tokio::test]
async fn every_route_answers_as_documented() {
    let cluster = Cluster::start().await;
    let document = cluster.send("/openapi.json", Request::builder(), Bytes::new()).await.json();
    let session = json!({"metadata": {"generateName": "a-"}, "spec": {"vram": "1Gi"}});
    let mut generated = burst("b");
    generated["metadata"] = json!({"generateName": "b-"});
    let mut called = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods
            .as_object()
            .expect("methods")
            .iter()
            .filter(|(name, _)| *name != "parameters")
        {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let body = (method == Method::POST).then(|| if path.contains("bursts") { &generated } else { &session });
            let open = operation["security"] == json!([]);
            // Each route is called for an object that exists, and for one that does not.
            for name in ["there", "nowhere"] {
                cluster
                    .call(Method::POST, "/v1/namespaces/default/bursts", Some(&burst("there")))
                    .await;
                let there = json!({"metadata": {"name": "there"}, "spec": {"vram": "1Gi"}});
                cluster.call(Method::POST, "/v1/namespaces/default/sessions", Some(&there)).await;
                let path = path.replace("{namespace}", "default").replace("{name}", name);
                let what = format!("{method} {path}");
                let answer = cluster.call(method.clone(), &path, body).await;
                documented(&document, operation, &answer, &what);
                let expected: &[u16] = match (operation["operationId"].as_str().unwrap_or_default(), name) {
                    ("openStream", _) => &[426],
                    ("getResults", "there") => &[409],
                    ("listWorkers", _) => &[503],
                    ("createGpuSession" | "createBurstJob", _) => &[201],
                    ("getGpuSession" | "getBurstJob" | "deleteGpuSession" | "deleteBurstJob" | "getResults", "nowhere") => &[404],
                    ("ready", _) => &[200, 503],
                    _ => &[200],
                };
                assert!(expected.contains(&answer.status.as_u16()), "{what}: {answer:?}");
                let nobody = cluster.send(&path, Request::builder().method(&method), Bytes::new()).await;
                documented(&document, operation, &nobody, &what);
                let needs_token = !open && operation["operationId"] != "openStream";
                assert_eq!(nobody.status == 401, needs_token, "{what} without a token: {nobody:?}");
                let query = format!("{path}?nonsense=1");
                if !open && operation["operationId"] != "openStream" {
                    let wrong = cluster.call(method.clone(), &query, body).await;
                    assert!(wrong.refusal(400).contains("query.nonsense"));
                    documented(&document, operation, &wrong, &query);
                }
                called += 1;
            }
        }
    }
    assert_eq!(called, 30);
}
