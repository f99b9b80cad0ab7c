//! Tasks of one operator or agent.
//!
//! A process ends with its runtime, so there [`spawn`] and [`tied`] only wrap Tokio. In the simulation, where several operators and agents
//! share one runtime, the tasks of each are a [`Group`], started with [`start`]. Tasks that its tasks start through [`spawn`] and [`tied`]
//! belong to the same group, which can crash: it then ends all of them at once, at whatever await point they are.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::task::JoinHandle;
use tracing::{Instrument, instrument::Instrumented};

tokio::task_local! {
    static GROUP: Arc<dyn Group>;
}

/// Tasks that end together.
pub trait Group: Send + Sync {
    /// Adds a task and returns its number.
    fn join(&self) -> u64;
    /// Called before each poll of a task. Returns `false` if the group has crashed: the task is then dropped, and not polled again.
    fn may_poll(&self, task: u64, waker: &Waker) -> bool;
    /// Removes a task that has been dropped.
    fn leave(&self, task: u64);
}

/// Starts the first task of a group, or another one from outside of it.
pub fn start<T: Send + 'static>(group: Arc<dyn Group>, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(Tied::to(Some(group), future))
}

/// Like [`tokio::spawn`]; the new task belongs to the group and to the tracing span of the current task.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(tied(future))
}

/// Runs blocking work on a thread of Tokio's blocking pool. Within a [`Group`] of a simulation the work runs inline, because the time at
/// which a thread ends depends on the operating system's scheduler, and a run must be reproducible from its seed.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if GROUP.try_with(|_| ()).is_ok() {
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
    Tied::to(GROUP.try_with(Arc::clone).ok(), future)
}

/// A future that ends when its group crashes: it then stays pending, and its inner future is dropped.
pub struct Tied<F> {
    group: Option<(Arc<dyn Group>, u64)>,
    future: Option<Instrumented<Pin<Box<F>>>>,
}

impl<F> Tied<F> {
    fn to(group: Option<Arc<dyn Group>>, future: F) -> Self {
        let group = group.map(|group| {
            let task = group.join();
            (group, task)
        });
        Self {
            group,
            future: Some(Box::pin(future).in_current_span()),
        }
    }
}

impl<F: Future> Future for Tied<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let Some((group, task)) = &this.group else {
            let future = this.future.as_mut().expect("dropped only with its group");
            return Pin::new(future).poll(context);
        };
        if !group.may_poll(*task, context.waker()) {
            this.future = None;
        }
        let Some(future) = &mut this.future else { return Poll::Pending };
        GROUP.sync_scope(Arc::clone(group), || Pin::new(future).poll(context))
    }
}

impl<F> Drop for Tied<F> {
    fn drop(&mut self) {
        if let Some((group, task)) = &self.group {
            group.leave(*task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocking_work_runs_on_another_thread() {
        let here = std::thread::current().id();
        assert!(blocking(move || std::thread::current().id()).await != here);
    }

    #[tokio::test]
    async fn without_a_group_a_task_is_a_task() {
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
    }
}
