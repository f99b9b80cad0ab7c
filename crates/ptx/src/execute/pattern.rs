//! Patterns of the addresses that the lanes of a group access.

#![allow(clippy::needless_range_loop, reason = "several arrays are walked lane by lane")]

use crate::lanes::memory::Shape;
use crate::lanes::{LANES, Level, level};

/// Pattern of addresses, valid for the lanes from which it was derived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) shape: Shape,
    pub(super) low: u64,
    pub(super) high: u64,
    /// Bitwise or of all addresses.
    pub(super) bits: u64,
    /// Address of lane 0, extrapolated if lane 0 is inactive.
    pub(super) base: u64,
    /// Distance from lane to lane that was tested, in bytes.
    pub(super) stride: u64,
    pub(super) row: u8,
    pub(super) uniform_rows: u8,
    /// First address of each row.
    pub(super) rows: [u64; 8],
}

impl Pattern {
    pub(super) fn uniform(address: u64) -> Self {
        Self {
            shape: Shape::Uniform,
            low: address,
            high: address,
            bits: address,
            base: address,
            stride: 0,
            row: 16,
            uniform_rows: 0,
            rows: [0; 8],
        }
    }
}

/// Tests whether every row of `ROW` lanes is uniform or contiguous. Returns the bit mask of the uniform rows, or `None`.
#[inline(always)]
fn rows<const ROW: usize>(addresses: &[u64; LANES], stride: u64, firsts: &mut [u64; 8]) -> Option<u8> {
    let mut uniform = 0;
    for row in 0..LANES / ROW {
        let base = addresses[row * ROW];
        let (mut apart, mut differs) = (0, 0);
        for lane in 0..ROW {
            let address = addresses[row * ROW + lane];
            apart |= address ^ base.wrapping_add(lane as u64 * stride);
            differs |= address ^ base;
        }
        if differs == 0 {
            uniform |= 1 << row;
        } else if apart != 0 {
            return None;
        }
        firsts[row] = base;
    }
    Some(uniform)
}

#[inline(always)]
fn pattern_body(addresses: &[u64; LANES], mask: u64, stride: u64) -> Pattern {
    let first = mask.trailing_zeros() as usize;
    let start = addresses[first];
    let base = start.wrapping_sub(first as u64 * stride);
    let mut found = Pattern {
        base,
        stride,
        ..Pattern::uniform(start)
    };
    if mask == u64::MAX {
        let (mut apart, mut differs) = (0, 0);
        for lane in 0..LANES {
            apart |= addresses[lane] ^ start.wrapping_add(lane as u64 * stride);
            differs |= addresses[lane] ^ start;
        }
        if apart == 0 {
            found.shape = Shape::Contiguous;
            found.high = start.wrapping_add(63 * stride);
            return found;
        }
        if differs == 0 {
            return found;
        }
        found.bits = 0;
        for address in addresses {
            found.low = found.low.min(*address);
            found.high = found.high.max(*address);
            found.bits |= address;
        }
        found.shape = Shape::Gather;
        let mut firsts = [0; 8];
        let by_rows = rows::<16>(addresses, stride, &mut firsts)
            .map(|uniform| (16, uniform))
            .or_else(|| rows::<8>(addresses, stride, &mut firsts).map(|uniform| (8, uniform)));
        if let Some((row, uniform)) = by_rows {
            found.shape = Shape::Rows;
            (found.row, found.uniform_rows, found.rows) = (row, uniform, firsts);
        }
        return found;
    }
    let (mut apart, mut differs) = (0, 0);
    found.bits = 0;
    for lane in 0..LANES {
        let active = 0u64.wrapping_sub((mask >> lane) & 1);
        let address = (addresses[lane] & active) | (start & !active);
        apart |= (address ^ base.wrapping_add(lane as u64 * stride)) & active;
        differs |= address ^ start;
        found.low = found.low.min(address);
        found.high = found.high.max(address);
        found.bits |= address;
    }
    found.shape = if differs == 0 {
        Shape::Uniform
    } else if apart == 0 {
        Shape::Contiguous
    } else {
        Shape::Gather
    };
    found
}

#[inline(always)]
fn widen_body(narrow: &[u32; LANES], wide: &mut [u64; LANES]) {
    for lane in 0..LANES {
        wide[lane] = u64::from(narrow[lane]);
    }
}

#[inline(always)]
fn spread_body(addresses: &[u64; LANES], add: u64, pointers: &mut [*mut u8; LANES]) {
    for lane in 0..LANES {
        pointers[lane] = std::ptr::with_exposed_provenance_mut(addresses[lane].wrapping_add(add) as usize);
    }
}

/// Host addresses in interleaved local memory; see [`super::address`].
#[inline(always)]
fn interleave_body(addresses: &[u64; LANES], offset: u64, granule_bits: u32, base: u64, pointers: &mut [*mut u8; LANES]) {
    let granule = 1u64 << granule_bits;
    for lane in 0..LANES {
        let at = addresses[lane].wrapping_add(offset);
        let far = (at >> granule_bits).wrapping_mul(granule * LANES as u64);
        let address = base
            .wrapping_add(far)
            .wrapping_add(lane as u64 * granule)
            .wrapping_add(at & (granule - 1));
        pointers[lane] = std::ptr::with_exposed_provenance_mut(address as usize);
    }
}

macro_rules! leveled {
    ($(#[$attribute:meta])* $name:ident = $body:ident($($argument:ident: $type:ty),*) -> $out:ty) => {
        $(#[$attribute])*
        pub(super) fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn v3($($argument: $type),*) -> $out { $body($($argument),*) }
                #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) -> $out { $body($($argument),*) }
                match level() {
                    Level::Baseline => {}
                    // SAFETY: the CPU has the features of this level.
                    Level::V3 => return unsafe { v3($($argument),*) },
                    // SAFETY: the CPU has the features of this level.
                    Level::Avx512 => return unsafe { avx512($($argument),*) },
                }
            }
            $body($($argument),*)
        }
    };
}

leveled!(
    /// Derives the pattern of the lanes in `mask`, testing for `stride` bytes from lane to lane.
    pattern = pattern_body(addresses: &[u64; LANES], mask: u64, stride: u64) -> Pattern
);
leveled!(
    /// Extends 32-bit addresses to 64 bits.
    widen = widen_body(narrow: &[u32; LANES], wide: &mut [u64; LANES]) -> ()
);
leveled!(
    /// Host pointers of all lanes in one linear window.
    spread = spread_body(addresses: &[u64; LANES], add: u64, pointers: &mut [*mut u8; LANES]) -> ()
);
leveled!(
    /// Host pointers of all lanes in interleaved local memory.
    interleave = interleave_body(addresses: &[u64; LANES], offset: u64, granule_bits: u32, base: u64, pointers: &mut [*mut u8; LANES]) -> ()
);

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(of: impl Fn(u64) -> u64) -> [u64; LANES] {
        std::array::from_fn(|lane| of(lane as u64))
    }

    #[test]
    fn shapes_are_distinguished() {
        let shape = |of: &dyn Fn(u64) -> u64| {
            let found = pattern(&addresses(of), u64::MAX, 4);
            (found.shape, found.low, found.high)
        };
        assert_eq!(shape(&|_| 64), (Shape::Uniform, 64, 64));
        assert_eq!(shape(&|lane| 64 + 4 * lane), (Shape::Contiguous, 64, 64 + 252));
        assert_eq!(shape(&|lane| lane / 16 * 100), (Shape::Rows, 0, 300));
        assert_eq!(shape(&|lane| lane % 8 * 4 + lane / 8 * 1000), (Shape::Rows, 0, 7028));
        assert_eq!(shape(&|lane| lane * lane), (Shape::Gather, 0, 63 * 63));
    }

    #[test]
    fn lanes_outside_the_mask_do_not_count() {
        let found = pattern(
            &addresses(|lane| if lane < 5 { u64::MAX - lane } else { 100 + 8 * lane }),
            !0b11111,
            8,
        );
        assert_eq!((found.shape, found.low, found.high, found.base), (Shape::Contiguous, 140, 604, 100));
        let found = pattern(&addresses(|lane| if lane == 63 { 7 } else { lane }), 1 << 63, 4);
        assert_eq!((found.shape, found.low, found.high), (Shape::Uniform, 7, 7));
    }

    #[test]
    fn rows_of_eight_are_found_where_sixteen_do_not_fit() {
        let found = pattern(
            &addresses(|lane| if lane / 8 % 2 == 0 { lane / 8 * 512 } else { lane * 4 }),
            u64::MAX,
            4,
        );
        assert_eq!((found.shape, found.row, found.uniform_rows), (Shape::Rows, 8, 0b0101_0101));
        assert_eq!(found.rows[1], 32);
    }
}
