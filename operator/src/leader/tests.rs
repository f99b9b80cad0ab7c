//! Tests of the leader election.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Namespace;
use kube::{api::DeleteParams, client::Body};
use sahasra_local::{ControlPlane, Options};
use tower_service::Service;

use super::*;

/// An API server that answers every request with an error, or none at all.
#[derive(Clone, Default)]
struct Failing {
    is_silent: Arc<AtomicBool>,
}

impl Service<Request<Body>> for Failing {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        Box::pin(async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            let status =
                r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "etcd is gone", "code": 500}"#;
            let answer = Response::builder().status(500).body(Body::from(status.as_bytes().to_vec()));
            Ok(answer.expect("an answer"))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn leadership_that_expires_without_renewal_is_reported_with_the_cause() {
    for (is_silent, cause) in [(false, "etcd is gone"), (true, NO_ANSWER)] {
        let server = Failing::default();
        server.is_silent.store(is_silent, Ordering::Relaxed);
        let candidate = Candidate::new(Client::new(server, "default"), "default", "a", Duration::from_secs(60));
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some("1".to_owned());
        let end = candidate
            .keep(lease, &CancellationToken::new(), || ())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            end.starts_with("leadership lost: failed to renew the Lease sahasra-operator for 57s: ") && end.contains(cause),
            "{end}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_suspended_for_too_long_reports_it() {
    let candidate = Candidate::new(Client::new(Failing::default(), "default"), "default", "a", Duration::from_secs(60));
    let stop = CancellationToken::new();
    let mut kept = Box::pin(candidate.keep(Lease::default(), &stop, || ()));
    assert!(futures::poll!(&mut kept).is_pending());
    tokio::time::advance(Duration::from_secs(600)).await;
    let end = kept.await.unwrap_err().to_string();
    assert!(end.ends_with(NOT_TRIED), "{end}");
}

const TIMEOUT: Duration = Duration::from_secs(60);

async fn namespace(client: &Client, name: &str) {
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
}

/// Runs a leader while `work` changes its Lease, and then for two lease durations. Returns its end, and the number of its renewals
/// after `work`.
async fn leads_while(work: impl AsyncFnOnce(Client)) -> (Result<(), LeaderError>, u32) {
    let client = ControlPlane::new(Options::default()).client("default");
    namespace(&client, "system").await;
    let stop = CancellationToken::new();
    let candidate = Candidate::new(client.clone(), "system", "first", TIMEOUT);
    let lease = candidate.win(&stop).await.unwrap();
    let renewals = AtomicU32::new(0);
    let keeps = candidate.keep(lease, &stop, || {
        renewals.fetch_add(1, Ordering::Relaxed);
    });
    let works = async {
        work(client).await;
        renewals.store(0, Ordering::Relaxed);
        tokio::time::sleep(TIMEOUT * 2).await;
        stop.cancel();
    };
    let (kept, ()) = tokio::join!(keeps, works);
    (kept, renewals.into_inner())
}

#[tokio::test(start_paused = true)]
async fn a_leader_creates_a_deleted_lease_again() {
    let (kept, renewals) = leads_while(async |client| {
        let leases: Api<Lease> = Api::namespaced(client, "system");
        leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(TIMEOUT / 4).await;
        let lease = leases.get(LEASE).await.unwrap();
        assert_eq!(holder(&lease), Some("first"));
        assert_eq!(lease.spec.unwrap().lease_transitions, Some(0));
    })
    .await;
    assert!(kept.is_ok() && renewals >= 15, "{kept:?}, {renewals} renewals");
}

#[tokio::test(start_paused = true)]
async fn a_leader_outlasts_the_deletion_of_its_namespace_only_within_the_lease_duration() {
    let delete = async |client: &Client| {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.delete("system", &DeleteParams::default()).await.unwrap();
    };
    let (kept, renewals) = leads_while(async |client| {
        delete(&client).await;
        tokio::time::sleep(TIMEOUT / 2).await;
        namespace(&client, "system").await;
    })
    .await;
    assert!(kept.is_ok() && renewals >= 15, "{kept:?}, {renewals} renewals");
    let (kept, _) = leads_while(async |client| delete(&client).await).await;
    assert!(matches!(kept, Err(LeaderError::Silent { .. })), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_when_another_operator_created_the_lease_first() {
    let (kept, _) = leads_while(async |client| {
        let leases: Api<Lease> = Api::namespaced(client.clone(), "system");
        leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
        let other = Candidate::new(client, "system", "second", TIMEOUT);
        other.win(&CancellationToken::new()).await.unwrap();
    })
    .await;
    assert!(matches!(&kept, Err(LeaderError::Deposed(other)) if other == "second"), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn an_operator_with_a_shorter_lease_duration_leaves_a_leader_alone() {
    let (kept, renewals) = leads_while(async |client| {
        let other = Candidate::new(client, "system", "hasty", Duration::from_millis(100));
        let stop = CancellationToken::new();
        let wins = other.win(&stop);
        assert!(tokio::time::timeout(TIMEOUT * 2, wins).await.is_err());
    })
    .await;
    assert!(kept.is_ok() && renewals >= 15, "{kept:?}, {renewals} renewals");
}
