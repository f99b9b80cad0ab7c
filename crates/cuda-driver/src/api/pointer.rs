//! Attributes of pointers.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, In, Out};
use crate::driver::{self, Driver};
use crate::ranges::Kind;
use crate::status::Status;

/// What the library knows of a pointer.
enum Known {
    Device(crate::ranges::Range),
    Host {
        start: usize,
        bytes: usize,
        context: Handle,
        /// Whether kernels can access it.
        is_mapped: bool,
    },
    Nothing,
}

fn known(driver: &Driver, address: u64) -> Known {
    if let Some(range) = driver
        .ranges
        .find(address)
        .filter(|range| range.kind != Kind::Mapped && range.kind.has_pointers())
    {
        return Known::Device(range);
    }
    match driver.host_range(address as usize) {
        Some((start, bytes, _, context)) => Known::Host {
            start,
            bytes,
            context,
            is_mapped: driver.ranges.find(address).is_some(),
        },
        None => Known::Nothing,
    }
}

/// Writes an attribute. Returns false if the pointer has none of this number.
fn write(driver: &Driver, known: &Known, address: u64, attribute: c_uint, value: Out<u64>) -> Result<bool, Status> {
    let is_device = matches!(known, Known::Device(_));
    let is_known = !matches!(known, Known::Nothing);
    let is_managed = matches!(known, Known::Device(range) if range.kind == Kind::Managed);
    let is_mapped = matches!(known, Known::Host { is_mapped: true, .. });
    match attribute {
        // Context, buffer and pool.
        1 => match known {
            Known::Device(range) => value.set(range.context_handle.0)?,
            Known::Host { context, .. } => value.set(context.0)?,
            Known::Nothing => return Ok(false),
        },
        7 => match known {
            Known::Device(range) => value.set(range.id)?,
            _ => return Ok(false),
        },
        17 => match known {
            Known::Device(range) => value.set(match range.kind {
                Kind::Pooled(pool) => pool.0,
                _ => 0,
            })?,
            _ => return Ok(false),
        },
        2 if is_known => value.cast::<c_uint>().set(if is_device { 2 } else { 1 })?,
        3 if is_device || is_mapped => value.set(address)?,
        4 if is_managed || is_known && !is_device => value.set(address)?,
        6 if is_device => value.cast::<u8>().set(0)?,
        8 if is_known => value.cast::<u8>().set(u8::from(is_managed))?,
        9 if is_known => value.cast::<c_int>().set(0)?,
        10 | 15 if is_known => value.cast::<u8>().set(0)?,
        11 | 12 => {
            let (start, bytes) = match known {
                Known::Device(range) => (range.start, range.bytes),
                Known::Host { start, bytes, .. } => (*start as u64, *bytes as u64),
                Known::Nothing => return Ok(false),
            };
            value.set(if attribute == 11 { start } else { bytes })?;
        }
        13 if is_known => value.cast::<u8>().set(1)?,
        13 => {
            let memory = driver.virtual_memory.lock();
            if !memory.is_reserved(address) {
                return Ok(false);
            }
            value.cast::<u8>().set(u8::from(memory.mapping_at(address).is_ok()))?;
        }
        14 if is_known => value.set(0)?,
        16 if is_known => value.cast::<c_uint>().set(3)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Writes that a pointer has no such attribute.
fn write_nothing(attribute: c_uint, value: Out<u64>) -> Result<(), Status> {
    match attribute {
        2 | 16 => value.cast::<c_uint>().set(0),
        9 => value.cast::<c_int>().set(-2),
        6 | 8 | 10 | 13 | 15 => value.cast::<u8>().set(0),
        1..=20 => value.set(0),
        _ => Err(Status::INVALID_VALUE),
    }
}

exports! {
    fn cuPointerGetAttribute(value: Out<u64>, attribute: c_uint, address: u64) {
        value.require()?;
        let driver = driver::get()?;
        match write(driver, &known(driver, address), address, attribute, value)? {
            true => Ok(()),
            false => Err(Status::INVALID_VALUE),
        }
    }

    fn cuPointerGetAttributes(count: c_uint, attributes: In<c_uint>, values: In<Out<u64>>, address: u64) {
        let driver = driver::get()?;
        let known = known(driver, address);
        for index in 0..count as usize {
            let (attribute, value) = (attributes.at(index)?, values.at(index)?);
            value.require()?;
            if !write(driver, &known, address, attribute, value)? {
                write_nothing(attribute, value)?;
            }
        }
        Ok(())
    }

    /// Copies are synchronous as far as that attribute asks for it.
    fn cuPointerSetAttribute(_value: In<c_uint>, attribute: c_uint, address: u64) {
        match (attribute, known(driver::get()?, address)) {
            (6, Known::Device(_)) => Ok(()),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}
