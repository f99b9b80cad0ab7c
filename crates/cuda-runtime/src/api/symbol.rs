//! Variables of the device.

use super::copy::{Direction, linear, linear_async};
use crate::boundary::{Handle, Out};
use crate::registry;
use crate::{Error, context, exports};

/// Address of bytes of a variable.
pub(crate) fn place(symbol: usize, offset: usize, bytes: usize) -> Result<u64, Error> {
    let (address, size) = registry::variable(context::ready()?, symbol)?;
    let end = offset.checked_add(bytes).ok_or(Error::INVALID_VALUE)?;
    if end > size {
        return Err(Error::INVALID_VALUE);
    }
    Ok(address + offset as u64)
}

exports! {
    fn cudaGetSymbolAddress(address: Out<u64>, symbol: usize) {
        address.require()?;
        address.set(registry::variable(context::ready()?, symbol)?.0)
    }

    fn cudaGetSymbolSize(bytes: Out<usize>, symbol: usize) {
        bytes.require()?;
        bytes.set(registry::variable(context::ready()?, symbol)?.1)
    }

    fn cudaMemcpyToSymbol(symbol: usize, from: u64, bytes: usize, offset: usize, direction: Direction) {
        linear(context::ready()?, place(symbol, offset, bytes)?, from, bytes, direction)
    }

    fn cudaMemcpyToSymbolAsync(symbol: usize, from: u64, bytes: usize, offset: usize, direction: Direction, stream: Handle) {
        linear_async(context::ready()?, place(symbol, offset, bytes)?, from, bytes, direction, stream)
    }

    fn cudaMemcpyFromSymbol(to: u64, symbol: usize, bytes: usize, offset: usize, direction: Direction) {
        linear(context::ready()?, to, place(symbol, offset, bytes)?, bytes, direction)
    }

    fn cudaMemcpyFromSymbolAsync(to: u64, symbol: usize, bytes: usize, offset: usize, direction: Direction, stream: Handle) {
        linear_async(context::ready()?, to, place(symbol, offset, bytes)?, bytes, direction, stream)
    }
}
