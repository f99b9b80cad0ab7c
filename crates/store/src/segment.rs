//! Segments: objects that contain the outputs of chunks.
//!
//! All numbers are little-endian. A segment begins with a header of 16 bytes: the eight bytes `SAHASRA1`, then B, the number of output
//! bytes of one chunk (u64). One record per chunk follows, each of 8 + B bytes: the index of the chunk (u64), then its outputs in the
//! kernel's order. Records are sorted by index. The number of records follows from the object's length.
//!
//! The same index may be in several segments if an attempt was repeated: the job's index of segments determines which record counts. The
//! names of segments are unique, so that no writer overwrites the segment of another: see [`SegmentName`].

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const MAGIC: [u8; 8] = *b"SAHASRA1";
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 16;

/// Unique and permanent name of a segment: its writer, and a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentName {
    /// Term of the coordinator for which the segment was written.
    pub term: u64,
    /// Highest attempt among the chunks of the segment.
    pub attempt: u32,
    pub boot_id: String,
    pub counter: u64,
}

impl SegmentName {
    pub fn text(&self) -> String {
        format!(
            "segments/term-{}/attempt-{}/{}-{:08}.segment",
            self.term, self.attempt, self.boot_id, self.counter
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The header is incomplete or does not begin with [`MAGIC`].
    #[error("object is not a segment")]
    Magic,
    #[error("segment of {bytes} bytes does not hold whole records of {record}")]
    Length { bytes: usize, record: u64 },
}

/// Builds a segment. The caller adds records in the order of their index.
#[derive(Debug)]
pub struct SegmentWriter {
    bytes: BytesMut,
    output_bytes: usize,
}

impl SegmentWriter {
    /// Creates an empty segment for chunks with `output_bytes` bytes of outputs each.
    pub fn new(output_bytes: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES);
        bytes.put_slice(&MAGIC);
        bytes.put_u64_le(output_bytes as u64);
        Self { bytes, output_bytes }
    }

    /// Adds `count` consecutive chunks, beginning with index `first`. `outputs` contains their concatenated outputs.
    ///
    /// # Panics
    /// If the length of `outputs` is not `count` times the output bytes of one chunk.
    pub fn add(&mut self, first: u64, count: u64, outputs: &[u8]) {
        assert_eq!(outputs.len() as u64, count * self.output_bytes as u64, "outputs of other chunks");
        self.bytes.reserve((8 + self.output_bytes) * count as usize);
        for place in 0..count {
            self.bytes.put_u64_le(first + place);
            let start = place as usize * self.output_bytes;
            self.bytes.put_slice(&outputs[start..start + self.output_bytes]);
        }
    }

    pub fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}

/// Iterates over the records of a segment: index and outputs of each chunk.
pub fn records(bytes: &[u8]) -> Result<impl Iterator<Item = (u64, &[u8])>, SegmentError> {
    let mut body = bytes.strip_prefix(&MAGIC).ok_or(SegmentError::Magic)?;
    let record = body.try_get_u64_le().map_err(|_| SegmentError::Magic)?.saturating_add(8);
    let length = SegmentError::Length {
        bytes: bytes.len(),
        record,
    };
    let record = usize::try_from(record).map_err(|_| length.clone())?;
    if !body.len().is_multiple_of(record) {
        return Err(length);
    }
    Ok(body.chunks_exact(record).map(|mut record| (record.get_u64_le(), record)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_records_are_read_back() {
        let mut writer = SegmentWriter::new(2);
        writer.add(7, 2, b"abcd");
        writer.add(20, 1, b"ef");
        let bytes = writer.finish();
        assert_eq!(bytes.len(), HEADER_BYTES + 3 * 10);
        let read: Vec<(u64, &[u8])> = records(&bytes).unwrap().collect();
        assert_eq!(read, [(7, &b"ab"[..]), (8, b"cd"), (20, b"ef")]);
        let empty = SegmentWriter::new(0).finish();
        assert_eq!(records(&empty).unwrap().count(), 0);
    }

    #[test]
    fn cut_or_other_objects_are_errors() {
        let mut writer = SegmentWriter::new(4);
        writer.add(0, 1, &[1, 2, 3, 4]);
        let bytes = writer.finish();
        for length in 0..bytes.len() {
            let outcome = records(&bytes[..length]).map(Iterator::count);
            assert_eq!(outcome.is_ok(), length == HEADER_BYTES, "{length}");
        }
        let mut huge = bytes.to_vec();
        huge[8..16].fill(0xff);
        assert!(matches!(records(&huge).map(Iterator::count), Err(SegmentError::Length { .. })));
        huge[0] = b'x';
        assert!(matches!(records(&huge).map(Iterator::count), Err(SegmentError::Magic)));
    }

    #[test]
    fn names_tell_writer_and_number() {
        let name = SegmentName {
            term: 3,
            attempt: 2,
            boot_id: "b007".to_owned(),
            counter: 12,
        };
        assert_eq!(name.text(), "segments/term-3/attempt-2/b007-00000012.segment");
    }
}
