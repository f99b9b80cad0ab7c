use std::os::unix::net;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::Command;

use bytes::Bytes;
use futures::future::{Either, join_all, select};
use sahasra_executor_protocol::session::adoption::{self, MAX_ALREADY_READ};
use tokio::runtime::{Builder, Runtime};

use super::*;

/// Timeout for every wait.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A runtime with one thread for blocking work.
fn runtime(is_paused: bool) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_all()
        .max_blocking_threads(1)
        .start_paused(is_paused)
        .build()
        .unwrap()
}

/// A process that runs a shell command, and the executor's end of its control socket.
fn process(command: &str) -> (Process, net::UnixStream) {
    let (socket, theirs) = net::UnixStream::pair().unwrap();
    let child = Command::new("/bin/sh").args(["-c", command]).process_group(0).spawn().unwrap();
    let (stderr, _) = std::io::pipe().unwrap();
    let started = Started {
        id: child.id(),
        child: Child(Some(child)),
        socket,
        stderr: stderr.into(),
    };
    let (status_page, _) = StatusPage::create().unwrap();
    (Process::new(status_page, None, started).unwrap(), theirs)
}

fn connection() -> OwnedFd {
    net::UnixStream::pair().unwrap().0.into()
}

/// More bytes than the buffer of a control socket has.
fn many_bytes() -> Bytes {
    vec![7; MAX_ALREADY_READ].into()
}

#[test]
fn an_end_says_how_and_what_was_said_last() {
    let end = describe(Some(ExitStatus::from_raw(9)), ["one", "two"].into_iter());
    assert_eq!(end, "its executor was killed by signal 9: one / two");
    let end = describe(Some(ExitStatus::from_raw(3 << 8)), std::iter::empty());
    assert_eq!(end, "its executor exited with status 3");
    let long = "é".repeat(TEXT);
    assert!(describe(None, [long.as_str()].into_iter()).len() <= TEXT);
}

#[test]
fn connections_that_an_executor_does_not_read_are_limited_and_block_no_thread() {
    // The clock stands still while blocking work runs.
    runtime(true).block_on(async {
        let (process, _unread) = process("exec sleep 600");
        let adopted = pin!(join_all((0..MAX_PENDING).map(|_| process.adopt(connection(), many_bytes()))));
        // The connections are begun first.
        let other = pin!(async { tokio::task::spawn_blocking(|| ()).await });
        assert!(matches!(select(adopted, other).await, Either::Right((Ok(()), _))));
    });
    runtime(true).block_on(async {
        let (process, _unread) = process("exec sleep 600");
        let adopted: Vec<_> = (0..=MAX_PENDING).map(|_| process.adopt(connection(), many_bytes())).collect();
        let outcomes = join_all(adopted).await;
        let refused = outcomes[MAX_PENDING].as_ref().unwrap_err().to_string();
        assert!(refused.starts_with("64 connections wait"), "{refused}");
        assert!(outcomes.iter().all(Result::is_err));
    });
}

#[test]
fn an_executor_that_reads_no_connection_is_ended_with_the_reason() {
    runtime(true).block_on(async {
        let (process, _unread) = process("exec sleep 600");
        let error = process.adopt(connection(), many_bytes()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        process.ended().await;
        assert_eq!(
            process.reap().await,
            "its executor was killed by signal 9: failed to pass a connection: the executor did not read it within 60 s"
        );
        assert!(process.adopt(connection(), Bytes::new()).await.is_err());
    });
}

#[test]
fn connections_arrive_whole_however_slowly_they_are_read() {
    runtime(false).block_on(async {
        let (process, theirs) = process("exec sleep 600");
        let reading = std::thread::spawn(move || {
            let received = (0..3).map(|_| adoption::receive(&theirs).unwrap().unwrap().already_read);
            received.collect::<Vec<_>>()
        });
        let adopted = (0..3).map(|_| process.adopt(connection(), many_bytes()));
        assert!(join_all(adopted).await.iter().all(Result::is_ok));
        assert!(reading.join().unwrap().iter().all(|read| *read == many_bytes()));
    });
}

#[test]
fn an_executor_that_has_exited_is_reaped_without_a_thread() {
    runtime(false).block_on(async {
        let (process, _theirs) = process("exit 3");
        let (release, released) = std::sync::mpsc::channel::<()>();
        let blocked = tokio::task::spawn_blocking(move || released.recv());
        process.ended().await;
        let end = timeout(TIMEOUT, process.reap()).await.expect("no thread is free");
        assert_eq!(end, "its executor exited with status 3");
        drop(release);
        assert!(blocked.await.unwrap().is_err());
    });
}
