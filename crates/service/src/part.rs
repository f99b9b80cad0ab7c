//! Groups of tasks that can be crashed together. A group (a [`Part`]) consists of all tasks of one operator or agent. A crash ends all of
//! them at once, at whatever await point they are.
//!
//! A normal process is one group and ends with its runtime: there [`spawn`] and [`tied`] only wrap Tokio. In the simulation, where several
//! groups share one runtime, each group is started with [`Part::start`]. Tasks that its tasks start through [`spawn`] and [`tied`] belong
//! to the same group. After [`Part::crash`] no task of the group runs any more.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, instrument::Instrumented};

tokio::task_local! {
    static PART: Part;
}

/// A group of tasks that end together. Clones refer to the same group.
#[derive(Clone, Debug, Default)]
pub struct Part {
    state: Arc<Mutex<State>>,
    crash: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    crashed: bool,
    /// Number of polls of the group's tasks so far.
    steps: u64,
    crash_at: Option<u64>,
    tasks: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Part {
    pub fn start<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(Tied::to(Some(self.clone()), future))
    }

    /// Ends every task of the group: none of them is polled again, and all of them are dropped.
    pub fn crash(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.crashed = true;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
        self.crash.cancel();
    }

    pub async fn crashed(&self) {
        self.crash.cancelled().await;
    }

    /// Crashes the group after `steps` more polls of its tasks, immediately before the next poll.
    pub fn crash_after(&self, steps: u64) {
        let mut state = self.state.lock();
        state.crash_at = Some(state.steps + steps);
    }

    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Counts a poll. Returns `false` if the group has crashed and the task must not be polled.
    fn step(&self, task: u64, waker: &Waker) -> bool {
        let crashes = {
            let mut state = self.state.lock();
            if state.crashed {
                return false;
            }
            state.steps += 1;
            state.wakers.insert(task, waker.clone());
            state.crash_at.is_some_and(|at| state.steps > at)
        };
        if crashes {
            self.crash();
        }
        !crashes
    }
}

/// Like [`tokio::spawn`]; the new task belongs to the group and to the tracing span of the current task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(tied(future))
}

/// Runs blocking work on a thread of Tokio's blocking pool. Within a [`Part`] of a simulation the work runs inline, because the time at
/// which a thread ends depends on the operating system's scheduler, and a run must be reproducible from its seed.
pub async fn blocking<T>(work: impl FnOnce() -> T + Send + 'static) -> T
where
    T: Send + 'static,
{
    if PART.try_with(|_| ()).is_ok() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and the waiting task ends with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Ties a future that is spawned elsewhere, such as in a `JoinSet`, to the group and to the tracing span of the current task.
pub fn tied<F: Future>(future: F) -> Tied<F> {
    Tied::to(PART.try_with(Part::clone).ok(), future)
}

/// A future that ends when its group crashes: it then stays pending, and its inner future is dropped.
#[derive(Debug)]
pub struct Tied<F> {
    part: Option<(Part, u64)>,
    future: Option<Instrumented<Pin<Box<F>>>>,
}

impl<F> Tied<F> {
    fn to(part: Option<Part>, future: F) -> Self {
        let part = part.map(|part| {
            let task = {
                let mut state = part.state.lock();
                state.tasks += 1;
                state.tasks
            };
            (part, task)
        });
        Self {
            part,
            future: Some(Box::pin(future).in_current_span()),
        }
    }
}

impl<F: Future> Future for Tied<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let Some((part, task)) = &this.part else {
            let future = this.future.as_mut().expect("dropped only with its part");
            return Pin::new(future).poll(context);
        };
        if !part.step(*task, context.waker()) {
            this.future = None;
        }
        let Some(future) = &mut this.future else { return Poll::Pending };
        PART.sync_scope(part.clone(), || Pin::new(future).poll(context))
    }
}

impl<F> Drop for Tied<F> {
    fn drop(&mut self) {
        if let Some((part, task)) = &self.part {
            part.state.lock().wakers.remove(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{mpsc, oneshot};

    /// Sends its name when it is dropped.
    struct Dropped(mpsc::UnboundedSender<&'static str>, &'static str);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[tokio::test]
    async fn a_crash_drops_every_task_of_the_part_and_no_other() {
        let (sender, mut dropped) = mpsc::unbounded_channel();
        let (part, other) = (Part::default(), Part::default());
        let (started, ready) = oneshot::channel();
        let ended = (Dropped(sender.clone(), "first"), Dropped(sender.clone(), "second"));
        part.start(async move {
            let (first, second) = ended;
            spawn(async move {
                let _kept = second;
                let _ = started.send(());
                std::future::pending::<()>().await;
            });
            let _kept = first;
            std::future::pending::<()>().await;
        });
        let survivor = other.start(async { tokio::task::yield_now().await });
        ready.await.unwrap();
        part.crash();
        drop(sender);
        let mut names = [dropped.recv().await.unwrap(), dropped.recv().await.unwrap()];
        names.sort_unstable();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(dropped.recv().await, None);
        survivor.await.unwrap();
        assert!(part.has_crashed() && !other.has_crashed());
    }

    #[tokio::test]
    async fn a_crash_happens_at_the_requested_step() {
        let (sender, mut steps) = mpsc::unbounded_channel();
        let part = Part::default();
        part.crash_after(3);
        part.start(async move {
            for step in 0.. {
                sender.send(step).unwrap();
                tokio::task::yield_now().await;
            }
        });
        let mut seen = Vec::new();
        while let Some(step) = steps.recv().await {
            seen.push(step);
        }
        assert_eq!(seen, [0, 1, 2]);
        assert!(part.has_crashed());
    }

    #[tokio::test]
    async fn blocking_work_runs_on_another_thread_except_in_a_simulation() {
        let here = std::thread::current().id();
        assert!(blocking(move || std::thread::current().id()).await != here);
        assert!(
            !Part::default()
                .start(async move { blocking(move || std::thread::current().id() != here).await })
                .await
                .unwrap()
        );
    }

    #[tokio::test]
    async fn without_a_part_a_task_is_a_task() {
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
    }
}
