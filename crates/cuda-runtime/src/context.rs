//! The current context: that of the program's own, or the primary context of the thread's device.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::boundary::{Handle, Out};
use crate::driver::{self, Driver};
use crate::{Error, registry, thread};

/// Primary contexts that the runtime uses, by device.
static PRIMARY: Mutex<BTreeMap<i32, Handle>> = Mutex::new(BTreeMap::new());

/// Returns the primary context of a device, which is made at the first use.
pub(crate) fn primary(driver: &Driver, device: i32) -> Result<Handle, Error> {
    let mut contexts = PRIMARY.lock();
    if let Some(context) = contexts.get(&device) {
        return Ok(*context);
    }
    let mut context = Handle::NULL;
    driver.cuDevicePrimaryCtxRetain(Out::new(&raw mut context), device)?;
    contexts.insert(device, context);
    Ok(context)
}

/// Returns the driver, with a current context in this thread.
pub fn ready() -> Result<&'static Driver, Error> {
    let driver = driver::get()?;
    if current(driver)? == Handle::NULL {
        driver.cuCtxSetCurrent(primary(driver, thread::device())?)?;
    }
    Ok(driver)
}

fn current(driver: &Driver) -> Result<Handle, Error> {
    let mut context = Handle::NULL;
    driver.cuCtxGetCurrent(Out::new(&raw mut context))?;
    Ok(context)
}

/// The driver, if the device exists.
pub fn of_device(device: i32) -> Result<&'static Driver, Error> {
    let driver = driver::get()?;
    let mut count = 0;
    driver.cuDeviceGetCount(Out::new(&raw mut count))?;
    if !(0..count).contains(&device) {
        return Err(Error::INVALID_DEVICE);
    }
    Ok(driver)
}

/// The thread's device: that of its current context, or the one that it has chosen.
pub(crate) fn device() -> Result<i32, Error> {
    let driver = driver::get()?;
    if current(driver)? == Handle::NULL {
        return Ok(thread::device());
    }
    let mut device = 0;
    driver.cuCtxGetDevice(Out::new(&raw mut device))?;
    Ok(device)
}

/// Chooses a device for the thread, and makes its primary context current.
pub(crate) fn set_device(device: i32) -> Result<(), Error> {
    let driver = of_device(device)?;
    thread::set_device(device);
    driver.cuCtxSetCurrent(primary(driver, device)?)
}

/// Destroys everything in the primary context of the thread's device.
pub fn reset() -> Result<(), Error> {
    let device = device()?;
    let driver = driver::get()?;
    let result = driver.cuDevicePrimaryCtxReset_v2(device);
    // The context may be another object now; modules of the old one are gone.
    PRIMARY.lock().remove(&device);
    registry::forget_modules();
    thread::reset();
    driver.cuCtxSetCurrent(Handle::NULL)?;
    result
}
