//! What an executor's lanes take their work from: the runs, their chunks, and how many lanes may sit on each.
//!
//! A lane takes a **seat** on a run, works through batches of it (sized to about [`BATCH`]), and leaves when there is no more, when
//! the run's limit was lowered, or when another run waits and its turn is over. It sends what it has to report before it
//! leaves: so a change of concurrency that is settled has no results still to come.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_wire::burst::{ChunkRange, Failure};

use super::program::{Code, Failed, Frame, Prepared};
use super::protocol::{Ended, FromExecutor, Returned, SetConcurrency, Settled, Submit, from_executor::Kind};
use crate::device::Device;

/// Chunks that a lane takes at a time should last about so long: what was taken cannot be withdrawn any more.
const BATCH: Duration = Duration::from_millis(2);
/// Most chunks of a batch.
const MAX_BATCH: u64 = 1024;
/// A lane that sits this long leaves when another run waits.
const TURN: Duration = Duration::from_millis(20);

/// The runs and their work.
pub struct Queue<D: Device> {
    state: Mutex<State<D>>,
    changed: Condvar,
    lanes: usize,
}

struct State<D: Device> {
    runs: Vec<Run<D>>,
    /// The run to look at first: they take turns.
    turn: usize,
    /// Lanes that sit somewhere.
    seated: usize,
    /// A chunk runs that must run alone.
    exclusive: bool,
}

struct Run<D: Device> {
    id: u64,
    encoded: Bytes,
    work: VecDeque<Work>,
    /// Chunks in `work`.
    waiting: u64,
    limit: u32,
    seated: u32,
    paused: bool,
    closed: bool,
    change: Option<SetConcurrency>,
    stage: Stage<D>,
    frames: Vec<Frame<D>>,
    /// Nanoseconds that a chunk takes, as a moving average; 0 before the first.
    nanoseconds: f64,
}

#[derive(Clone, Copy)]
struct Work {
    first: u64,
    count: u64,
    attempt: u32,
    alone: bool,
}

impl Work {
    fn continues(&self, next: &Self) -> bool {
        self.first + self.count == next.first && self.attempt == next.attempt && self.alone == next.alone
    }
}

enum Stage<D: Device> {
    /// What needs no device may be there from an earlier preparation.
    Waiting(Option<Arc<Code>>),
    Preparing,
    Ready(Arc<Prepared<D>>),
    Failed(Failed),
}

/// What is no longer needed. It is dropped after the lock: giving memory back may wait for whatever runs on the device.
struct Released<D: Device> {
    frames: Vec<Frame<D>>,
    prepared: Option<Arc<Prepared<D>>>,
    runs: Vec<Run<D>>,
}

impl<D: Device> Default for Released<D> {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            prepared: None,
            runs: Vec::new(),
        }
    }
}

/// A lane's place on a run.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// The run.
    pub run: u64,
    since: Instant,
}

/// Consecutive chunks of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// First index.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Which attempt.
    pub attempt: u32,
}

/// What a lane does on its seat.
pub enum Task<D: Device> {
    /// Prepare the program and say so with [`Queue::prepared`].
    Prepare(Bytes, Option<Arc<Code>>),
    /// Run the batch, then ask for [`Queue::more`].
    Run(Arc<Prepared<D>>, Batch, Option<Frame<D>>),
}

impl<D: Device> Run<D> {
    /// Whether a lane may sit down here now, were nothing else in the executor.
    fn is_open(&self) -> bool {
        !self.paused && self.waiting > 0 && self.seated < self.limit && matches!(self.stage, Stage::Waiting(_) | Stage::Ready(_))
    }

    fn front_is_alone(&self) -> bool {
        self.work.front().is_some_and(|work| work.alone)
    }

    fn batch(&mut self, lanes: usize) -> Option<Batch> {
        let front = self.work.front_mut()?;
        let count = if front.alone || self.nanoseconds == 0.0 {
            1
        } else {
            let lasting = (BATCH.as_nanos() as f64 / self.nanoseconds) as u64;
            let share = self.waiting / (2 * lanes.min(self.limit as usize).max(1) as u64);
            lasting.min(share).clamp(1, MAX_BATCH)
        };
        let count = count.min(front.count);
        let batch = Batch {
            first: front.first,
            count,
            attempt: front.attempt,
        };
        front.first += count;
        front.count -= count;
        if front.count == 0 {
            self.work.pop_front();
        }
        self.waiting -= count;
        Some(batch)
    }

    /// Fails what waits, when the program cannot run.
    fn fail_waiting(&mut self) -> Option<FromExecutor> {
        let Stage::Failed(failed) = &self.stage else { return None };
        if self.work.is_empty() {
            return None;
        }
        self.waiting = 0;
        let failed = self.work.drain(..).map(|work| Failure {
            first: work.first,
            count: work.count,
            attempt: work.attempt,
            code: failed.code.into(),
            message: failed.message.clone(),
        });
        Some(message(Kind::Ended(Ended {
            run: self.id,
            succeeded: Vec::new(),
            failed: failed.collect(),
        })))
    }

    /// Answers a change of concurrency once it holds. The answer must be sent after `released` was dropped.
    fn settle(&mut self, released: &mut Released<D>) -> Option<FromExecutor> {
        let change = self.change.as_ref()?;
        if self.seated > self.limit {
            return None;
        }
        let kept = self.frames.len().min(self.limit.saturating_sub(self.seated) as usize);
        released.frames.extend(self.frames.drain(kept..));
        if self.limit == 0
            && let Stage::Ready(prepared) = &self.stage
        {
            let code = Arc::clone(prepared.code());
            if let Stage::Ready(prepared) = std::mem::replace(&mut self.stage, Stage::Waiting(Some(code))) {
                released.prepared = Some(prepared);
            }
        }
        let settled = Settled {
            run: self.id,
            limit: self.limit,
            change: change.change,
        };
        self.change = None;
        Some(message(Kind::Settled(settled)))
    }
}

/// A message to the supervisor.
pub fn message(kind: Kind) -> FromExecutor {
    FromExecutor { kind: Some(kind) }
}

impl<D: Device> Queue<D> {
    /// A queue for so many lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                runs: Vec::new(),
                turn: 0,
                seated: 0,
                exclusive: false,
            }),
            changed: Condvar::new(),
            lanes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new run.
    pub fn open(&self, id: u64, encoded: Bytes) {
        self.state().runs.push(Run {
            id,
            encoded,
            work: VecDeque::new(),
            waiting: 0,
            limit: 0,
            seated: 0,
            paused: false,
            closed: false,
            change: None,
            stage: Stage::Waiting(None),
            frames: Vec::new(),
            nanoseconds: 0.0,
        });
    }

    /// Chunks for a run.
    pub fn submit(&self, submit: Submit) -> Option<FromExecutor> {
        let mut state = self.state();
        let run = state.run(submit.run)?;
        for range in submit.ranges {
            run.waiting += range.count;
            let work = Work {
                first: range.first,
                count: range.count,
                attempt: range.attempt,
                alone: submit.alone,
            };
            // Neighbours make one range: batches do not reach across two.
            match run.work.back_mut() {
                Some(last) if last.continues(&work) => last.count += work.count,
                _ => run.work.push_back(work),
            }
        }
        let failures = run.fail_waiting();
        self.changed.notify_all();
        failures
    }

    /// A change of concurrency. Gives how many lanes all runs together may use.
    pub fn set_concurrency(&self, change: SetConcurrency) -> (usize, Option<FromExecutor>) {
        let mut released = Released::default();
        let mut state = self.state();
        let mut settled = None;
        if let Some(run) = state.run(change.run) {
            run.limit = change.limit;
            run.change = Some(change);
            settled = run.settle(&mut released);
        }
        self.changed.notify_all();
        let wanted = state.runs.iter().fold(0usize, |sum, run| sum.saturating_add(run.limit as usize));
        drop(state);
        (wanted.min(self.lanes), settled)
    }

    /// Takes out what waits.
    pub fn withdraw(&self, id: u64) -> Option<FromExecutor> {
        let mut state = self.state();
        let run = state.run(id)?;
        run.waiting = 0;
        let ranges: Vec<ChunkRange> = run
            .work
            .drain(..)
            .map(|work| ChunkRange {
                device: String::new(),
                first: work.first,
                count: work.count,
                attempt: work.attempt,
            })
            .collect();
        self.changed.notify_all();
        (!ranges.is_empty()).then(|| message(Kind::Returned(Returned { run: id, ranges })))
    }

    /// Nothing more of a run starts, or it goes on.
    pub fn pause(&self, id: u64, paused: bool) {
        if let Some(run) = self.state().run(id) {
            run.paused = paused;
        }
        self.changed.notify_all();
    }

    /// Forgets a run once no lane sits on it.
    pub fn close(&self, id: u64) {
        let mut released = Released::default();
        let mut state = self.state();
        if let Some(run) = state.run(id) {
            run.closed = true;
            run.work.clear();
            run.waiting = 0;
        }
        state.forget_closed(&mut released);
        self.changed.notify_all();
        drop(state);
    }

    /// Waits for a seat and something to do there.
    pub fn sit(&self) -> (Seat, Task<D>) {
        let mut state = self.state();
        loop {
            if let Some(found) = state.sit(self.lanes) {
                return found;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next batch on a seat, after one that took `took`; `None`: leave.
    pub fn more(&self, seat: Seat, ran: u64, took: Duration) -> Option<Batch> {
        let mut state = self.state();
        let others = state.exclusive
            || state
                .runs
                .iter()
                .any(|run| run.is_open() && (run.front_is_alone() || (run.id != seat.run && seat.since.elapsed() > TURN)));
        let lanes = self.lanes;
        let run = state.run(seat.run)?;
        let average = took.as_nanos() as f64 / ran.max(1) as f64;
        run.nanoseconds = match run.nanoseconds {
            0.0 => average,
            // Towards longer at once, towards shorter by halves: a batch must not last long.
            before if average > before => average,
            before => (before + average) / 2.0,
        };
        if others || run.paused || run.closed || run.seated > run.limit || run.change.is_some() {
            return None;
        }
        run.batch(lanes)
    }

    /// The program of a seat's run is prepared or cannot be. The lane must leave then.
    pub fn prepared(&self, seat: Seat, outcome: Result<Prepared<D>, Failed>) -> Option<FromExecutor> {
        let mut state = self.state();
        let run = state.run(seat.run)?;
        run.stage = match outcome {
            Ok(prepared) => Stage::Ready(Arc::new(prepared)),
            Err(failed) if failed.code.is_transient() => {
                // Memory may be there the next time: these chunks failed, later ones try again.
                run.stage = Stage::Failed(failed);
                let failures = run.fail_waiting();
                run.stage = Stage::Waiting(None);
                return failures;
            }
            Err(failed) => Stage::Failed(failed),
        };
        run.fail_waiting()
    }

    /// Leaves a seat. Everything about what ran there must have been sent.
    pub fn leave(&self, seat: Seat, frame: Option<Frame<D>>) -> Option<FromExecutor> {
        let mut released = Released::default();
        let mut state = self.state();
        state.seated -= 1;
        state.exclusive = false;
        let mut settled = None;
        if let Some(run) = state.run(seat.run) {
            run.seated -= 1;
            match frame {
                Some(frame) if run.seated < run.limit => run.frames.push(frame),
                surplus => released.frames.extend(surplus),
            }
            settled = run.settle(&mut released);
        }
        state.forget_closed(&mut released);
        self.changed.notify_all();
        drop(state);
        settled
    }
}

impl<D: Device> State<D> {
    fn run(&mut self, id: u64) -> Option<&mut Run<D>> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    fn forget_closed(&mut self, released: &mut Released<D>) {
        released.runs.extend(self.runs.extract_if(.., |run| run.closed && run.seated == 0));
    }

    fn sit(&mut self, lanes: usize) -> Option<(Seat, Task<D>)> {
        if self.exclusive {
            return None;
        }
        let alone = self.runs.iter().position(|run| run.is_open() && run.front_is_alone());
        let place = match alone {
            Some(_) if self.seated > 0 => return None,
            Some(place) => place,
            None => (0..self.runs.len())
                .map(|offset| (self.turn + offset) % self.runs.len())
                .find(|place| self.runs[*place].is_open())?,
        };
        self.turn = place + 1;
        let run = &mut self.runs[place];
        let task = match &mut run.stage {
            Stage::Waiting(code) => {
                let code = code.take();
                run.stage = Stage::Preparing;
                Task::Prepare(run.encoded.clone(), code)
            }
            Stage::Ready(prepared) => {
                let prepared = Arc::clone(prepared);
                let alone = run.front_is_alone();
                let batch = run.batch(lanes)?;
                self.exclusive = alone;
                Task::Run(prepared, batch, run.frames.pop())
            }
            Stage::Preparing | Stage::Failed(_) => return None,
        };
        run.seated += 1;
        self.seated += 1;
        Some((
            Seat {
                run: run.id,
                since: Instant::now(),
            },
            task,
        ))
    }
}

#[cfg(test)]
mod tests;
