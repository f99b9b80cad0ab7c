//! Devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::boundary::{Handle, In, Out, Text};
use crate::{Error, context, driver, exports};

exports! {
    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.set(0)?;
        driver::get()?.cuDeviceGetCount(count)
    }

    fn cudaGetDevice(device: Out<c_int>) {
        device.require()?;
        device.set(context::device()?)
    }

    fn cudaSetDevice(device: c_int) {
        context::set_device(device)
    }

    /// The devices are tried by the driver in any case.
    fn cudaSetValidDevices(devices: In<c_int>, count: c_int) {
        let count = usize::try_from(count).map_err(|_| Error::INVALID_VALUE)?;
        for device in devices.array(count)? {
            context::of_device(device)?;
        }
        Ok(())
    }

    /// The first device is as good as any other.
    fn cudaChooseDevice(device: Out<c_int>, properties: In<u8>) {
        properties.get()?;
        context::of_device(0)?;
        device.set(0)
    }

    fn cudaInitDevice(device: c_int, flags: c_uint, has_flags: c_uint) {
        let driver = context::of_device(device)?;
        if has_flags != 0 {
            driver.cuDevicePrimaryCtxSetFlags_v2(device, flags)?;
        }
        context::primary(driver, device).map(|_| ())
    }

    fn cudaSetDeviceFlags(flags: c_uint) {
        driver::get()?.cuDevicePrimaryCtxSetFlags_v2(context::device()?, flags)
    }

    fn cudaGetDeviceFlags(flags: Out<c_uint>) {
        let mut is_active = 0;
        flags.require()?;
        driver::get()?.cuDevicePrimaryCtxGetState(context::device()?, flags, Out::new(&raw mut is_active))
    }

    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        context::of_device(device)?.cuDeviceGetAttribute(value, attribute, device)
    }

    fn cudaDeviceSynchronize() {
        context::ready()?.cuCtxSynchronize()
    }

    fn cudaDeviceReset() {
        context::reset()
    }

    fn cudaDeviceGetLimit(value: Out<usize>, limit: c_uint) {
        context::ready()?.cuCtxGetLimit(value, limit)
    }

    fn cudaDeviceSetLimit(limit: c_uint, value: usize) {
        context::ready()?.cuCtxSetLimit(limit, value)
    }

    fn cudaDeviceGetCacheConfig(preference: Out<c_uint>) {
        context::ready()?.cuCtxGetCacheConfig(preference)
    }

    fn cudaDeviceSetCacheConfig(preference: c_uint) {
        context::ready()?.cuCtxSetCacheConfig(preference)
    }

    fn cudaDeviceGetSharedMemConfig(size: Out<c_uint>) {
        context::ready()?.cuCtxGetSharedMemConfig(size)
    }

    fn cudaDeviceSetSharedMemConfig(size: c_uint) {
        context::ready()?.cuCtxSetSharedMemConfig(size)
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        context::ready()?.cuCtxGetStreamPriorityRange(least, greatest)
    }

    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, text: Text) {
        driver::get()?.cuDeviceGetByPCIBusId(device, text)
    }

    fn cudaDeviceGetPCIBusId(text: Out<c_char>, length: c_int, device: c_int) {
        context::of_device(device)?.cuDeviceGetPCIBusId(text, length, device)
    }

    fn cudaDeviceCanAccessPeer(can_access: Out<c_int>, device: c_int, peer: c_int) {
        context::of_device(peer)?;
        context::of_device(device)?.cuDeviceCanAccessPeer(can_access, device, peer)
    }

    fn cudaDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_uint, device: c_int, peer: c_int) {
        context::of_device(peer)?;
        context::of_device(device)?.cuDeviceGetP2PAttribute(value, attribute, device, peer)
    }

    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let driver = context::ready()?;
        context::of_device(peer)?;
        if peer == context::device()? {
            return Err(Error::INVALID_DEVICE);
        }
        driver.cuCtxEnablePeerAccess(context::primary(driver, peer)?, flags)
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let driver = context::ready()?;
        context::of_device(peer)?;
        if peer == context::device()? {
            return Err(Error::INVALID_DEVICE);
        }
        driver.cuCtxDisablePeerAccess(context::primary(driver, peer)?)
    }

    fn cudaDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        context::of_device(device)?.cuDeviceGetDefaultMemPool(pool, device)
    }

    fn cudaDeviceGetMemPool(pool: Out<Handle>, device: c_int) {
        context::of_device(device)?.cuDeviceGetMemPool(pool, device)
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: Handle) {
        context::of_device(device)?.cuDeviceSetMemPool(device, pool)
    }
}
