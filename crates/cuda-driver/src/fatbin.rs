//! Fat binaries as programs pass them: of their entries, PTX is what a device without machine code runs.

use sahasra_cuda_boundary::log;
use sahasra_cuda_device::{REMEDY, fat_binary as container};

use container::{CONTAINER, CONTAINER_HEADER, EntryKind};

use crate::boundary::HostPointer;
use crate::status::Status;

/// First word of the structure that points to a container.
const WRAPPER: u32 = 0x4662_43b1;

/// Whether bytes begin as a container or the structure that points to one.
pub(crate) fn begins(bytes: [u8; 4]) -> bool {
    matches!(u32::from_le_bytes(bytes), CONTAINER | WRAPPER)
}

/// The bytes of the container at a pointer.
pub(crate) fn bytes_at(image: HostPointer) -> Result<Vec<u8>, Status> {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
    let image = image.with_bytes(CONTAINER_HEADER, |header| match word(header) {
        Some(WRAPPER) => {
            let address = header.last_chunk().map_or(0, |address| u64::from_le_bytes(*address));
            HostPointer::of_address(address as usize)
        }
        _ => image,
    })?;
    let length = image.with_bytes(CONTAINER_HEADER, container::length)?;
    image.with_bytes(length.ok_or(Status::INVALID_IMAGE)?, <[u8]>::to_vec)
}

/// The PTX of a container for the highest architecture that the device has (10 × major + minor).
pub(crate) fn text(bytes: &[u8], capability: u32) -> Result<String, Status> {
    let entries = container::entries(bytes).ok_or(Status::INVALID_IMAGE)?;
    let texts = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Ptx && entry.architecture <= capability);
    // The first of those for one architecture.
    let Some(best) = texts.rev().max_by_key(|entry| entry.architecture) else {
        let newer = entries.iter().filter(|entry| entry.kind == EntryKind::Ptx);
        log::once(remedy(newer.map(|entry| entry.architecture), capability));
        return Err(Status::NO_BINARY_FOR_GPU);
    };
    best.text().ok_or(Status::INVALID_IMAGE)
}

/// What to do about an image whose PTX, if it has any, is for these architectures.
fn remedy(newer: impl Iterator<Item = u32>, capability: u32) -> String {
    match newer.min() {
        Some(newer) => format!(
            "the image has PTX for compute_{newer} and later only, and this device is compute_{capability}: compile for it, as nvcc does with \
             -gencode arch=compute_{capability},code=compute_{capability}"
        ),
        None => REMEDY.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY_HEADER: usize = 64;
    const PTX: u16 = 1;
    const LZ4: u64 = 0x2000;
    const ZSTANDARD: u64 = 0x8000;

    fn text(container: &[u8]) -> Result<String, Status> {
        super::text(container, 80)
    }

    fn text_at(image: HostPointer) -> Result<String, Status> {
        text(&bytes_at(image)?)
    }

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
        assert!(remedy([100, 90].into_iter(), 80).contains("PTX for compute_90 and later"));
        assert_eq!(remedy(std::iter::empty(), 80), REMEDY);
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
