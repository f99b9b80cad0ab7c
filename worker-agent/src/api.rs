//! The agent's HTTP API as one warp filter: the calls of [`sahasra_wire`], session streams, `/healthz`, `/readyz` and `/metrics`.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::stream;
use sahasra_access::Access;
use sahasra_service::{
    answer::{self, Answer},
    health, metrics, tasks,
};
use sahasra_wire::{CONTENT_TYPE, Message, path};
use tokio::sync::mpsc;
use warp::{
    Filter, Rejection, Reply,
    filters::BoxedFilter,
    http::{StatusCode, header},
};

use crate::agent::Agent;
use guard::Guard;

pub mod burst_stream;
pub(crate) mod guard;
pub mod memory_socket;
mod relay;
mod session_stream;

/// Limit of the body of `/v1/acquire`: an owner and a few numbers.
const ACQUIRE_BYTES: u64 = 16 << 10;
/// Limit of the body of `/v1/renew` and `/v1/release`: room for every grant that an agent can hold.
const GRANTS_BYTES: u64 = 8 << 20;
/// Frames queued for a coordinator that reads slowly. Further results are retained, and further chunks are not executed.
const WAITING_FRAMES: usize = 8;

fn protobuf(message: &impl Message) -> Answer {
    warp::reply::with_header(message.encode_to_vec(), header::CONTENT_TYPE, CONTENT_TYPE).into_response()
}

fn is_protobuf(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|given| given.split(';').next().is_some_and(|given| given.trim() == CONTENT_TYPE))
}

fn wrong_type() -> Answer {
    answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("content-type must be {CONTENT_TYPE}\n"))
}

/// Route of a unary call: decodes the body of a POST to `/v1/{name}`, and encodes what `answer` returns.
fn call<Q: Message + Default, A: Message + 'static>(
    name: &'static str,
    limit: u64,
    agent: &Arc<Agent>,
    answer: impl Fn(&Agent, &Q) -> A + Clone + Send + Sync + 'static,
) -> BoxedFilter<(Answer,)> {
    let agent = Arc::clone(agent);
    warp::path("v1")
        .and(warp::path(name))
        .and(warp::path::end())
        .and(warp::post())
        .and(warp::header::optional::<String>("content-type"))
        .and(warp::body::content_length_limit(limit))
        .and(warp::body::bytes())
        .map(move |content_type: Option<String>, body: Bytes| {
            if !is_protobuf(content_type.as_deref()) {
                return wrong_type();
            }
            match Q::decode(body) {
                Ok(request) => protobuf(&answer(&agent, &request)),
                Err(error) => answer::text(StatusCode::BAD_REQUEST, format!("failed to read the body: {error}\n")),
            }
        })
        .boxed()
}

/// Route of a GET of `/v1/{name}`: encodes what `answer` returns.
fn report<A: Message + 'static>(name: &'static str, agent: &Arc<Agent>, answer: fn(&Agent) -> A) -> BoxedFilter<(Answer,)> {
    let agent = Arc::clone(agent);
    warp::path("v1")
        .and(warp::path(name))
        .and(warp::path::end())
        .and(warp::get())
        .map(move || protobuf(&answer(&agent)))
        .boxed()
}

/// Returns all routes of an agent. `access` decides who may open session streams; `guard` authenticates operators.
///
/// Each route is boxed, because nested types of filters make up much of the time to compile this crate.
pub fn routes(
    agent: Arc<Agent>,
    access: Access,
    guard: Guard,
    readiness: health::Readiness,
) -> impl Filter<Extract = (impl Reply,), Error = Infallible> + Clone + Send + Sync + 'static {
    let streaming = Arc::clone(&agent);
    let bursts = warp::path!("v1" / "bursts")
        .and(warp::post())
        .and(warp::header::optional::<String>("content-type"))
        .and(warp::body::stream())
        .map(move |content_type: Option<String>, body| {
            if !is_protobuf(content_type.as_deref()) {
                return wrong_type();
            }
            let (answers, frames) = mpsc::channel(WAITING_FRAMES);
            tasks::spawn(burst_stream::serve(Arc::clone(&streaming), Box::pin(body), answers));
            let frames = stream::unfold(frames, |mut frames| async move {
                frames.recv().await.map(|frame: Bytes| (Ok::<_, Infallible>(frame), frames))
            });
            warp::reply::with_header(warp::reply::stream(frames), header::CONTENT_TYPE, CONTENT_TYPE).into_response()
        });
    let observed = Arc::clone(&agent);
    let scrape = metrics::route(agent.parts.metrics.registry(), move || observed.observe());
    let routes = [
        session_stream::route(Arc::clone(&agent), access).boxed(),
        guard::rejected(guard).boxed(),
        report("inventory", &agent, Agent::inventory),
        report("load", &agent, Agent::load),
        call("acquire", ACQUIRE_BYTES, &agent, Agent::acquire),
        call("renew", GRANTS_BYTES, &agent, Agent::renew),
        call("release", GRANTS_BYTES, &agent, Agent::release),
        bursts.boxed(),
        health::routes(readiness).boxed(),
        scrape.boxed(),
    ];
    let all = routes.into_iter().reduce(|first, second| first.or(second).unify().boxed());
    all.expect("an agent has routes").recover(rejected)
}

/// Answers a request that no route accepted with the status and a sentence for its cause.
async fn rejected(rejection: Rejection) -> Result<Answer, Infallible> {
    let (status, message) = if rejection.is_not_found() {
        (
            StatusCode::NOT_FOUND,
            format!(
                "path not found: expected {}, /healthz, /readyz, /metrics or the stream of a session",
                [path::INVENTORY, path::LOAD, path::ACQUIRE, path::RENEW, path::RELEASE, path::BURSTS].join(", ")
            ),
        )
    } else if rejection.find::<warp::reject::PayloadTooLarge>().is_some() {
        (StatusCode::PAYLOAD_TOO_LARGE, "body is too large".to_owned())
    } else if rejection.find::<warp::reject::LengthRequired>().is_some() {
        (StatusCode::LENGTH_REQUIRED, "content-length is required".to_owned())
    } else if rejection.find::<warp::reject::MethodNotAllowed>().is_some() {
        (StatusCode::METHOD_NOT_ALLOWED, "method not allowed".to_owned())
    } else {
        (StatusCode::BAD_REQUEST, "failed to read the request".to_owned())
    };
    Ok(answer::text(status, message + "\n"))
}
