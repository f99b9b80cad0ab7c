//! Contexts, and the stack of contexts that each thread has.

use std::cell::RefCell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sahasra_cuda_device::{Extent, Failure, Operation, Queue, Region, Ticket};

use crate::boundary::{self, Handle};
use crate::driver::{self, Driver};
use crate::log;
use crate::status::Status;
use crate::table::new_handle;

/// Size of a thread's call stack in bytes, unless the program sets another.
const STACK_BYTES: u64 = 8192;
/// Bytes that kernels may print between two waiting calls (CUDA's default).
const PRINT_BYTES: u64 = 1 << 20;
/// Size of the heap of kernels in bytes (CUDA's default).
const HEAP_BYTES: u64 = 8 << 20;

/// A context: a queue of the device, with all that was made in it.
pub(crate) struct Context {
    pub(crate) handle: Handle,
    /// Number that no other context has or had.
    pub(crate) id: u64,
    pub(crate) is_primary: bool,
    pub(crate) flags: AtomicU32,
    pub(crate) stack_bytes: AtomicU64,
    pub(crate) print_bytes: AtomicU64,
    pub(crate) heap_bytes: AtomicU64,
    pub(crate) cache_preference: AtomicU32,
    pub(crate) bank_size: AtomicU32,
    pub(crate) queue: Arc<dyn Queue>,
    /// Whether its memory is gone and none may be added. Changes under the lock of the table of ranges.
    pub(crate) is_destroyed: AtomicBool,
    has_logged_failure: AtomicBool,
}

impl Context {
    fn open(driver: &Driver, handle: Handle, is_primary: bool, flags: u32) -> Result<Arc<Self>, Status> {
        let queue = driver.device.open().map_err(|failure| {
            log::line(&failure.message);
            Status::from(&failure)
        })?;
        Ok(Arc::new(Self {
            handle,
            id: new_handle().0,
            is_primary,
            flags: AtomicU32::new(flags),
            stack_bytes: AtomicU64::new(STACK_BYTES),
            print_bytes: AtomicU64::new(PRINT_BYTES),
            heap_bytes: AtomicU64::new(HEAP_BYTES),
            cache_preference: AtomicU32::new(0),
            bank_size: AtomicU32::new(0),
            queue,
            is_destroyed: AtomicBool::new(false),
            has_logged_failure: AtomicBool::new(false),
        }))
    }

    /// Makes a context of a program's own.
    pub(crate) fn create(driver: &Driver, flags: u32) -> Result<Arc<Self>, Status> {
        let context = Self::open(driver, new_handle(), false, flags)?;
        driver.contexts.insert(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Destroys everything in a context that was removed from the table, after its work.
    pub(crate) fn destroy(&self, driver: &Driver) {
        // A failure has no meaning any more.
        let _ = self.synchronise();
        let id = self.id;
        driver.functions.retain(|function| function.context_id != id);
        driver.modules.retain(|module| module.context_id != id);
        driver.streams.retain(|stream| stream.context_id != id);
        driver.events.retain(|event| event.context_id != id);
        for (kind, size) in driver.ranges.remove_context(self) {
            driver.discount(kind, size);
        }
        driver
            .host
            .write()
            .retain(|_, range| !(range.is_managed() && range.context_id == id));
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
        if !failure.is_sticky() || !self.has_logged_failure.swap(true, Ordering::Relaxed) {
            log::line(&failure.message);
        }
        Status::from(failure)
    }

    /// Submits an operation.
    pub(crate) fn submit(&self, operation: Operation) -> Result<Ticket, Status> {
        self.check()?;
        Ok(self.queue.submit(operation))
    }

    /// Waits for a ticket, and writes what kernels printed to the program's standard output.
    pub(crate) fn wait(&self, ticket: Ticket) -> Result<(), Status> {
        let outcome = self.queue.wait(ticket);
        self.print();
        outcome.map_err(|failure| self.failed(&failure))
    }

    /// Waits for everything that was submitted.
    pub(crate) fn synchronise(&self) -> Result<(), Status> {
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

/// The primary context of the device.
pub(crate) struct Primary {
    handle: Handle,
    references: u32,
    pub(crate) flags: u32,
}

impl Default for Primary {
    fn default() -> Self {
        Self {
            handle: new_handle(),
            references: 0,
            flags: 0,
        }
    }
}

impl Primary {
    /// Whether the context exists.
    pub(crate) fn is_active(&self) -> bool {
        self.references > 0
    }

    /// Takes a reference, with which the context comes into being.
    pub(crate) fn retain(&mut self, driver: &Driver) -> Result<Handle, Status> {
        if driver.contexts.find(self.handle).is_none() {
            let context = Context::open(driver, self.handle, true, self.flags)?;
            driver.contexts.insert(self.handle, context);
        }
        self.references += 1;
        Ok(self.handle)
    }

    /// Gives a reference back. Without one, the context is removed and returned: the caller destroys it.
    pub(crate) fn release(&mut self, driver: &Driver) -> Result<Option<Arc<Context>>, Status> {
        self.references = self.references.checked_sub(1).ok_or(Status::INVALID_CONTEXT)?;
        match self.references {
            0 => driver.contexts.remove(self.handle).map(Some),
            _ => Ok(None),
        }
    }

    /// Removes the context and returns it: the caller destroys it. If there are references to it, a new one is in its place at once.
    pub(crate) fn reset(&mut self, driver: &Driver) -> Result<Option<Arc<Context>>, Status> {
        if self.references == 0 {
            return Ok(driver.contexts.remove(self.handle).ok());
        }
        let context = Context::open(driver, self.handle, true, self.flags)?;
        Ok(driver.contexts.insert(self.handle, context))
    }
}

unsafe extern "C" {
    /// Standard output of the C library.
    static stdout: *mut libc::FILE;
}

thread_local! {
    /// Current contexts of the thread, the current one last.
    static STACK: RefCell<Vec<(Handle, Weak<Context>)>> = const { RefCell::new(Vec::new()) };
}

/// Runs a function on the thread's stack.
fn with_stack<T>(function: impl FnOnce(&mut Vec<(Handle, Weak<Context>)>) -> T) -> Result<T, Status> {
    boundary::check_process()?;
    // Fails while the thread ends.
    STACK
        .try_with(|stack| function(&mut stack.borrow_mut()))
        .map_err(|_| Status::DEINITIALIZED)
}

/// Handle of the thread's current context, or null.
pub(crate) fn current_handle() -> Result<Handle, Status> {
    with_stack(|stack| stack.last().map_or(Handle::NULL, |(handle, _)| *handle))
}

/// The thread's current context.
pub(crate) fn current() -> Result<Arc<Context>, Status> {
    let found = with_stack(|stack| {
        let (handle, context) = stack.last_mut()?;
        if context.upgrade().is_none_or(|context| context.is_destroyed.load(Ordering::Relaxed))
            && let Some(renewed) = driver::get().ok().and_then(|driver| driver.contexts.find(*handle))
        {
            // The primary context keeps its handle when it is made again.
            *context = Arc::downgrade(&renewed);
        }
        Some(context.upgrade())
    })?;
    match found {
        None => Err(Status::INVALID_CONTEXT),
        Some(None) => Err(Status::CONTEXT_IS_DESTROYED),
        Some(Some(context)) => Ok(context),
    }
}

/// Replaces the thread's current context; null removes it.
pub(crate) fn set_current(handle: Handle) -> Result<(), Status> {
    let entry = entry(handle)?;
    with_stack(|stack| {
        stack.pop();
        stack.extend(entry);
    })
}

/// Makes a context current above the thread's others.
pub(crate) fn push(handle: Handle) -> Result<(), Status> {
    let entry = entry(handle)?.ok_or(Status::INVALID_CONTEXT)?;
    with_stack(|stack| stack.push(entry))
}

/// Removes the thread's current context.
pub(crate) fn pop() -> Result<Handle, Status> {
    with_stack(|stack| stack.pop().map(|(handle, _)| handle))?.ok_or(Status::INVALID_CONTEXT)
}

fn entry(handle: Handle) -> Result<Option<(Handle, Weak<Context>)>, Status> {
    if handle == Handle::NULL {
        return Ok(None);
    }
    let context = driver::get()?.contexts.find(handle).ok_or(Status::INVALID_CONTEXT)?;
    Ok(Some((handle, Arc::downgrade(&context))))
}
