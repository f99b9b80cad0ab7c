//! Inputs of a program: values of 16, 32 and 64 bits, a mix of edge cases of every type and random values.

use crate::inputs;
use crate::kind::Kind;

/// Number of values of each width; a power of two.
pub const VALUES: u32 = 256;
/// Offset of the 32-bit values in bytes.
pub const WORDS: u32 = VALUES * 2;
/// Offset of the 64-bit values in bytes.
pub const LONGS: u32 = WORDS + VALUES * 4;
/// Size in bytes. After the last value there is room for the windows of registers that begin at it.
pub const BYTES: u32 = LONGS + VALUES * 8 + 64;

/// Returns the offset of the values of a width in bytes.
pub fn section(width: u32) -> u32 {
    match width {
        16 => 0,
        32 => WORDS,
        _ => LONGS,
    }
}

/// Returns the inputs of a seed.
pub fn of(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = Vec::with_capacity(BYTES as usize);
    let sections: [&[&str]; 3] = [
        &["s16", "f16", "bf16"],
        &["u32", "f32", "f16x2", "bf16x2", "s16x2"],
        &["u64", "f64"],
    ];
    for names in sections {
        let kinds: Vec<Kind> = names.iter().filter_map(|name| Kind::from_name(name)).collect();
        for _ in 0..VALUES {
            let kind = kinds[random.usize(..kinds.len())];
            let value = if random.bool() {
                let edges = inputs::edges(kind);
                edges[random.usize(..edges.len())]
            } else {
                inputs::random(kind, &mut random)
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..(kind.width() / 8) as usize]);
        }
    }
    bytes.resize(BYTES as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_its_section_with_extremes() {
        let all: Vec<u8> = (0..20).flat_map(of).collect();
        let table = of(7);
        assert_eq!(table.len(), BYTES as usize);
        assert_eq!(table, of(7));
        assert_ne!(table, of(8));
        let has = |width: usize, value: u64| {
            all.chunks_exact(BYTES as usize).any(|table| {
                let start = section(width as u32 * 8) as usize;
                let section = &table[start..start + VALUES as usize * width];
                section.chunks_exact(width).any(|found| *found == value.to_le_bytes()[..width])
            })
        };
        assert!(has(2, 0x7c00) && has(2, 0x8000) && has(4, 0x7f80_0000) && has(4, 1) && has(8, 1 << 63) && has(8, 0x7ff0 << 48));
    }
}
