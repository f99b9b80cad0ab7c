use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::{client::Body, runtime::utils::Backoff as _};
use serde_json::json;
use tower_service::Service;

use super::*;
use sahasra_crds::{GpuWorkerSpec, GpuWorkerStatus};

const TIMEOUT: Duration = Duration::from_secs(15);
const API_TIMEOUT: Duration = Duration::from_secs(5);

fn directory() -> Directory {
    Directory::new(TIMEOUT, API_TIMEOUT)
}

fn begun(directory: &Directory) -> Instant {
    directory.state.lock().begun
}

fn worker(name: &str) -> GpuWorker {
    let spec = GpuWorkerSpec { node_name: "node".into() };
    let mut worker = GpuWorker::new(name, spec);
    worker.status = Some(GpuWorkerStatus::default());
    worker
}

/// Makes the API server answer every second until `end`.
fn answer_until(directory: &Directory, mut now: Instant, end: Instant) {
    while now < end {
        now = (now + Duration::from_secs(1)).min(end);
        directory.answered(now);
    }
}

#[test]
fn a_worker_is_stale_when_its_heartbeat_stops_and_live_when_it_resumes() {
    let directory = directory();
    let start = begun(&directory);
    directory.observe_heartbeat("a", Some("1".into()), start);
    directory.observe_worker(&worker("a"));
    assert!(!directory.worker("a").unwrap().stale);
    // The same version again does not count as a heartbeat.
    directory.observe_heartbeat("a", Some("1".into()), start + TIMEOUT / 2);
    answer_until(&directory, start, start + TIMEOUT / 2);
    let next = directory.mark_silent(start + TIMEOUT / 2);
    assert_eq!(next, start + TIMEOUT);
    answer_until(&directory, start + TIMEOUT / 2, next);
    directory.mark_silent(next);
    assert!(directory.worker("a").unwrap().stale);
    let mut changed = directory.subscribe();
    changed.mark_unchanged();
    directory.observe_heartbeat("a", Some("2".into()), start + 2 * TIMEOUT);
    assert!(!directory.worker("a").unwrap().stale && changed.has_changed().unwrap());
}

#[test]
fn a_worker_without_a_heartbeat_becomes_stale_after_one_timeout() {
    let directory = directory();
    directory.observe_worker(&worker("a"));
    assert!(!directory.worker("a").unwrap().stale);
    let start = begun(&directory);
    answer_until(&directory, start, start + TIMEOUT);
    directory.mark_silent(start + TIMEOUT);
    assert!(directory.worker("a").unwrap().stale);
}

#[test]
fn time_without_an_answer_of_the_api_server_does_not_count_against_a_heartbeat() {
    let directory = directory();
    let start = begun(&directory);
    for name in ["live", "dead"] {
        directory.observe_worker(&worker(name));
        directory.observe_heartbeat(name, Some("1".into()), start);
    }
    // The outage begins after 4 s and lasts longer than the timeout.
    let (outage, back) = (start + Duration::from_secs(4), start + 3 * TIMEOUT);
    answer_until(&directory, start, outage);
    let mut now = outage;
    while now < back {
        now = directory.mark_silent(now);
    }
    directory.answered(back);
    let left = TIMEOUT - Duration::from_secs(4) - API_TIMEOUT / 2;
    assert_eq!(directory.mark_silent(back), back + left);
    directory.observe_heartbeat("live", Some("2".into()), back + Duration::from_secs(5));
    let late = back + TIMEOUT;
    answer_until(&directory, back, late);
    directory.mark_silent(late);
    let stale = |name| directory.worker(name).unwrap().stale;
    assert!(!stale("live") && stale("dead"));
    // Another outage does not make a stale worker live.
    directory.answered(late + 2 * TIMEOUT);
    directory.observe_worker(&worker("dead"));
    assert!(stale("dead"));
}

#[test]
fn an_unchanged_report_sends_no_notification() {
    let directory = directory();
    directory.observe_worker(&worker("a"));
    let changed = directory.subscribe();
    directory.observe_worker(&worker("a"));
    assert!(!changed.has_changed().unwrap());
}

/// An API server whose list of Leases has a heartbeat of worker `a`, with the version that `heartbeat` computes from the number of reads.
/// Without `heartbeat`, requests fail.
#[derive(Clone)]
struct Leases {
    heartbeat: Option<fn(u64) -> u64>,
    reads: Arc<AtomicU64>,
}

impl Service<Request<Body>> for Leases {
    type Response = Response<Body>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let answer = self.heartbeat.map(|of| {
            let metadata = json!({"name": "sahasra-worker-a", "namespace": "system", "resourceVersion": of(reads).to_string()});
            let list =
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {}, "items": [{"metadata": metadata}]});
            Response::new(Body::from(list.to_string().into_bytes()))
        });
        Box::pin(async move { answer.ok_or_else(|| std::io::Error::other("the connection broke")) })
    }
}

/// Lets more than two timeouts pass without an event of the watch. Returns whether the worker is stale, and how often heartbeats were read.
async fn stale_without_a_watch(heartbeat: Option<fn(u64) -> u64>) -> (bool, u64) {
    let directory = directory();
    directory.observe_heartbeat("a", Some("0".into()), Instant::now());
    directory.observe_worker(&worker("a"));
    let reads = Arc::new(AtomicU64::new(0));
    let leases = Leases {
        heartbeat,
        reads: reads.clone(),
    };
    let answers = async {
        let end = Instant::now() + 2 * TIMEOUT + API_TIMEOUT;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_secs(1)).await;
            directory.api_server_answered();
        }
    };
    tokio::select! {
        () = directory.watch_silence(Api::namespaced(Client::new(leases, "system"), "system")) => {}
        () = answers => {}
    }
    (directory.worker("a").unwrap().stale, reads.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_the_watch_did_not_bring_is_read_before_its_worker_is_stale() {
    assert_eq!(stale_without_a_watch(Some(|read| read)).await, (false, 2));
    let (stale, reads) = stale_without_a_watch(Some(|_| 0)).await;
    assert!(stale && reads == 1, "{reads} reads");
    let (stale, reads) = stale_without_a_watch(None).await;
    assert!(!stale && reads > 10, "{reads} reads");
}

#[test]
fn waits_of_a_watch_double_up_to_the_longest_and_restart_after_a_success() {
    let mut backoff = watch_backoff(Duration::from_millis(350));
    let waits: Vec<u128> = backoff.by_ref().take(5).map(|wait| wait.as_millis()).collect();
    assert_eq!(waits, [100, 200, 350, 350, 350]);
    backoff.reset();
    assert_eq!(backoff.next(), Some(Duration::from_millis(100)));
}
