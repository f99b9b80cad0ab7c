//! The runtime of all connections of the process, and the choice of the thread that runs it.
//!
//! ```text
//! background thread ──► runtime ◄── a thread that waits for an answer, if it is the only one
//! ```
//!
//! It is a Tokio current-thread runtime. A background thread runs it until a thread waits for an answer. That thread then writes, polls and
//! reads itself, so that its answer needs no hand-over between threads. Between two such waits no thread runs the runtime: a loop that
//! waits for each result waits again soon, and [`turn`] writes what it submits in between. The background thread continues when no thread
//! has waited for [`LINGER`], when several threads wait, or when a thread waits that cannot run the runtime. A waiting thread polls before
//! it sleeps if the last wait was short. If there is only one task, as for a program with one session, it polls that task itself, which
//! reads its socket then ([`is_polling`]): a turn of the runtime takes longer than a short answer.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{Arc, OnceLock, Weak},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{Notify, oneshot},
};

use crate::Error;

mod task;
#[cfg(test)]
mod tests;

use self::task::Task;
pub(crate) use self::task::is_polling;
#[cfg(test)]
pub(crate) use self::task::polling;

/// Time without a wait after which the background thread continues. Longer than a loop computes between two steps, and too short to be
/// noticed by a request whose answer is not awaited.
const LINGER: Duration = Duration::from_millis(1);
/// Time for which a thread polls for its answer before it sleeps. Waking an idle processor takes up to 50 µs, which is half of a short
/// step. The time is longer than the executor's, which shares its processors with the step.
const POLL: Duration = Duration::from_millis(1);
/// Time for which a thread polls before it lets other threads use its processor between two polls. A yield takes about a microsecond.
const POLL_ALONE: Duration = Duration::from_micros(20);

/// Number of times that a thread polls the only task between two turns of the runtime.
const POLLS_OF_TASK: u32 = 16;
/// Time after which a thread that waits gives the runtime a turn first, for its timers.
const TURN: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Background,
    /// A thread that waits for an answer or runs [`turn`].
    Caller,
    None,
}

struct State {
    by: By,
    waiting: usize,
    /// Number of waits that have begun, plus the number that have ended.
    waits: u64,
    /// Whether the background thread must run the runtime as soon as no other thread does.
    is_called: bool,
    /// Whether the background thread waits without a timeout.
    is_dozing: bool,
    /// Tasks that the next thread to run the runtime must wake, each listed once. Waking a task from another thread would take a system
    /// call.
    asleep: Vec<Arc<Notify>>,
    /// Duration of the last wait of a thread that ran the runtime; [`Duration::MAX`] if it ended without an answer.
    last_wait: Duration,
    /// Beginning of the last wait in which the runtime had a turn.
    turned: Instant,
    tasks: Vec<Weak<Task>>,
}

struct Driver {
    runtime: Runtime,
    state: Mutex<State>,
    resume: Condvar,
    release: Notify,
}

fn driver() -> Result<&'static Driver, Error> {
    static DRIVER: OnceLock<Result<&'static Driver, Error>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        let failed = |error| Error::Configuration(format!("failed to start a thread for connections: {error}"));
        let driver: &Driver = Box::leak(Box::new(Driver::new().map_err(failed)?));
        let builder = thread::Builder::new().name("sahasra-client".to_owned());
        builder.spawn(|| driver.background()).map_err(failed)?;
        Ok(driver)
    });
    driver.clone()
}

/// Value whose destructor marks a thread as ending.
struct Living;

impl Drop for Living {
    fn drop(&mut self) {}
}

thread_local! {
    /// Whether Tokio's values of this thread exist. Has no destructor, so that it can always be read.
    static IS_PREPARED: Cell<bool> = const { Cell::new(false) };
    /// Created after Tokio's values, and therefore destroyed before them.
    static LIVING: Living = const { Living };
}

/// Whether this thread can run the runtime. Tokio does not allow a thread of one runtime to block on another, nor a thread that is ending:
/// one that waits in the destructor of a value of its own.
fn may_drive() -> bool {
    if !Handle::try_current().is_err_and(|error| error.is_missing_context()) {
        return false;
    }
    if !IS_PREPARED.replace(true) {
        let (send, receive) = oneshot::channel();
        // The receiver is there.
        let _ = send.send(());
        let _ = receive.blocking_recv();
    }
    LIVING.try_with(|_| ()).is_ok()
}

/// Starts a task on the runtime. Fails if the system provides no thread.
pub(crate) fn start(future: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
    let driver = driver()?;
    driver.start(future);
    driver.call();
    Ok(())
}

/// Lets the background thread run the runtime, for waits without a [`Wait`].
pub(crate) fn call() {
    if let Ok(driver) = driver() {
        driver.call();
    }
}

/// Wakes the task that waits for `task`, as soon as a thread runs the runtime.
pub(crate) fn wake(task: &Arc<Notify>) {
    if let Ok(driver) = driver() {
        let mut state = driver.state.lock();
        if state.by == By::None {
            if !state.asleep.iter().any(|asleep| Arc::ptr_eq(asleep, task)) {
                state.asleep.push(Arc::clone(task));
            }
            return;
        }
    }
    task.notify_one();
}

/// Runs the tasks that are ready on this thread, such as writing the operations just submitted, unless another thread runs the runtime.
pub(crate) fn turn() {
    if let Ok(driver) = driver() {
        driver.turn();
    }
}

/// A thread that waits for an answer. Dropping it ends the wait.
pub(crate) struct Wait {
    driver: &'static Driver,
    leads: bool,
}

impl Wait {
    /// Starts to wait. Returns `None` if the runtime could not be created.
    pub(crate) fn begin() -> Option<Self> {
        let driver = driver().ok()?;
        let may_drive = may_drive();
        let mut state = driver.state.lock();
        state.waits += 1;
        state.waiting += 1;
        let leads = may_drive && state.waiting == 1 && state.by != By::Caller;
        if leads {
            if state.by == By::Background {
                driver.release.notify_one();
            }
            state.by = By::Caller;
        } else if state.by == By::None {
            driver.wake(&mut state);
        }
        drop(state);
        Some(Self { driver, leads })
    }

    /// Runs the runtime until the future is ready, and returns its output: the answer, or `None` after the timeout. Returns the future as
    /// an error if another thread runs the runtime.
    pub(crate) fn drive<T, F: Future<Output = Option<T>>>(&self, future: F) -> Result<Option<T>, F> {
        match self.leads {
            true => Ok(self.driver.answer(future)),
            false => Err(future),
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut state = self.driver.state.lock();
        state.waits += 1;
        state.waiting -= 1;
        if self.leads {
            self.driver.leave(&mut state);
        }
    }
}

impl State {
    /// The task of the runtime, if there is only one.
    fn only_task(&self) -> Option<Arc<Task>> {
        let mut tasks = self.tasks.iter().filter_map(Weak::upgrade);
        tasks.next().filter(|_| tasks.next().is_none())
    }
}

impl Driver {
    fn new() -> io::Result<Self> {
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            state: Mutex::new(State {
                by: By::Background,
                waiting: 0,
                waits: 0,
                is_called: false,
                is_dozing: false,
                asleep: Vec::new(),
                last_wait: Duration::MAX,
                turned: Instant::now(),
                tasks: Vec::new(),
            }),
            resume: Condvar::new(),
            release: Notify::new(),
        })
    }

    fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        let task = Arc::new(Task::new(future));
        {
            let mut state = self.state.lock();
            state.tasks.retain(|task| task.strong_count() > 0);
            state.tasks.push(Arc::downgrade(&task));
        }
        self.runtime.spawn(poll_fn(move |context| task.poll(context)));
    }

    fn drive<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(async {
            let asleep = std::mem::take(&mut self.state.lock().asleep);
            for task in asleep {
                task.notify_one();
            }
            future.await
        })
    }

    /// Runs the runtime like [`Self::drive`] to wait for an answer. Polls for [`POLL`] before it sleeps, if the last wait took less than
    /// that.
    fn answer<T>(&self, future: impl Future<Output = Option<T>>) -> Option<T> {
        let began = Instant::now();
        let (polls, task, mut turned) = {
            let state = self.state.lock();
            (state.last_wait < POLL, state.only_task(), state.turned)
        };
        let answer = self.drive(async {
            let mut future = pin!(future);
            if !polls || began.saturating_duration_since(turned) > TURN {
                turned = began;
                tokio::task::yield_now().await;
            }
            let mut polling = Duration::ZERO;
            while polls && polling < POLL {
                for _ in 0..POLLS_OF_TASK {
                    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
                        return answer;
                    }
                    let Some(task) = &task else {
                        break;
                    };
                    task.poll_here();
                }
                if polling >= POLL_ALONE {
                    thread::yield_now();
                }
                turned = began;
                tokio::task::yield_now().await;
                polling = began.elapsed();
            }
            future.await
        });
        let mut state = self.state.lock();
        state.last_wait = if answer.is_some() { began.elapsed() } else { Duration::MAX };
        state.turned = turned;
        answer
    }

    fn wake(&self, state: &mut State) {
        state.is_called = true;
        self.resume.notify_one();
    }

    fn call(&self) {
        let mut state = self.state.lock();
        if state.by == By::None {
            self.wake(&mut state);
        }
    }

    /// Records that a caller has ended its wait or its turn.
    fn leave(&self, state: &mut State) {
        state.by = By::None;
        if state.waiting > 0 {
            self.wake(state);
        } else if state.is_dozing {
            self.resume.notify_one();
        }
    }

    fn turn(&self) {
        if !may_drive() {
            return self.call();
        }
        {
            let mut state = self.state.lock();
            if state.by != By::None {
                return;
            }
            state.by = By::Caller;
        }
        self.drive(tokio::task::yield_now());
        self.leave(&mut self.state.lock());
    }

    fn background(&self) -> ! {
        loop {
            self.drive(self.release.notified());
            let mut state = self.state.lock();
            loop {
                let waits = state.waits;
                self.resume.wait_while_for(&mut state, |state| !state.is_called, LINGER);
                let is_still = state.waits == waits;
                match state.by {
                    By::None if state.is_called || is_still => break,
                    By::Caller if is_still || state.is_called => {
                        // The caller may wait for long; [`Self::leave`] notifies this thread.
                        state.is_dozing = true;
                        self.resume.wait_while(&mut state, |state| state.by == By::Caller);
                        state.is_dozing = false;
                    }
                    _ => {}
                }
            }
            state.by = By::Background;
            state.is_called = false;
        }
    }
}
