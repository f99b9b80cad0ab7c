use super::*;
use crate::pending::{Pending, pending, spawn};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Request that takes one turn of the runtime, or waits for one of its timers.
async fn echo(number: u64) -> Result<u64, Error> {
    if number.is_multiple_of(3) {
        tokio::time::sleep(Duration::from_micros(number % 700)).await;
    }
    Ok(number)
}

#[test]
fn concurrent_and_consecutive_waits_get_their_answers() {
    thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                for number in (first..400).step_by(4) {
                    assert_eq!(spawn(echo(number)).unwrap().wait().unwrap(), number);
                    if number % 50 == first {
                        thread::sleep(2 * LINGER);
                    }
                }
            });
        }
    });
}

#[test]
fn requests_without_a_wait_continue_after_a_wait() {
    spawn(echo(1)).unwrap().wait().unwrap();
    let answers: Vec<_> = (0..20).map(|number| spawn(echo(number)).unwrap()).collect();
    let end = Instant::now() + TIMEOUT;
    while !answers.iter().all(Pending::is_there) {
        assert!(Instant::now() < end, "the runtime stands still");
        thread::yield_now();
    }
}

#[test]
fn a_wait_ends_at_its_timeout_and_the_answer_arrives_later() {
    let (send, receive) = tokio::sync::oneshot::channel();
    let answer = spawn(async move { Ok(receive.await) }).unwrap();
    for _ in 0..3 {
        assert!(answer.wait_for(Duration::from_millis(2)).is_none());
    }
    send.send(7).unwrap();
    assert_eq!(answer.wait().unwrap(), Ok(7));
}

#[test]
fn answers_arrive_during_the_poll_and_after_it() {
    for long in [false, true, true, false, true] {
        let request = async move {
            if long {
                tokio::time::sleep(3 * POLL).await;
            }
            Ok(long)
        };
        assert_eq!(spawn(request).unwrap().wait().unwrap(), long);
    }
}

#[test]
fn a_thread_of_another_runtime_waits_without_driving() {
    let other = Builder::new_current_thread().build().unwrap();
    other.block_on(async {
        assert_eq!(spawn(echo(5)).unwrap().wait().unwrap(), 5);
        assert_eq!(spawn(echo(6)).unwrap().await.unwrap(), 6);
    });
}

/// Waits while its thread ends.
struct Waiting;

impl Drop for Waiting {
    fn drop(&mut self) {
        for number in 0..4 {
            // The background thread runs the runtime again, so that this one has to wait for it.
            thread::sleep(2 * LINGER);
            assert_eq!(spawn(echo(number)).unwrap().wait().unwrap(), number);
        }
    }
}

thread_local! {
    static WAITING: Waiting = const { Waiting };
}

#[test]
fn a_thread_that_is_ending_gets_its_answers() {
    for _ in 0..20 {
        let ending = thread::spawn(|| {
            // Created between Tokio's values: one is destroyed before it, the other one after it.
            let _ = Handle::try_current();
            WAITING.with(|_| ());
            assert_eq!(spawn(echo(4)).unwrap().wait().unwrap(), 4);
        });
        ending.join().unwrap();
    }
}

#[test]
fn a_request_that_panics_is_answered() {
    async fn panics() -> Result<(), Error> {
        panic!("on purpose")
    }
    assert!(spawn(panics()).unwrap().wait().is_err());
}

/// Driver that only the test's thread runs. Its next wait polls.
fn own_driver() -> Driver {
    let driver = Driver::new().unwrap();
    driver.state.lock().last_wait = Duration::ZERO;
    driver
}

#[test]
fn a_waiting_thread_polls_the_only_task_and_the_runtime_polls_it_beside_another() {
    for others in [0, 1] {
        let driver = own_driver();
        let (promise, answer) = pending();
        driver.start(async move {
            let polled = poll_fn(|_| if is_polling() { Poll::Ready(()) } else { Poll::Pending });
            promise.keep(tokio::time::timeout(3 * POLL, polled).await.map_err(|_| Error::Closed));
        });
        (0..others).for_each(|_| driver.start(std::future::pending()));
        // The runtime polls the task first, so that it has a waker.
        driver.drive(tokio::task::yield_now());
        let answer = driver.answer(async { Some(answer.await) }).unwrap();
        assert_eq!(answer.is_ok(), others == 0, "{answer:?}");
        assert!(!is_polling());
    }
}

#[test]
fn a_panic_of_a_task_does_not_unwind_the_thread_that_polls_it() {
    let driver = own_driver();
    driver.start(poll_fn(|_| if is_polling() { panic!("on purpose") } else { Poll::Pending }));
    driver.drive(tokio::task::yield_now());
    for _ in 0..2 {
        driver.answer(async { tokio::time::timeout(2 * POLL, std::future::pending::<()>()).await.ok() });
        driver.state.lock().last_wait = Duration::ZERO;
    }
    assert!(!is_polling());
}

#[test]
fn a_task_that_panics_on_a_waiting_thread_is_dropped_after_the_wait() {
    let driver = own_driver();
    let (lives, mut dropped) = oneshot::channel::<()>();
    let (reaches, reached) = oneshot::channel::<()>();
    driver.start(async move {
        let _lives = lives;
        poll_fn(|_| if is_polling() { Poll::Ready(()) } else { Poll::Pending }).await;
        let _ = reaches.send(());
        panic!("on purpose");
    });
    driver.drive(tokio::task::yield_now());
    let reached = driver.answer(async { tokio::time::timeout(TIMEOUT, reached).await.ok() });
    assert_eq!(reached, Some(Ok(())), "the waiting thread polled it, and goes on");
    assert!(!is_polling());
    driver.drive(tokio::task::yield_now());
    assert_eq!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert!(driver.state.lock().only_task().is_none());
}

#[test]
fn timers_end_though_each_wait_is_answered_at_once() {
    let driver = own_driver();
    let (promise, answer) = pending();
    driver.start(async move {
        tokio::time::sleep(3 * TURN).await;
        promise.keep(Ok(()));
    });
    driver.drive(tokio::task::yield_now());
    let end = Instant::now() + TIMEOUT;
    while !answer.is_there() {
        assert!(Instant::now() < end, "the timer does not end");
        let mut polls = 0;
        // Wakes the runtime, because a thread that was not scheduled for a while does not poll in its next wait.
        let soon = poll_fn(|context| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(Some(()));
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        assert!(driver.answer(soon).is_some());
    }
}
