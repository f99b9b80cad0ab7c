//! What stands between two sessions, as processes: the names of tensors, the secrets by which connections come back, RBAC. The clients say
//! exactly what they are told to: the crate's own would not even ask.

use sahasra_client::{Gateway, Token};
use sahasra_e2e::{PoolOptions, SharedPool, eventually, get_with};
use sahasra_wire::path;
use sahasra_wire::session::{
    Argument, Delete, FailureCode, Launch, PROTOCOL, RESUME_HEADER, RefusalCode, argument, client_frame::Kind, resume_value, server_frame,
};
use serde_json::json;

#[allow(dead_code, reason = "other tests have a gateway and work to do")]
#[path = "session_faults/place.rs"]
mod place;
#[path = "session_walls/visitor.rs"]
mod visitor;

use place::{Place, WITHIN, text};
use visitor::Visitor;

static POOL: SharedPool = SharedPool::new(PoolOptions::watchful);

const SECRETS: &[u8] = &[1, 2, 3, 5, 8, 13, 21, 34];

#[tokio::test]
async fn nobody_reaches_another_sessions_tensors_by_their_names_nor_by_the_sessions_secret() {
    let mut place = Place::start(&POOL).await;
    let elsewhere = place.pool.control_plane.create_namespace("elsewhere").await.expect("a namespace");
    let foreigner = place.pool.control_plane.editor(&elsewhere).await.expect("an account");
    // Three sessions, two workers: some share one. Mine, another of the same user's, and one of somebody else's, of the same name.
    let mine = place.session_in("default", "mine", json!({})).await;
    let yours = place.session_in("default", "yours", json!({})).await;
    let theirs = place.session_in(&elsewhere, "mine", json!({})).await;

    let (mut owner, welcome) = Visitor::welcomed(text(&mine, "endpoint"), "default", "mine", &place.token).await;
    owner.put(1, SECRETS).await;
    assert_eq!(owner.download(1).await.expect("it is there"), SECRETS);
    assert!(!welcome.resume.is_empty());

    for (session, namespace, name, token) in [
        (&yours, "default", "yours", &place.token),
        (&theirs, elsewhere.as_str(), "mine", &foreigner),
    ] {
        let endpoint = text(session, "endpoint");
        let (mut other, own) = Visitor::welcomed(endpoint, namespace, name, token).await;
        assert_ne!(own.resume, welcome.resume);
        // A name means what this session gave it to: nothing.
        let failed = other.download(1).await.expect_err("it is another session's");
        assert_eq!(failed.code(), FailureCode::InvalidArgument, "{failed:?}");
        assert!(failed.message.contains("there is no tensor 1"), "{failed:?}");
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
        // Nor does the secret of one open another: not at its agent, with whatever token ...
        let url = format!("{endpoint}{}", path::stream(namespace, name));
        let (secret, wrong) = (resume_value(&welcome.resume), "Bearer nobody-s-token");
        let headers = [
            ("authorization", wrong),
            ("connection", "upgrade"),
            ("upgrade", PROTOCOL),
            (RESUME_HEADER, secret.as_str()),
        ];
        assert_eq!(get_with(&url, &headers).await.expect("an answer").0.as_u16(), 401);
        // ... and not at its process, for who may connect to it.
        let mut again = Visitor::open(endpoint, namespace, name, token).await.expect("it may connect");
        let refused = again.greet(&welcome.resume).await.expect_err("it is another session's");
        assert_eq!(refused.code(), RefusalCode::Unknown, "{refused:?}");
    }
    // Whoever may do everything in one namespace may do nothing in the other, with a secret of its own or without.
    for (session, namespace, token) in [(&mine, "default", &foreigner), (&theirs, elsewhere.as_str(), &place.token)] {
        let refused = Visitor::open(text(session, "endpoint"), namespace, "mine", token)
            .await
            .expect_err("it may not");
        assert_eq!(refused, 403);
        let rest = Gateway::new(&place.gateway.url(), Token::text(token.clone()), None).expect("a gateway");
        let refused = rest.session(namespace, "mine").await;
        assert!(refused.is_err(), "{refused:?}");
    }
    let crossed = format!("{}{}", text(&theirs, "endpoint"), path::stream("default", "mine"));
    let bearer = format!("Bearer {foreigner}");
    let headers = [("authorization", bearer.as_str()), ("connection", "upgrade"), ("upgrade", PROTOCOL)];
    assert_eq!(get_with(&crossed, &headers).await.expect("an answer").0.as_u16(), 403);

    assert_eq!(owner.download(1).await.expect("untouched"), SECRETS);
    // The right secret at the right session still does: without it the checks above would prove nothing.
    drop(owner);
    let back = eventually(WITHIN, async || {
        let mut back = Visitor::open_with(text(&mine, "endpoint"), "default", "mine", "nobody-s-token", &welcome.resume)
            .await
            .ok()?;
        back.greet(&welcome.resume).await.ok()
    });
    assert!(back.await.expect("its own secret opens it").resumed);
    place.delete_in(&elsewhere, "mine").await;
    place.leaves_nothing(&["mine", "yours"], &[]).await;
}

/// What an answer is when it is nothing else.
fn unexpected(kind: &server_frame::Kind) -> ! {
    panic!("{kind:?}")
}
