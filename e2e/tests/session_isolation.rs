//! Isolation between sessions: names of tensors, secrets by which connections resume, RBAC. The clients send arbitrary frames, which
//! `sahasra_client` would not do.

use sahasra_client::{Gateway, Token};
use sahasra_e2e::{PoolOptions, SharedPool, eventually, get_with};
use sahasra_wire::path;
use sahasra_wire::session::{
    Argument, Delete, FailureCode, Launch, PROTOCOL, RESUME_HEADER, RejectionCode, argument, client_frame::Kind, hex_value,
};
use serde_json::json;

#[allow(dead_code, reason = "other tests have a gateway and work to do")]
#[path = "session_faults/fixture.rs"]
mod fixture;
#[path = "session_isolation/raw_client.rs"]
mod raw_client;

use fixture::{Fixture, WITHIN, text};
use raw_client::RawClient;

static POOL: SharedPool = SharedPool::new(PoolOptions::watchful);

const SECRETS: &[u8] = &[1, 2, 3, 5, 8, 13, 21, 34];

#[tokio::test]
async fn tensors_of_another_session_are_inaccessible_by_name_and_by_secret() {
    let mut fixture = Fixture::start(&POOL).await;
    let elsewhere = fixture.pool.control_plane.create_namespace("elsewhere").await.expect("a namespace");
    let foreigner = fixture.pool.control_plane.editor(&elsewhere).await.expect("an account");
    // Three sessions on two workers, so that some share a worker: two of one user, and one of another user that has the same name as the
    // first.
    let mine = fixture.session_in("default", "mine", json!({})).await;
    let yours = fixture.session_in("default", "yours", json!({})).await;
    let theirs = fixture.session_in(&elsewhere, "mine", json!({})).await;

    let (mut owner, welcome) = RawClient::welcomed(text(&mine, "endpoint"), "default", "mine", &fixture.token).await;
    owner.put(1, SECRETS).await;
    assert_eq!(owner.download(1).await.expect("it is there"), SECRETS);
    assert!(!welcome.resume.is_empty());

    for (session, namespace, name, token) in [
        (&yours, "default", "yours", &fixture.token),
        (&theirs, elsewhere.as_str(), "mine", &foreigner),
    ] {
        let endpoint = text(session, "endpoint");
        let (mut other, own) = RawClient::welcomed(endpoint, namespace, name, token).await;
        assert_ne!(own.resume, welcome.resume);
        // A tensor's name is valid only in the session that created the tensor.
        let failed = other.download(1).await.expect_err("it is another session's");
        assert_eq!(failed.code(), FailureCode::InvalidArgument, "{failed:?}");
        assert!(failed.message.contains("tensor 1 not found"), "{failed:?}");
        let tensor = Argument {
            kind: Some(argument::Kind::Tensor(1)),
        };
        let launch = Launch {
            program: 1,
            entry: "step".to_owned(),
            grid: vec![1, 1, 1],
            block: vec![1, 1, 1],
            arguments: vec![tensor],
            ..Launch::default()
        };
        other.send(Kind::Launch(launch), &[]).await;
        assert_eq!(
            other.synchronise().await.expect_err("nothing ran").code(),
            FailureCode::InvalidArgument
        );
        let delete = Delete {
            tensors: vec![1],
            programs: vec![1],
        };
        other.send(Kind::Delete(delete), &[]).await;
        other.put(1, &[9; 4]).await;
        assert_eq!(other.download(1).await.expect("its own"), [9; 4]);
        // The agent rejects the secret of another session, with any token.
        let url = format!("{endpoint}{}", path::stream(namespace, name));
        let (secret, wrong) = (hex_value(&welcome.resume), "Bearer nobody-s-token");
        let headers = [
            ("authorization", wrong),
            ("connection", "upgrade"),
            ("upgrade", PROTOCOL),
            (RESUME_HEADER, secret.as_str()),
        ];
        assert_eq!(get_with(&url, &headers).await.expect("an answer").0.as_u16(), 401);
        // The executor rejects the secret of another session, even from a caller that may connect to the session.
        let mut again = RawClient::open(endpoint, namespace, name, token).await.expect("it may connect");
        let refused = again.greet(&welcome.resume).await.expect_err("it is another session's");
        assert_eq!(refused.code(), RejectionCode::Unknown, "{refused:?}");
    }
    // Full rights in one namespace grant no access to the other, with a secret or without.
    for (session, namespace, token) in [(&mine, "default", &foreigner), (&theirs, elsewhere.as_str(), &fixture.token)] {
        let refused = RawClient::open(text(session, "endpoint"), namespace, "mine", token)
            .await
            .expect_err("it may not");
        assert_eq!(refused, 403);
        let rest = Gateway::new(&fixture.gateway.url(), Token::text(token.clone()), None).expect("a gateway");
        let refused = rest.session(namespace, "mine").await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let crossed = format!("{}{}", text(&theirs, "endpoint"), path::stream("default", "mine"));
    let bearer = format!("Bearer {foreigner}");
    let headers = [("authorization", bearer.as_str()), ("connection", "upgrade"), ("upgrade", PROTOCOL)];
    assert_eq!(get_with(&crossed, &headers).await.expect("an answer").0.as_u16(), 403);

    assert_eq!(owner.download(1).await.expect("untouched"), SECRETS);
    // The right secret for the right session still works: otherwise the checks above would prove nothing.
    drop(owner);
    let resumed = eventually(WITHIN, async || {
        let mut client = RawClient::open_with(text(&mine, "endpoint"), "default", "mine", "nobody-s-token", &welcome.resume)
            .await
            .ok()?;
        client.greet(&welcome.resume).await.ok()
    });
    assert!(resumed.await.expect("its own secret opens it").resumed);
    fixture.delete_in(&elsewhere, "mine").await;
    fixture.leaves_nothing(&["mine", "yours"], &[]).await;
}
