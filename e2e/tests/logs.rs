//! Log lines of operator and agents name the object that they belong to, in the fields of their spans.

use sahasra_e2e::bursts::Burst;
use sahasra_e2e::{PoolOptions, Server, SharedPool, eventually};
use serde_json::{Value, json};

#[allow(dead_code, reason = "other tests have work to do")]
#[path = "session_faults/fixture.rs"]
mod fixture;
#[allow(dead_code, reason = "other tests exchange more frames")]
#[path = "session_isolation/raw_client.rs"]
mod raw_client;

use fixture::{Fixture, WITHIN, text};
use raw_client::RawClient;

static POOL: SharedPool = SharedPool::new(|| {
    let agent = ["--no-cuda", "--cpu-device-memory", "1Gi", "--log-format", "json"];
    PoolOptions::default()
        .agents(2)
        .agent_arguments(agent)
        .operator_environment("SAHASRA_LOG_FORMAT", "json")
});

/// Waits for a line with this message and the innermost span `span`, and returns the span with its fields.
async fn span_of(servers: &[&Server], message: &str, span: &str) -> Value {
    let found = eventually(WITHIN, async || {
        servers.iter().find_map(|server| {
            let log = std::fs::read_to_string(server.process.log()).expect("a log");
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let line = lines.find(|line| line["fields"]["message"] == message && line["span"]["name"] == span)?;
            Some(line["span"].clone())
        })
    });
    found.await.unwrap_or_else(|| panic!("{message:?} in the span {span:?}"))
}

#[tokio::test]
async fn lines_about_a_burst_and_a_session_name_them() {
    let mut fixture = Fixture::start(&POOL).await;
    let burst = Burst::of_steps("default", "logged", 20, 10).expect("a burst");
    burst.apply(&fixture.pool.control_plane).await.expect("applied");
    fixture.pool.completed("default", "logged", WITHIN).await.expect("it completes");

    let agents: Vec<&Server> = fixture.pool.agents.iter().collect();
    for message in ["coordinating", "finished"] {
        let expected = json!({"name": "burst", "job": "logged", "namespace": "default", "term": 1});
        assert_eq!(span_of(&[&fixture.pool.operator], message, "burst").await, expected);
    }
    for message in ["burst stream opened", "burst stream ended"] {
        let expected = json!({"name": "burst_stream", "job": "logged", "namespace": "default", "term": 1});
        assert_eq!(span_of(&agents, message, "burst_stream").await, expected);
    }
    let expected = json!({"name": "executor", "device": "cpu-0", "namespace": "default"});
    assert_eq!(span_of(&agents, "executor started", "executor").await, expected);

    let session = fixture.session("kept", json!({})).await;
    let (client, _) = RawClient::welcomed(text(&session, "endpoint"), "default", "kept", &fixture.token).await;
    let agents: Vec<&Server> = fixture.pool.agents.iter().collect();
    let span = span_of(&agents, "executor started", "session").await;
    for (field, expected) in [("session", "kept"), ("namespace", "default"), ("device", text(&session, "device"))] {
        assert_eq!(span[field], expected, "{span}");
    }
    drop(client);
    fixture.leaves_nothing(&["kept"], &[]).await;
    let agents: Vec<&Server> = fixture.pool.agents.iter().collect();
    assert_eq!(span_of(&agents, "executor ended", "session").await, span);
}
