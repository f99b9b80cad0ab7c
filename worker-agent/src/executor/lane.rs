//! A lane: a thread that runs one chunk at a time and reports runs of results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_ptx::Cancel;
use sahasra_wire::burst::{Failure, FailureCode, ResultRun};
use sha2::{Digest, Sha256};

use super::board::{Activity, Board};
use super::program::{Code, Failed, Frame, Prepared};
use super::protocol::{Ended, from_executor::Kind};
use super::queue::{Batch, Queue, Seat, Task, message};
use super::report::Reporter;
use super::watch::Watch;
use crate::device::Device;

/// Results are sent at the latest when they are this old and the lane looks,
const REPORT_AGE: Duration = Duration::from_millis(2);
/// or when there are so many bytes of them.
const REPORT_BYTES: usize = 256 << 10;
/// Modules kept, by the digest of their text.
const MODULES: usize = 32;
/// After a poisoned context, other lanes have so long to send what they have.
const POISONED_LANES: Duration = Duration::from_millis(300);

/// What all lanes of a process share.
pub struct Shared<D: Device> {
    /// The device.
    pub device: D,
    /// Where work comes from.
    pub queue: Queue<D>,
    /// Where it goes.
    pub reporter: Reporter,
    /// Chunk timeouts.
    pub watch: Arc<Watch>,
    /// What the supervisor sees.
    pub board: Board,
    modules: Mutex<Modules<D::Module>>,
    poisoned: AtomicBool,
}

impl<D: Device> Shared<D> {
    /// For a device.
    pub fn new(device: D, reporter: Reporter, board: Board, lanes: usize) -> Self {
        Self {
            device,
            queue: Queue::new(lanes),
            reporter,
            watch: Arc::new(Watch::new(D::CANCELS)),
            board,
            modules: Mutex::new(Modules(Vec::new())),
            poisoned: AtomicBool::new(false),
        }
    }

    /// The module of that text: kept, or loaded now.
    fn module(&self, ptx: &str) -> Result<Arc<D::Module>, Failed> {
        let digest: [u8; 32] = Sha256::digest(ptx).into();
        let kept = self.modules.lock().unwrap_or_else(PoisonError::into_inner).get(&digest);
        if let Some(module) = kept {
            return Ok(module);
        }
        let module = Arc::new(self.device.load(ptx)?);
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.put(digest, Arc::clone(&module));
        Ok(module)
    }
}

/// Modules by digest, the one used last at the end.
struct Modules<M>(Vec<([u8; 32], Arc<M>)>);

impl<M> Modules<M> {
    fn get(&mut self, digest: &[u8; 32]) -> Option<Arc<M>> {
        let place = self.0.iter().position(|(kept, _)| kept == digest)?;
        let entry = self.0.remove(place);
        let module = Arc::clone(&entry.1);
        self.0.push(entry);
        Some(module)
    }

    fn put(&mut self, digest: [u8; 32], module: Arc<M>) {
        if self.0.len() == MODULES {
            self.0.remove(0);
        }
        self.0.push((digest, module));
    }
}

/// Runs until the executor ends.
pub fn run<D: Device>(shared: &Shared<D>, lane: usize) {
    let mut stream = match shared.device.stream() {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("lane {lane} has no stream: {error}");
            return;
        }
    };
    let mut state = Lane {
        shared,
        lane,
        report: Report::default(),
        cancel: Cancel::new(),
    };
    loop {
        let (seat, task) = shared.queue.sit();
        let frame = match task {
            Task::Prepare(encoded, code) => {
                shared.board.begin(lane, Activity::Preparing { run: seat.run });
                let prepared = state.prepare(&mut stream, &encoded, code);
                if let Err(failed) = &prepared
                    && failed.poisoned
                {
                    state.give_up();
                }
                let failures = shared.queue.prepared(seat, prepared);
                shared.board.end(lane);
                shared.reporter.send_all(failures);
                None
            }
            Task::Run(prepared, batch, frame) => state.work(&mut stream, seat, &prepared, batch, frame),
        };
        state.report.send(shared, seat.run);
        shared.reporter.send_all(shared.queue.leave(seat, frame));
    }
}

struct Lane<'a, D: Device> {
    shared: &'a Shared<D>,
    lane: usize,
    report: Report,
    cancel: Cancel,
}

impl<D: Device> Lane<'_, D> {
    fn prepare(&self, stream: &mut D::Stream, encoded: &[u8], code: Option<Arc<Code>>) -> Result<Prepared<D>, Failed> {
        let code = match code {
            Some(code) => code,
            None => Arc::new(Code::new(encoded)?),
        };
        let module = self.shared.module(code.ptx()?)?;
        Prepared::new(&self.shared.device, stream, code, &module)
    }

    /// Works through batches until the seat must be left.
    fn work(
        &mut self,
        stream: &mut D::Stream,
        seat: Seat,
        prepared: &Arc<Prepared<D>>,
        mut batch: Batch,
        frame: Option<Frame<D>>,
    ) -> Option<Frame<D>> {
        let shared = self.shared;
        let timeout = prepared.code().timeout();
        let mut frame = match frame.map_or_else(|| prepared.frame(&shared.device), Ok) {
            Ok(frame) => frame,
            Err(failed) => {
                if failed.poisoned {
                    self.give_up();
                }
                for index in batch.first..batch.first + batch.count {
                    self.report.failed(index, batch.attempt, failed.clone());
                }
                return None;
            }
        };
        shared.watch.sit(timeout);
        loop {
            let began = Instant::now();
            for index in batch.first..batch.first + batch.count {
                self.chunk(stream, seat.run, prepared, &mut frame, index, batch.attempt, timeout);
                if self.report.outputs.len() >= REPORT_BYTES || self.report.is_old() {
                    self.report.send(shared, seat.run);
                }
            }
            let took = began.elapsed();
            if took >= REPORT_AGE {
                self.report.send(shared, seat.run);
            }
            match shared.queue.more(seat, batch.count, took) {
                Some(next) => batch = next,
                None => break,
            }
        }
        shared.watch.leave();
        Some(frame)
    }

    #[expect(clippy::too_many_arguments, reason = "what one chunk is made of")]
    fn chunk(
        &mut self,
        stream: &mut D::Stream,
        run: u64,
        prepared: &Prepared<D>,
        frame: &mut Frame<D>,
        index: u64,
        attempt: u32,
        timeout: Duration,
    ) {
        let shared = self.shared;
        shared.board.begin(self.lane, Activity::Running { run, index });
        shared.watch.begin(self.lane, timeout, &self.cancel);
        let outcome = prepared.run(&shared.device, stream, frame, index, &self.cancel, &mut self.report.outputs);
        shared.watch.end(self.lane);
        match outcome {
            Ok(()) => self.report.succeeded(index, attempt),
            Err(failed) if failed.poisoned => {
                // Whose fault it was is known when nothing else ran.
                let first = !shared.poisoned.swap(true, Ordering::SeqCst);
                if first && shared.board.slots().count() == 1 {
                    self.report.failed(index, attempt, failed);
                    shared.board.end(self.lane);
                }
                self.report.send(shared, run);
                self.give_up();
            }
            Err(failed) if failed.code == FailureCode::ChunkTimeout => {
                self.cancel = Cancel::new();
                let message = format!("ran longer than {} ms; {}", timeout.as_millis(), failed.message);
                self.report.failed(index, attempt, Failed::new(failed.code, message));
            }
            Err(failed) => self.report.failed(index, attempt, failed),
        }
        shared.board.end(self.lane);
    }

    /// Ends the process after a poisoned context. This lane's slot stays as it is: the supervisor reads it.
    fn give_up(&self) -> ! {
        self.shared.board.poison();
        std::thread::sleep(POISONED_LANES);
        self.shared.reporter.end_process()
    }
}

/// What a lane has to report of the run on which it sits.
#[derive(Default)]
struct Report {
    /// Outputs of `succeeded`, one after the other.
    outputs: Vec<u8>,
    /// Runs of consecutive indices, with how many bytes of `outputs` are theirs.
    succeeded: Vec<(Batch, usize)>,
    counted: usize,
    failed: Vec<Failure>,
    since: Option<Instant>,
}

impl Report {
    /// `outputs` holds what the chunk gave already.
    fn succeeded(&mut self, index: u64, attempt: u32) {
        let bytes = self.outputs.len() - self.counted;
        self.counted = self.outputs.len();
        self.since.get_or_insert_with(Instant::now);
        if let Some((last, length)) = self.succeeded.last_mut()
            && last.first + last.count == index
            && last.attempt == attempt
        {
            last.count += 1;
            *length += bytes;
            return;
        }
        let batch = Batch {
            first: index,
            count: 1,
            attempt,
        };
        self.succeeded.push((batch, bytes));
    }

    fn failed(&mut self, index: u64, attempt: u32, failed: Failed) {
        self.since.get_or_insert_with(Instant::now);
        if let Some(last) = self.failed.last_mut()
            && last.first + last.count == index
            && last.attempt == attempt
            && last.code == i32::from(failed.code)
            && last.message == failed.message
        {
            last.count += 1;
            return;
        }
        self.failed.push(Failure {
            first: index,
            count: 1,
            attempt,
            code: failed.code.into(),
            message: failed.message,
        });
    }

    fn is_old(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= REPORT_AGE)
    }

    fn send<D: Device>(&mut self, shared: &Shared<D>, run: u64) {
        if self.since.take().is_none() {
            return;
        }
        self.counted = 0;
        let capacity = self.outputs.len();
        let mut outputs = Bytes::from(std::mem::replace(&mut self.outputs, Vec::with_capacity(capacity.min(REPORT_BYTES))));
        let succeeded = self.succeeded.drain(..).map(|(batch, bytes)| ResultRun {
            first: batch.first,
            count: batch.count,
            attempt: batch.attempt,
            outputs: outputs.split_to(bytes),
        });
        let ended = Ended {
            run,
            succeeded: succeeded.collect(),
            failed: std::mem::take(&mut self.failed),
        };
        shared.reporter.send_all(Some(message(Kind::Ended(ended))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_used_longest_ago_is_dropped() {
        let mut modules = Modules(Vec::new());
        for number in 0..MODULES as u8 {
            modules.put([number; 32], Arc::new(number));
        }
        assert_eq!(modules.get(&[0; 32]).as_deref(), Some(&0));
        modules.put([200; 32], Arc::new(200));
        assert_eq!(modules.get(&[0; 32]).as_deref(), Some(&0), "used meanwhile");
        assert_eq!(modules.get(&[1; 32]), None);
        assert_eq!(modules.0.len(), MODULES);
    }
}
