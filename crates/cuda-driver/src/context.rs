//! Contexts: each is a queue of the device, with all that was made in it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use sahasra_cuda_boundary::log;
use sahasra_cuda_device::{Device, Extent, Failure, Operation, Queue, Region, Ticket};

use crate::boundary::Handle;
use crate::callbacks::Callbacks;
use crate::status::Status;
use crate::table::new_handle;

/// Size of the heap of kernels in bytes (CUDA's default).
const HEAP_BYTES: u64 = 8 << 20;

/// What to do about a failure, for the log, if it is known.
type Remedy = fn(&Failure) -> Option<&'static str>;

/// `CU_CTX_SCHED_MASK`: how the host waits, of which there are three ways besides the default.
const SCHEDULE: u32 = 7;
/// `CU_CTX_MAP_HOST`, `CU_CTX_LMEM_RESIZE_TO_MAX`, `CU_CTX_COREDUMP_ENABLE`, `CU_CTX_USER_COREDUMP_ENABLE` and `CU_CTX_SYNC_MEMOPS`, which are
/// accepted and change nothing.
const OTHER_FLAGS: u32 = 8 | 16 | 32 | 64 | 128;

/// Refuses flags of a context (`CUctx_flags`) that do not exist, and several ways to wait.
pub(crate) fn check_flags(flags: u32) -> Result<(), Status> {
    let is_known = flags & !(SCHEDULE | OTHER_FLAGS) == 0;
    match flags & SCHEDULE {
        0 | 1 | 2 | 4 if is_known => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// A context: a queue of the device, with all that was made in it.
pub(crate) struct Context {
    pub(crate) handle: Handle,
    /// Number that no other context has or had.
    pub(crate) id: u64,
    pub(crate) is_primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) stack_bytes: AtomicU64,
    pub(crate) heap_bytes: AtomicU64,
    pub(crate) cache_preference: AtomicU32,
    pub(crate) bank_size: AtomicU32,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) callbacks: Callbacks,
    /// Functions that end objects of the program, for which no call waits.
    pub(crate) destructors: Callbacks,
    /// The last operation of the legacy default stream, after which blocking streams go on.
    pub(crate) legacy_last: AtomicU64,
    /// The last function of a default stream, after which all streams go on.
    pub(crate) default_function: AtomicU64,
    /// Whether its memory is gone and none may be added. Changes under the lock of the table of ranges.
    pub(crate) is_destroyed: AtomicBool,
    has_logged_failure: AtomicBool,
    remedy: Remedy,
    /// Number of sequences of operations that its queue has stored.
    sequences: AtomicUsize,
}

impl Context {
    /// Makes a context under a handle.
    pub(crate) fn open(device: &dyn Device, handle: Handle, is_primary: bool, flags: u32, remedy: Remedy) -> Result<Arc<Self>, Status> {
        let queue = device.open().map_err(|failure| {
            log::line(&failure.message);
            Status::from(&failure)
        })?;
        Ok(Arc::new(Self {
            handle,
            id: new_handle().0,
            is_primary,
            flags: AtomicU32::new(flags),
            stack_bytes: AtomicU64::new(device.properties().stack_bytes),
            heap_bytes: AtomicU64::new(HEAP_BYTES),
            cache_preference: AtomicU32::new(0),
            bank_size: AtomicU32::new(0),
            callbacks: Callbacks::new(Arc::clone(&queue)),
            destructors: Callbacks::new(Arc::clone(&queue)),
            legacy_last: AtomicU64::new(0),
            default_function: AtomicU64::new(0),
            queue,
            is_destroyed: AtomicBool::new(false),
            has_logged_failure: AtomicBool::new(false),
            remedy,
            sequences: AtomicUsize::new(0),
        }))
    }

    /// Refuses everything after a fault, as CUDA does.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.queue.failure() {
            None => Ok(()),
            Some(failure) => Err(self.failed(&failure)),
        }
    }

    /// Code of a failure, which is logged once.
    pub(crate) fn failed(&self, failure: &Failure) -> Status {
        if self.is_destroyed.load(Ordering::Relaxed) {
            return Status::CONTEXT_IS_DESTROYED;
        }
        if !failure.is_sticky() || !self.has_logged_failure.swap(true, Ordering::Relaxed) {
            log::line(&failure.message);
            if let Some(remedy) = (self.remedy)(failure) {
                log::line(remedy);
            }
        }
        Status::from(failure)
    }

    /// Counts a sequence of operations. Returns false if there are `most`.
    pub(crate) fn add_sequence(&self, most: usize) -> bool {
        let added = self
            .sequences
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then_some(count + 1));
        added.is_ok()
    }

    /// Counts a sequence as freed.
    pub(crate) fn remove_sequence(&self) {
        self.sequences.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn submit(&self, operation: Operation) -> Result<Ticket, Status> {
        self.check()?;
        Ok(self.queue.submit(operation))
    }

    /// Waits for a ticket, and writes what kernels printed to the program's standard output.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Status> {
        let outcome = self.queue.wait(ticket);
        self.print();
        let met = || self.callbacks.take_failure().or_else(|| self.destructors.take_failure());
        let outcome = outcome.and_then(|()| met().map_or(Ok(()), Err));
        outcome.map_err(|failure| self.failed(&failure))
    }

    /// Waits for everything that was submitted.
    pub(crate) fn synchronise(&self) -> Result<(), Status> {
        self.callbacks.wait(self.callbacks.last())?;
        self.wait(self.queue.last())
    }

    /// Reads rows, after everything that was submitted.
    pub(crate) fn read(&self, from: Region, extent: Extent, into: &mut [u8]) -> Result<(), Status> {
        let outcome = self.queue.read(from, extent, into);
        self.print();
        outcome.map_err(|failure| self.failed(&failure))
    }

    fn print(&self) {
        let printed = self.queue.printed();
        if printed.is_empty() {
            return;
        }
        // The program's own buffered text is older than that of its kernels. Not all streams: one on which another thread waits for
        // input is locked.
        // SAFETY: the C library's standard output, which it makes before any code runs.
        unsafe { libc::fflush(stdout) };
        // A closed standard output is no reason to fail.
        let mut output = std::io::stdout().lock();
        let _ = output.write_all(&printed).and_then(|()| output.flush());
    }
}

unsafe extern "C" {
    /// Standard output of the C library.
    static stdout: *mut libc::FILE;
}
