//! The boundary to C: arguments as C passes them, and calls that never unwind.
//!
//! The types here hold what a caller passed. Their methods are safe to call because the exported functions, which alone make them, are
//! `unsafe`: the caller promises that a pointer is null or points to as much as the CUDA driver API says.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log;
use crate::status::Status;

/// Whether this process is the child of a process that had initialised the library: the queues' threads exist in the parent only.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// Runs when the process is forked, in the child.
pub(crate) extern "C" fn after_fork_in_child() {
    IS_FORKED_CHILD.store(true, Ordering::Relaxed);
}

/// Refuses a forked child. Whatever takes a lock calls this first: another thread may have held it when the process was forked.
pub(crate) fn check_process() -> Result<(), Status> {
    if IS_FORKED_CHILD.load(Ordering::Relaxed) {
        return Err(Status::NOT_INITIALIZED);
    }
    Ok(())
}

/// Runs an exported function.
pub(crate) fn call(function: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            log::line("a call panicked; this is an error of Sahasra");
            Status::UNKNOWN
        }
    }
}

/// Declares exported functions. Each body is a block that ends with `Result<(), Status>`.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $crate::status::Status {
            $crate::boundary::call(move || $body)
        }
    )*};
}
pub(crate) use exports;

/// Handle of an object: a number in the place of C's pointer. 0 is null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) u64);

impl Handle {
    pub(crate) const NULL: Self = Self(0);
}

/// Pointer to which a result is written; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Pointer to where a caller expects a result.
    pub(crate) fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Refuses null. Called before anything is made that would be lost without a place for its handle.
    pub(crate) fn require(self) -> Result<(), Status> {
        if self.0.is_null() { Err(Status::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes a result; refuses null.
    pub(crate) fn set(self, value: T) -> Result<(), Status> {
        self.require()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes a result unless the pointer is null.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function promises a valid pointer, which need not be aligned for `T`.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes a result at an index of an array.
    pub(crate) fn set_at(self, index: usize, value: T) -> Result<(), Status> {
        self.require()?;
        self.element(index).set(value)
    }

    /// Reads the value there.
    pub(crate) fn get(self) -> Result<T, Status>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The place of an element of an array.
    pub(crate) fn element(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// Address as a number.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// The same place as another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Pointer from which an argument is read; may be null.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    pub(crate) fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Address as a number.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// Reads the argument; refuses null.
    pub(crate) fn get(self) -> Result<T, Status> {
        self.at(0)
    }

    /// Reads the argument at an index of an array; refuses null.
    pub(crate) fn at(self, index: usize) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises an array that has the index; it need not be aligned for `T`.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Copies the first elements; refuses null unless there are none.
    pub(crate) fn array(self, length: usize) -> Result<Vec<T>, Status> {
        (0..length).map(|index| self.at(index)).collect()
    }
}

/// Text that ends with a zero byte; may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Copies the text; refuses null and what is not UTF-8.
    pub(crate) fn get(self) -> Result<String, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Status::INVALID_VALUE)
    }
}

/// Memory of the host that a caller passed: its address, as no Rust reference to it may exist for longer than a copy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct HostPointer(pub(crate) *mut c_void);

// SAFETY: an address, which the caller may use from every thread.
unsafe impl Send for HostPointer {}

impl HostPointer {
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn of_address(address: usize) -> Self {
        Self(address as *mut c_void)
    }

    /// Runs a function on these bytes.
    pub(crate) fn with_bytes<T>(self, length: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
        if length == 0 {
            return Ok(read(&[]));
        }
        if self.0.is_null() || length > isize::MAX as usize {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` readable bytes, which nobody writes meanwhile.
        Ok(read(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), length) }))
    }

    /// Runs a function on these bytes, which it may overwrite.
    pub(crate) fn with_bytes_mut<T>(self, length: usize, write: impl FnOnce(&mut [u8]) -> T) -> Result<T, Status> {
        if length == 0 {
            return Ok(write(&mut []));
        }
        if self.0.is_null() || length > isize::MAX as usize {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` writable bytes, which nobody else accesses meanwhile.
        Ok(write(unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>(), length) }))
    }

    /// Copies bytes within the host's memory; the ranges may overlap.
    pub(crate) fn copy_to(self, target: Self, length: usize) -> Result<(), Status> {
        if length == 0 {
            return Ok(());
        }
        if self.0.is_null() || target.0.is_null() || length > isize::MAX as usize {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` bytes at both.
        unsafe { std::ptr::copy(self.0.cast::<u8>(), target.0.cast::<u8>(), length) };
        Ok(())
    }
}
