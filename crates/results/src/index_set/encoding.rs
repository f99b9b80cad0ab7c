//! Encoding of an [`IndexSet`] for checkpoints: as ranges if there are few, as a compressed bitmap if there are many.
//!
//! The first byte is the format. `0`: gap and length of each range as variable-length integers (LEB128). `1`: the bitmap, with
//! little-endian words of 64 bits, as one LZ4 block. A regular pattern, such as every second index, compresses to almost nothing; indices
//! without a pattern take one bit each.

use prost::encoding::{decode_varint, encode_varint};

use roaring::RoaringBitmap;

use super::IndexSet;

const RANGES: u8 = 0;
const BITMAP: u8 = 1;
/// Bytes of a word of the bitmap.
const WORD: usize = 8;
/// Ranges that take at most this many bytes are not compressed.
const FEW_BYTES: usize = 1 << 10;

/// Error of decoding an [`IndexSet`]: the bytes are invalid, or contain an index beyond the burst's total.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid set of indices below {total}")]
pub struct DecodeError {
    pub total: u64,
}

impl IndexSet {
    pub fn encode(&self) -> Vec<u8> {
        let mut ranges = vec![RANGES];
        let end = self.bitmap.max().map_or(0, |last| last as usize + 1);
        let mut words = vec![0_u64; end.div_ceil(8 * WORD)];
        let mut cursor = 0;
        for (first, count) in self.ranges() {
            encode_varint(first - cursor, &mut ranges);
            encode_varint(count, &mut ranges);
            cursor = first + count;
            if ranges.len() > FEW_BYTES + WORD * words.len() {
                break;
            }
        }
        if ranges.len() <= FEW_BYTES {
            return ranges;
        }
        for (mut first, mut count) in self.ranges() {
            while count > 0 {
                let bits = count.min(64 - first % 64);
                words[first as usize / 64] |= u64::MAX >> (64 - bits) << (first % 64);
                (first, count) = (first + bits, count - bits);
            }
        }
        let words: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let mut bitmap = vec![BITMAP];
        bitmap.extend(lz4_flex::block::compress(&words));
        // If the loop above stopped early, the ranges are longer than the uncompressed bitmap, and LZ4 adds less than 1 %.
        if bitmap.len() < ranges.len() || cursor < end as u64 {
            bitmap
        } else {
            ranges
        }
    }

    /// Decodes the bytes of [`IndexSet::encode`]. All indices must be below `total`.
    pub fn decode(bytes: &[u8], total: u64) -> Result<Self, DecodeError> {
        let set = match bytes.split_first() {
            Some((&RANGES, ranges)) => decode_ranges(ranges, total),
            Some((&BITMAP, bitmap)) => decode_bitmap(bitmap, total),
            _ => None,
        };
        set.ok_or(DecodeError { total })
    }
}

fn decode_ranges(mut bytes: &[u8], total: u64) -> Option<IndexSet> {
    let mut set = IndexSet::default();
    let mut cursor = 0_u64;
    while !bytes.is_empty() {
        let gap = decode_varint(&mut bytes).ok()?;
        let count = decode_varint(&mut bytes).ok()?;
        let first = cursor.checked_add(gap)?;
        cursor = first.checked_add(count).filter(|end| count > 0 && *end <= total)?;
        set.insert(first, count);
    }
    Some(set)
}

fn decode_bitmap(bytes: &[u8], total: u64) -> Option<IndexSet> {
    let mut words = vec![0; usize::try_from(total).ok()?.div_ceil(8 * WORD) * WORD];
    let length = lz4_flex::block::decompress_into(bytes, &mut words).ok()?;
    let set = RoaringBitmap::from_lsb0_bytes(0, &words[..length]);
    let is_within = set.max().is_none_or(|last| u64::from(last) < total);
    (length.is_multiple_of(WORD) && is_within).then_some(IndexSet { bitmap: set, changes: 0 })
}
