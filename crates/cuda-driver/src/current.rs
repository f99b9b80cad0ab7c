//! The stack of contexts that each thread has, the current one on top.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use sahasra_cuda_boundary::process::{self, AtThreadEnd};

use crate::boundary::Handle;
use crate::context::Context;
use crate::driver;
use crate::status::Status;

/// Handles of contexts and the contexts, the current one last.
type Stack = Vec<(Handle, Weak<Context>)>;

thread_local! {
    /// Current contexts of the thread, the current one last.
    static STACK: ManuallyDrop<RefCell<Stack>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static END: AtThreadEnd = const { AtThreadEnd(clear) };
}

fn clear() {
    STACK.with(|stack| stack.take());
}

/// Frees the stack when the thread ends.
fn notice_end() {
    // Fails while the thread ends.
    let _ = END.try_with(|_| ());
}

/// Runs a function on the thread's stack.
fn with_stack<T>(function: impl FnOnce(&mut Stack) -> T) -> Result<T, Status> {
    process::check::<Status>()?;
    Ok(STACK.with(|stack| function(&mut stack.borrow_mut())))
}

/// Handle of the thread's current context, or null.
pub(crate) fn handle() -> Result<Handle, Status> {
    with_stack(|stack| stack.last().map_or(Handle::NULL, |(handle, _)| *handle))
}

/// The thread's current context.
pub(crate) fn context() -> Result<Arc<Context>, Status> {
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
pub(crate) fn set(handle: Handle) -> Result<(), Status> {
    let entry = entry(handle)?;
    notice_end();
    with_stack(|stack| {
        stack.pop();
        stack.extend(entry);
    })
}

/// Makes a context current above the thread's others.
pub(crate) fn push(handle: Handle) -> Result<(), Status> {
    let entry = entry(handle)?.ok_or(Status::INVALID_CONTEXT)?;
    notice_end();
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
