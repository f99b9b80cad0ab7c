//! Tests of runs whose slices are revoked while other runs of their namespace continue.

use sahasra_executor_protocol::burst::messages::to_executor;
use sahasra_names::Backend;
use sahasra_wire::burst::FailureCode;

use super::played::{indices, range, returned, settle, theatre};
use crate::burst_executors::Event;

#[tokio::test(start_paused = true)]
async fn a_run_that_the_executor_does_not_know_comes_back_and_the_others_go_on() {
    for kind in [Backend::Cpu, Backend::Cuda] {
        let theatre = theatre(kind, 1);
        let (_run, mut events) = theatre.run("one", &[range(0, 10)]);
        let mut executor = theatre.executor().await;
        let (id, ..) = executor.handed().await;
        executor.begin(0, id, 0);
        let (unknown, mut of_unknown) = theatre.run("one", &[]);
        unknown.set_concurrency(0);
        unknown.submit(vec![range(0, 5)]).unwrap();
        unknown.kill(FailureCode::GrantExpired);
        assert!(!executor.is_killed().await);
        assert_eq!(returned(&mut of_unknown), indices(&[range(0, 5)]));
        executor.succeed(0, id, 0);
        settle().await;
        let mut ended = Vec::new();
        while let Some(event) = events.try_next() {
            if !matches!(event, Event::Settled { .. }) {
                ended.push(event);
            }
        }
        assert!(matches!(ended[..], [Event::Succeeded { .. }]), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_executor_knows_is_ended_there_or_with_it() {
    for kind in [Backend::Cpu, Backend::Cuda] {
        let theatre = theatre(kind, 1);
        let (run, _events) = theatre.run("one", &[range(0, 10)]);
        let mut executor = theatre.executor().await;
        let (id, ..) = executor.handed().await;
        executor.begin(0, id, 0);
        run.kill(FailureCode::GrantExpired);
        assert_eq!(executor.is_killed().await, !kind.cancels());
        let is_revoked = executor
            .received()
            .await
            .iter()
            .any(|received| matches!(received, to_executor::Kind::Revoke(_)));
        assert_eq!(is_revoked, kind.cancels());
    }
}
