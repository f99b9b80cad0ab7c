//! Fills with a byte.

use std::ffi::c_int;

use super::memory::Pitched;
use crate::boundary::Handle;
use crate::driver::Driver;
use crate::driver::structures::Extent;
use crate::{Error, context, exports};

/// Fills a plane, on a stream or at once.
fn plane(driver: &Driver, to: Pitched, value: u8, width: usize, height: usize, stream: Option<Handle>) -> Result<(), Error> {
    if width == 0 || height == 0 {
        return Ok(());
    }
    match stream {
        Some(stream) => driver.cuMemsetD2D8Async(to.address, to.pitch, value, width, height, stream),
        None => driver.cuMemsetD2D8_v2(to.address, to.pitch, value, width, height),
    }
}

/// Fills a volume, whose slices follow each other without a gap if they have all rows.
fn volume(to: Pitched, value: c_int, extent: Extent, stream: Option<Handle>) -> Result<(), Error> {
    let driver = context::ready()?;
    let value = value as u8;
    if extent.height == to.height || extent.depth == 1 {
        let rows = extent.height.checked_mul(extent.depth).ok_or(Error::INVALID_VALUE)?;
        return plane(driver, to, value, extent.width, rows, stream);
    }
    for slice in 0..extent.depth {
        let distance = (to.pitch as u64)
            .checked_mul(to.height as u64)
            .and_then(|bytes| bytes.checked_mul(slice as u64));
        let address = distance
            .and_then(|distance| to.address.checked_add(distance))
            .ok_or(Error::INVALID_VALUE)?;
        plane(driver, Pitched { address, ..to }, value, extent.width, extent.height, stream)?;
    }
    Ok(())
}

fn rows(address: u64, pitch: usize) -> Pitched {
    Pitched {
        address,
        pitch,
        width: 0,
        height: 0,
    }
}

exports! {
    fn cudaMemset(to: u64, value: c_int, bytes: usize) {
        let driver = context::ready()?;
        if bytes == 0 {
            return Ok(());
        }
        driver.cuMemsetD8_v2(to, value as u8, bytes)
    }

    fn cudaMemsetAsync(to: u64, value: c_int, bytes: usize, stream: Handle) {
        let driver = context::ready()?;
        if bytes == 0 {
            return Ok(());
        }
        driver.cuMemsetD8Async(to, value as u8, bytes, stream)
    }

    fn cudaMemset2D(to: u64, pitch: usize, value: c_int, width: usize, height: usize) {
        plane(context::ready()?, rows(to, pitch), value as u8, width, height, None)
    }

    fn cudaMemset2DAsync(to: u64, pitch: usize, value: c_int, width: usize, height: usize, stream: Handle) {
        plane(context::ready()?, rows(to, pitch), value as u8, width, height, Some(stream))
    }

    fn cudaMemset3D(to: Pitched, value: c_int, extent: Extent) {
        volume(to, value, extent, None)
    }

    fn cudaMemset3DAsync(to: Pitched, value: c_int, extent: Extent, stream: Handle) {
        volume(to, value, extent, Some(stream))
    }
}
