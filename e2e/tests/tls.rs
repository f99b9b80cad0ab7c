//! Agents that use TLS: operator, gateway and clients verify the agents' certificate, and agents verify the operator's.

use std::time::Duration;

use kube::api::DynamicObject;
use sahasra_client::{Gateway, Options, Session, Target, Token};
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Pool, PoolOptions, Server, WorkerCertificates, condition, eventually, get_with, true_condition};
use sahasra_wire::path;
use serde_json::json;

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Number of elements of a tensor: 8 MiB, which exceeds every buffer on the path.
const ELEMENTS: usize = 2 << 20;

fn options() -> PoolOptions {
    let agent = ["--no-cuda", "--cpu-device-memory", "1Gi", "--heartbeat-interval", "1s"];
    PoolOptions::default().agents(1).agent_arguments(agent)
}

/// Applies a session of 256 MiB for PTX.
async fn apply(pool: &Pool, name: &str) {
    let session = json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession",
        "metadata": {"namespace": "default", "name": name}, "spec": {"class": "cpu", "vram": "256Mi", "engine": "ptx"},
    });
    pool.control_plane.apply(&session.to_string()).await.expect("applied");
}

async fn until(pool: &Pool, name: &str, wanted: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
    let wanted = |session: Option<&DynamicObject>| session.is_some_and(&wanted);
    let session = pool.control_plane.wait_until("GpuSession", "default", name, WITHIN, wanted).await;
    session.expect("it comes to that").expect("it is there")
}

fn endpoint(session: &DynamicObject) -> String {
    session.data["status"]["endpoint"].as_str().expect("an endpoint").to_owned()
}

/// Runs a burst to its end and checks its sum.
async fn burst(pool: &Pool, name: &str) {
    const CHUNKS: u64 = 200;
    let burst = Burst::of_steps("default", name, CHUNKS, 10).expect("a kernel");
    burst.apply(&pool.control_plane).await.expect("applied");
    let complete = |burst: Option<&DynamicObject>| burst.is_some_and(|burst| true_condition(burst, "Complete").is_some());
    let burst = pool.control_plane.wait_until("BurstJob", "default", name, WITHIN, complete).await;
    let burst = burst.expect("it completes").expect("it is there");
    assert_eq!(
        number(&burst, "/status/chunks/succeeded"),
        CHUNKS as i64,
        "{}",
        burst.data["status"]
    );
}

/// Uploads and downloads a tensor, which must be identical.
async fn carries(session: &Session, seed: u32) {
    let data: Vec<u8> = (0..ELEMENTS as u32)
        .flat_map(|at| (at.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes())
        .collect();
    let tensor = session.put(data.clone(), "u32", &[ELEMENTS as i64]).expect("it is sent");
    let back = tensor.download().await.expect("it comes back");
    assert!(back.data[..] == data[..], "what came back is not what was sent");
}

#[tokio::test]
async fn bursts_and_sessions_run_over_tls_while_the_certificate_is_renewed() {
    let pool = Pool::start(options().tls()).await.expect("Sahasra starts");
    let certificates = pool.certificates.as_ref().expect("certificates");
    burst(&pool, "before").await;

    apply(&pool, "direct").await;
    apply(&pool, "indirect").await;
    let is_ready = |session: &DynamicObject| true_condition(session, "Ready").is_some();
    let (near, far) = (until(&pool, "direct", is_ready).await, until(&pool, "indirect", is_ready).await);
    assert!(
        endpoint(&near).starts_with("https://") && endpoint(&near) == pool.agents[0].url(),
        "{}",
        endpoint(&near)
    );
    let token = pool.control_plane.editor("default").await.expect("an account");
    let direct = || {
        let target = Target::direct(
            &endpoint(&near),
            Token::text(token.clone()),
            Some(&certificates.authority()),
            "default",
            "direct",
        );
        target.and_then(|target| target.named(WorkerCertificates::NAME)).expect("a target")
    };
    let connect = async |target: Target| Session::connect(target, Options::default()).await.expect("it is welcomed");
    let straight = connect(direct()).await;
    carries(&straight, 1).await;
    let operator = pool.operator.url();
    let known = certificates.gateway_arguments();
    let arguments: Vec<&str> = ["--operator-url", &operator]
        .into_iter()
        .chain(known.iter().map(String::as_str))
        .collect();
    let gateway = Server::gateway(&pool.control_plane, &arguments).await.expect("the gateway starts");
    let rest = Gateway::new(&gateway.url(), Token::text(token.clone()), None).expect("a gateway");
    let through = connect(Target::through(&rest, "default", "indirect").expect("a target")).await;
    carries(&through, 2).await;

    // Requests without the operator's certificate are rejected, with a message.
    for path in [path::INVENTORY, path::ACQUIRE, path::BURSTS] {
        let (status, text) = get_with(&format!("{}{path}", pool.agents[0].url()), &[]).await.expect("an answer");
        let text = String::from_utf8_lossy(&text);
        assert!(
            status == 403 && text.contains("--worker-client-cert-file"),
            "{path}: {status} {text}"
        );
    }

    // Another certificate of the same authority: existing connections stay open, and new connections get the new certificate.
    certificates.renew().expect("another certificate");
    let log = || std::fs::read_to_string(pool.control_plane.log_directory().join("agent-0.log")).unwrap_or_default();
    let taken = eventually(WITHIN, async || log().contains("certificate reloaded").then_some(()));
    taken.await.expect("the agent takes it");
    carries(&straight, 3).await;
    carries(&through, 4).await;
    assert_eq!((straight.resumed(), through.resumed()), (0, 0));
    straight.close().await.expect("closed");
    carries(&connect(direct()).await, 5).await;
    burst(&pool, "after").await;
    assert_eq!(endpoint(&far), endpoint(&near));
}

#[tokio::test]
async fn a_client_that_cannot_verify_a_worker_reports_the_missing_authority() {
    let pool = Pool::start(options().tls().certificates("elsewhere"))
        .await
        .expect("Sahasra starts");
    apply(&pool, "waiting").await;
    let told = |session: &DynamicObject| {
        condition(session, "Placed").is_some_and(|placed| placed["message"].as_str().is_some_and(|text| text.contains("certificate")))
    };
    let session = until(&pool, "waiting", told).await;
    let message = condition(&session, "Placed").expect("a condition")["message"].to_string();
    for part in ["--worker-server-name", "elsewhere", WorkerCertificates::NAME] {
        assert!(message.contains(part), "{message}");
    }
}
