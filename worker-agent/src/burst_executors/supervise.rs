//! Supervisor of one device and namespace: runs at most one executor process at a time, and accounts for every chunk handed over, whatever
//! happens to the process.

mod messages;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::OptionFuture;
use sahasra_executor_protocol::burst::messages::{Pause, Revoke, to_executor};
use sahasra_executor_protocol::burst::status_page::{Activity, Slot};
use sahasra_service::backoff::Backoff;
use sahasra_service::tasks;
use sahasra_wire::burst::FailureCode;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument;

use super::ExecutorPool;
use super::entry::{Cause, Entry};
use super::loss;
use super::outstanding::Stage;
use super::process::{Incoming, Process};
use super::run::{Command, Event};

/// Interval at which a process with work is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time, in addition to the grace, after which a process counts as hung if it has work but neither runs nor sends anything.
const SILENCE: Duration = Duration::from_secs(10);
/// Delays of a start after processes that ended no chunk.
const START_DELAY: Backoff = Backoff::milliseconds(100, 10_000);

pub(super) struct Supervisor {
    pool: Arc<ExecutorPool>,
    place: usize,
    namespace: String,
    commands: mpsc::UnboundedReceiver<Command>,
    runs: BTreeMap<u64, Entry>,
    process: Option<Process>,
    starting: Option<JoinHandle<Result<Process, String>>>,
    cause: Option<Cause>,
    unavailable: Option<String>,
    /// Chunk timeouts of the runs that this process knows or knew, closed runs included.
    timeouts: HashMap<u64, Duration>,
    /// Number of consecutive processes that ended without ending a chunk.
    fruitless: u32,
    idle_since: Option<Instant>,
    /// Time since which every check found chunks to start and none running.
    stalled_since: Option<Instant>,
    /// Time of the last [`Supervisor::poll`].
    polled: Instant,
    /// The process starts nothing more and ends with its last chunk, because it is another namespace's turn.
    makes_room: bool,
    shut_down: bool,
}

/// Starts a supervisor, which ends on its own.
pub(super) fn start(pool: Arc<ExecutorPool>, place: usize, namespace: String) -> mpsc::UnboundedSender<Command> {
    let (sender, commands) = mpsc::unbounded_channel();
    let supervisor = Supervisor {
        pool,
        place,
        namespace,
        commands,
        runs: BTreeMap::new(),
        process: None,
        starting: None,
        cause: None,
        unavailable: None,
        timeouts: HashMap::new(),
        fruitless: 0,
        idle_since: None,
        stalled_since: None,
        polled: Instant::now(),
        makes_room: false,
        shut_down: false,
    };
    // Not within the span of the burst that needs the first executor: later bursts of the namespace use it as well.
    let span = tracing::info_span!(parent: None, "executor", device = supervisor.device(), namespace = supervisor.namespace);
    tasks::spawn(supervisor.run().instrument(span));
    sender
}

enum Woken {
    Command(Option<Command>),
    Came(Incoming),
    Started(Result<Process, String>),
    Poll,
}

impl Supervisor {
    async fn run(mut self) {
        loop {
            let is_wanted = self.runs.values().any(|run| run.concurrency > 0 && run.has_work());
            if let Some(starting) = self.starting.take_if(|_| !is_wanted) {
                // The start may wait for room that another namespace would have to make.
                starting.abort();
            }
            if self.process.is_none() && self.starting.is_none() {
                if self.shut_down {
                    break;
                }
                if is_wanted {
                    self.start();
                } else if self.runs.is_empty() && self.pool.retire(self.place, &self.namespace, &self.commands) {
                    return;
                }
            }
            match self.woken().await {
                Woken::Command(Some(command)) => self.obey(command),
                // The pool holds the sender for as long as this task runs.
                Woken::Command(None) => self.obey(Command::ShutDown),
                Woken::Started(Ok(process)) => self.begin(process),
                Woken::Started(Err(reason)) => self.not_started(&reason),
                Woken::Came(Incoming::Message(kind)) => self.hear(kind),
                Woken::Came(Incoming::End) => self.end().await,
                Woken::Poll => self.poll(),
            }
            if self.makes_room && self.has_ended_all() {
                self.depart().await;
            }
        }
        // Submissions fail from now on. Those that were sent before are returned.
        self.commands.close();
        while let Some(command) = self.commands.recv().await {
            if let Command::Submit(id, ranges) = command
                && let Some(run) = self.runs.get_mut(&id)
            {
                run.waiting.extend(ranges);
            }
        }
        for run in self.runs.values_mut() {
            run.return_all();
            run.shared.end();
        }
    }

    async fn woken(&mut self) -> Woken {
        let device = Arc::clone(&self.pool.states[self.place]);
        let busy = self.runs.values().any(|run| run.shared.outstanding() > 0);
        let next_poll = match (&self.process, self.idle_since) {
            (None, _) => None,
            (Some(_), Some(_)) if !busy && device.waiting.load(Ordering::SeqCst) > 0 => Some(Duration::ZERO),
            (Some(_), Some(since)) if !busy => Some(self.pool.config.idle_timeout.saturating_sub(since.elapsed())),
            // Measured from the last check, so that a process that sends without pause is checked too.
            (Some(_), _) => Some(POLL_INTERVAL.saturating_sub(self.polled.elapsed())),
        };
        let exchange = OptionFuture::from(self.process.as_mut().map(Process::exchange));
        let started = OptionFuture::from(self.starting.as_mut());
        let poll = OptionFuture::from(next_poll.map(tokio::time::sleep));
        tokio::select! {
            Some(came) = exchange => Woken::Came(came),
            command = self.commands.recv() => Woken::Command(command),
            Some(started) = started => {
                self.starting = None;
                Woken::Started(started.unwrap_or_else(|error| Err(error.to_string())))
            }
            () = device.wanted.notified() => Woken::Poll,
            Some(()) = poll => Woken::Poll,
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Open(shared) => {
                let entry = Entry::new(Arc::clone(&shared));
                self.runs.insert(shared.id, entry);
            }
            Command::Submit(id, ranges) => {
                if let Some(run) = self.runs.get_mut(&id) {
                    run.waiting.extend(ranges);
                    run.withdrawn = false;
                }
                self.hand_over(id);
            }
            Command::SetConcurrency(id, concurrency) => self.set_concurrency(id, concurrency),
            Command::Withdraw(id) => {
                let Some(run) = self.runs.get_mut(&id) else { return };
                run.withdrawn = true;
                for range in run.waiting.drain(..).chain(run.suspects.drain(..)) {
                    run.shared.settle(&[Stage::Queued], Event::Returned { range });
                }
                if run.opened {
                    self.send(to_executor::Kind::Withdraw(id));
                }
            }
            Command::Resume(id) => {
                if self.runs.get(&id).is_some_and(|run| run.opened) && !self.makes_room {
                    self.send(to_executor::Kind::Pause(Pause { run: id, paused: false }));
                }
            }
            Command::Close(id) => {
                if let Some(run) = self.runs.remove(&id)
                    && run.opened
                {
                    self.send(to_executor::Kind::Close(id));
                }
            }
            Command::Kill(run, code) => self.revoke(run, code),
            Command::ShutDown => {
                self.shut_down = true;
                if let Some(starting) = self.starting.take() {
                    starting.abort();
                }
                self.kill(Cause::ShutDown);
            }
        }
    }

    fn send(&mut self, kind: to_executor::Kind) {
        if let Some(process) = &mut self.process {
            process.send(kind);
        }
    }

    /// Starts a process: after a delay if the previous ones ended no chunk, and as soon as the device has room for one more.
    fn start(&mut self) {
        let pool = Arc::clone(&self.pool);
        let (place, namespace) = (self.place, self.namespace.clone());
        let delay = match self.fruitless {
            0 => Duration::ZERO,
            times => START_DELAY.after(times),
        };
        self.starting = Some(tasks::spawn(async move {
            tokio::time::sleep(delay).await;
            let permit = pool.states[place].permit().await;
            let device = &pool.devices[place];
            let launched = pool.launcher.launch(device, &namespace).await;
            let mut process = launched.map_err(|error| error.to_string())?;
            process.permit = Some(permit);
            Ok(process)
        }));
    }

    fn begin(&mut self, process: Process) {
        tracing::info!(executor = process.id(), "executor started");
        self.pool.states[self.place].add(process.id(), Arc::clone(&process.status_page));
        self.cause = None;
        self.unavailable = None;
        self.timeouts.clear();
        self.process = Some(process);
        self.idle_since = Some(Instant::now());
        self.stalled_since = None;
        for id in self.runs.keys().copied().collect::<Vec<_>>() {
            self.hand_over(id);
        }
    }

    fn not_started(&mut self, reason: &str) {
        tracing::warn!(reason, "failed to start an executor");
        self.fruitless += 1;
        self.pool.states[self.place].failed_to_start();
        for run in self.runs.values_mut() {
            run.fail_all(FailureCode::ExecutorLost, &format!("failed to start an executor: {reason}"));
        }
    }

    fn kill(&mut self, cause: Cause) {
        if let Some(process) = &mut self.process {
            // Only the first cause counts.
            self.cause.get_or_insert(cause);
            process.kill();
        }
    }

    /// Ends the running chunks of a run: within the process if the device can end a kernel, otherwise by killing the process. Chunks of a
    /// run that the process does not know have not started and are returned.
    fn revoke(&mut self, run: u64, code: FailureCode) {
        if let Some(entry) = self.runs.get_mut(&run).filter(|entry| !entry.opened) {
            return entry.return_all();
        }
        let revocable = self.process.is_some() && self.pool.devices[self.place].kind.cancels();
        if let Some(entry) = self.runs.get_mut(&run).filter(|_| revocable) {
            let now = self.pool.launcher.monotonic_now();
            // On a repeated request, the grace still starts with the first one.
            entry.revoked.get_or_insert((code, now));
            self.send(to_executor::Kind::Revoke(Revoke { run, code: code.into() }));
        } else {
            self.kill(Cause::Killed { run, code });
        }
    }

    /// Returns the cause to kill the process if chunks of a revoked run still run after the grace. Repeats the revocation before that.
    fn unended(&mut self, now: Duration) -> Option<Cause> {
        let process = self.process.as_mut()?;
        for (&run, entry) in &mut self.runs {
            let Some((code, since)) = entry.revoked else { continue };
            // Without a slice, chunks that started after the revocation must not run either.
            let meant = |slot: Slot| slot.activity.run() == run && (slot.since <= since || entry.concurrency == 0);
            if !process.status_page.slots().any(meant) {
                entry.revoked = None;
            } else if now.saturating_sub(since) > self.pool.config.grace {
                return Some(Cause::Killed { run, code });
            } else {
                // The previous request may have arrived between two chunks.
                process.send(to_executor::Kind::Revoke(Revoke { run, code: code.into() }));
            }
        }
        None
    }

    /// Checks the process for exceeded times and for idleness.
    fn poll(&mut self) {
        self.polled = Instant::now();
        let Some(process) = &self.process else { return };
        let config = &self.pool.config;
        let now = self.pool.launcher.monotonic_now();
        // A driver may delay allocations and compilation until the kernels of other runs have ended.
        let preparation = config.start_timeout + self.timeouts.values().max().copied().unwrap_or_default();
        let mut active = 0;
        let mut cause = None;
        for slot in process.status_page.slots() {
            active += 1;
            let limit = match slot.activity {
                Activity::Preparing { .. } => preparation,
                Activity::Running { run, .. } => self.timeouts.get(&run).copied().unwrap_or_default() + config.grace,
            };
            if now.saturating_sub(slot.since) > limit {
                cause = Some(Cause::Hung);
            }
        }
        if !process.ready && process.started.elapsed() > config.start_timeout {
            cause = Some(Cause::NotReady);
        }
        let busy = self.runs.values().any(|run| run.shared.outstanding() > 0);
        let startable = self
            .runs
            .values()
            .any(|run| run.concurrency > 0 && run.shared.outstanding() > 0 && !run.shared.is_paused());
        // An executor without work is silent too: silence counts from the first check that found work and no running chunk.
        self.stalled_since = (process.ready && startable && active == 0).then(|| self.stalled_since.unwrap_or(self.polled));
        if (self.stalled_since).is_some_and(|since| since.max(process.last_heard).elapsed() > SILENCE + config.grace) {
            cause = Some(Cause::Hung);
        }
        let idle_timeout = config.idle_timeout;
        if cause.is_none() {
            cause = self.unended(now);
        }
        if let Some(cause) = cause {
            self.kill(cause);
            return;
        }
        if busy || active > 0 {
            self.idle_since = None;
            self.take_turns();
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let state = &self.pool.states[self.place];
        if since.elapsed() >= idle_timeout || state.waiting.load(Ordering::SeqCst) > 0 {
            tracing::info!("idle executor ended");
            // Dropping the process kills and reaps it. Nobody waits for anything that it holds.
            self.forget();
        }
    }

    /// Drops the process, after which no run is open in a process.
    fn forget(&mut self) {
        self.makes_room = false;
        if let Some(process) = self.process.take() {
            let status_page = Arc::clone(&process.status_page);
            drop(process);
            // After the drop of its permit: until the permit is free, the executor counts as leaving.
            self.pool.states[self.place].remove(&status_page);
        }
        for run in self.runs.values_mut() {
            run.opened = false;
            run.recalled = false;
            if run.settled < run.change {
                run.settled = run.change;
                run.shared.settled(run.concurrency);
            }
        }
    }

    /// Handles the end of the process's messages: reaps the process and accounts for its chunks.
    async fn end(&mut self) {
        let Some(process) = &mut self.process else { return };
        let executor = process.id();
        let status = process.reap().await;
        let how = loss::describe(
            status,
            self.cause.as_ref(),
            self.unavailable.as_deref(),
            process.status_page.is_poisoned(),
        );
        let fruitless = !process.progressed && !matches!(self.cause, Some(Cause::Killed { .. } | Cause::ShutDown));
        let (status_page, ready) = (Arc::clone(&process.status_page), process.ready);
        tracing::warn!(executor, how, "executor lost");
        if !matches!(self.cause, Some(Cause::Killed { .. } | Cause::ShutDown)) {
            self.pool.states[self.place].lost();
        }
        self.fruitless = if fruitless { self.fruitless + 1 } else { 0 };
        if !ready && fruitless {
            self.pool.states[self.place].failed_to_start();
        }
        loss::account(
            &mut self.runs,
            loss::Loss {
                status_page: &status_page,
                now: self.pool.launcher.monotonic_now(),
                cause: self.cause.as_ref(),
                how: &how,
                ready,
                fruitless: self.fruitless,
                timeouts: &self.timeouts,
                grace: self.pool.config.grace,
            },
        );
        // After the accounting, because a settled concurrency of 0 means that no more events follow.
        self.forget();
        if self.cause == Some(Cause::ShutDown) {
            self.shut_down = true;
        }
    }

    fn device(&self) -> &str {
        &self.pool.devices[self.place].name
    }
}
