//! A lane: a thread that runs one chunk at a time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sahasra_ptx::{Cancel, ModuleCache};
use sahasra_wire::burst::{ChunkRange, FailureCode};

use super::board::{Activity, Board, MAX_LANES};
use super::program::{Code, Failed, Frame, Prepared};
use super::protocol::{Returned, from_executor::Kind};
use super::queue::{Batch, Queue, Seat, Task, message};
use super::report::Reporter;
use super::results::{REPORT_AGE, Results};
use super::watch::Watch;
use crate::device::Device;

/// Host memory for loaded modules, in bytes, counted with their texts.
const MODULE_BYTES: u64 = 64 << 20;
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
    /// What the lanes have not sent yet.
    results: Vec<Mutex<Results>>,
    modules: ModuleCache<Arc<D::Module>>,
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
            results: (0..MAX_LANES).map(|_| Mutex::default()).collect(),
            modules: ModuleCache::new(MODULE_BYTES),
            poisoned: AtomicBool::new(false),
        }
    }

    /// A lane's results. They are sent with the guard held, so that what the lane says next comes after them.
    fn results(&self, lane: usize) -> MutexGuard<'_, Results> {
        self.results[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what lanes ended a while ago and could not send, as a long chunk has kept them since.
    pub fn send_old_results(&self) {
        for lane in 0..MAX_LANES {
            let mut results = self.results(lane);
            if results.is_old() {
                results.send(&self.reporter);
            }
        }
    }

    /// The module of that text: kept, or loaded now.
    fn module(&self, ptx: &str) -> Result<Arc<D::Module>, Failed> {
        self.modules.get_or_translate(ptx, |ptx| {
            let module = Arc::new(self.device.load(ptx)?);
            let bytes = ptx.len() as u64 + self.device.module_bytes(&module);
            Ok((module, bytes))
        })
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
        outputs: Vec::new(),
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
        shared.results(lane).send(&shared.reporter);
        shared.reporter.send_all(shared.queue.leave(seat, frame));
    }
}

struct Lane<'a, D: Device> {
    shared: &'a Shared<D>,
    lane: usize,
    /// Of one chunk.
    outputs: Vec<u8>,
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
                let mut results = shared.results(self.lane);
                for index in batch.first..batch.first + batch.count {
                    results.failed(seat.run, index, batch.attempt, failed.clone());
                }
                return None;
            }
        };
        shared.watch.sit(timeout);
        loop {
            let began = Instant::now();
            let end = batch.first + batch.count;
            for index in batch.first..end {
                if self.chunk(stream, seat.run, prepared, &mut frame, index, batch.attempt, timeout) {
                    self.give_back(seat.run, index + 1..end, batch.attempt);
                    break;
                }
            }
            let took = began.elapsed();
            if took >= REPORT_AGE {
                shared.results(self.lane).send(&shared.reporter);
            }
            match shared.queue.more(seat, batch.count, took) {
                Some(next) => batch = next,
                None => break,
            }
        }
        shared.watch.leave();
        Some(frame)
    }

    /// Returns what of a batch has not started.
    fn give_back(&self, run: u64, indices: Range<u64>, attempt: u32) {
        if indices.is_empty() {
            return;
        }
        let range = ChunkRange {
            device: String::new(),
            first: indices.start,
            count: indices.end - indices.start,
            attempt,
        };
        self.shared
            .reporter
            .send_all([message(Kind::Returned(Returned { run, ranges: vec![range] }))]);
    }

    /// Runs one chunk. Gives whether its slice was taken back meanwhile.
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
    ) -> bool {
        let shared = self.shared;
        shared.board.begin(self.lane, Activity::Running { run, index });
        shared.watch.begin(self.lane, run, timeout, &self.cancel);
        let outcome = prepared.run(&shared.device, stream, frame, index, &self.cancel, &mut self.outputs);
        let revoked = shared.watch.end(self.lane);
        if revoked.is_some() {
            self.cancel = Cancel::new();
        }
        let mut results = shared.results(self.lane);
        match outcome {
            Ok(()) => results.succeeded(run, index, attempt, &mut self.outputs),
            Err(failed) if failed.poisoned => {
                // Whose fault it was is known when nothing else ran.
                let first = !shared.poisoned.swap(true, Ordering::SeqCst);
                if first && shared.board.slots().count() == 1 {
                    results.failed(run, index, attempt, failed);
                    shared.board.end(self.lane);
                }
                results.send(&shared.reporter);
                self.give_up();
            }
            Err(failed) if failed.code == FailureCode::ChunkTimeout => {
                self.cancel = Cancel::new();
                let failed = match revoked {
                    Some(code) => Failed::new(code, "its slice was taken back while it ran"),
                    None => Failed::new(
                        failed.code,
                        format!("ran longer than {} ms; {}", timeout.as_millis(), failed.message),
                    ),
                };
                results.failed(run, index, attempt, failed);
            }
            Err(failed) => results.failed(run, index, attempt, failed),
        }
        if results.is_due() {
            results.send(&shared.reporter);
        }
        drop(results);
        shared.board.end(self.lane);
        revoked.is_some()
    }

    /// Ends the process after a poisoned context. This lane's slot stays as it is: the supervisor reads it.
    fn give_up(&self) -> ! {
        self.shared.board.poison();
        std::thread::sleep(POISONED_LANES);
        self.shared.reporter.end_process()
    }
}
