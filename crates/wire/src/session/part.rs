//! Parts: the pieces in which a tensor's bytes are sent, raw or encoded.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{Encoding, Part, compression::SMALLEST_BYTES};

/// Preferred size of a [`Part`], in bytes of the tensor. Also the maximum decoded size of an encoded part, so that a receiver never needs
/// more memory for a part than its sender did.
pub const PART_BYTES: usize = 1 << 20;
/// Size of the widest elements that are shuffled, in bytes.
const MAX_WIDTH: usize = 8;

/// Returns the encodings besides [`Encoding::Raw`] that this crate decodes, for [`Hello`](super::Hello) and [`Welcome`](super::Welcome).
pub fn encodings() -> Vec<i32> {
    vec![Encoding::Lz4.into(), Encoding::ShuffledLz4.into()]
}

/// Returns the width in bytes with which arrays of this element type (in XLA's notation) are shuffled before compression; 1 if shuffling
/// does not help.
pub fn element_width(element_type: &str) -> u32 {
    match element_type {
        "s16" | "u16" | "f16" | "bf16" => 2,
        // For complex numbers, the width of the real and imaginary parts, because those resemble each other.
        "s32" | "u32" | "f32" | "c64" => 4,
        "s64" | "u64" | "f64" | "c128" => 8,
        _ => 1,
    }
}

/// Error in a received part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    #[error("unknown encoding of a part")]
    Encoding,
    #[error("invalid size of a part: expected at most {PART_BYTES} decoded bytes, and no more encoded bytes")]
    Length,
    #[error("invalid element width of a part")]
    Width,
    #[error("failed to decode a part to its announced size")]
    Broken,
}

impl Part {
    /// Creates the message of an unencoded part of `bytes` bytes with elements of `width` bytes.
    pub fn raw(bytes: usize, width: u32) -> Self {
        Self {
            encoding: Encoding::Raw.into(),
            decoded_bytes: bytes as u64,
            width,
        }
    }

    /// Returns how many bytes of the tensor a part with a payload of `payload_bytes` covers. Windows count these bytes.
    ///
    /// # Errors
    /// All [`PartError`]s except [`PartError::Broken`].
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

    /// Decodes a payload into `into`, whose length must be the one that [`Part::bytes`] returns. Updates [`decoding_rate`].
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

static DECODING_RATE: AtomicU64 = AtomicU64::new(0);

/// Returns the rate at which this process decodes parts, in decoded bytes per second; 0 if it has decoded none. Recent parts weigh most.
pub fn decoding_rate() -> u64 {
    DECODING_RATE.load(Ordering::Relaxed)
}

fn count(bytes: usize, time: Duration) {
    let now = bytes as f64 / time.as_secs_f64().max(1e-9);
    let known = decoding_rate() as f64;
    // A measured rate is never too high, but it is too low whenever the thread had to wait for a processor.
    let rate = if now >= known { now } else { known + (now - known) / 4.0 };
    DECODING_RATE.store((rate as u64).max(1), Ordering::Relaxed);
}

/// Encoder of parts. Reuses its memory between parts.
#[derive(Debug, Default)]
pub struct Encoder {
    shuffled: Vec<u8>,
    block: Vec<u8>,
}

impl Encoder {
    /// Compresses bytes with elements of `width` bytes to one LZ4 block in `self.block` and returns the block's length. Elements wider than
    /// one byte are shuffled first.
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
        // The block has room for the maximum output size, so compression does not fail.
        lz4_flex::block::compress_into(input, &mut self.block).unwrap_or(usize::MAX)
    }

    /// Encodes bytes and returns the part with its payload, or `None` if the payload is longer than `most` or not shorter than the bytes.
    ///
    /// # Panics
    /// When `raw` is longer than [`PART_BYTES`].
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

    /// Compresses a sample: four pieces that make up a sixteenth of the bytes, or all bytes if there are fewer than 4 KiB. Returns the
    /// sizes of the sample and of the compressed sample.
    pub fn sample(&mut self, raw: &[u8], width: u32) -> (usize, usize) {
        const PIECES: usize = 4;
        const LEAST: usize = 4 << 10;
        if raw.len() < LEAST {
            return (raw.len(), self.compress(raw, width));
        }
        let length = raw.len() / (16 * PIECES) / MAX_WIDTH * MAX_WIDTH;
        let mut pieces = Vec::with_capacity(PIECES * length);
        for place in 0..PIECES {
            // Each piece starts in the middle of a quarter of the bytes, at the beginning of an element.
            let start = (2 * place + 1) * raw.len() / (2 * PIECES) / MAX_WIDTH * MAX_WIDTH;
            pieces.extend_from_slice(&raw[start..start + length]);
        }
        (pieces.len(), self.compress(&pieces, width))
    }
}

/// Groups the bytes of elements: the first bytes of all elements, then their second bytes, and so on.
fn shuffle(elements: &[u8], into: &mut [u8], width: usize) {
    match width {
        2 => shuffle_wide::<2>(elements, into),
        4 => shuffle_wide::<4>(elements, into),
        _ => shuffle_wide::<8>(elements, into),
    }
}

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
