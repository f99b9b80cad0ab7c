//! Contexts of a program's own, and the current context of each thread.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::Operation;

use crate::boundary::{Handle, In, Out};
use crate::context::{Context, check_flags};
use crate::current;
use crate::driver::{self, VERSION};
use crate::status::Status;

/// Most bytes that the heap of kernels can have: beside the device's memory.
const MAX_HEAP_BYTES: u64 = 64 << 20;
/// Bytes that kernels may print between two waiting calls (CUDA's default).
const PRINT_BYTES: usize = 1 << 20;
/// `CU_FUNC_CACHE_PREFER_EQUAL` and `CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE`, the last of their kinds.
const CACHE_EQUAL: c_uint = 3;
const BANKS_OF_EIGHT: c_uint = 2;
/// Most bytes of a thread's call stack: the local memory of a thread.
const MAX_STACK_BYTES: u64 = 512 << 10;

/// `CUctxCreateParams`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ContextParameters {
    affinities: In<u64>,
    affinity_count: c_int,
    graphics: In<u64>,
}

impl ContextParameters {
    fn asks_for_something(&self) -> bool {
        self.affinity_count != 0 || !self.graphics.is_null()
    }
}

fn create(out: Out<Handle>, flags: c_uint, device: c_int) -> Result<(), Status> {
    out.require()?;
    let driver = driver::get()?;
    driver.check_device(device)?;
    check_flags(flags)?;
    let context = driver.create_context(flags)?;
    current::push(context.handle)?;
    out.set(context.handle)
}

fn destroy(handle: Handle) -> Result<(), Status> {
    let driver = driver::get()?;
    let context = driver.contexts.find(handle).ok_or(Status::INVALID_CONTEXT)?;
    if context.is_primary {
        return Err(Status::INVALID_CONTEXT);
    }
    drop(context);
    let removed = driver.contexts.remove(handle).map_err(|_| Status::INVALID_CONTEXT)?;
    driver.destroy(&removed);
    if current::handle()? == handle {
        current::pop()?;
    }
    Ok(())
}

fn pop(out: Out<Handle>) -> Result<(), Status> {
    driver::get()?;
    out.set_if_wanted(current::pop()?);
    Ok(())
}

/// The context of a handle, or the current one for null.
fn of(handle: Handle) -> Result<Arc<Context>, Status> {
    let driver = driver::get()?;
    match handle {
        Handle::NULL => current::context(),
        _ => driver.contexts.find(handle).ok_or(Status::INVALID_CONTEXT),
    }
}

fn current() -> Result<Arc<Context>, Status> {
    of(Handle::NULL)
}

fn synchronise(handle: Handle) -> Result<(), Status> {
    let context = of(handle)?;
    let captures = &driver::get()?.captures;
    captures.check_context(context.id)?;
    captures.check_call()?;
    context.synchronise()
}

/// Refuses a cache preference that does not exist.
pub(super) fn check_cache(preference: c_uint) -> Result<(), Status> {
    if preference > CACHE_EQUAL {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// Refuses a size of the banks of shared memory that does not exist.
pub(super) fn check_banks(size: c_uint) -> Result<(), Status> {
    if size > BANKS_OF_EIGHT {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

exports! {
    fn cuCtxCreate(out: Out<Handle>, flags: c_uint, device: c_int) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v2(out: Out<Handle>, flags: c_uint, device: c_int) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(out: Out<Handle>, _affinities: In<u64>, count: c_int, flags: c_uint, device: c_int) {
        if count != 0 {
            return Err(Status::UNSUPPORTED_EXEC_AFFINITY);
        }
        create(out, flags, device)
    }

    fn cuCtxCreate_v4(out: Out<Handle>, parameters: In<ContextParameters>, flags: c_uint, device: c_int) {
        if !parameters.is_null() && parameters.get()?.asks_for_something() {
            return refuse("cuCtxCreate with affinities or graphics");
        }
        create(out, flags, device)
    }

    fn cuCtxDestroy(handle: Handle) {
        destroy(handle)
    }

    fn cuCtxDestroy_v2(handle: Handle) {
        destroy(handle)
    }

    fn cuCtxPushCurrent(handle: Handle) {
        current::push(handle)
    }

    fn cuCtxPushCurrent_v2(handle: Handle) {
        current::push(handle)
    }

    fn cuCtxPopCurrent(out: Out<Handle>) {
        pop(out)
    }

    fn cuCtxPopCurrent_v2(out: Out<Handle>) {
        pop(out)
    }

    fn cuCtxSetCurrent(handle: Handle) {
        current::set(handle)
    }

    fn cuCtxGetCurrent(out: Out<Handle>) {
        driver::get()?;
        out.set(current::handle()?)
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        current()?;
        device.set(0)
    }

    fn cuCtxGetDevice_v2(device: Out<c_int>, handle: Handle) {
        of(handle)?;
        device.set(0)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        flags.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let context = current()?;
        check_flags(flags)?;
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(handle: Handle, id: Out<u64>) {
        id.set(of(handle)?.id)
    }

    fn cuCtxGetApiVersion(handle: Handle, version: Out<c_uint>) {
        of(handle)?;
        version.set(VERSION as c_uint)
    }

    fn cuCtxSynchronize() {
        synchronise(Handle::NULL)
    }

    fn cuCtxSynchronize_v2(handle: Handle) {
        synchronise(handle)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) {
        let context = current()?;
        value.set(match limit {
            0 => context.stack_bytes.load(Ordering::Relaxed) as usize,
            1 => PRINT_BYTES,
            2 => context.heap_bytes.load(Ordering::Relaxed) as usize,
            3 | 4 | 6 => 0,
            5 => 64,
            _ => return Err(Status::UNSUPPORTED_LIMIT),
        })
    }

    /// The limit of what kernels print stays 1 MiB, which [`cuCtxGetLimit`] says.
    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        let context = current()?;
        let value = value as u64;
        match limit {
            0 if value <= MAX_STACK_BYTES => context.stack_bytes.store(value, Ordering::Relaxed),
            0 => return Err(Status::INVALID_VALUE),
            2 if value <= MAX_HEAP_BYTES => {
                context.submit(Operation::LimitHeap(value))?;
                context.heap_bytes.store(value, Ordering::Relaxed);
            }
            2 => return Err(Status::OUT_OF_MEMORY),
            1 | 3..=6 => {}
            _ => return Err(Status::UNSUPPORTED_LIMIT),
        }
        Ok(())
    }

    fn cuCtxGetCacheConfig(preference: Out<c_uint>) {
        preference.set(current()?.cache_preference.load(Ordering::Relaxed))
    }

    fn cuCtxSetCacheConfig(preference: c_uint) {
        check_cache(preference)?;
        current()?.cache_preference.store(preference, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(size: Out<c_uint>) {
        size.set(current()?.bank_size.load(Ordering::Relaxed))
    }

    fn cuCtxSetSharedMemConfig(size: c_uint) {
        check_banks(size)?;
        current()?.bank_size.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Priorities are accepted and change nothing.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }

    fn cuCtxGetExecAffinity(_affinity: Out<c_void>, _kind: c_uint) {
        current()?;
        Err(Status::UNSUPPORTED_EXEC_AFFINITY)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) {
        of(peer)?;
        Err(Status::PEER_ACCESS_UNSUPPORTED)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        of(peer)?;
        Err(Status::PEER_ACCESS_NOT_ENABLED)
    }
}
