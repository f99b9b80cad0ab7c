//! Memory pools. Their handles and structures are the driver's.

use std::ffi::c_uint;

use crate::boundary::{Handle, Out, Pointer};
use crate::{context, exports};

exports! {
    fn cudaMemPoolCreate(pool: Out<Handle>, properties: Pointer) {
        context::ready()?.cuMemPoolCreate(pool, properties)
    }

    fn cudaMemPoolDestroy(pool: Handle) {
        context::ready()?.cuMemPoolDestroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: Handle, bytes: usize) {
        context::ready()?.cuMemPoolTrimTo(pool, bytes)
    }

    fn cudaMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        context::ready()?.cuMemPoolGetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        context::ready()?.cuMemPoolSetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAccess(pool: Handle, access: Pointer, count: usize) {
        context::ready()?.cuMemPoolSetAccess(pool, access, count)
    }

    fn cudaMemPoolGetAccess(flags: Out<c_uint>, pool: Handle, location: Pointer) {
        context::ready()?.cuMemPoolGetAccess(flags, pool, location)
    }
}
