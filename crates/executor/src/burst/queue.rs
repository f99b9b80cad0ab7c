//! Work queue of an executor's lanes: the runs, their waiting chunks, and the number of lanes that may work on each run.
//!
//! A lane is assigned to a run, within the run's concurrency limit, and executes batches of the run's chunks; a batch is sized to last
//! about [`BATCH`]. The [`Assignment`] ends when the run has no more chunks, when the run's limit was lowered, or when another run waits
//! and the lane's turn ([`TURN`]) is over. The lane sends all its results before it leaves: after a change of concurrency is
//! settled, no results of the lanes that left are outstanding.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use sahasra_executor_protocol::burst::messages::{Ended, Returned, SetConcurrency, Settled, Submit, from_executor::Kind};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{ChunkRange, Failure};

use super::program::{Code, Failed, Frame, Prepared};
use crate::device::Device;

/// Target duration of a batch. Chunks in a batch can no longer be withdrawn.
const BATCH: Duration = Duration::from_millis(2);
const MAX_BATCH: u64 = 1024;
/// Time that a lane works on one run before it yields to another run that waits.
const TURN: Duration = Duration::from_millis(20);

/// The runs of an executor and their waiting chunks.
pub(crate) struct Queue<D: Device> {
    state: Mutex<State<D>>,
    changed: Condvar,
    lanes: usize,
}

struct State<D: Device> {
    runs: Vec<Run<D>>,
    /// Index of the run that is considered first when a lane asks for work: runs take turns.
    turn: usize,
    /// Number of lanes that work on a run.
    assigned: usize,
    /// Whether a chunk is executing that must be the only one.
    exclusive: bool,
}

struct Run<D: Device> {
    id: u64,
    encoded: Bytes,
    work: VecDeque<Work>,
    /// Number of chunks in `work`.
    waiting: u64,
    limit: u32,
    assigned: u32,
    paused: bool,
    closed: bool,
    change: Option<SetConcurrency>,
    stage: Stage<D>,
    frames: Vec<Frame<D>>,
    /// Moving average of the duration of a chunk; `None` before the first chunk.
    average: Option<Duration>,
}

struct Work {
    chunks: AttemptRange,
    /// Whether each chunk must execute while nothing else executes in this process.
    alone: bool,
}

enum Stage<D: Device> {
    /// Not prepared. The [`Code`] is present if an earlier preparation produced it.
    Waiting(Option<Arc<Code>>),
    Preparing,
    Ready(Arc<Prepared<D>>),
    Failed(Failed),
}

/// Device memory that is no longer needed. Drop it after the lock: freeing memory may wait for running kernels.
type Released<D> = (Vec<Frame<D>>, Option<Stage<D>>);

/// Assignment of a lane to a run, within the run's concurrency limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assignment {
    pub run: u64,
    since: Instant,
}

/// Work of a lane that is assigned to a run.
pub(crate) enum Task<D: Device> {
    /// Prepare the program and report the outcome with [`Queue::prepared`].
    Prepare(Bytes, Option<Arc<Code>>),
    /// Execute the batch, then call [`Queue::next_batch`].
    Run(Arc<Prepared<D>>, AttemptRange, Option<Frame<D>>),
}

impl<D: Device> Run<D> {
    /// Whether a lane could be assigned to this run now, if no other run were considered.
    fn is_open(&self) -> bool {
        !self.paused && self.waiting > 0 && self.assigned < self.limit && matches!(self.stage, Stage::Waiting(_) | Stage::Ready(_))
    }

    fn front_is_alone(&self) -> bool {
        self.work.front().is_some_and(|work| work.alone)
    }

    fn batch(&mut self, lanes: usize) -> Option<AttemptRange> {
        let front = self.work.front_mut()?;
        let count = match self.average {
            Some(average) if !front.alone => {
                let lasting = BATCH.div_duration_f64(average) as u64;
                let share = self.waiting / (2 * lanes.min(self.limit as usize).max(1) as u64);
                lasting.min(share).clamp(1, MAX_BATCH)
            }
            _ => 1,
        };
        let count = count.min(front.chunks.count);
        let batch = AttemptRange { count, ..front.chunks };
        front.chunks.first += count;
        front.chunks.count -= count;
        if front.chunks.count == 0 {
            self.work.pop_front();
        }
        self.waiting -= count;
        Some(batch)
    }

    /// Fails all waiting chunks if the program cannot run. Returns their failures as a message.
    fn fail_waiting(&mut self) -> Option<Kind> {
        let Stage::Failed(failed) = &self.stage else { return None };
        if self.work.is_empty() {
            return None;
        }
        self.waiting = 0;
        let work = self.work.drain(..);
        let failed = work.map(|Work { chunks, .. }| Failure::new(chunks, failed.code, failed.message.clone()));
        Some(Kind::Ended(Ended {
            run: self.id,
            succeeded: Vec::new(),
            failed: failed.collect(),
        }))
    }

    /// Returns the answer to a change of concurrency once the change has taken effect. Drop the [`Released`] before sending the answer.
    fn settle(&mut self, (frames, stage): &mut Released<D>) -> Option<Kind> {
        let change = self.change.as_ref()?;
        if self.assigned > self.limit {
            return None;
        }
        let kept = self.frames.len().min(self.limit.saturating_sub(self.assigned) as usize);
        frames.extend(self.frames.drain(kept..));
        if self.limit == 0
            && let Stage::Ready(prepared) = &self.stage
        {
            let waiting = Stage::Waiting(Some(Arc::clone(&prepared.code)));
            *stage = Some(std::mem::replace(&mut self.stage, waiting));
        }
        let settled = Settled {
            run: self.id,
            limit: self.limit,
            change: change.change,
        };
        self.change = None;
        Some(Kind::Settled(settled))
    }
}

impl<D: Device> Queue<D> {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                runs: Vec::new(),
                turn: 0,
                assigned: 0,
                exclusive: false,
            }),
            changed: Condvar::new(),
            lanes,
        }
    }

    /// Adds a run with the encoded program and a concurrency limit of 0.
    pub(crate) fn open(&self, id: u64, encoded: Bytes) {
        self.state.lock().runs.push(Run {
            id,
            encoded,
            work: VecDeque::new(),
            waiting: 0,
            limit: 0,
            assigned: 0,
            paused: false,
            closed: false,
            change: None,
            stage: Stage::Waiting(None),
            frames: Vec::new(),
            average: None,
        });
    }

    /// Adds chunks to a run. Returns their failures if the program is already known not to run.
    pub(crate) fn submit(&self, submit: Submit) -> Option<Kind> {
        let mut state = self.state.lock();
        let run = state.run(submit.run)?;
        for range in submit.ranges {
            let chunks = AttemptRange::from(&range);
            run.waiting += chunks.count;
            // Merge adjacent ranges, because a batch never spans two ranges.
            let alone = submit.alone;
            let extends = |last: &mut Work| last.alone == alone && last.chunks.extend(chunks);
            if !run.work.back_mut().is_some_and(extends) {
                run.work.push_back(Work { chunks, alone });
            }
        }
        let failures = run.fail_waiting();
        self.changed.notify_all();
        failures
    }

    /// Sets the concurrency limit of a run. Returns how many lanes all runs together may use, and the answer to the change if it has
    /// already taken effect.
    pub(crate) fn set_concurrency(&self, change: SetConcurrency) -> (usize, Option<Kind>) {
        let mut released = Released::default();
        let mut state = self.state.lock();
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

    /// Removes all waiting chunks of a run. Returns them as a message to the supervisor, or `None` if none waited.
    pub(crate) fn withdraw(&self, id: u64) -> Option<Kind> {
        let mut state = self.state.lock();
        let run = state.run(id)?;
        run.waiting = 0;
        let ranges: Vec<ChunkRange> = run.work.drain(..).map(|work| ChunkRange::new("", work.chunks)).collect();
        self.changed.notify_all();
        (!ranges.is_empty()).then_some(Kind::Returned(Returned { run: id, ranges }))
    }

    /// Pauses or resumes a run: a paused run starts no further chunks.
    pub(crate) fn pause(&self, id: u64, paused: bool) {
        if let Some(run) = self.state.lock().run(id) {
            run.paused = paused;
        }
        self.changed.notify_all();
    }

    /// Closes a run: drops its waiting chunks at once, and the run itself once no lane works on it.
    pub(crate) fn close(&self, id: u64) {
        let mut state = self.state.lock();
        if let Some(run) = state.run(id) {
            run.closed = true;
            run.work.clear();
            run.waiting = 0;
        }
        let closed = state.remove_closed();
        self.changed.notify_all();
        drop(state);
        drop(closed);
    }

    /// Assigns a lane to a run. Blocks until a run has work for it.
    pub(crate) fn assign(&self) -> (Assignment, Task<D>) {
        let mut state = self.state.lock();
        loop {
            if let Some(assigned) = state.assign(self.lanes) {
                return assigned;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Next batch for a lane after a batch of `ran` chunks that took `took`, or `None` if the lane must call [`Queue::leave`].
    pub(crate) fn next_batch(&self, assignment: Assignment, ran: u64, took: Duration) -> Option<AttemptRange> {
        let mut state = self.state.lock();
        let others = state.exclusive
            || state
                .runs
                .iter()
                .any(|run| run.is_open() && (run.front_is_alone() || (run.id != assignment.run && assignment.since.elapsed() > TURN)));
        let lanes = self.lanes;
        let run = state.run(assignment.run)?;
        let average = took.div_f64(ran.max(1) as f64);
        run.average = Some(match run.average {
            // A longer duration counts at once, a shorter one by half: a batch must not last long.
            Some(before) if average <= before => (before + average) / 2,
            _ => average,
        });
        if others || run.paused || run.closed || run.assigned > run.limit || run.change.is_some() {
            return None;
        }
        run.batch(lanes)
    }

    /// Records whether the program of the run could be prepared. Returns the failures of the waiting chunks if it could not. The lane must
    /// call [`Queue::leave`] afterwards.
    pub(crate) fn prepared(&self, assignment: Assignment, outcome: Result<Prepared<D>, Failed>) -> Option<Kind> {
        let mut state = self.state.lock();
        let run = state.run(assignment.run)?;
        run.stage = match outcome {
            Ok(prepared) => Stage::Ready(Arc::new(prepared)),
            Err(failed) if failed.code.is_transient() => {
                // Memory may be available at the next attempt: the chunks that wait now fail, later ones try again.
                run.stage = Stage::Failed(failed);
                let failures = run.fail_waiting();
                run.stage = Stage::Waiting(None);
                return failures;
            }
            Err(failed) => Stage::Failed(failed),
        };
        run.fail_waiting()
    }

    /// Ends the assignment of a lane to a run. The lane must have sent all its results before. Returns the answer to a change of
    /// concurrency that takes effect by it.
    pub(crate) fn leave(&self, assignment: Assignment, frame: Option<Frame<D>>) -> Option<Kind> {
        let mut released = Released::default();
        let mut state = self.state.lock();
        state.assigned -= 1;
        state.exclusive = false;
        let mut settled = None;
        if let Some(run) = state.run(assignment.run) {
            run.assigned -= 1;
            match frame {
                Some(frame) if run.assigned < run.limit => run.frames.push(frame),
                surplus => released.0.extend(surplus),
            }
            settled = run.settle(&mut released);
        }
        let closed = state.remove_closed();
        self.changed.notify_all();
        drop(state);
        drop(closed);
        settled
    }
}

impl<D: Device> State<D> {
    fn run(&mut self, id: u64) -> Option<&mut Run<D>> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    /// Removes closed runs that no lane works on. Drop them after the lock, as [`Released`].
    fn remove_closed(&mut self) -> Vec<Run<D>> {
        self.runs.extract_if(.., |run| run.closed && run.assigned == 0).collect()
    }

    fn assign(&mut self, lanes: usize) -> Option<(Assignment, Task<D>)> {
        if self.exclusive {
            return None;
        }
        let alone = self.runs.iter().position(|run| run.is_open() && run.front_is_alone());
        let place = match alone {
            Some(_) if self.assigned > 0 => return None,
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
        run.assigned += 1;
        self.assigned += 1;
        Some((
            Assignment {
                run: run.id,
                since: Instant::now(),
            },
            task,
        ))
    }
}

#[cfg(test)]
mod tests;
