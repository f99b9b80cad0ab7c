//! The primary context of the device.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::boundary::{Handle, Out};
use crate::context::{Context, check_flags};
use crate::driver::{self, Driver};
use crate::status::Status;

fn of(device: c_int) -> Result<&'static Driver, Status> {
    let driver = driver::get()?;
    driver.check_device(device)?;
    Ok(driver)
}

fn release(device: c_int) -> Result<(), Status> {
    let driver = of(device)?;
    let removed = driver.primary.lock().release(driver)?;
    destroy(driver, removed)
}

fn reset(device: c_int) -> Result<(), Status> {
    let driver = of(device)?;
    let removed = driver.primary.lock().reset(driver)?;
    destroy(driver, removed)
}

/// Destroys a context, with the primary one unlocked: its work may take any time.
fn destroy(driver: &Driver, removed: Option<Arc<Context>>) -> Result<(), Status> {
    if let Some(context) = removed {
        driver.destroy(&context);
    }
    Ok(())
}

fn set_flags(device: c_int, flags: c_uint) -> Result<(), Status> {
    let driver = of(device)?;
    check_flags(flags)?;
    driver.primary.lock().flags = flags;
    Ok(())
}

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        context.require()?;
        let driver = of(device)?;
        let handle = driver.primary.lock().retain(driver)?;
        context.set(handle)
    }

    fn cuDevicePrimaryCtxRelease(device: c_int) {
        release(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        release(device)
    }

    fn cuDevicePrimaryCtxReset(device: c_int) {
        reset(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        reset(device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: c_uint) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, is_active: Out<c_int>) {
        let primary = of(device)?.primary.lock();
        flags.set(primary.flags)?;
        is_active.set(c_int::from(primary.is_active()))
    }
}
