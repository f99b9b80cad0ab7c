//! Bytes of a tensor, one part after the other: as they are, or encoded.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::compression::SMALLEST_BYTES;

/// Bytes of a tensor in a [`Part`] that senders prefer; and the most that an encoded one decodes to, so that nobody has to take more
/// memory for it than its sender had.
pub const PART_BYTES: usize = 1 << 20;
/// Widest element whose bytes are put together by their place.
const MOST_WIDTH: usize = 8;

/// The next bytes of a tensor.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Part {
    /// How the payload is encoded.
    #[prost(enumeration = "Encoding", tag = "1")]
    pub encoding: i32,
    /// Bytes that it decodes to; the payload's own when it is raw.
    #[prost(uint64, tag = "2")]
    pub decoded_bytes: u64,
    /// Bytes of one element, for [`Encoding::ShuffledLz4`]; 0 where nobody says.
    #[prost(uint32, tag = "3")]
    pub width: u32,
}

/// How bytes are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Encoding {
    /// As they are.
    Raw = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One LZ4 block of the first bytes of all elements, then their second bytes, and so on; what is no whole element is at the end.
    ShuffledLz4 = 2,
}

/// Encodings besides [`Encoding::Raw`] that this crate reads, as [`Hello`](super::Hello) and [`Welcome`](super::Welcome) announce them.
pub fn encodings() -> Vec<i32> {
    vec![Encoding::Lz4.into(), Encoding::ShuffledLz4.into()]
}

/// Bytes of an element of this type, as XLA writes it: as far as that may help to compress arrays of them.
pub fn element_width(element_type: &str) -> u32 {
    match element_type {
        "s16" | "u16" | "f16" | "bf16" => 2,
        // Of a complex number the parts are what is alike.
        "s32" | "u32" | "f32" | "c64" => 4,
        "s64" | "u64" | "f64" | "c128" => 8,
        _ => 1,
    }
}

/// A part that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Of an encoding that is not known here.
    #[error("a part in an unknown encoding")]
    Encoding,
    /// Longer than what it decodes to, or it decodes to nothing or to more than [`PART_BYTES`].
    #[error("an encoded part that is longer than its bytes, or of more than {PART_BYTES} of them")]
    Length,
    /// Elements as wide as nothing is.
    #[error("a part with elements of a width that there is not")]
    Width,
    /// It does not decode, or not to that.
    #[error("a part that does not decode to what it says")]
    Broken,
}

impl Part {
    /// So many bytes as they are, of elements that are so wide.
    pub fn raw(bytes: usize, width: u32) -> Self {
        Self {
            encoding: Encoding::Raw.into(),
            decoded_bytes: bytes as u64,
            width,
        }
    }

    /// How many bytes of its tensor a part with such a payload is: they count in windows.
    ///
    /// # Errors
    /// [`PartError`], but for [`PartError::Broken`].
    pub fn bytes(&self, payload_bytes: usize) -> Result<usize, PartError> {
        match Encoding::try_from(self.encoding).map_err(|_| PartError::Encoding)? {
            Encoding::Raw => Ok(payload_bytes),
            encoding => {
                let bytes = usize::try_from(self.decoded_bytes).map_err(|_| PartError::Length)?;
                if payload_bytes == 0 || payload_bytes > bytes || bytes > PART_BYTES {
                    return Err(PartError::Length);
                }
                if encoding == Encoding::ShuffledLz4 && !matches!(self.width, 2 | 4 | 8) {
                    return Err(PartError::Width);
                }
                Ok(bytes)
            }
        }
    }

    /// Decodes a payload into memory for as many bytes as [`Part::bytes`] says, and counts the time for [`decoding_rate`].
    ///
    /// # Errors
    /// [`PartError`].
    pub fn decode(&self, payload: &[u8], into: &mut [u8]) -> Result<(), PartError> {
        let began = Instant::now();
        self.decode_uncounted(payload, into)?;
        if self.encoding() != Encoding::Raw && into.len() >= SMALLEST_BYTES {
            count(into.len(), began.elapsed());
        }
        Ok(())
    }

    fn decode_uncounted(&self, payload: &[u8], into: &mut [u8]) -> Result<(), PartError> {
        if self.bytes(payload.len())? != into.len() {
            return Err(PartError::Broken);
        }
        let block = |into: &mut [u8]| match lz4_flex::block::decompress_into(payload, into) {
            Ok(length) if length == into.len() => Ok(()),
            _ => Err(PartError::Broken),
        };
        match self.encoding() {
            Encoding::Raw => into.copy_from_slice(payload),
            Encoding::Lz4 => block(into)?,
            Encoding::ShuffledLz4 => {
                let mut shuffled = vec![0; into.len()];
                block(&mut shuffled)?;
                unshuffle(&shuffled, into, self.width as usize);
            }
        }
        Ok(())
    }
}

/// See [`decoding_rate`].
static DECODING_RATE: AtomicU64 = AtomicU64::new(0);

/// Bytes a second to which this process decodes parts, the latest most; 0 where it has decoded none.
pub fn decoding_rate() -> u64 {
    DECODING_RATE.load(Ordering::Relaxed)
}

fn count(bytes: usize, time: Duration) {
    let now = bytes as f64 / time.as_secs_f64().max(1e-9);
    let known = decoding_rate() as f64;
    // Nothing looks faster than it is; slower it looks wherever the thread had to wait for a processor.
    let rate = if now >= known { now } else { known + (now - known) / 4.0 };
    DECODING_RATE.store((rate as u64).max(1), Ordering::Relaxed);
}

/// Encodes parts, in memory that is used again.
#[derive(Debug, Default)]
pub struct Encoder {
    shuffled: Vec<u8>,
    block: Vec<u8>,
}

impl Encoder {
    /// Bytes of one LZ4 block of these, of elements that are so wide: shuffled where they are wider than one. It is in `self.block`.
    fn compress(&mut self, raw: &[u8], width: u32) -> usize {
        let most = lz4_flex::block::get_maximum_output_size(raw.len());
        if self.block.len() < most {
            self.block.resize(most, 0);
        }
        let input = match width {
            2 | 4 | 8 => {
                self.shuffled.resize(raw.len(), 0);
                shuffle(raw, &mut self.shuffled, width as usize);
                &self.shuffled
            }
            _ => raw,
        };
        // There is room for the longest that it may become.
        lz4_flex::block::compress_into(input, &mut self.block).unwrap_or(usize::MAX)
    }

    /// The part for these bytes and its payload, if that is no longer than `most` and shorter than they are.
    ///
    /// # Panics
    /// When they are more than [`PART_BYTES`].
    pub fn encode(&mut self, raw: &[u8], width: u32, most: usize) -> Option<(Part, Bytes)> {
        assert!(raw.len() <= PART_BYTES, "no part is longer");
        let bytes = self.compress(raw, width);
        let encoding = if matches!(width, 2 | 4 | 8) {
            Encoding::ShuffledLz4
        } else {
            Encoding::Lz4
        };
        let part = Part {
            encoding: encoding.into(),
            decoded_bytes: raw.len() as u64,
            width,
        };
        (bytes <= most && bytes < raw.len()).then(|| (part, Bytes::copy_from_slice(&self.block[..bytes])))
    }

    /// What a few pieces of these bytes, a sixteenth of all, become, or all of a few: bytes of the pieces, and bytes encoded.
    pub fn sample(&mut self, raw: &[u8], width: u32) -> (usize, usize) {
        const PIECES: usize = 4;
        const LEAST: usize = 4 << 10;
        if raw.len() < LEAST {
            return (raw.len(), self.compress(raw, width));
        }
        let length = raw.len() / (16 * PIECES) / MOST_WIDTH * MOST_WIDTH;
        let mut pieces = Vec::with_capacity(PIECES * length);
        for place in 0..PIECES {
            // In the middle of each quarter, where an element begins.
            let start = (2 * place + 1) * raw.len() / (2 * PIECES) / MOST_WIDTH * MOST_WIDTH;
            pieces.extend_from_slice(&raw[start..start + length]);
        }
        (pieces.len(), self.compress(&pieces, width))
    }
}

/// Puts together the first bytes of all elements, then their second ones, and so on.
fn shuffle(elements: &[u8], into: &mut [u8], width: usize) {
    match width {
        2 => shuffle_wide::<2>(elements, into),
        4 => shuffle_wide::<4>(elements, into),
        _ => shuffle_wide::<8>(elements, into),
    }
}

/// Undoes [`shuffle`].
fn unshuffle(shuffled: &[u8], into: &mut [u8], width: usize) {
    match width {
        2 => unshuffle_wide::<2>(shuffled, into),
        4 => unshuffle_wide::<4>(shuffled, into),
        _ => unshuffle_wide::<8>(shuffled, into),
    }
}

fn shuffle_wide<const WIDTH: usize>(elements: &[u8], into: &mut [u8]) {
    let (elements, rest) = elements.as_chunks::<WIDTH>();
    for (place, plane) in into.chunks_exact_mut(elements.len().max(1)).take(WIDTH).enumerate() {
        for (byte, element) in plane.iter_mut().zip(elements) {
            *byte = element[place];
        }
    }
    let start = into.len() - rest.len();
    into[start..].copy_from_slice(rest);
}

fn unshuffle_wide<const WIDTH: usize>(shuffled: &[u8], into: &mut [u8]) {
    let (elements, rest) = into.as_chunks_mut::<WIDTH>();
    let (planes, last) = shuffled.split_at(elements.len() * WIDTH);
    rest.copy_from_slice(last);
    let plane = |place: usize| &planes[place * elements.len()..][..elements.len()];
    let planes: [&[u8]; WIDTH] = std::array::from_fn(plane);
    for (index, element) in elements.iter_mut().enumerate() {
        for (byte, plane) in element.iter_mut().zip(planes) {
            *byte = plane[index];
        }
    }
}

#[cfg(test)]
mod tests;
