//! Queue of a context: one thread begins operations on the context's stream, another notes which have ended.
//!
//! ```text
//! submit ──► waiting ──► first thread: Context::begin, an event ──► begun, fences ──► second thread: the event has ended ──► executed, watcher
//! ```
//!
//! A fence is what the second thread waits for: an event behind an operation, or the failure of one. It asks for events at growing intervals
//! instead of waiting within the driver, so that a queue can be dropped while a kernel runs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sahasra_cuda_device::{
    Ended, Extent, Failure, FailureKind, HostBlock, LoadFailure, ModuleDescription, ModuleId, Operation, Queue, Region, Ticket,
};

use super::context::Context;
use super::event::Event;
use super::fence::{Clock, End, Fence, Unfenced};
use super::printed::Printed;

/// Maximum operations that wait or run.
const MAX_OPERATIONS: usize = 4096;
/// Maximum bytes that they carry.
const MAX_PAYLOAD: usize = 256 << 20;
/// Operations without a fence of their own that one fence follows.
const FENCED_AT_ONCE: u64 = 64;
/// Time during which the end of work is asked for without a pause.
const SPIN: Duration = Duration::from_micros(20);
/// Part of the time that the work takes after which its end is asked for again, and the limits of the pause.
const POLL_PART: u32 = 64;
const POLL: std::ops::RangeInclusive<Duration> = Duration::from_micros(5)..=Duration::from_millis(1);

#[derive(Default)]
struct State {
    waiting: VecDeque<Operation>,
    /// Operations that were begun, from the first that is not known to have ended.
    begun: VecDeque<Operation>,
    fences: VecDeque<Fence>,
    payload: usize,
    submitted: u64,
    /// Whether the first thread begins an operation, which is neither waiting nor begun.
    is_beginning: bool,
    is_closed: bool,
    failure: Option<Failure>,
    marks: HashMap<u64, Duration>,
    /// Marks to forget once an operation has been executed that may note them, by its number.
    forgotten: VecDeque<(u64, u64)>,
    spare: Vec<Event>,
}

struct Shared {
    context: Context,
    state: Mutex<State>,
    /// Signalled when there is something to begin.
    arrived: Condvar,
    /// Signalled when there is a fence.
    fenced: Condvar,
    /// Signalled when operations have ended.
    ended: Condvar,
    executed: AtomicU64,
    has_failed: AtomicBool,
    watcher: Option<Ended>,
    printed: Printed,
}

/// Ends a context that has no threads any more, outside of the thread that drops the queue.
pub(super) type Reaper = Arc<dyn Fn(Box<dyn FnOnce() -> Result<(), Failure> + Send>) + Send + Sync>;

/// A [queue](self).
pub(super) struct GpuQueue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    reaper: Reaper,
}

impl GpuQueue {
    /// Begins a queue on a context, which the reaper ends with the queue, or at once if this fails.
    pub(super) fn new(context: Context, watcher: Option<Ended>, printed: Printed, reaper: Reaper) -> Result<Self, Failure> {
        let base = context.enter().and_then(|()| Event::new());
        let base = base.and_then(|base| context.record(&base).map(|()| base));
        let base = match base {
            Ok(base) => base,
            Err(failure) => {
                reaper(Box::new(move || context.destroy()));
                return Err(failure);
            }
        };
        let shared = Arc::new(Shared {
            context,
            state: Mutex::default(),
            arrived: Condvar::new(),
            fenced: Condvar::new(),
            ended: Condvar::new(),
            executed: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            watcher,
            printed,
        });
        let mut queue = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            reaper,
        };
        let failed = |error| Failure::new(FailureKind::Lost, format!("failed to start a thread: {error}"));
        let of_thread = Arc::clone(&shared);
        let beginning = std::thread::Builder::new().name("cuda-begin".to_owned());
        queue.threads.push(beginning.spawn(move || of_thread.begin_all()).map_err(failed)?);
        let ending = std::thread::Builder::new().name("cuda-end".to_owned());
        queue.threads.push(ending.spawn(move || shared.end_all(base)).map_err(failed)?);
        Ok(queue)
    }
}

impl Drop for GpuQueue {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let unfinished = {
            let mut state = shared.state.lock();
            state.is_closed = true;
            let first = shared.executed() + 1;
            // The first thread reports the operation that it is beginning.
            let after = first + state.begun.len() as u64 + u64::from(state.is_beginning);
            let begun = state.begun.iter().cloned().zip(first..);
            begun.chain(state.waiting.iter().cloned().zip(after..)).collect::<Vec<_>>()
        };
        shared.context.cancel();
        shared.arrived.notify_all();
        shared.fenced.notify_all();
        shared.ended.notify_all();
        if let Some(watcher) = &shared.watcher {
            for (operation, ticket) in unfinished {
                watcher(&operation, Ticket(ticket));
            }
        }
        let threads = std::mem::take(&mut self.threads);
        (self.reaper)(Box::new(move || {
            for thread in threads {
                // An error is a panic, which ends the process.
                let _ = thread.join();
            }
            // Events end in their context.
            let _ = shared.context.enter();
            let fences = {
                let mut state = shared.state.lock();
                (std::mem::take(&mut state.fences), std::mem::take(&mut state.spare))
            };
            drop(fences);
            let destroyed = shared.context.destroy();
            // What operations carry was not used after the context's end.
            shared.state.lock().begun.clear();
            destroyed
        }));
    }
}

impl Shared {
    fn executed(&self) -> u64 {
        self.executed.load(Ordering::Acquire)
    }

    /// First thread: begins operations in order.
    fn begin_all(&self) {
        let entered = self.context.enter();
        let mut has_failed = false;
        let mut unfenced = Unfenced::default();
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some(next) = state.waiting.front() else {
                self.arrived.wait(&mut state);
                continue;
            };
            has_failed |= self.has_failed.load(Ordering::Acquire);
            let needs_idle = !has_failed && self.context.needs_idle(next);
            // A launch may run long, and what is before it has ended earlier.
            if unfenced.count > 0 && (needs_idle || next.runs_kernels()) {
                self.fence(&mut state, &mut unfenced, None);
                continue;
            }
            if needs_idle && !state.begun.is_empty() {
                self.ended.wait(&mut state);
                continue;
            }
            let Some(operation) = state.waiting.pop_front() else { continue };
            state.is_beginning = true;
            let outcome = match has_failed {
                true => Ok(()),
                false => MutexGuard::unlocked(&mut state, || entered.clone().and_then(|()| self.context.begin(&operation))),
            };
            let mark = match &operation {
                Operation::Mark(name) => Some(*name),
                _ => None,
            };
            let is_launch = operation.runs_kernels();
            if outcome.is_err() && unfenced.count > 0 {
                // What is before has not failed, and may still run.
                self.fence(&mut state, &mut unfenced, None);
            }
            if is_launch {
                unfenced.launched = self.context.launched(&operation);
            }
            state.is_beginning = false;
            if state.is_closed {
                let ticket = Ticket(self.executed() + state.begun.len() as u64 + 1);
                drop(state);
                if let Some(watcher) = &self.watcher {
                    watcher(&operation, ticket);
                }
                return;
            }
            state.begun.push_back(operation);
            unfenced.count += 1;
            match outcome {
                Err(failure) => {
                    has_failed |= failure.is_sticky();
                    self.push(&mut state, &mut unfenced, End::Failed(failure), None);
                }
                Ok(()) if has_failed => self.push(&mut state, &mut unfenced, End::Nothing, None),
                Ok(()) if mark.is_some() || is_launch || state.waiting.is_empty() || unfenced.count >= FENCED_AT_ONCE => {
                    self.fence(&mut state, &mut unfenced, mark);
                }
                Ok(()) => {}
            }
        }
    }

    /// Lets the second thread wait for what was begun.
    fn fence(&self, state: &mut MutexGuard<'_, State>, unfenced: &mut Unfenced, mark: Option<u64>) {
        let spare = state.spare.pop();
        let recorded = MutexGuard::unlocked(state, || {
            let event = spare.map_or_else(Event::new, Ok)?;
            self.context.record(&event)?;
            Ok(event)
        });
        let end = match recorded {
            Ok(event) => End::Event(event),
            Err(failure) => End::Failed(unfenced.fault(failure)),
        };
        self.push(state, unfenced, end, mark);
    }

    fn push(&self, state: &mut State, unfenced: &mut Unfenced, end: End, mark: Option<u64>) {
        unfenced.count = 0;
        state.fences.push_back(Fence {
            last: self.executed() + state.begun.len() as u64,
            end,
            mark,
            launched: std::mem::take(&mut unfenced.launched),
        });
        self.fenced.notify_one();
    }

    /// Second thread: notes in order what has ended.
    fn end_all(&self, base: Event) {
        // The first thread reports the failure.
        let _ = self.context.enter();
        let mut clock = Clock::new(base);
        loop {
            let mut state = self.state.lock();
            let fence = loop {
                if state.is_closed {
                    return;
                }
                match state.fences.pop_front() {
                    Some(fence) => break fence,
                    None => self.fenced.wait(&mut state),
                }
            };
            drop(state);
            let Some(outcome) = self.wait_for(&fence) else { return };
            let mut outcome = outcome;
            let (mut noted, mut spare) = (None, None);
            if let (Ok(()), End::Event(event)) = (&outcome, fence.end) {
                match fence.mark.map(|mark| (mark, clock.read(&event))) {
                    None => spare = Some(event),
                    Some((_, Err(failure))) => outcome = Err(failure),
                    Some((mark, Ok(time))) => {
                        noted = Some((mark, time));
                        spare = Some(clock.rebase(event, time));
                    }
                }
            }
            self.settle(fence.last, outcome, noted, spare);
        }
    }

    /// Waits for a fence. Returns its outcome, or `None` if the queue is dropped before.
    fn wait_for(&self, fence: &Fence) -> Option<Result<(), Failure>> {
        let event = match &fence.end {
            End::Nothing => return Some(Ok(())),
            End::Failed(failure) => return Some(Err(failure.clone())),
            End::Event(event) => event,
        };
        let begun = Instant::now();
        loop {
            match event.is_done() {
                Ok(true) => break,
                Ok(false) => {}
                Err(result) => return Some(Err(fence.fault(result))),
            }
            let elapsed = begun.elapsed();
            match elapsed < SPIN {
                true => std::thread::yield_now(),
                false => std::thread::sleep((elapsed / POLL_PART).clamp(*POLL.start(), *POLL.end())),
            }
            if self.state.lock().is_closed {
                return None;
            }
        }
        if fence.launched.prints {
            event.flush();
            self.printed.trim();
        }
        Some(Ok(()))
    }

    /// Notes that everything up to an operation has ended.
    fn settle(&self, last: u64, outcome: Result<(), Failure>, noted: Option<(u64, Duration)>, spare: Option<Event>) {
        let mut state = self.state.lock();
        state.spare.extend(spare);
        if state.is_closed {
            // The drop of the queue has reported the rest.
            return;
        }
        if let Err(failure) = outcome {
            self.fail(&mut state, failure);
        }
        if let Some((mark, time)) = noted {
            state.marks.insert(mark, time);
        }
        let first = self.executed() + 1;
        let ended: Vec<Operation> = state.begun.drain(..(last + 1 - first) as usize).collect();
        state.payload -= ended.iter().map(Operation::payload).sum::<usize>();
        self.executed.store(last, Ordering::Release);
        while let Some((_, mark)) = state.forgotten.pop_front_if(|(after, _)| *after <= last) {
            state.marks.remove(&mark);
        }
        drop(state);
        self.ended.notify_all();
        if let Some(watcher) = &self.watcher {
            for (operation, ticket) in ended.iter().zip(first..) {
                watcher(operation, Ticket(ticket));
            }
        }
    }

    fn fail(&self, state: &mut State, failure: Failure) {
        let is_sticky = failure.is_sticky();
        if self.has_failed.load(Ordering::Acquire) {
            return;
        }
        if is_sticky || state.failure.is_none() {
            state.failure = Some(failure);
        }
        if is_sticky {
            self.has_failed.store(true, Ordering::Release);
        }
    }

    /// Waits for a ticket, and returns the failure that there is then.
    fn wait(&self, ticket: Ticket) -> Result<(), Failure> {
        let mut state = self.state.lock();
        while self.executed() < ticket.0 {
            self.ended.wait(&mut state);
        }
        match &state.failure {
            None => Ok(()),
            Some(failure) if failure.is_sticky() => Err(failure.clone()),
            Some(_) => state.failure.take().map_or(Ok(()), Err),
        }
    }
}

impl Queue for GpuQueue {
    fn has_room(&self) -> bool {
        self.shared.state.lock().has_room()
    }

    fn submit(&self, operation: Operation) -> Ticket {
        let mut state = self.shared.state.lock();
        while !state.has_room() {
            self.shared.ended.wait(&mut state);
        }
        state.submitted += 1;
        state.payload += operation.payload();
        state.waiting.push_back(operation);
        self.shared.arrived.notify_one();
        Ticket(state.submitted)
    }

    fn share(&self, _block: &Arc<HostBlock>) -> Result<(), Failure> {
        let message = "a GPU of a session has no memory of the program's process";
        Err(Failure::new(FailureKind::Protocol, message))
    }

    fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure> {
        self.shared.wait(self.last())?;
        self.shared.context.read(from, extent, into)
    }

    fn load(&self, module: ModuleId, images: &[&[u8]]) -> Result<ModuleDescription, LoadFailure> {
        self.shared.wait(self.last())?;
        self.shared.context.load(module, images)
    }

    fn wait(&self, ticket: Ticket) -> Result<(), Failure> {
        self.shared.wait(ticket)
    }

    fn executed(&self) -> Result<Ticket, Failure> {
        let executed = self.shared.executed();
        match self.failure() {
            Some(failure) => Err(failure),
            None => Ok(Ticket(executed)),
        }
    }

    fn last(&self) -> Ticket {
        Ticket(self.shared.state.lock().submitted)
    }

    fn failure(&self) -> Option<Failure> {
        if !self.shared.has_failed.load(Ordering::Acquire) {
            return None;
        }
        self.shared.state.lock().failure.clone()
    }

    fn marked(&self, mark: u64) -> Option<Duration> {
        self.shared.state.lock().marks.get(&mark).copied()
    }

    fn forget(&self, mark: u64) {
        let mut state = self.shared.state.lock();
        if self.shared.executed() == state.submitted {
            state.marks.remove(&mark);
        } else {
            let submitted = state.submitted;
            state.forgotten.push_back((submitted, mark));
        }
    }

    /// The memory is freed with the queue, which the session drops to discard a context.
    fn close(&self) {
        self.shared.fail(&mut self.shared.state.lock(), Failure::closed());
        self.shared.context.cancel();
    }

    fn printed(&self) -> Vec<u8> {
        self.shared.printed.take()
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.waiting.len() + self.begun.len() < MAX_OPERATIONS && self.payload < MAX_PAYLOAD
    }
}
