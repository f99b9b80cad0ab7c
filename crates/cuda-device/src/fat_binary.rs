//! Fat binaries: containers of one program compiled for several GPUs.
//!
//! A container begins with 16 bytes: magic, version, length of this header, and length of all entries. An entry has a header (kind, its own length,
//! length of the payload, architecture, flags, length without compression) and the payload. Little endian. The layout is that of
//! `__fatBinC_Wrapper_t` and the header as LLVM's code generator for CUDA emits them, and of entries as public readers of the format
//! describe them.

use std::borrow::Cow;
use std::io::Read;

/// First word of a container.
pub const CONTAINER: u32 = 0xba55_ed50;
/// Bytes of a container's header that are read.
pub const CONTAINER_HEADER: usize = 16;
/// Bytes of an entry's header that are read.
const ENTRY_HEADER: usize = 64;
/// Kind of an entry with PTX.
const PTX: u16 = 1;
/// Kind of an entry with a cubin.
const CUBIN: u16 = 2;
/// Flags of payloads compressed by LZ4 (a block without its length) and by Zstandard.
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// Most bytes of a payload without its compression. Compilers emit a few MiB.
const MAX_BYTES: usize = 1 << 30;

/// What an entry of a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Ptx,
    /// Machine code.
    Cubin,
    Other,
}

/// Entry of a container.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub kind: EntryKind,
    /// Architecture it was compiled for: 10 × major + minor of the compute capability.
    pub architecture: u32,
    header: &'a [u8],
    payload: &'a [u8],
}

/// Length of a container in bytes, from its first [`CONTAINER_HEADER`] bytes; `None` if it is none.
pub fn length(header: &[u8]) -> Option<usize> {
    let bytes = CONTAINER_HEADER.max(short(header, 6)? as usize);
    (word(header, 0)? == CONTAINER).then_some(())?;
    bytes.checked_add(usize::try_from(long(header, 8)?).ok()?)
}

/// Entries of a container, or `None` if it is damaged.
pub fn entries(container: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut rest = container.get(short(container, 6)? as usize..)?;
    let mut entries = Vec::new();
    while rest.len() >= ENTRY_HEADER {
        let header = rest.get(..word(rest, 4)? as usize).filter(|header| header.len() >= ENTRY_HEADER)?;
        let payload = rest.get(header.len()..)?.get(..usize::try_from(long(header, 8)?).ok()?)?;
        entries.push(Entry {
            kind: match short(header, 0)? {
                PTX => EntryKind::Ptx,
                CUBIN => EntryKind::Cubin,
                _ => EntryKind::Other,
            },
            architecture: word(header, 28)?,
            header,
            payload,
        });
        rest = &rest[header.len() + payload.len()..];
    }
    Some(entries)
}

impl<'a> Entry<'a> {
    /// The payload without its compression, or `None` if it is damaged.
    pub fn unpacked(&self) -> Option<Cow<'a, [u8]>> {
        let flags = long(self.header, 40)?;
        if flags & (LZ4 | ZSTANDARD) == 0 {
            return Some(Cow::Borrowed(self.payload));
        }
        // Padding follows what is compressed.
        let packed = self.payload.get(..word(self.header, 16)? as usize)?;
        let length = usize::try_from(long(self.header, 56)?).ok().filter(|length| *length <= MAX_BYTES)?;
        if flags & LZ4 != 0 {
            return lz4_flex::block::decompress(packed, length).ok().map(Cow::Owned);
        }
        let mut bytes = Vec::new();
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
        decoder.take(length as u64).read_to_end(&mut bytes).ok()?;
        (bytes.len() == length).then_some(Cow::Owned(bytes))
    }

    /// The text of an entry with PTX, or `None` if it is damaged.
    pub fn text(&self) -> Option<String> {
        let bytes = self.unpacked()?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

fn array<const LENGTH: usize>(bytes: &[u8], offset: usize) -> Option<[u8; LENGTH]> {
    bytes.get(offset..offset + LENGTH)?.try_into().ok()
}

fn short(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}
