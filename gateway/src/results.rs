//! The results of a burst's chunks, from the ConfigMap that the operator keeps them in.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::{
    api::ApiServer,
    objects,
    query::Query,
    refusal::Refusal,
    route::Kind,
    service::{Answer, json},
    token::Token,
};

/// Key of the results in the ConfigMap.
const CSV: &str = "results.csv";

/// The results of a finished burst, as CSV or JSON.
///
/// # Errors
/// A [`Refusal`]: the API server's own when the caller may not read the burst or its ConfigMap.
pub async fn get(api: &ApiServer, token: &Token, namespace: &str, name: &str, query: Option<&str>) -> Result<Answer, Refusal> {
    let query = Query::parse(query, &["format"])?;
    let as_json = match query.get("format") {
        None | Some("csv") => false,
        Some("json") => true,
        Some(_) => return Err(Refusal::field("query.format", "write csv or json")),
    };
    let burst = api.object(token, &objects::path(Kind::Burst, namespace, name)).await?;
    let results = &burst["status"]["results"];
    if let Some(url) = results["url"].as_str().filter(|url| !url.is_empty()) {
        return Err(Refusal::NotYet {
            reason: "ResultsInStore",
            problem: format!(
                "the results of {name} stand in {url}: read them there with the store's own credentials; that file lists their segments"
            ),
            field: "status.results.url",
            value: url.to_owned(),
        });
    }
    let conditions = burst["status"]["conditions"].as_array();
    let ended = (conditions.into_iter().flatten())
        .any(|condition| condition["status"] == "True" && ["Complete", "Failed"].iter().any(|kind| condition["type"] == *kind));
    let state = burst["status"]["state"].as_str().unwrap_or("Pending");
    if !ended {
        return Err(Refusal::NotYet {
            reason: "NotFinished",
            problem: format!("{name} is {state}: wait for it with GET ..?waitFor=Complete and ask again"),
            field: "status.state",
            value: state.to_owned(),
        });
    }
    let missing = |what: &str| Refusal::NotYet {
        reason: "NoResults",
        problem: format!("{name} has {what}: give it `output.store` in its spec for results that are larger than 512 KiB"),
        field: "status.results.configMap",
        value: results["configMap"].as_str().unwrap_or_default().to_owned(),
    };
    // Written by the operator; looked at all the same, for it becomes part of a path.
    let config_map = results["configMap"].as_str().filter(|name| is_name(name));
    let config_map = config_map.ok_or_else(|| missing("no results"))?;
    let found = api
        .object(token, &format!("/api/v1/namespaces/{namespace}/configmaps/{config_map}"))
        .await?;
    let csv = found["data"][CSV]
        .as_str()
        .ok_or_else(|| missing("no results that fit a ConfigMap as text"))?;
    let text = if as_json { rows(csv) } else { csv.to_owned() };
    let mut answer = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync());
    if as_json {
        json(&mut answer);
    } else {
        let csv = HeaderValue::from_static("text/csv; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, csv);
    }
    Ok(answer)
}

fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    (1..=253).contains(&text.len()) && text.bytes().all(known) && !text.contains("..")
}

/// A list of objects, a row each. Numbers keep their digits; what JSON has no number for (`NaN`, `inf`) is a string.
fn rows(csv: &str) -> String {
    let mut lines = csv.lines();
    let names: Vec<String> = lines
        .next()
        .unwrap_or_default()
        .split(',')
        .map(|name| Value::from(name).to_string())
        .collect();
    let mut text = String::with_capacity(csv.len() * 3);
    text.push('[');
    for (place, line) in lines.enumerate() {
        text.push_str(if place == 0 { "\n{" } else { ",\n{" });
        for (place, (name, value)) in names.iter().zip(line.split(',')).enumerate() {
            if place > 0 {
                text.push(',');
            }
            text.push_str(name);
            text.push(':');
            if is_number(value) {
                text.push_str(value);
            } else {
                text.push_str(&Value::from(value).to_string());
            }
        }
        text.push('}');
    }
    text.push_str("\n]\n");
    text
}

/// Whether JSON takes it as a number as it stands.
fn is_number(text: &str) -> bool {
    matches!(serde_json::from_str::<Value>(text), Ok(Value::Number(_))) && text.trim().len() == text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_become_objects_and_keep_their_digits() {
        let csv = "index,rate,output0,output1[0]\n0,0.1,NaN,18446744073709551615\n2,1e-7,inf,-3\n";
        let text = rows(csv);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            read,
            json!([
                {"index": 0, "rate": 0.1, "output0": "NaN", "output1[0]": 18_446_744_073_709_551_615_u64},
                {"index": 2, "rate": 1e-7, "output0": "inf", "output1[0]": -3},
            ])
        );
        assert!(text.contains("\"rate\":1e-7"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&rows("index\n")).unwrap(), json!([]));
    }
}
