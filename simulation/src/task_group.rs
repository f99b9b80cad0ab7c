//! The tasks of one operator or agent, which can be crashed together: [`TaskGroup`].

use std::{collections::BTreeMap, sync::Arc, task::Waker};

use parking_lot::Mutex;
use sahasra_service::tasks::{self, Group};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A group of tasks that end together. Clones refer to the same group. After [`TaskGroup::crash`] no task of the group runs any more.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup {
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

impl TaskGroup {
    pub fn start<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tasks::start(Arc::new(self.clone()), future)
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
}

impl Group for TaskGroup {
    fn join(&self) -> u64 {
        let mut state = self.state.lock();
        state.tasks += 1;
        state.tasks
    }

    fn may_poll(&self, task: u64, waker: &Waker) -> bool {
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

    fn leave(&self, task: u64) {
        self.state.lock().wakers.remove(&task);
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
        let (group, other) = (TaskGroup::default(), TaskGroup::default());
        let (started, ready) = oneshot::channel();
        let ended = (Dropped(sender.clone(), "first"), Dropped(sender.clone(), "second"));
        group.start(async move {
            let (first, second) = ended;
            tasks::spawn(async move {
                let _kept = second;
                let _ = started.send(());
                std::future::pending::<()>().await;
            });
            let _kept = first;
            std::future::pending::<()>().await;
        });
        let survivor = other.start(async { tokio::task::yield_now().await });
        ready.await.unwrap();
        group.crash();
        drop(sender);
        let mut names = [dropped.recv().await.unwrap(), dropped.recv().await.unwrap()];
        names.sort_unstable();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(dropped.recv().await, None);
        survivor.await.unwrap();
        assert!(group.has_crashed() && !other.has_crashed());
    }

    #[tokio::test]
    async fn a_crash_happens_at_the_requested_step() {
        let (sender, mut steps) = mpsc::unbounded_channel();
        let group = TaskGroup::default();
        group.crash_after(3);
        group.start(async move {
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
        assert!(group.has_crashed());
    }

    #[tokio::test]
    async fn blocking_work_of_a_part_runs_on_its_thread() {
        let here = std::thread::current().id();
        let blocking = async move { tasks::blocking(move || std::thread::current().id() == here).await };
        assert!(TaskGroup::default().start(blocking).await.unwrap());
    }
}
