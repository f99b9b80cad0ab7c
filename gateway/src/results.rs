//! Route of a burst's results, read from the ConfigMap in which the operator keeps them.

use std::{convert::Infallible, iter};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, header};
use http_body_util::StreamBody;
use hyper::body::Frame;
use sahasra_crds::{
    burst_job::BurstJobSpec,
    conditions::{COMPLETE, FAILED},
};
use sahasra_names::is_dns_subdomain;
use sahasra_results::{COUNTED, CSV, Table};
use sahasra_service::answer::{self, Answer};
use serde_json::Value;

use crate::{api::Caller, conditions, refusal::Refusal, route::Object};

/// Approximate size of one frame of the answer. Rows are formatted as the client takes them, since the text may be much longer than the
/// records.
const PIECE_BYTES: usize = 16 << 10;

/// Returns the results of a finished burst, as CSV or JSON.
pub(crate) async fn get(caller: &Caller<'_>, burst: &Object) -> Result<Answer, Refusal> {
    let Object { namespace, name, .. } = burst;
    let query = caller.query(&["format"])?;
    let as_json = match query.get("format") {
        None | Some("csv") => false,
        Some("json") => true,
        Some(_) => return Err(Refusal::field("query.format", "expected csv or json")),
    };
    let burst = caller.object(&burst.path()).await?;
    let config_map = config_map_of(&burst, name)?;
    // In a complete burst every chunk is counted, so there is one row for each chunk that succeeded.
    let rows = Some(&burst["status"]["chunks"]["succeeded"]).filter(|_| conditions::is_true(&burst, COMPLETE));
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{config_map}");
    let found = caller.object(&path).await?;
    let lines = lines(&burst["spec"], &found, rows.and_then(Value::as_u64)).map_err(|problem| {
        Refusal::Damaged(format!(
            "the ConfigMap {config_map} does not hold the results of {name}: {problem}; it was changed after the operator wrote it: run the \
             burst again"
        ))
    })?;
    Ok(if as_json {
        pieces("application/json", json_rows(lines))
    } else {
        pieces("text/csv; charset=utf-8", lines)
    })
}

/// Returns the name of the ConfigMap with the results of a finished burst, or [`Refusal::NotYet`] with the field that shows why no ConfigMap
/// holds them, and where to look instead.
fn config_map_of<'a>(burst: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    let status = &burst["status"];
    let results = &status["results"];
    let url = results["url"].as_str().filter(|url| !url.is_empty());
    let kept = burst["spec"]["results"].as_str().unwrap_or("All");
    if let (Some(url), true) = (url, matches!(kept, "All" | "Failed")) {
        let what = match kept {
            "Failed" => format!("spec.results of {name} is Failed: index and cause of each failed chunk are in {url}"),
            _ => format!("the results of {name} are in the segments that {url} lists"),
        };
        let problem = format!("{what}: read them there with the store's own credentials");
        return Err(Refusal::not_yet("ResultsInStore", "status.results.url", url, problem));
    }
    if kept != "All" {
        let instead = match (kept, burst["spec"]["output"].is_object()) {
            ("Failed", true) => {
                "index and cause of each failed chunk are in failed.csv in its store once status.results.url names it".to_owned()
            }
            ("Failed", false) => format!(
                "index and cause of each failed chunk are, once it has ended, in the key failed.csv of the ConfigMap {}",
                results["configMap"].as_str().unwrap_or("that status.results.configMap names")
            ),
            _ => "only status.aggregate and status.chunks are available".to_owned(),
        };
        let problem = format!("spec.results of {name} is {kept}, which keeps no results (All does): {instead}");
        return Err(Refusal::not_yet("NoResults", "spec.results", kept, problem));
    }
    let state = status["state"].as_str().unwrap_or("Pending");
    if !conditions::is_true(burst, COMPLETE) && !conditions::is_true(burst, FAILED) {
        if let Some(rejection) = conditions::rejection(burst) {
            let said = |field: &str| rejection[field].as_str().unwrap_or_default().to_owned();
            let problem = format!("{name} is not accepted, {}: {}", said("reason"), said("message"));
            return Err(Refusal::not_yet("NotAccepted", "status.conditions", said("reason"), problem));
        }
        let problem = format!("{name} is {state}: wait for it with GET and ?waitFor=Complete on the job, then retry");
        return Err(Refusal::not_yet("NotFinished", "status.state", state, problem));
    }
    // The operator wrote the name, but it is checked because it becomes part of a path.
    let found = results["configMap"].as_str().unwrap_or_default();
    if is_dns_subdomain(found) {
        return Ok(found);
    }
    let problem = format!("{name} is {state} and has no results: its conditions say why");
    Err(Refusal::not_yet("NoResults", "status.results.configMap", found, problem))
}

/// Returns the lines of `results.csv`: as stored in the ConfigMap, or formatted from its records where the text is too large to be stored. If
/// `expected` is given, the number of rows after the header must equal it.
fn lines(spec: &Value, config_map: &Value, expected: Option<u64>) -> Result<Box<dyn Iterator<Item = String> + Send>, String> {
    if let Some(csv) = config_map["data"][CSV].as_str() {
        let lines: Vec<String> = csv.split_inclusive('\n').map(str::to_owned).collect();
        if !csv.starts_with("index") || !csv.ends_with('\n') {
            return Err(format!("its key {CSV} is truncated"));
        }
        let rows = lines.len() as u64 - 1;
        if let Some(expected) = expected.filter(|expected| *expected != rows) {
            return Err(format!("its key {CSV} has {rows} rows where {expected} chunks succeeded"));
        }
        return Ok(Box::new(lines.into_iter()));
    }
    let keys = config_map["binaryData"].as_object().ok_or("it has no binaryData")?;
    let decoded = |(key, text): (&String, &Value)| match STANDARD.decode(text.as_str().unwrap_or_default()) {
        Ok(bytes) => Ok((key.clone(), bytes)),
        Err(_) => Err(format!("its key {key} is not base64")),
    };
    let binary_data = keys.iter().map(decoded).collect::<Result<_, _>>()?;
    let spec: BurstJobSpec = serde_json::from_value(spec.clone()).map_err(|error| format!("spec of an unsupported version: {error}"))?;
    let table = Table::of(&spec, binary_data).map_err(|error| error.to_string())?;
    if let Some(expected) = expected.filter(|expected| *expected != table.rows()) {
        return Err(format!(
            "its key {COUNTED} gives {} rows where {expected} chunks succeeded",
            table.rows()
        ));
    }
    Ok(Box::new(table.into_iter()))
}

fn pieces(content_type: &'static str, texts: impl Iterator<Item = String> + Send + 'static) -> Answer {
    let pieces = stream::unfold(texts, |mut texts| async move {
        let mut piece = String::new();
        while piece.len() < PIECE_BYTES
            && let Some(text) = texts.next()
        {
            piece.push_str(&text);
        }
        let is_end = piece.is_empty();
        let frame = Ok::<_, Infallible>(Frame::data(Bytes::from(piece)));
        (!is_end).then_some((frame, texts))
    });
    let mut response = Response::new(StreamBody::new(pieces));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    answer::stream(response)
}

/// Returns the text of a JSON array of objects, one for each row. Numbers keep their digits; values that JSON has no number for (`NaN`, `inf`)
/// become strings.
fn json_rows(mut lines: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let header = lines.next().unwrap_or_default();
    let names: Vec<String> = header.trim_end().split(',').map(|name| Value::from(name).to_string()).collect();
    let rows = lines.enumerate().map(move |(place, line)| {
        let values = line.trim_end().split(',').map(|value| match is_number(value) {
            true => value.to_owned(),
            false => Value::from(value).to_string(),
        });
        let fields: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("{name}:{value}")).collect();
        let before = if place == 0 { "" } else { "," };
        format!("{before}\n{{{}}}", fields.join(","))
    });
    iter::once("[".to_owned()).chain(rows).chain(iter::once("\n]\n".to_owned()))
}

fn is_number(text: &str) -> bool {
    matches!(serde_json::from_str::<Value>(text), Ok(Value::Number(_))) && text.trim().len() == text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sahasra_results::RESULTS;
    use serde_json::json;

    #[test]
    fn rows_become_objects_and_keep_their_digits() {
        let csv = "index,rate,output0,output1[0]\n0,0.1,NaN,18446744073709551615\n2,1e-7,inf,-3\n";
        let rows = |csv: &str| {
            let lines: Vec<String> = csv.split_inclusive('\n').map(str::to_owned).collect();
            json_rows(lines.into_iter()).collect::<String>()
        };
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

    #[test]
    fn records_are_formatted_if_their_text_is_too_long_for_the_config_map() {
        let spec = json!({
            "kernel": {
                "ptx": {"inline": "x"}, "entry": "k", "block": [1],
                "args": [{"output": {"type": "f32", "count": 1}}, {"chunkIndex": {"type": "u32"}}],
            },
            "chunks": {"count": 131_072}, "slice": {"vram": "1Mi"},
        });
        let records: Vec<u8> = (0..131_072_u32).flat_map(|chunk| (chunk as f32).to_le_bytes()).collect();
        assert_eq!(records.len(), 512 << 10);
        let counted = sahasra_results::IndexSet::full(131_072).encode();
        let kept = json!({"binaryData": {RESULTS: STANDARD.encode(&records), COUNTED: STANDARD.encode(counted)}});
        let lines: Vec<String> = lines(&spec, &kept, None).unwrap().collect();
        assert_eq!((lines.len(), lines[0].as_str()), (131_073, "index,output0\n"));
        assert_eq!(lines[131_072], "131071,131071\n");
        let of = |config_map: &Value| self::lines(&spec, config_map, None).err().unwrap_or_default();
        assert_eq!(of(&json!({"data": {}})), "it has no binaryData");
        assert_eq!(
            of(&json!({"binaryData": {RESULTS: "AAAA", COUNTED: ""}})),
            "the key results has 3 bytes where the spec gives 524288"
        );
    }
}
