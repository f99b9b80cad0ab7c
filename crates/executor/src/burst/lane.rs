//! Lanes: threads of an executor that each run one chunk at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sahasra_executor_protocol::burst::messages::{Returned, from_executor::Kind};
use sahasra_executor_protocol::burst::status_page::{Activity, MAX_LANES, StatusPage};
use sahasra_ptx::{Cancel, ModuleCache};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{ChunkRange, FailureCode};

use super::program::{Code, Failed, Frame, Prepared};
use super::queue::{Assignment, Queue, Task};
use super::report::Reporter;
use super::results::{REPORT_AGE, Results};
use super::watch::Watch;
use crate::device::Device;

/// Limit of the host memory for cached modules, in bytes, including their PTX text.
const MODULE_BYTES: u64 = 64 << 20;
/// Time that the other lanes have to send their results after a context was poisoned.
const POISONED_LANES: Duration = Duration::from_millis(300);

/// State that all lanes of a process share.
pub(crate) struct Shared<D: Device> {
    pub device: D,
    pub queue: Queue<D>,
    pub reporter: Reporter,
    pub watch: Watch,
    /// Status page that the supervisor reads.
    pub status_page: StatusPage,
    /// Results of each lane that have not been sent. They are sent while their lock is held, so that later messages of the lane follow them.
    results: Vec<Mutex<Results>>,
    modules: ModuleCache<Arc<D::Module>>,
    poisoned: AtomicBool,
}

impl<D: Device> Shared<D> {
    pub(crate) fn new(device: D, reporter: Reporter, status_page: StatusPage, lanes: usize) -> Self {
        Self {
            device,
            queue: Queue::new(lanes),
            reporter,
            watch: Watch::new(D::CANCELS),
            status_page,
            results: (0..MAX_LANES).map(|_| Mutex::default()).collect(),
            modules: ModuleCache::new(MODULE_BYTES),
            poisoned: AtomicBool::new(false),
        }
    }

    /// Sends results older than [`REPORT_AGE`] of lanes that cannot send them because they are running a long chunk.
    pub(crate) fn send_old_results(&self) {
        for results in &self.results {
            let mut results = results.lock();
            if results.is_old() {
                results.send(&self.reporter);
            }
        }
    }

    /// Module of the text `ptx`, from the cache or newly loaded.
    fn module(&self, ptx: &str) -> Result<Arc<D::Module>, Failed> {
        self.modules.get_or_translate(ptx, |ptx| {
            let module = Arc::new(self.device.load(ptx)?);
            let bytes = ptx.len() as u64 + self.device.module_bytes(&module);
            Ok((module, bytes))
        })
    }
}

/// Runs a lane. Returns only if the device has no stream for it.
pub(crate) fn run<D: Device>(shared: &Shared<D>, lane: usize) {
    let mut stream = match shared.device.stream() {
        Ok(stream) => stream,
        Err(error) => {
            eprintln!("failed to create the stream of lane {lane}: {error}");
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
        let (assignment, task) = shared.queue.assign();
        let frame = match task {
            Task::Prepare(encoded, code) => {
                shared.status_page.begin(lane, Activity::Preparing { run: assignment.run });
                let prepared = state.prepare(&mut stream, &encoded, code);
                if let Err(failed) = &prepared
                    && failed.poisoned
                {
                    state.give_up();
                }
                let failures = shared.queue.prepared(assignment, prepared);
                shared.status_page.end(lane);
                shared.reporter.send_all(failures);
                None
            }
            Task::Run(prepared, batch, frame) => state.work(&mut stream, assignment, &prepared, batch, frame),
        };
        shared.results[lane].lock().send(&shared.reporter);
        shared.reporter.send_all(shared.queue.leave(assignment, frame));
    }
}

struct Lane<'a, D: Device> {
    shared: &'a Shared<D>,
    lane: usize,
    /// Output buffer of one chunk.
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

    /// Runs batches until the lane must leave the run. Returns the frame for reuse, or `None` if no frame could be allocated.
    fn work(
        &mut self,
        stream: &mut D::Stream,
        assignment: Assignment,
        prepared: &Arc<Prepared<D>>,
        mut batch: AttemptRange,
        frame: Option<Frame<D>>,
    ) -> Option<Frame<D>> {
        let shared = self.shared;
        let timeout = prepared.code.timeout;
        let mut frame = match frame.map_or_else(|| prepared.frame(&shared.device), Ok) {
            Ok(frame) => frame,
            Err(failed) => {
                if failed.poisoned {
                    self.give_up();
                }
                let mut results = shared.results[self.lane].lock();
                for index in batch.indices() {
                    results.failed(assignment.run, index, batch.attempt, failed.clone());
                }
                return None;
            }
        };
        shared.watch.register(timeout);
        loop {
            let began = Instant::now();
            for index in batch.indices() {
                if self.chunk(stream, assignment.run, prepared, &mut frame, index, batch.attempt, timeout) {
                    self.return_unstarted(assignment.run, AttemptRange::new(index + 1..batch.indices().end, batch.attempt));
                    break;
                }
            }
            let took = began.elapsed();
            if took >= REPORT_AGE {
                shared.results[self.lane].lock().send(&shared.reporter);
            }
            match shared.queue.next_batch(assignment, batch.count, took) {
                Some(next) => batch = next,
                None => break,
            }
        }
        shared.watch.unregister();
        Some(frame)
    }

    /// Returns the chunks of a batch that have not started to the supervisor.
    fn return_unstarted(&self, run: u64, chunks: AttemptRange) {
        if chunks.count > 0 {
            let ranges = vec![ChunkRange::new("", chunks)];
            self.shared.reporter.send_all([Kind::Returned(Returned { run, ranges })]);
        }
    }

    /// Runs one chunk. Returns whether its slice was revoked during the run.
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
        shared.status_page.begin(self.lane, Activity::Running { run, index });
        shared.watch.begin(self.lane, run, timeout, &self.cancel);
        let outcome = prepared.run(&shared.device, stream, frame, index, &self.cancel, &mut self.outputs);
        let revoked = shared.watch.end(self.lane);
        if revoked.is_some() {
            self.cancel = Cancel::new();
        }
        let mut results = shared.results[self.lane].lock();
        match outcome {
            Ok(()) => results.succeeded(run, index, attempt, &mut self.outputs),
            Err(failed) if failed.poisoned => {
                // The chunk is known to have caused the poisoning only if no other chunk was running.
                let first = !shared.poisoned.swap(true, Ordering::SeqCst);
                if first && shared.status_page.slots().count() == 1 {
                    results.failed(run, index, attempt, failed);
                    shared.status_page.end(self.lane);
                }
                results.send(&shared.reporter);
                self.give_up();
            }
            Err(failed) if failed.code == FailureCode::ChunkTimeout => {
                self.cancel = Cancel::new();
                let failed = match revoked {
                    Some(code) => Failed::new(code, "its slice was revoked while it ran"),
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
        shared.status_page.end(self.lane);
        revoked.is_some()
    }

    /// Ends the process after a context was poisoned. Leaves the lane's slot on the status page unchanged for the supervisor to read.
    fn give_up(&self) -> ! {
        self.shared.status_page.poison();
        std::thread::sleep(POISONED_LANES);
        self.shared.reporter.end_process()
    }
}
