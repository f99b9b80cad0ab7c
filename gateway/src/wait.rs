//! Route of one object, with a long poll: answered when a condition is true, when the object has failed, or after a timeout.

use std::{error::Error, io, time::Duration};

use bytes::Bytes;
use futures::TryStreamExt;
use http::{Method, StatusCode};
use http_body_util::BodyDataStream;
use hyper::body::Body;
use sahasra_crds::conditions::{ACCEPTED, ADMITTED, COMPLETE, FAILED, PLACED, READY, SUSPENDED};
use sahasra_service::answer::{self, Answer};
use serde_json::Value;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt},
    time::{Instant, timeout_at},
};
use tokio_util::io::StreamReader;

use crate::{
    api::{Caller, MAX_POLL_SECONDS, accepted},
    conditions,
    query::Query,
    refusal::Refusal,
    route::{Kind, Object},
};

/// Timeout of a poll without `timeoutSeconds`.
const DEFAULT_SECONDS: u64 = 30;
/// Maximum size of a watch event, which is an object and a few more fields.
const EVENT_BYTES: u64 = 8 << 20;
/// Delay between two watches when the first ends early: an API server that shuts down ends watches at once.
const PAUSE: Duration = Duration::from_millis(250);

/// Returns an object: at once, or with `waitFor` when the condition is true, the object has failed or the timeout is over.
pub(crate) async fn get(caller: &Caller<'_>, object: &Object) -> Result<Answer, Refusal> {
    let Object { kind, namespace, name } = object;
    let query = caller.query(&["waitFor", "timeoutSeconds"])?;
    let path = object.path();
    let seconds = query.number("timeoutSeconds", 1, MAX_POLL_SECONDS)?;
    let Some(wished) = query.get("waitFor") else {
        if seconds.is_some() {
            return Err(Refusal::field(
                "query.timeoutSeconds",
                "requires waitFor: add waitFor, such as waitFor=Placed",
            ));
        }
        return caller.pass(Method::GET, &path, None).await;
    };
    if !awaited(*kind).contains(&wished) {
        let types = awaited(*kind).join(", ");
        return Err(Refusal::field(
            "query.waitFor",
            format!("invalid condition of a {}: expected one of {types}", kind.name()),
        ));
    }
    let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS));
    'look: loop {
        let object = caller.object(&path).await?;
        if settled(*kind, &object, wished) || Instant::now() >= deadline {
            return Ok(whole(&object));
        }
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let left = (deadline - Instant::now()).as_secs() + 1;
        let watch = Query::default().and(&[
            ("watch", "1"),
            ("fieldSelector", &format!("metadata.name={name}")),
            ("resourceVersion", version),
            ("timeoutSeconds", &left.to_string()),
        ]);
        let watch = format!("{}?{watch}", kind.path(namespace));
        let watch = caller.send(Method::GET, &watch, None).await?;
        if watch.status() == StatusCode::GONE {
            // The resource version has expired: read the object again.
            continue;
        }
        let mut events = reader(accepted(watch)?.into_body());
        loop {
            let Ok(event) = timeout_at(deadline, next_event(&mut events)).await else {
                let object = caller.object(&path).await?;
                return Ok(whole(&object));
            };
            match event? {
                Some(event) => match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") if settled(*kind, &event["object"], wished) => return Ok(whole(&event["object"])),
                    Some("ADDED" | "MODIFIED" | "BOOKMARK") => {}
                    Some("DELETED") => continue 'look,
                    // The watch reported an error and cannot continue.
                    _ => break,
                },
                None => break,
            }
        }
        tokio::time::sleep_until((Instant::now() + PAUSE).min(deadline)).await;
    }
}

/// Types of conditions that a poll can wait for.
fn awaited(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Session => &[PLACED, READY, FAILED],
        Kind::Burst => &[ACCEPTED, ADMITTED, SUSPENDED, COMPLETE, FAILED],
    }
}

/// Whether the awaited condition or `Failed` is true, or a burst was rejected: it stays rejected until the burst or an object that it refers
/// to changes.
fn settled(kind: Kind, object: &Value, wished: &str) -> bool {
    let is_true = |condition| conditions::is_true(object, condition);
    is_true(wished) || is_true(FAILED) || (kind == Kind::Burst && conditions::rejection(object).is_some())
}

fn whole(object: &Value) -> Answer {
    answer::json(StatusCode::OK, object.to_string())
}

/// Reads the next event of a watch, one JSON object a line. Returns `None` when the watch has ended or broken: the caller starts another one.
async fn next_event(mut events: impl AsyncBufRead + Unpin) -> Result<Option<Value>, Refusal> {
    let mut line = Vec::new();
    let read = (&mut events).take(EVENT_BYTES).read_until(b'\n', &mut line).await;
    if read.is_ok() && line.ends_with(b"\n") {
        let event = serde_json::from_slice(&line);
        return event.map(Some).map_err(|error| Refusal::ApiServerAnswer(error.to_string()));
    }
    if line.len() as u64 == EVENT_BYTES {
        return Err(Refusal::ApiServerAnswer(format!("an event of more than {EVENT_BYTES} bytes")));
    }
    Ok(None)
}

fn reader(body: impl Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin) -> impl AsyncBufRead + Unpin {
    StreamReader::new(BodyDataStream::new(body).map_err(io::Error::other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_poll_ends_with_the_condition_or_with_failure() {
        let object = |kind: &str, status: &str| json!({"status": {"conditions": [{"type": kind, "status": status}]}});
        let session = |object: &Value| settled(Kind::Session, object, "Placed");
        assert!(session(&object("Placed", "True")));
        assert!(session(&object("Failed", "True")));
        assert!(!session(&object("Placed", "False")));
        assert!(!session(&object("Ready", "True")));
        assert!(!session(&json!({"metadata": {}})));
    }

    #[test]
    fn a_poll_ends_for_a_rejected_burst() {
        let burst = |generation: i64| {
            let refused = json!({"type": "Accepted", "status": "False", "observedGeneration": 2});
            json!({"metadata": {"generation": generation}, "status": {"conditions": [refused]}})
        };
        assert!(settled(Kind::Burst, &burst(2), "Complete"));
        assert!(!settled(Kind::Burst, &burst(3), "Complete"), "the new spec has not been looked at");
        assert!(!settled(Kind::Session, &burst(2), "Ready"));
    }

    #[tokio::test]
    async fn events_are_read_regardless_of_frame_boundaries() {
        let text = b"{\"type\":\"ADDED\"}\n{\"type\":\"MODIFIED\"}\n";
        for size in 1..text.len() {
            let pieces: Vec<_> = text
                .chunks(size)
                .map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)))
                .collect();
            let stream = futures::StreamExt::map(futures::stream::iter(pieces), |piece| piece.map(hyper::body::Frame::data));
            let mut events = reader(http_body_util::StreamBody::new(stream));
            assert_eq!(next_event(&mut events).await.unwrap().unwrap()["type"], "ADDED");
            assert_eq!(next_event(&mut events).await.unwrap().unwrap()["type"], "MODIFIED");
            assert!(next_event(&mut events).await.unwrap().is_none());
        }
    }
}
