//! Copies to and from CUDA arrays, of rows, and of bytes in the order of the rows.

use super::array;
use super::copy::{Direction, Rows, copy_rows};
use crate::boundary::Handle;
use crate::{Error, context, exports};

/// Rows of an array of which bytes from an offset on consist.
struct Piece {
    x_bytes: usize,
    y: usize,
    width: usize,
    height: usize,
    /// Bytes in the pieces before.
    done: usize,
}

/// Offset of a place in an array, in bytes.
fn offset(rows: &array::Rows, x_bytes: usize, y: usize) -> Result<usize, Error> {
    if x_bytes >= rows.bytes {
        return Err(Error::INVALID_VALUE);
    }
    let start = y.checked_mul(rows.bytes).and_then(|start| start.checked_add(x_bytes));
    start.ok_or(Error::INVALID_VALUE)
}

/// A part of the first row, whole rows, and a part of the last one.
fn pieces(rows: &array::Rows, x_bytes: usize, y: usize, bytes: usize) -> Result<Vec<Piece>, Error> {
    let row = rows.bytes;
    let start = offset(rows, x_bytes, y)?;
    let end = start.checked_add(bytes).filter(|end| *end <= row * rows.count);
    let end = end.ok_or(Error::INVALID_VALUE)?;
    if !start.is_multiple_of(rows.texel_bytes) || !bytes.is_multiple_of(rows.texel_bytes) {
        return Err(Error::INVALID_VALUE);
    }
    let mut pieces = Vec::new();
    let mut at = start;
    while at < end {
        let (x_bytes, left) = (at % row, end - at);
        let width = left.min(row - x_bytes);
        let height = if width == row { left / row } else { 1 };
        pieces.push(Piece {
            x_bytes,
            y: at / row,
            width,
            height,
            done: at - start,
        });
        at += width * height;
    }
    Ok(pieces)
}

/// A place in an array: byte of a row, and row.
type Place = (Handle, usize, usize);

fn to_array((to, x_bytes, y): Place, from: u64, bytes: usize, direction: Direction, stream: Option<Handle>) -> Result<(), Error> {
    for piece in pieces(&array::rows(to)?, x_bytes, y, bytes)? {
        let target = Rows::array(to, piece.x_bytes, piece.y);
        let source = Rows::memory(from.wrapping_add(piece.done as u64), piece.width);
        copy_rows(target, source, [piece.width, piece.height], direction, stream)?;
    }
    Ok(())
}

fn from_array(to: u64, (from, x_bytes, y): Place, bytes: usize, direction: Direction, stream: Option<Handle>) -> Result<(), Error> {
    for piece in pieces(&array::rows(from)?, x_bytes, y, bytes)? {
        let target = Rows::memory(to.wrapping_add(piece.done as u64), piece.width);
        let source = Rows::array(from, piece.x_bytes, piece.y);
        copy_rows(target, source, [piece.width, piece.height], direction, stream)?;
    }
    Ok(())
}

exports! {
    fn cudaMemcpy2DToArray(
        to: Handle,
        x_bytes: usize,
        y: usize,
        from: u64,
        pitch: usize,
        width: usize,
        height: usize,
        direction: Direction,
    ) {
        copy_rows(Rows::array(to, x_bytes, y), Rows::memory(from, pitch), [width, height], direction, None)
    }

    fn cudaMemcpy2DToArrayAsync(
        to: Handle,
        x_bytes: usize,
        y: usize,
        from: u64,
        pitch: usize,
        width: usize,
        height: usize,
        direction: Direction,
        stream: Handle,
    ) {
        copy_rows(Rows::array(to, x_bytes, y), Rows::memory(from, pitch), [width, height], direction, Some(stream))
    }

    fn cudaMemcpy2DFromArray(
        to: u64,
        pitch: usize,
        from: Handle,
        x_bytes: usize,
        y: usize,
        width: usize,
        height: usize,
        direction: Direction,
    ) {
        copy_rows(Rows::memory(to, pitch), Rows::array(from, x_bytes, y), [width, height], direction, None)
    }

    fn cudaMemcpy2DFromArrayAsync(
        to: u64,
        pitch: usize,
        from: Handle,
        x_bytes: usize,
        y: usize,
        width: usize,
        height: usize,
        direction: Direction,
        stream: Handle,
    ) {
        copy_rows(Rows::memory(to, pitch), Rows::array(from, x_bytes, y), [width, height], direction, Some(stream))
    }

    fn cudaMemcpy2DArrayToArray(
        to: Handle,
        to_x_bytes: usize,
        to_y: usize,
        from: Handle,
        from_x_bytes: usize,
        from_y: usize,
        width: usize,
        height: usize,
        direction: Direction,
    ) {
        let (to, from) = (Rows::array(to, to_x_bytes, to_y), Rows::array(from, from_x_bytes, from_y));
        copy_rows(to, from, [width, height], direction, None)
    }

    fn cudaMemcpyToArray(to: Handle, x_bytes: usize, y: usize, from: u64, bytes: usize, direction: Direction) {
        to_array((to, x_bytes, y), from, bytes, direction, None)
    }

    fn cudaMemcpyToArrayAsync(
        to: Handle,
        x_bytes: usize,
        y: usize,
        from: u64,
        bytes: usize,
        direction: Direction,
        stream: Handle,
    ) {
        to_array((to, x_bytes, y), from, bytes, direction, Some(stream))
    }

    fn cudaMemcpyFromArray(to: u64, from: Handle, x_bytes: usize, y: usize, bytes: usize, direction: Direction) {
        from_array(to, (from, x_bytes, y), bytes, direction, None)
    }

    fn cudaMemcpyFromArrayAsync(
        to: u64,
        from: Handle,
        x_bytes: usize,
        y: usize,
        bytes: usize,
        direction: Direction,
        stream: Handle,
    ) {
        from_array(to, (from, x_bytes, y), bytes, direction, Some(stream))
    }

    fn cudaMemcpyArrayToArray(
        to: Handle,
        to_x_bytes: usize,
        to_y: usize,
        from: Handle,
        from_x_bytes: usize,
        from_y: usize,
        bytes: usize,
        direction: Direction,
    ) {
        direction.check_on_device()?;
        let to_offset = offset(&array::rows(to)?, to_x_bytes, to_y)?;
        let from_offset = offset(&array::rows(from)?, from_x_bytes, from_y)?;
        context::ready()?.cuMemcpyAtoA_v2(to, to_offset, from, from_offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_an_array_are_parts_of_rows_and_whole_rows() {
        let rows = array::Rows {
            texel_bytes: 2,
            bytes: 10,
            count: 4,
        };
        let of = |x_bytes, y, bytes| {
            let found = pieces(&rows, x_bytes, y, bytes).ok()?;
            Some(
                found
                    .iter()
                    .map(|piece| [piece.x_bytes, piece.y, piece.width, piece.height, piece.done])
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(0, 0, 40), Some(vec![[0, 0, 10, 4, 0]]));
        assert_eq!(of(4, 0, 4), Some(vec![[4, 0, 4, 1, 0]]));
        assert_eq!(of(4, 1, 18), Some(vec![[4, 1, 6, 1, 0], [0, 2, 10, 1, 6], [0, 3, 2, 1, 16]]));
        assert_eq!(of(0, 0, 0), Some(vec![]));
        assert_eq!(of(2, 0, 40), None);
        assert_eq!((of(1, 0, 2), of(0, 0, 3)), (None, None));
        assert_eq!(of(usize::MAX, 1, 1), None);
        assert_eq!((of(10, 0, 2), of(12, 0, 2)), (None, None), "beyond the row");
    }
}
