//! Queue in this process: launches run on a thread of the queue, everything else on the caller's thread if nothing is before it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sahasra_ptx::with_signals_blocked;

use crate::{
    Ended, Engine, Extent, Failure, FailureKind, HostBlock, LoadFailure, ModuleDescription, ModuleId, Operation, Queue, Region, Ticket,
    texts,
};

/// Maximum operations that wait. CUDA's own queues are of this order.
const MAX_WAITING: usize = 4096;
/// Maximum bytes that waiting operations carry.
const MAX_PAYLOAD: usize = 256 << 20;
/// Bytes from which a write waits for the queue and is then made from the caller's memory, rather than from a copy of it.
const DIRECT_WRITE: usize = 1 << 20;
/// Number of rows from which a copy or fill runs beside its caller: they take longer than the change to another thread.
const MANY_ROWS: u64 = 1 << 16;

struct State {
    waiting: VecDeque<Operation>,
    payload: usize,
    submitted: u64,
    /// Whether a thread executes an operation.
    is_busy: bool,
    is_worker_asleep: bool,
    is_closed: bool,
    failure: Option<Failure>,
    /// Marks to forget once an operation has been executed that may note them, by its number.
    forgotten: VecDeque<(u64, u64)>,
}

struct Shared {
    engine: Engine,
    state: Mutex<State>,
    /// Signalled when the worker has something to do.
    arrived: Condvar,
    /// Signalled when an operation has ended.
    ended: Condvar,
    executed: AtomicU64,
    has_failed: AtomicBool,
    watcher: Option<Ended>,
}

/// Queue in this process.
pub(super) struct CpuQueue {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl CpuQueue {
    pub(super) fn new(engine: Engine, watcher: Option<Ended>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            engine,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                payload: 0,
                submitted: 0,
                is_busy: false,
                is_worker_asleep: false,
                is_closed: false,
                failure: None,
                forgotten: VecDeque::new(),
            }),
            arrived: Condvar::new(),
            ended: Condvar::new(),
            executed: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            watcher,
        });
        let of_worker = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name("sahasra-cuda".to_owned());
        let worker = with_signals_blocked(|| worker.spawn(move || of_worker.work()))
            .map_err(|error| Failure::new(FailureKind::Lost, format!("failed to start a thread: {error}")))?;
        Ok(Self {
            shared,
            worker: Some(worker),
        })
    }
}

impl Drop for CpuQueue {
    fn drop(&mut self) {
        self.shared.engine.cancel();
        self.shared.state.lock().is_closed = true;
        self.shared.arrived.notify_all();
        if let Some(worker) = self.worker.take() {
            // An error is a panic of the worker, which ends the same way.
            let _ = worker.join();
        }
        if let Some(watcher) = &self.shared.watcher {
            let waiting = std::mem::take(&mut self.shared.state.lock().waiting);
            for (operation, ticket) in waiting.iter().zip(self.shared.executed() + 1..) {
                watcher(operation, Ticket(ticket));
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            if state.is_busy || !self.run_next(&mut state) {
                state.is_worker_asleep = true;
                self.arrived.wait(&mut state);
                state.is_worker_asleep = false;
            }
        }
    }

    /// Executes the first waiting operation, unless another thread executes one. Returns whether there was one.
    fn run_next(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let Some(operation) = state.waiting.pop_front() else {
            return false;
        };
        state.payload -= operation.payload();
        self.run(state, &operation);
        true
    }

    /// Executes an operation with the state unlocked. No other thread may be executing one.
    fn run(&self, state: &mut MutexGuard<'_, State>, operation: &Operation) {
        let is_failed = self.has_failed.load(Ordering::Acquire);
        state.is_busy = true;
        let outcome = MutexGuard::unlocked(state, || {
            if is_failed {
                return Ok(());
            }
            let panicked = || Failure::new(FailureKind::Lost, "the engine panicked");
            catch_unwind(AssertUnwindSafe(|| self.engine.execute(operation))).unwrap_or_else(|_| Err(panicked()))
        });
        state.is_busy = false;
        // The failure first, so that a thread that finds the operation executed finds the failure too.
        if let Err(failure) = outcome {
            self.fail(state, failure);
        }
        let executed = self.executed.fetch_add(1, Ordering::Release) + 1;
        while let Some((_, mark)) = state.forgotten.pop_front_if(|(last, _)| *last <= executed) {
            self.engine.forget(mark);
        }
        self.ended.notify_all();
        if !state.waiting.is_empty() && state.is_worker_asleep {
            self.arrived.notify_one();
        }
        if let Some(watcher) = &self.watcher {
            // Unlocked, because the watcher may lock what callers of the queue hold.
            MutexGuard::unlocked(state, || watcher(operation, Ticket(executed)));
        }
    }

    fn fail(&self, state: &mut State, failure: Failure) {
        if self.has_failed.load(Ordering::Acquire) {
            return;
        }
        let is_sticky = failure.is_sticky();
        if is_sticky || state.failure.is_none() {
            state.failure = Some(failure);
        }
        if is_sticky {
            self.has_failed.store(true, Ordering::Release);
        }
    }

    fn executed(&self) -> u64 {
        self.executed.load(Ordering::Acquire)
    }

    /// Waits until the operation of a ticket has been executed.
    fn settle(&self, ticket: Ticket) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while self.executed() < ticket.0 {
            // The caller's thread is free, and need not be woken by another one.
            if state.is_busy || !self.run_next(&mut state) {
                self.ended.wait(&mut state);
            }
        }
        state
    }

    /// Waits for a ticket, and returns the failure that there is then.
    fn wait(&self, ticket: Ticket) -> Result<(), Failure> {
        let mut state = self.settle(ticket);
        match &state.failure {
            None => Ok(()),
            Some(failure) if failure.is_sticky() => Err(failure.clone()),
            Some(_) => state.failure.take().map_or(Ok(()), Err),
        }
    }
}

/// Whether an operation may take any time, so that its caller expects it to run beside the caller's own work.
fn may_take_long(operation: &Operation) -> bool {
    match operation {
        Operation::Copy { extent, .. } | Operation::Fill { extent, .. } => extent.height.saturating_mul(extent.depth) >= MANY_ROWS,
        operation => operation.runs_kernels(),
    }
}

impl Queue for CpuQueue {
    fn has_room(&self) -> bool {
        let state = self.shared.state.lock();
        state.waiting.len() < MAX_WAITING && state.payload < MAX_PAYLOAD
    }

    fn submit(&self, operation: Operation) -> Ticket {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        while state.waiting.len() >= MAX_WAITING || state.payload >= MAX_PAYLOAD {
            shared.ended.wait(&mut state);
        }
        state.submitted += 1;
        let ticket = Ticket(state.submitted);
        if !state.is_busy && state.waiting.is_empty() && !may_take_long(&operation) {
            shared.run(&mut state, &operation);
            return ticket;
        }
        state.payload += operation.payload();
        state.waiting.push_back(operation);
        if state.is_worker_asleep && !state.is_busy {
            shared.arrived.notify_one();
        }
        ticket
    }

    fn write(&self, to: Region, extent: Extent, bytes: &[u8]) -> Ticket {
        let is_idle = self.shared.executed() == self.last().0;
        if !is_idle && bytes.len() < DIRECT_WRITE {
            let bytes = Bytes::copy_from_slice(bytes);
            return self.submit(Operation::Write { to, extent, bytes });
        }
        let last = self.last();
        drop(self.shared.settle(last));
        if !self.shared.has_failed.load(Ordering::Acquire)
            && let Err(failure) = self.shared.engine.write(to, extent, bytes)
        {
            self.shared.fail(&mut self.shared.state.lock(), failure);
        }
        last
    }

    fn share(&self, block: &Arc<HostBlock>) -> Result<(), Failure> {
        self.shared.wait(self.last())?;
        self.shared.engine.share(block)
    }

    fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Failure> {
        self.shared.wait(self.last())?;
        self.shared.engine.read(from, extent, into)
    }

    fn load(&self, module: ModuleId, images: &[&[u8]]) -> Result<ModuleDescription, LoadFailure> {
        let translated = self.shared.engine.translate(&texts(images)?)?;
        self.shared.wait(self.last())?;
        Ok(self.shared.engine.load(module, &translated)?)
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
        self.shared.engine.marked(mark)
    }

    fn forget(&self, mark: u64) {
        let mut state = self.shared.state.lock();
        if self.shared.executed() == state.submitted {
            self.shared.engine.forget(mark);
        } else {
            let submitted = state.submitted;
            state.forgotten.push_back((submitted, mark));
        }
    }

    fn close(&self) {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        // Operations that wait are not executed after a failure.
        shared.fail(&mut state, Failure::closed());
        shared.engine.cancel();
        while state.is_busy {
            shared.ended.wait(&mut state);
        }
        shared.engine.clear();
    }

    fn printed(&self) -> Vec<u8> {
        self.shared.engine.printed()
    }
}
