//! Images of modules as programs pass them: PTX, a cubin, a fat binary, or what `cuLinkComplete` makes of several of them.

use sahasra_cuda_boundary::log;
use sahasra_cuda_device::{Properties, REMEDY};

use crate::attributes;
use crate::boundary::{HostPointer, In, Text};
use crate::fatbin;
use crate::jit::Logs;
use crate::status::Status;

/// First bytes of an image that [`Link`] makes. A NUL within, so that it is no text. The length of the image follows, and the number of its
/// parts, each behind its own length.
const MAGIC: &[u8; 16] = b"\x7fSAHASRA-PTX\0\x02\0\0";
/// First bytes of an ELF file.
const ELF: &[u8; 4] = b"\x7fELF";
/// First bytes of an archive of objects.
const ARCHIVE: &[u8; 8] = b"!<arch>\n";
/// Most sections of an ELF file in memory.
const MAX_SECTIONS: usize = 1 << 16;
/// Kinds of inputs (`CUjitInputType`).
const CUBIN: u32 = 0;
const PTX: u32 = 1;
const FAT_BINARY: u32 = 2;
const OBJECT: u32 = 3;
const ARCHIVE_OF_OBJECTS: u32 = 4;

/// Which images a device takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Whether it takes machine code as it is.
    takes_machine_code: bool,
    /// 10 × major + minor of the compute capability.
    capability: u32,
}

impl Target {
    pub(crate) fn of(properties: &Properties) -> Self {
        let (major, minor) = attributes::capability(properties);
        Self {
            takes_machine_code: properties.takes_machine_code,
            capability: u32::try_from(major * 10 + minor).unwrap_or(0),
        }
    }
}

/// Reads the parts of an image in memory, whose length only the image says.
pub(crate) fn parts_at(image: HostPointer, target: Target) -> Result<Vec<Vec<u8>>, Status> {
    if image.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // An image has at least one byte, and each byte that is not that of the end of a text has a successor.
    let starts_with = |prefix: &[u8]| -> Result<bool, Status> {
        for (index, byte) in prefix.iter().enumerate() {
            if byte_at(image, index)? != *byte {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let mut first = [0; 4];
    for (index, byte) in first.iter_mut().enumerate() {
        *byte = byte_at(image, index)?;
        if *byte == 0 {
            break;
        }
    }
    if fatbin::begins(first) {
        return parts(&fatbin::bytes_at(image)?, target);
    }
    let mut length = 0;
    if starts_with(ELF)? {
        length = if target.takes_machine_code { elf_bytes(image)? } else { ELF.len() };
    } else if starts_with(MAGIC)? {
        let place = HostPointer::of_address(image.address() + MAGIC.len());
        length = place.with_bytes(8, |bytes| word(bytes, 0))?.ok_or(Status::INVALID_IMAGE)?;
    } else {
        while byte_at(image, length)? != 0 {
            length += 1;
        }
    }
    image.with_bytes(length, |image| parts(image, target))?
}

/// Length of an ELF file of 64 bits in memory: the end of its headers and sections (System V ABI, "Object Files").
fn elf_bytes(image: HostPointer) -> Result<usize, Status> {
    let half = |bytes: &[u8], offset: usize| {
        bytes
            .get(offset..offset + 2)
            .map(|half| usize::from(u16::from_le_bytes([half[0], half[1]])))
    };
    let table = |bytes: &[u8], start: usize, size: usize, count: usize| {
        let (start, size, count) = (word(bytes, start)?, half(bytes, size)?, half(bytes, count)?);
        (count <= MAX_SECTIONS).then_some((start, size, count))
    };
    let of_header = |header: &[u8]| Some((table(header, 32, 54, 56)?, table(header, 40, 58, 60)?));
    let (segments, sections) = image.with_bytes(64, of_header)?.ok_or(Status::INVALID_IMAGE)?;
    let end = |(start, size, count): (usize, usize, usize)| match count {
        0 => Ok(0),
        count => start.checked_add(size * count).ok_or(Status::INVALID_IMAGE),
    };
    let mut length = 64.max(end(segments)?).max(end(sections)?);
    let (start, size, count) = sections;
    if count > 0 && size < 64 {
        return Err(Status::INVALID_IMAGE);
    }
    for index in 0..count {
        let place = HostPointer::of_address(image.address().checked_add(start + index * size).ok_or(Status::INVALID_IMAGE)?);
        let of_section = |section: &[u8]| {
            // A section without bytes in the file (`SHT_NOBITS`).
            let is_empty = section.get(4..8)? == 8u32.to_le_bytes();
            let end = word(section, 24)?.checked_add(word(section, 32)?)?;
            Some(if is_empty { 0 } else { end })
        };
        length = length.max(place.with_bytes(64, of_section)?.ok_or(Status::INVALID_IMAGE)?);
    }
    Ok(length)
}

/// Reads the parts of an image in a file.
pub(crate) fn parts_of_file(path: Text, target: Target) -> Result<Vec<Vec<u8>>, Status> {
    parts(&file(path)?, target)
}

pub(crate) fn file(path: Text) -> Result<Vec<u8>, Status> {
    std::fs::read(path.path()?).map_err(|_| Status::FILE_NOT_FOUND)
}

/// Reads the parts of an image: texts, and machine code if the device takes it.
pub(crate) fn parts(image: &[u8], target: Target) -> Result<Vec<Vec<u8>>, Status> {
    let is_machine_code = image.starts_with(ELF) || image.starts_with(ARCHIVE);
    if image.starts_with(MAGIC) {
        return linked(image).ok_or(Status::INVALID_IMAGE);
    }
    if target.takes_machine_code && (is_machine_code || is_fat_binary(image)) {
        return Ok(vec![image.to_vec()]);
    }
    if is_machine_code {
        log::once(REMEDY.to_owned());
        return Err(Status::NO_BINARY_FOR_GPU);
    }
    if is_fat_binary(image) {
        return Ok(vec![fatbin::text(image, target.capability)?.into_bytes()]);
    }
    Ok(vec![text(image)])
}

fn is_fat_binary(image: &[u8]) -> bool {
    image.first_chunk::<4>().is_some_and(|first| fatbin::begins(*first))
}

/// A text up to its zero byte, or to the end.
fn text(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned().into_bytes()
}

fn byte_at(image: HostPointer, index: usize) -> Result<u8, Status> {
    In::<u8>::new(image.pointer().cast_const().cast()).at(index)
}

/// The number at an offset.
fn word(bytes: &[u8], offset: usize) -> Option<usize> {
    let word = bytes.get(offset..offset.checked_add(8)?)?;
    usize::try_from(u64::from_le_bytes(word.try_into().ok()?)).ok()
}

/// Parts of an image that [`Link`] made, or `None` if it is damaged.
fn linked(image: &[u8]) -> Option<Vec<Vec<u8>>> {
    let count = word(image, MAGIC.len() + 8)?;
    let mut offset = MAGIC.len() + 16;
    let mut parts = Vec::new();
    for _ in 0..count {
        let length = word(image, offset)?;
        let end = offset.checked_add(8)?.checked_add(length)?;
        parts.push(image.get(offset + 8..end)?.to_vec());
        offset = end;
    }
    Some(parts)
}

/// Texts, and machine code if the device takes it, that are being linked.
pub(crate) struct Link {
    pub(crate) parts: Vec<Vec<u8>>,
    pub(crate) logs: Logs,
    /// The finished image, which belongs to the link until that is destroyed.
    image: Vec<u8>,
}

impl Link {
    /// Link without parts.
    pub(crate) fn new(logs: Logs) -> Self {
        Self {
            parts: Vec::new(),
            logs,
            image: Vec::new(),
        }
    }

    /// Adds an input of a kind (`CUjitInputType`).
    pub(crate) fn add(&mut self, kind: u32, bytes: &[u8], target: Target) -> Result<(), Status> {
        let is_kind = match kind {
            CUBIN => bytes.starts_with(ELF) || bytes.starts_with(MAGIC),
            PTX => !bytes.starts_with(ARCHIVE),
            FAT_BINARY => is_fat_binary(bytes),
            OBJECT => bytes.starts_with(ELF),
            ARCHIVE_OF_OBJECTS => bytes.starts_with(ARCHIVE),
            _ => return Err(Status::INVALID_VALUE),
        };
        if !is_kind {
            self.logs.write("the input is not of the kind that the caller says");
            return Err(Status::INVALID_IMAGE);
        }
        if kind == ARCHIVE_OF_OBJECTS && !target.takes_machine_code {
            // A name that only the archive defines is reported as not declared.
            log::once("an archive of machine code is left out of a link".to_owned());
            return Ok(());
        }
        let parts = parts(bytes, target).inspect_err(|status| {
            if *status == Status::NO_BINARY_FOR_GPU {
                self.logs.write(REMEDY);
            }
        });
        self.parts.extend(parts?);
        Ok(())
    }

    /// Makes the image of all parts. Returns its address and size.
    pub(crate) fn complete(&mut self) -> (*mut u8, usize) {
        let mut image = MAGIC.to_vec();
        let length = MAGIC.len() + 16 + self.parts.iter().map(|part| 8 + part.len()).sum::<usize>();
        image.extend((length as u64).to_le_bytes());
        image.extend((self.parts.len() as u64).to_le_bytes());
        for part in &self.parts {
            image.extend((part.len() as u64).to_le_bytes());
            image.extend(part);
        }
        self.image = image;
        (self.image.as_mut_ptr(), self.image.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX_ONLY: Target = Target {
        takes_machine_code: false,
        capability: 80,
    };
    const GPU: Target = Target {
        takes_machine_code: true,
        capability: 90,
    };

    fn texts(image: &[u8]) -> Result<Vec<Vec<u8>>, Status> {
        parts(image, PTX_ONLY)
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let mut link = Link::new(Logs::default());
        for text in ["first", "second\0", ""] {
            link.add(PTX, text.as_bytes(), PTX_ONLY).unwrap();
        }
        link.complete();
        let image = link.image.clone();
        assert_eq!(texts(&image), Ok(vec![b"first".to_vec(), b"second".to_vec(), Vec::new()]));
        let in_memory = parts_at(HostPointer::of_address(image.as_ptr() as usize), PTX_ONLY);
        assert_eq!(in_memory, texts(&image));
        for length in MAGIC.len()..image.len() {
            assert_eq!(texts(&image[..length]), Err(Status::INVALID_IMAGE), "{length}");
        }
        for offset in [24, 32, 45] {
            let mut damaged = image.clone();
            damaged[offset..offset + 8].fill(0xff);
            assert_eq!(texts(&damaged), Err(Status::INVALID_IMAGE), "{offset}");
        }
        let mut other = Link::new(Logs::default());
        other.add(CUBIN, &image, PTX_ONLY).unwrap();
        assert_eq!(other.parts, link.parts);
    }

    #[test]
    fn inputs_must_be_of_their_kind() {
        let inputs: [&[u8]; 4] = [b"\x7fELF...", b"\x50\xed\x55\xba...", b"!<arch>\n...", b".version 7.0"];
        let expected = [
            (CUBIN, [209, 200, 200, 200]),
            (PTX, [209, 200, 200, 0]),
            (FAT_BINARY, [200; 4]),
            (OBJECT, [209, 200, 200, 200]),
            (ARCHIVE_OF_OBJECTS, [200, 200, 0, 200]),
            (5, [1; 4]),
        ];
        for (kind, codes) in expected {
            for (input, code) in inputs.iter().zip(codes) {
                let added = Link::new(Logs::default()).add(kind, input, PTX_ONLY);
                assert_eq!(added.map_or_else(|status| status.0, |()| 0), code, "{kind} {input:?}");
            }
        }
    }

    /// An ELF file with one section of these bytes, behind which its section header is.
    fn elf(section: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..4].copy_from_slice(ELF);
        file[40..48].copy_from_slice(&(64 + section.len() as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&1u16.to_le_bytes());
        file.extend(section);
        let mut header = [0; 64];
        header[4] = 1;
        header[24..32].copy_from_slice(&64u64.to_le_bytes());
        header[32..40].copy_from_slice(&(section.len() as u64).to_le_bytes());
        file.extend(header);
        file
    }

    #[test]
    fn machine_code_is_passed_on_as_it_is_to_a_device_that_takes_it() {
        let cubin = elf(b"code");
        let padded = [cubin.as_slice(), &[7; 100]].concat();
        let place = HostPointer::of_address(padded.as_ptr() as usize);
        assert_eq!(parts_at(place, GPU), Ok(vec![cubin.clone()]), "without what follows it");
        assert_eq!(parts_at(place, PTX_ONLY), Err(Status::NO_BINARY_FOR_GPU));
        let container = [&[0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0][..], &[0; 8]].concat();
        assert_eq!(parts(&container, GPU), Ok(vec![container.clone()]));
        let mut link = Link::new(Logs::default());
        link.add(PTX, b"text", GPU).unwrap();
        link.add(CUBIN, &cubin, GPU).unwrap();
        link.add(ARCHIVE_OF_OBJECTS, ARCHIVE, GPU).unwrap();
        link.complete();
        assert_eq!(parts(&link.image, GPU), Ok(vec![b"text".to_vec(), cubin, ARCHIVE.to_vec()]));
    }

    #[test]
    fn damaged_machine_code_is_refused() {
        // The place of the sections, and the size of a section's header.
        for (offset, value) in [(40, u64::MAX), (58, 0x0001_0000)] {
            let mut damaged = elf(b"code");
            damaged[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            let read = parts_at(HostPointer::of_address(damaged.as_ptr() as usize), GPU);
            assert_eq!(read, Err(Status::INVALID_IMAGE), "{offset}");
        }
    }
}
