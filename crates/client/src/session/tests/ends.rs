//! Tests that the end of a session is reported if its work was never checked.

use super::*;

fn with_session(test: impl FnOnce(&Session)) {
    let worker = worker(false, vec![Connection::Stands]);
    let session = connect(target(&worker, false), Options::default()).unwrap();
    test(&session);
    session.shared().end(Error::worker_lost("it was killed"));
    drop(session);
    worker.thread.join().unwrap();
}

fn lose(session: &Session) -> Option<Error> {
    session.shared().end(Error::worker_lost("it was killed"));
    session.unreported_end()
}

#[test]
fn the_end_is_unreported_while_work_may_have_been_lost() {
    with_session(|session| {
        let _tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        assert!(session.unreported_end().is_none(), "it has not ended");
        assert!(matches!(lose(session), Some(Error::WorkerLost(_))));
        assert!(session.finish().wait().is_err());
        assert!(session.unreported_end().is_some(), "asking for the end is not being told of it");
    });
}

#[test]
fn completed_work_leaves_no_unreported_end() {
    with_session(|session| assert!(lose(session).is_none(), "nothing was asked for"));
    with_session(|session| {
        let _tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        session.synchronise().wait().unwrap();
        assert!(lose(session).is_none());
    });
    with_session(|session| {
        let tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        tensor.download().wait().unwrap();
        drop(tensor);
        assert!(lose(session).is_none());
    });
}

#[test]
fn the_end_is_reported_once() {
    with_session(|session| {
        let tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        assert!(lose(session).is_some());
        assert!(tensor.download().wait().is_err());
        assert!(session.unreported_end().is_none());
    });
    with_session(|session| {
        let _tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        assert!(lose(session).is_some());
        assert!(session.allocate("u8", &[1]).is_err());
        assert!(session.unreported_end().is_none());
    });
}

#[test]
fn closing_a_session_reports_no_error() {
    with_session(|session| {
        let _tensor = session.put(vec![1; 10], "u8", &[10]).unwrap();
        session.close().wait().unwrap();
        assert!(matches!(session.ended(), Some(Error::Closed)));
        assert!(session.unreported_end().is_none());
    });
}
