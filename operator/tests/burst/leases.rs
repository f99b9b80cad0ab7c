//! Tests of leases that users create, and of the cost of a release that no agent answers.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use parking_lot::Mutex;
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, GRANTED},
};
use sahasra_store::StorePolicy;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{
    agent::Pool,
    harness::{NAMESPACE, create, eventually, job},
};

/// TTL of the slices, after which a release without an answer is over.
const TTL: Duration = Duration::from_secs(600);
/// Time after the TTL within which the object must be gone.
const MARGIN: Duration = Duration::from_secs(20);
/// Maximum number of log lines for one object within the TTL, and of calls to the agent. Both grow far more slowly than the time in
/// seconds.
const LINES: usize = 4;
const CALLS: u32 = 150;

/// The log lines at the default level of an operator.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// All lines so far.
    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().push(fields.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Creates a lease of one slice and waits until it is granted.
async fn granted(pool: &Pool, name: &str) -> Api<VramLease> {
    let leases = Api::<VramLease>::namespaced(pool.client.clone(), NAMESPACE);
    let lease = json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": name},
        "spec": {"slice": {"vram": "1Mi"}, "slices": {"min": 1, "max": 1}, "ttlSeconds": TTL.as_secs()},
    });
    let lease = serde_json::from_value(lease).expect("a lease");
    leases.create(&PostParams::default(), &lease).await.expect("created");
    eventually(&leases, name, |lease| {
        let status = lease.status.as_ref()?;
        conditions::is_true(&status.conditions, GRANTED).then_some(())
    })
    .await;
    leases
}

/// Waits until the release is `done` with an agent that answers no release. It must end when the slices have expired, and cost only a few
/// log lines and calls until then.
async fn costs_little(pool: &Pool, lines: &Lines, done: impl AsyncFn() -> bool) {
    let (began, before, calls) = (Instant::now(), lines.all().len(), pool.releases());
    while !done().await {
        assert!(began.elapsed() < TTL + MARGIN, "it stands after its slices have expired");
        sleep(Duration::from_millis(500)).await;
    }
    assert!(began.elapsed() >= TTL, "an agent may still hold its slices: {:?}", began.elapsed());
    let written = lines.all().split_off(before);
    assert!(written.len() <= LINES, "{} lines: {:#?}", written.len(), &written[..LINES]);
    let calls = pool.releases() - calls;
    assert!(calls <= CALLS, "{calls} releases");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_whose_agent_does_not_answer_costs_few_lines_and_calls() {
    let pool = Pool::start(0, StorePolicy::default()).await;
    let leases = granted(&pool, "silent").await;
    pool.leave_releases_unanswered(u32::MAX);
    let lines = Lines::default();
    let _logged = tracing::subscriber::set_default(lines.clone());
    leases.delete("silent", &DeleteParams::default()).await.unwrap();
    costs_little(&pool, &lines, async || leases.get_opt("silent").await.unwrap().is_none()).await;
    let said = lines.all();
    let waits = said.iter().filter(|line| line.contains("deleted: waiting for an agent to respond"));
    assert_eq!(waits.count(), 1, "{said:#?}");
}

/// A burst of four chunks that are submitted, with the same TTL as the lease above.
fn lasting(name: &str) -> BurstJob {
    job(name, |manifest| manifest["spec"]["lease"] = json!({"ttlSeconds": TTL.as_secs()}))
}

#[tokio::test(start_paused = true)]
async fn a_deleted_burst_whose_agent_does_not_answer_costs_few_lines_and_calls() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &lasting("deleted")).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    pool.leave_releases_unanswered(u32::MAX);
    let lines = Lines::default();
    let _logged = tracing::subscriber::set_default(lines.clone());
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    jobs.delete("deleted", &DeleteParams::default()).await.unwrap();
    costs_little(&pool, &lines, async || jobs.get_opt("deleted").await.unwrap().is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_burst_whose_agent_does_not_answer_costs_few_lines_and_calls() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &lasting("finished")).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    pool.leave_releases_unanswered(u32::MAX);
    let lines = Lines::default();
    let _logged = tracing::subscriber::set_default(lines.clone());
    stream.succeeded(1, 0, 4, "");
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    eventually(&jobs, "finished", |job| job.status.as_ref()?.completion_time.clone()).await;
    costs_little(&pool, &lines, async || jobs.get("finished").await.unwrap().finalizers().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn events_of_a_lease_are_shown_by_kubectl_describe() {
    let pool = Pool::start(0, StorePolicy::default()).await;
    let leases = granted(&pool, "told").await;
    let uid = leases.get("told").await.unwrap().uid();
    let events = Api::<Event>::namespaced(pool.client.clone(), NAMESPACE);
    let began = Instant::now();
    let event = loop {
        let found = events.list(&ListParams::default()).await.unwrap();
        let of_lease = |event: &Event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|of| of.kind.as_deref() == Some("VramLease") && of.uid == uid)
        };
        if let Some(event) = found.items.into_iter().find(of_lease) {
            break event;
        }
        assert!(began.elapsed() < MARGIN, "no Event of the lease");
        sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(
        (event.type_.as_deref(), event.reason.as_deref()),
        (Some("Normal"), Some("SlicesGranted"))
    );
    assert_eq!(event.note.as_deref(), Some("slices: 1, on devices: 1"));
    assert_eq!(event.reporting_controller.as_deref(), Some("sahasra-operator"));
}
