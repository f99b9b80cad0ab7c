//! Fat binaries: containers of one program compiled for several GPUs, of which PTX is what runs here.
//!
//! A container begins with 16 bytes: magic, version, length of this header, and length of all entries. An entry has a header (kind, its own length,
//! length of the payload, architecture, flags, length without compression) and the payload. Little endian. The layout is that of
//! `__fatBinC_Wrapper_t` and the header as LLVM's code generator for CUDA emits them, and of entries as public readers of the format
//! describe them.

use std::io::Read;

use sahasra_cuda_boundary::log;
use sahasra_cuda_environment::CAPABILITY;

use crate::boundary::HostPointer;
use crate::status::Status;

/// What to do about machine code.
pub(crate) const REMEDY: &str = "the image has machine code for a GPU and this device runs PTX: compile for PTX, as nvcc does with \
     -gencode arch=compute_80,code=compute_80";
/// First word of a container.
const CONTAINER: u32 = 0xba55_ed50;
/// First word of the structure that points to a container.
const WRAPPER: u32 = 0x4662_43b1;
/// Bytes of a container's header that are read.
const CONTAINER_HEADER: usize = 16;
/// Bytes of an entry's header that are read.
const ENTRY_HEADER: usize = 64;
/// Kind of an entry with PTX.
const PTX: u16 = 1;
/// Flags of payloads compressed by LZ4 (a block without its length) and by Zstandard.
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// Most bytes of a text. Compilers emit a few MiB.
const MAX_TEXT_BYTES: usize = 1 << 30;

/// Whether bytes begin as a container or the structure that points to one.
pub(crate) fn begins(bytes: [u8; 4]) -> bool {
    matches!(u32::from_le_bytes(bytes), CONTAINER | WRAPPER)
}

/// The PTX of the container at a pointer.
pub(crate) fn text_at(image: HostPointer) -> Result<String, Status> {
    let image = image.with_bytes(CONTAINER_HEADER, |header| match word(header, 0) {
        Some(WRAPPER) => long(header, 8).map_or(HostPointer::of_address(0), |address| HostPointer::of_address(address as usize)),
        _ => image,
    })?;
    let length = image.with_bytes(CONTAINER_HEADER, |header| {
        let bytes = CONTAINER_HEADER.max(short(header, 6)? as usize);
        (word(header, 0)? == CONTAINER).then_some(())?;
        bytes.checked_add(usize::try_from(long(header, 8)?).ok()?)
    })?;
    image.with_bytes(length.ok_or(Status::INVALID_IMAGE)?, text)?
}

/// The PTX of a container for the highest architecture that the device has.
pub(crate) fn text(container: &[u8]) -> Result<String, Status> {
    let capability = (CAPABILITY.0 * 10 + CAPABILITY.1) as u32;
    let mut best: Option<(u32, &[u8], &[u8])> = None;
    let mut rest = container
        .get(short(container, 6).ok_or(Status::INVALID_IMAGE)? as usize..)
        .ok_or(Status::INVALID_IMAGE)?;
    while rest.len() >= ENTRY_HEADER {
        let (header, payload) = entry(rest).ok_or(Status::INVALID_IMAGE)?;
        let architecture = word(header, 28).unwrap_or(0);
        let is_better = best.is_none_or(|(known, ..)| architecture > known);
        if short(header, 0) == Some(PTX) && architecture <= capability && is_better {
            best = Some((architecture, header, payload));
        }
        rest = &rest[header.len() + payload.len()..];
    }
    let Some((_, header, payload)) = best else {
        log::once(REMEDY.to_owned());
        return Err(Status::NO_BINARY_FOR_GPU);
    };
    let mut text = unpacked(header, payload).ok_or(Status::INVALID_IMAGE)?;
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Header and payload of the first entry.
fn entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let header = bytes
        .get(..word(bytes, 4)? as usize)
        .filter(|header| header.len() >= ENTRY_HEADER)?;
    let payload = bytes.get(header.len()..)?.get(..usize::try_from(long(header, 8)?).ok()?)?;
    Some((header, payload))
}

/// The payload without its compression.
fn unpacked(header: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
    let flags = long(header, 40)?;
    if flags & (LZ4 | ZSTANDARD) == 0 {
        return Some(payload.to_vec());
    }
    // Padding follows what is compressed.
    let packed = payload.get(..word(header, 16)? as usize)?;
    let length = usize::try_from(long(header, 56)?).ok().filter(|length| *length <= MAX_TEXT_BYTES)?;
    if flags & LZ4 != 0 {
        return lz4_flex::block::decompress(packed, length).ok();
    }
    let mut text = Vec::new();
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
    decoder.take(length as u64).read_to_end(&mut text).ok()?;
    (text.len() == length).then_some(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry: kind, architecture, flags, payload, length without compression.
    fn entry(kind: u16, architecture: u32, flags: u64, payload: &[u8], length: u64) -> Vec<u8> {
        let mut entry = vec![0; ENTRY_HEADER];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&(ENTRY_HEADER as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(payload.len().next_multiple_of(8) as u64).to_le_bytes());
        entry[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&architecture.to_le_bytes());
        entry[40..48].copy_from_slice(&flags.to_le_bytes());
        entry[56..64].copy_from_slice(&length.to_le_bytes());
        entry.extend(payload);
        entry.resize(entry.len().next_multiple_of(8), 0);
        entry
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let entries = entries.concat();
        let mut container = CONTAINER.to_le_bytes().to_vec();
        container.extend([1, 0, 16, 0]);
        container.extend((entries.len() as u64).to_le_bytes());
        container.extend(entries);
        container
    }

    #[test]
    fn the_highest_architecture_that_the_device_has_is_taken() {
        let entries = [
            entry(PTX, 70, 0, b"seventy", 0),
            entry(2, 80, 0, b"\x7fELF", 0),
            entry(PTX, 80, 0, b"eighty", 0),
            entry(PTX, 90, 0, b"ninety", 0),
        ];
        assert_eq!(text(&container(&entries)), Ok("eighty".to_owned()));
        assert_eq!(text(&container(&entries[..2])), Ok("seventy".to_owned()));
    }

    #[test]
    fn a_container_without_ptx_has_no_binary_for_the_device() {
        let machine_code = entry(2, 80, 0, b"\x7fELF", 0);
        assert_eq!(text(&container(&[machine_code])), Err(Status::NO_BINARY_FOR_GPU));
        assert_eq!(text(&container(&[])), Err(Status::NO_BINARY_FOR_GPU));
        assert_eq!(text(&container(&[entry(PTX, 90, 0, b"newer", 0)])), Err(Status::NO_BINARY_FOR_GPU));
    }

    #[test]
    fn compressed_texts_are_read() {
        let plain = ".version 7.0 ".repeat(100);
        let length = plain.len() as u64;
        let packed = lz4_flex::block::compress(plain.as_bytes());
        assert_eq!(text(&container(&[entry(PTX, 80, LZ4, &packed, length)])), Ok(plain.clone()));
        let packed = ruzstd::encoding::compress_to_vec(plain.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        assert_eq!(text(&container(&[entry(PTX, 80, ZSTANDARD, &packed, length)])), Ok(plain.clone()));
        for (flag, wrong) in [(LZ4, length - 1), (LZ4, u64::MAX), (ZSTANDARD, length + 1), (ZSTANDARD, u64::MAX)] {
            let damaged = container(&[entry(PTX, 80, flag, &packed, wrong)]);
            assert_eq!(text(&damaged), Err(Status::INVALID_IMAGE), "{flag:x} {wrong}");
        }
    }

    #[test]
    fn damaged_containers_are_refused() {
        let whole = container(&[entry(PTX, 80, 0, b"text", 0)]);
        for length in 0..CONTAINER_HEADER - 8 {
            assert_eq!(text(&whole[..length]), Err(Status::INVALID_IMAGE), "{length}");
        }
        for (offset, value) in [(20, 0u32), (20, u32::MAX), (24, u32::MAX), (6, u32::MAX)] {
            let mut damaged = whole.clone();
            damaged[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            assert_eq!(text(&damaged), Err(Status::INVALID_IMAGE), "{offset}");
        }
    }

    #[test]
    fn the_wrapper_is_followed() {
        let mut container = container(&[entry(PTX, 80, 0, b"text\0", 0)]);
        let mut wrapper = [0u8; 24];
        wrapper[..4].copy_from_slice(&WRAPPER.to_le_bytes());
        wrapper[8..16].copy_from_slice(&(container.as_mut_ptr() as u64).to_le_bytes());
        assert_eq!(text_at(HostPointer::new(wrapper.as_mut_ptr().cast())), Ok("text".to_owned()));
        assert_eq!(text_at(HostPointer::new(container.as_mut_ptr().cast())), Ok("text".to_owned()));
    }
}
