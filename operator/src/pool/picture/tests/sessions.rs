//! Tests of the agents' reports about sessions.

use super::*;

/// A pool with the claim of a session that holds its slice since 0.
fn with_session() -> Picture {
    let mut picture = picture();
    let terms = SessionTerms {
        namespace: "team".into(),
        name: "mine".into(),
        keep_milliseconds: 1_000,
        ..SessionTerms::default()
    };
    let claim = ClaimRequest {
        kind: ClaimKind::Session,
        session: Some(terms),
        ..request("lease", 1, 1)
    };
    picture.claim(claim, Vec::new(), 0);
    granted(&mut picture, "lease", 0);
    picture
}

fn says(idle_milliseconds: u64, connected: bool) -> Inventory {
    Inventory {
        sessions: vec![SessionLoad {
            owner_uid: "lease".into(),
            namespace: "team".into(),
            name: "mine".into(),
            idle_milliseconds,
            connected,
            ..SessionLoad::default()
        }],
        ..inventory("boot", vec![grant("lease", "boot", 1, 1)])
    }
}

#[test]
fn an_agent_with_a_session_is_asked_at_once_and_every_few_seconds() {
    let mut picture = with_session();
    let asks = |picture: &mut Picture, now| picture.plan(now).0.iter().any(|action| matches!(action, Action::Inventory { .. }));
    assert!(asks(&mut picture, 0), "whether clients may connect");
    picture.inventoried(&"a".into(), &says(0, false), 1, 2);
    assert!(!asks(&mut picture, 3));
    assert!(!asks(&mut picture, SESSIONS_EVERY) && asks(&mut picture, 3 + SESSIONS_EVERY));
    // No inventory is requested from a worker without a session.
    picture.inventoried(&"a".into(), &says(0, false), 6_000, 6_000);
    picture.take_out("lease", true, 6_001);
    picture.inventoried(&"a".into(), &inventory("boot", Vec::new()), 6_002, 6_003);
    assert!(!asks(&mut picture, 6_004) && !asks(&mut picture, 60_000));
}

#[test]
fn what_an_agent_says_of_a_session_is_news_when_more_than_time_has_passed() {
    let mut picture = with_session();
    let hear = |picture: &mut Picture, said: &Inventory, now| {
        picture.inventoried(&"a".into(), said, now, now);
        picture.take_changed_sessions()
    };
    let mine = vec![("team".to_owned(), "mine".to_owned())];
    assert_eq!(hear(&mut picture, &says(0, false), 10), mine);
    assert_eq!(hear(&mut picture, &says(5_000, false), 5_010), []);
    let seen = picture.session("lease", 5_110).unwrap();
    assert_eq!((seen.load.idle_milliseconds, seen.age), (5_000, 100));
    assert_eq!(hear(&mut picture, &says(0, true), 6_000), mine);
    // The end of the session's executor is known longer than the claim exists, for as long as the agent reports it.
    let mut ended = says(0, false);
    (ended.sessions[0].ended, ended.grants) = ("killed".into(), Vec::new());
    assert_eq!(hear(&mut picture, &ended, 7_000), mine);
    picture.take_out("lease", false, 7_001);
    assert_eq!(picture.session("lease", 7_002).unwrap().load.ended, "killed");
    hear(&mut picture, &inventory("boot", Vec::new()), 8_000);
    assert_eq!(picture.session("lease", 8_001), None);
}

#[test]
fn what_is_said_of_a_session_where_it_is_not_is_not_heard() {
    let mut picture = with_session();
    picture.observe(&[worker("a", "boot"), worker("b", "other")], 1);
    picture.inventoried(&"a".into(), &says(0, true), 10, 10);
    picture.take_changed_sessions();
    // The slice was requested from agent `b` first, and its answer was lost. A session without clients has existed there since.
    let mut elsewhere = says(90_000, false);
    (elsewhere.boot_id, elsewhere.grants) = ("other".into(), vec![grant("lease", "other", 1, 1)]);
    let returned = picture.inventoried(&"b".into(), &elsewhere, 20, 20);
    assert_eq!(releases(&returned)[0].grants, [grant("lease", "other", 1, 1).id]);
    assert_eq!(picture.take_changed_sessions(), []);
    let seen = picture.session("lease", 20).unwrap().load;
    assert!(seen.connected && seen.idle_milliseconds == 0, "{seen:?}");
}

#[test]
fn a_sessions_slice_that_nobody_claims_is_nobodys_after_a_while() {
    let mut picture = with_session();
    picture.inventoried(&"a".into(), &says(0, true), 10, 10);
    assert!(picture.strays(1_000_000).is_empty(), "it is claimed");
    // The claim is dropped without an answer of the agent, which still holds the slice.
    picture.claims.clear();
    picture.inventoried(&"a".into(), &says(0, true), 20, 20);
    assert!(picture.strays(20).is_empty(), "somebody may be about to take it up");
    let asked = |picture: &mut Picture, now| picture.plan(now).0.iter().any(|action| matches!(action, Action::Inventory { .. }));
    assert!(
        asked(&mut picture, 20 + SESSIONS_EVERY) || asked(&mut picture, 21 + SESSIONS_EVERY),
        "it is looked at"
    );
    picture.inventoried(&"a".into(), &says(0, true), 30_000, 30_000);
    let strays = picture.strays(30_000);
    assert_eq!(
        (strays[0].uid.as_str(), strays[0].namespace.as_str(), strays[0].term),
        ("lease", "team", 2)
    );
    // The slice was released, is draining, or was adopted after all.
    picture.inventoried(&"a".into(), &inventory("boot", Vec::new()), 30_001, 30_001);
    assert!(picture.strays(1_000_000).is_empty());
}

#[test]
fn nothing_is_known_of_the_sessions_of_a_worker_that_is_lost() {
    let mut picture = with_session();
    picture.inventoried(&"a".into(), &says(0, false), 10, 10);
    picture.observe(&[worker("a", "next")], 20);
    assert_eq!(picture.session("lease", 21), None);
}

#[test]
fn an_agent_hears_of_a_sessions_changed_time_with_the_next_renewal() {
    let mut picture = with_session();
    picture.inventoried(&"a".into(), &says(0, false), 1, 1);
    picture.keep("lease", 9_000);
    let (actions, _) = picture.plan(TTL / RENEW_AT);
    let renewal = actions.iter().find_map(|action| match action {
        Action::Renew { request, .. } => Some(request.owners[0].clone()),
        _ => None,
    });
    assert_eq!(renewal.unwrap().session.unwrap().keep_milliseconds, 9_000);
}
