//! Encoding of an [`IndexSet`] for checkpoints: as ranges if there are few, as a compressed bitmap if there are many.
//!
//! The first byte is the format. `0`: gap and length of each range as variable-length integers (LEB128). `1`: the bitmap, with
//! little-endian words, as one LZ4 block. A regular pattern, such as every second index, compresses to almost nothing; indices without a
//! pattern take one bit each.

use prost::encoding::{decode_varint, encode_varint};

use super::{IndexSet, WORD};

const RANGES: u8 = 0;
const BITMAP: u8 = 1;
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
        let mut cursor = 0;
        for (first, count) in self.ranges() {
            encode_varint(first - cursor, &mut ranges);
            encode_varint(count, &mut ranges);
            cursor = first + count;
            if ranges.len() > FEW_BYTES + self.words.len() * size_of::<u64>() {
                break;
            }
        }
        if ranges.len() <= FEW_BYTES {
            return ranges;
        }
        let words: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut bitmap = vec![BITMAP];
        bitmap.extend(lz4_flex::block::compress(&words));
        // If the loop above stopped early, the ranges are longer than the uncompressed bitmap, and LZ4 adds less than 1 %.
        if bitmap.len() < ranges.len() || cursor < self.end() {
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

    /// Returns the index after the last one in the set.
    fn end(&self) -> u64 {
        let last = self.words.iter().enumerate().rev().find(|(_, word)| **word != 0);
        last.map_or(0, |(place, word)| (place as u64 + 1) * WORD - u64::from(word.leading_zeros()))
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
    let mut words = vec![0; usize::try_from(total.div_ceil(WORD)).ok()? * size_of::<u64>()];
    let length = lz4_flex::block::decompress_into(bytes, &mut words).ok()?;
    let (words, rest) = words[..length].as_chunks::<8>();
    let mut set = IndexSet {
        words: words.iter().map(|word| u64::from_le_bytes(*word)).collect(),
        ..IndexSet::default()
    };
    set.recount();
    (rest.is_empty() && set.end() <= total).then_some(set)
}
