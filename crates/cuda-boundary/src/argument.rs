//! Arguments as C passes them.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::ResultCode;

/// Handle of an object: a number in the place of C's pointer. 0 is null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Handle(pub u64);

impl Handle {
    /// The handle of nothing.
    pub const NULL: Self = Self(0);
}

/// Pointer to which a result is written; may be null.
#[repr(transparent)]
pub struct Out<T, S>(*mut T, PhantomData<fn() -> S>);

impl<T, S> Clone for Out<T, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, S> Copy for Out<T, S> {}

impl<T, S: ResultCode> Out<T, S> {
    /// Pointer to where a caller expects a result.
    pub fn new(pointer: *mut T) -> Self {
        Self(pointer, PhantomData)
    }

    /// Pointer to nowhere, for a result that is not wanted.
    pub fn null() -> Self {
        Self::new(std::ptr::null_mut())
    }

    /// Refuses null. Called before anything is made that would be lost without a place for its handle.
    pub fn require(self) -> Result<(), S> {
        if self.0.is_null() { Err(S::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes a result; refuses null.
    pub fn set(self, value: T) -> Result<(), S> {
        self.require()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes a result unless the pointer is null.
    pub fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller of the exported function promises a valid pointer, which need not be aligned for `T`.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes a result at an index of an array.
    pub fn set_at(self, index: usize, value: T) -> Result<(), S> {
        self.require()?;
        self.element(index).set(value)
    }

    /// Reads the value there.
    ///
    /// # Errors
    /// For null.
    pub fn get(self) -> Result<T, S>
    where
        T: Copy,
    {
        In::new(self.0.cast_const()).get()
    }

    /// The place of an element of an array.
    pub fn element(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index), PhantomData)
    }

    /// Writes an element of an array unless the pointer is null.
    pub fn element_if_wanted(self, index: usize, value: T) {
        if !self.0.is_null() {
            self.element(index).set_if_wanted(value);
        }
    }

    /// Address as a number.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// The same place as another type.
    pub fn cast<U>(self) -> Out<U, S> {
        Out(self.0.cast(), PhantomData)
    }
}

/// Pointer from which an argument is read; may be null.
#[repr(transparent)]
pub struct In<T, S>(*const T, PhantomData<fn() -> S>);

impl<T, S> Clone for In<T, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, S> Copy for In<T, S> {}

impl<T: Copy, S: ResultCode> In<T, S> {
    /// Pointer to an argument.
    pub fn new(pointer: *const T) -> Self {
        Self(pointer, PhantomData)
    }

    /// Whether there is no argument.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Address as a number.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// Reads the argument; refuses null.
    pub fn get(self) -> Result<T, S> {
        self.at(0)
    }

    /// Reads the argument at an index of an array; refuses null.
    pub fn at(self, index: usize) -> Result<T, S> {
        if self.0.is_null() {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises an array that has the index; it need not be aligned for `T`.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Copies the first elements; refuses null unless there are none.
    pub fn array(self, length: usize) -> Result<Vec<T>, S> {
        (0..length).map(|index| self.at(index)).collect()
    }
}

/// Text that ends with a zero byte; may be null.
#[repr(transparent)]
pub struct Text<S>(*const c_char, PhantomData<fn() -> S>);

impl<S> Clone for Text<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Text<S> {}

impl<S: ResultCode> Text<S> {
    /// Pointer to a text.
    pub fn new(pointer: *const c_char) -> Self {
        Self(pointer, PhantomData)
    }

    /// Copies the path of a file, in whatever encoding; refuses null.
    pub fn path(self) -> Result<PathBuf, S> {
        if self.0.is_null() {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises a text that ends with a zero byte.
        let path = unsafe { CStr::from_ptr(self.0) };
        Ok(OsStr::from_bytes(path.to_bytes()).into())
    }

    /// Copies the text; refuses null and what is not UTF-8.
    pub fn get(self) -> Result<String, S> {
        if self.0.is_null() {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises a text that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| S::INVALID_VALUE)
    }
}

/// Memory of the host that a caller passed: its address, as no Rust reference to it may exist for longer than a copy takes.
#[repr(transparent)]
pub struct HostPointer<S>(*mut c_void, PhantomData<fn() -> S>);

impl<S> Clone for HostPointer<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for HostPointer<S> {}

impl<S> PartialEq for HostPointer<S> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<S> Eq for HostPointer<S> {}

impl<S> fmt::Debug for HostPointer<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

// SAFETY: an address, which the caller may use from every thread.
unsafe impl<S> Send for HostPointer<S> {}

// SAFETY: as above.
unsafe impl<S> Sync for HostPointer<S> {}

impl<S: ResultCode> HostPointer<S> {
    /// Memory at a pointer.
    pub fn new(pointer: *mut c_void) -> Self {
        Self(pointer, PhantomData)
    }

    /// The pointer as C has it.
    pub fn pointer(self) -> *mut c_void {
        self.0
    }

    /// Whether there is no memory.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Address as a number.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// Memory at an address.
    pub fn of_address(address: usize) -> Self {
        Self::new(address as *mut c_void)
    }

    /// Runs a function on these bytes.
    pub fn with_bytes<T>(self, length: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T, S> {
        if length == 0 {
            return Ok(read(&[]));
        }
        if self.0.is_null() || length > isize::MAX as usize {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` readable bytes, and that no thread writes them meanwhile.
        Ok(read(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), length) }))
    }

    /// Runs a function on these bytes, which it may overwrite.
    pub fn with_bytes_mut<T>(self, length: usize, write: impl FnOnce(&mut [u8]) -> T) -> Result<T, S> {
        if length == 0 {
            return Ok(write(&mut []));
        }
        if self.0.is_null() || length > isize::MAX as usize {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` writable bytes, and that no other thread accesses them meanwhile.
        Ok(write(unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>(), length) }))
    }

    /// Copies bytes within the host's memory; the ranges may overlap.
    pub fn copy_to(self, target: Self, length: usize) -> Result<(), S> {
        if length == 0 {
            return Ok(());
        }
        if self.0.is_null() || target.0.is_null() || length > isize::MAX as usize {
            return Err(S::INVALID_VALUE);
        }
        // SAFETY: the caller of the exported function promises `length` bytes at both.
        unsafe { std::ptr::copy(self.0.cast::<u8>(), target.0.cast::<u8>(), length) };
        Ok(())
    }
}
