//! Faults while a session works: of its worker, the gateway, connections, the API server and the operator. Clients use `sahasra_client` and
//! run a loop in which every step depends on the previous one.
//!
//! Durations are printed, and only the order of events is asserted, because no test knows how fast this machine is.

use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use sahasra_client::{Compression, Error, Options, Target};
use sahasra_e2e::{PoolOptions, SharedPool, Signal, condition, eventually, is_alive, signal, true_condition};
use serde_json::json;

#[path = "session_faults/fixture.rs"]
mod fixture;
#[path = "session_faults/proxy.rs"]
mod proxy;

use fixture::{Fixture, WITHIN, Work, answered, text};
use proxy::{Faults, Proxy};

static POOL: SharedPool = SharedPool::new(PoolOptions::watchful);
/// Pool for tests with an outage of the API server.
static OUTAGE: SharedPool = SharedPool::new(|| {
    // Sessions expire during the outage, unless it is longer than the default expiry anyway: see `outage`.
    match outage() > MAX_EXPIRY {
        true => PoolOptions::watchful(),
        false => PoolOptions::watchful().operator_environment("SAHASRA_SESSION_LEASE_TTL", "5s"),
    }
});

/// Upper bound of the operator's default expiry of a session's grant.
const MAX_EXPIRY: Duration = Duration::from_secs(60);

/// Number from an environment variable, which longer runs set: see `make soak`.
fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => otherwise,
    }
}

/// Duration of the API server's outage: longer than every timeout and cache lifetime in this test (5 s).
fn outage() -> Duration {
    let text = std::env::var("SAHASRA_E2E_OUTAGE").unwrap_or_else(|_| "12s".to_owned());
    humantime::parse_duration(&text).unwrap_or_else(|error| panic!("invalid SAHASRA_E2E_OUTAGE={text}: {error}"))
}

#[tokio::test]
async fn a_worker_killed_during_a_step_is_reported_at_once_with_session_device_and_operation() {
    let mut fixture = Fixture::start(&POOL).await;
    for (name, direct) in [("straight", true), ("around", false)] {
        let session = fixture.session(name, json!({})).await;
        let mut work = Work::start(fixture.target(&session, direct), Options::default()).await;
        work.step();
        work.is_right().await;
        work.long_step();
        let waiting = work.session.synchronise();
        fixture.is_running(text(&session, "worker")).await;
        let agent = fixture.agent_of(&session);
        let executors = fixture.executors(agent);
        assert_eq!(executors.len(), 1);
        let since = Instant::now();
        fixture.pool.agents[agent].process.kill().await.expect("killed");
        let error = tokio::time::timeout(WITHIN, waiting)
            .await
            .expect("it ends")
            .expect_err("it is lost");
        println!("{name}: the worker's end was told after {:?}", since.elapsed());
        let Error::WorkerLost(loss) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(
            (loss.session.as_str(), loss.operation.as_str()),
            (format!("default/{name}").as_str(), "synchronise after execute step")
        );
        assert_eq!(loss.worker, format!("{}/cpu-0", text(&session, "worker")));
        // The client detected the loss itself and did not wait for the operator, which reports it later, with another message.
        assert!(loss.reason.contains("refused the connection"), "{loss}");
        let (again, _) = work.ends(since).await;
        assert!(matches!(again, Error::WorkerLost(_)), "{again:?}");
        let failed = fixture.until(name, |session| true_condition(session, "Failed").is_some()).await;
        println!("{name}: the object was Failed after {:?}", since.elapsed());
        assert_eq!(condition(&failed, "Failed").expect("a condition")["reason"], "WorkerLost");
        fixture.pool.revive().await.expect("it starts again");
        fixture.leaves_nothing(&[name], &executors).await;
    }
}

#[tokio::test]
async fn a_worker_that_hangs_is_reported_when_the_operator_considers_it_lost() {
    let mut fixture = Fixture::start(&POOL).await;
    // Both workers get the same load.
    let mut works = Vec::new();
    for (name, direct) in [("one", true), ("other", false)] {
        let session = fixture.session(name, json!({})).await;
        let mut work = Work::start(fixture.target(&session, direct), Options::default()).await;
        work.step();
        work.is_right().await;
        work.long_step();
        fixture.is_running(text(&session, "worker")).await;
        works.push((name, session, work));
    }
    let executors = [fixture.executors(0), fixture.executors(1)].concat();
    assert_eq!(executors.len(), 2);
    let since = Instant::now();
    let waiting: Vec<_> = works.iter().map(|(_, _, work)| work.session.synchronise()).collect();
    for agent in &fixture.pool.agents {
        agent.process.signal(Signal::STOP).expect("stopped");
    }
    for pid in &executors {
        signal(*pid, Signal::STOP).expect("stopped");
    }
    for ((name, session, _), waiting) in works.iter().zip(waiting) {
        let error = tokio::time::timeout(WITHIN, waiting)
            .await
            .expect("it ends")
            .expect_err("it is lost");
        println!("{name}: the hang was told after {:?}, the timeout is 5 s", since.elapsed());
        let Error::WorkerLost(loss) = &error else {
            panic!("{error:?}");
        };
        assert!(
            loss.session.ends_with(name) && loss.worker.starts_with(text(session, "worker")),
            "{loss}"
        );
        assert_eq!(loss.operation, "synchronise after execute step");
        let failed = fixture.until(name, |session| true_condition(session, "Failed").is_some()).await;
        assert_eq!(condition(&failed, "Failed").expect("a condition")["reason"], "WorkerLost");
    }
    for agent in &fixture.pool.agents {
        agent.process.signal(Signal::CONT).expect("it goes on");
    }
    for pid in &executors {
        signal(*pid, Signal::CONT).expect("it goes on");
    }
    fixture.leaves_nothing(&["one", "other"], &executors).await;
}

/// Suspends the agent of a session, while its executor continues. Returns the agent's index and its executors once the session has failed.
async fn stop_agent(fixture: &Fixture, name: &str, session: &DynamicObject) -> (usize, Vec<u32>) {
    let agent = fixture.agent_of(session);
    let executors = fixture.executors(agent);
    assert_eq!(executors.len(), 1);
    fixture.pool.agents[agent].process.signal(Signal::STOP).expect("stopped");
    let failed = fixture.until(name, |session| true_condition(session, "Failed").is_some()).await;
    assert_eq!(condition(&failed, "Failed").expect("a condition")["reason"], "WorkerLost");
    (agent, executors)
}

#[tokio::test]
async fn a_session_of_a_suspended_agent_ends_as_soon_as_the_agent_resumes() {
    let mut fixture = Fixture::start(&POOL).await;
    let session = fixture.session("left", json!({})).await;
    // A client that can query the gateway ends with the session's failure as soon as an answer takes longer than a second.
    let mut work = Work::start(fixture.worker_alone(&session), Options::default()).await;
    work.step();
    work.is_right().await;
    let (agent, executors) = stop_agent(&fixture, "left", &session).await;
    // The slice was leased to no other owner, so the session may continue until its last extension expires: for a minute.
    work.step();
    work.is_right().await;
    let since = Instant::now();
    fixture.pool.agents[agent].process.signal(Signal::CONT).expect("it goes on");
    let error = eventually(WITHIN, async || work.session.ended()).await.expect("it ends");
    println!("{:?} after its agent came back: {error}", since.elapsed());
    assert!(matches!(error, Error::Ended { .. } | Error::WorkerLost(_)), "{error:?}");
    fixture.leaves_nothing(&["left"], &executors).await;
}

#[tokio::test]
async fn a_session_of_a_suspended_agent_ends_by_itself_when_its_grant_expires() {
    // This pool grants slices for seconds only, so that the test does not wait for a minute.
    let mut fixture = Fixture::start(&OUTAGE).await;
    let session = fixture.session("alone", json!({})).await;
    let mut work = Work::start(fixture.target(&session, true), Options::default()).await;
    work.step();
    work.is_right().await;
    let since = Instant::now();
    let (agent, executors) = stop_agent(&fixture, "alone", &session).await;
    // The session ends even if its client keeps it busy.
    let ended = async {
        loop {
            if let Err(error) = work.session.synchronise().await {
                return error;
            }
        }
    };
    let error = tokio::time::timeout(WITHIN, ended).await.expect("it ends");
    println!("{:?} after its agent began to hang: {error}", since.elapsed());
    assert!(matches!(error, Error::Ended { .. } | Error::WorkerLost(_)), "{error:?}");
    let gone = eventually(WITHIN, async || executors.iter().all(|pid| !is_alive(*pid)).then_some(()));
    gone.await.expect("its process ends, and its memory is free");
    fixture.pool.agents[agent].process.signal(Signal::CONT).expect("it goes on");
    fixture.leaves_nothing(&["alone"], &executors).await;
}

#[tokio::test]
async fn an_orphaned_slice_of_a_session_is_released() {
    let mut fixture = Fixture::start(&POOL).await;
    let session = fixture.session("orphan", json!({})).await;
    let work = Work::start(fixture.target(&session, true), Options::default()).await;
    work.is_right().await;
    let executors = fixture.executors(fixture.agent_of(&session));
    fixture.pool.operator.process.kill().await.expect("killed");
    let lease = format!("vramlease/{}", text(&session, "lease"));
    for object in ["gpusession/orphan", lease.as_str()] {
        let delete = format!("delete {object} --wait=false");
        let deleted = fixture.pool.control_plane.kubectl(delete.split(' ')).await.expect("kubectl runs");
        deleted.success().expect("deleted");
        let patch = ["patch", object, "--type=merge", "--patch", r#"{"metadata": {"finalizers": null}}"#];
        let patched = fixture.pool.control_plane.kubectl(patch).await.expect("kubectl runs");
        patched.success().expect("its finalizer is gone");
    }
    // The agent keeps the session for its connected client, since no operator has released it.
    work.is_right().await;
    let since = Instant::now();
    fixture.pool.operator.process.start().await.expect("it starts again");
    let error = eventually(WITHIN, async || work.session.ended()).await.expect("it is given back");
    println!("{:?} after an operator was there again: {error}", since.elapsed());
    assert!(matches!(error, Error::Ended { .. } | Error::WorkerLost(_)), "{error:?}");
    fixture.leaves_nothing(&[], &executors).await;
}

#[tokio::test]
async fn a_killed_executor_ends_only_its_session_and_is_reported() {
    let mut fixture = Fixture::start(&POOL).await;
    let session = fixture.session("crashed", json!({})).await;
    let mut work = Work::start(fixture.target(&session, false), Options::default()).await;
    work.step();
    work.is_right().await;
    let executors = fixture.executors(fixture.agent_of(&session));
    let since = Instant::now();
    signal(executors[0], Signal::KILL).expect("killed");
    let (error, after) = work.ends(since).await;
    println!("an executor's end was told after {after:?}");
    assert!(
        matches!(&error, Error::WorkerLost(loss) if loss.session == "default/crashed"),
        "{error:?}"
    );
    let failed = fixture
        .until("crashed", |session| true_condition(session, "Failed").is_some())
        .await;
    assert_eq!(condition(&failed, "Failed").expect("a condition")["reason"], "ExecutorLost");
    fixture.leaves_nothing(&["crashed"], &executors).await;
}

#[tokio::test]
async fn a_stream_resumes_after_a_restart_of_the_gateway() {
    let mut fixture = Fixture::start(&POOL).await;
    let session = fixture.session("through", json!({})).await;
    let mut work = Work::start(fixture.target(&session, false), Options::default()).await;
    for round in 0..60 {
        for _ in 0..5 {
            work.step();
        }
        if round == 20 {
            fixture.gateway.process.kill().await.expect("killed");
            fixture.gateway.process.start().await.expect("it starts again");
        }
        if round == 40 {
            fixture.gateway.process.terminate(WITHIN).await.expect("it ends");
            fixture.gateway.process.start().await.expect("it starts again");
        }
        work.around().await;
    }
    work.is_right().await;
    assert!(work.session.resumed() >= 2, "{}", work.session.resumed());
    answered(work.session.close()).await.expect("closed");
    fixture.leaves_nothing(&["through"], &[]).await;
}

#[tokio::test]
async fn steps_continue_and_connections_resume_during_outages_of_api_server_and_operator() {
    let mut fixture = Fixture::start(&OUTAGE).await;
    let mut works = Vec::new();
    for (name, direct) in [("straight", true), ("around", false)] {
        let session = fixture.session(name, json!({})).await;
        let (proxy, target) = if direct {
            let proxy = Proxy::start(text(&session, "endpoint").trim_start_matches("http://")).await;
            let token = sahasra_client::Token::text(fixture.token.clone());
            let target = Target::direct(&proxy.url, token, None, "default", name).expect("a target");
            (proxy, target)
        } else {
            let proxy = Proxy::start(&fixture.gateway.address()).await;
            let target = Target::through(&fixture.rest_at(&proxy.url), "default", name).expect("a target");
            (proxy, target)
        };
        works.push((name, proxy, Work::start(target, Options::default()).await));
    }
    for (_, _, work) in &mut works {
        work.step();
        work.is_right().await;
    }
    fixture.pool.operator.process.kill().await.expect("killed");
    fixture.pool.control_plane.stop_api_server().await.expect("stopped");
    let since = Instant::now();
    let (mut steps, mut cuts) = (0, 0);
    while since.elapsed() < outage() {
        // Connections are cut both before and after cached authorisations have expired.
        if since.elapsed() > outage() * (cuts + 1) / 4 && cuts < 3 {
            works.iter().for_each(|(_, proxy, _)| proxy.cut());
            cuts += 1;
        }
        for (_, _, work) in &mut works {
            for _ in 0..10 {
                work.step();
            }
            work.around().await;
            steps += 10;
        }
        // Limits the load: a hundred steps per second find the same errors as a thousand.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (name, _, work) in &works {
        work.is_right().await;
        assert!(
            u64::from(cuts) <= work.session.resumed(),
            "{name}: {cuts} cuts, {} resumed",
            work.session.resumed()
        );
    }
    println!(
        "{steps} steps during an outage of {:?}, with {cuts} cuts of each connection",
        since.elapsed()
    );
    fixture.pool.control_plane.start_api_server().await.expect("it starts again");
    fixture.pool.operator.process.start().await.expect("it starts again");
    for (name, _, work) in &mut works {
        let up = eventually(WITHIN, async || fixture.rest().session("default", name).await.ok());
        let session = up.await.expect("the API server lets the user in again");
        assert!(sahasra_client::session_end(&session).is_none(), "{session}");
        work.step();
        work.is_right().await;
    }
    // The session must still be there after the operator has checked it again.
    for (name, _, work) in &mut works {
        let session = fixture.until(name, |session| true_condition(session, "Ready").is_some()).await;
        let renewed = |lease: Option<&DynamicObject>| lease.is_some_and(|lease| lease.data["status"]["term"].as_i64() >= Some(2));
        let waited = fixture
            .pool
            .control_plane
            .wait_until("VramLease", "default", text(&session, "lease"), WITHIN, renewed);
        waited.await.expect("the operator has taken it up");
        work.step();
        work.is_right().await;
        answered(work.session.close()).await.expect("closed");
    }
    fixture.leaves_nothing(&["straight", "around"], &[]).await;
}

#[tokio::test]
async fn random_cuts_and_delays_of_connections_neither_lose_nor_repeat_an_operation() {
    let seeds = setting("SAHASRA_E2E_SEED_COUNT", 25);
    let mut fixture = Fixture::start(&POOL).await;
    let session = fixture.session("cut", json!({})).await;
    let proxy = Proxy::start(text(&session, "endpoint").trim_start_matches("http://")).await;
    let (mut resumed, since) = (0, Instant::now());
    for seed in 0..seeds {
        proxy.set(None);
        let token = sahasra_client::Token::text(fixture.token.clone());
        let target = Target::direct(&proxy.url, token, None, "default", "cut").expect("a target");
        // Parts of a tensor that are sent again may be compressed or not.
        let compression = [Compression::WhereItPays, Compression::Always, Compression::Never][seed as usize % 3];
        let options = Options {
            compression,
            ..Options::default()
        };
        let mut work = Work::start(target, options).await;
        work.is_right().await;
        proxy.set(Some(Faults::new(seed, 64 << 10)));
        proxy.cut();
        // An upload in several parts, so that each cut hits another part.
        let large: Vec<u8> = (0..3 << 18)
            .flat_map(|fixture: u32| ((fixture.wrapping_mul(2_654_435_761) >> 19) ^ seed as u32).to_le_bytes())
            .collect();
        proxy.set(Some(Faults::new(seed, 2 << 20)));
        let upload = work.session.put(large.clone(), "u32", &[large.len() as i64 / 4]).expect("sent");
        for _ in 0..20 {
            for _ in 0..10 {
                work.step();
            }
            work.around().await;
        }
        let back = answered(upload.download())
            .await
            .unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        assert!(back.data == large, "seed {seed}: the upload is not what it was");
        if compression == Compression::Always {
            let traffic = work.session.traffic();
            assert!(traffic.sent_bytes < traffic.uploaded_bytes, "seed {seed}: {traffic:?}");
        }
        drop(upload);
        work.is_right().await;
        proxy.set(None);
        let stats = answered(work.session.load()).await.expect("stats");
        assert_eq!((stats.tensors, stats.used_bytes), (1, 4 * fixture::ELEMENTS as u64), "seed {seed}");
        resumed += work.session.resumed();
        answered(work.session.close()).await.expect("closed");
    }
    assert!(resumed >= seeds, "{resumed} cuts in {seeds} runs");
    println!("{seeds} seeds, {resumed} connections that replaced another, {:?}", since.elapsed());
    fixture.leaves_nothing(&["cut"], &[]).await;
}

#[tokio::test]
async fn slices_are_free_soon_after_a_session_is_deleted() {
    let turns = setting("SAHASRA_E2E_DELETION_COUNT", 20);
    let mut fixture = Fixture::start(&POOL).await;
    let mut took = Vec::new();
    for turn in 0..turns {
        let name = format!("short-{turn}");
        let session = fixture.session(&name, json!({})).await;
        let mut work = Work::start(fixture.target(&session, turn % 2 == 0), Options::default()).await;
        work.step();
        work.is_right().await;
        let agent = &fixture.pool.agents[fixture.agent_of(&session)];
        let since = Instant::now();
        fixture.rest().delete_session("default", &name).await.expect("deleted");
        let free = eventually(WITHIN, async || {
            (agent.metric("sahasra_agent_vram_allocated_bytes").await.ok()?? == 0.0).then_some(())
        });
        free.await.expect("it is free");
        took.push(since.elapsed());
        assert!(
            matches!(work.ends(since).await.0, Error::Ended { .. }),
            "a client hears that it was deleted"
        );
    }
    took.sort();
    let place_of = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    println!(
        "from the deletion to free slices: p50 {:?}, p99 {:?}, most {:?} of {turns}",
        place_of(50),
        place_of(99),
        place_of(100)
    );
    fixture.leaves_nothing(&[], &[]).await;
}
