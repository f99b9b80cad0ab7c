//! Images of modules as programs pass them: PTX, a fat binary that has PTX, or what `cuLinkComplete` makes of several PTX texts.

use sahasra_cuda_boundary::log;

use crate::boundary::{HostPointer, In, Text};
use crate::fatbin::{self, REMEDY};
use crate::jit::Logs;
use crate::status::Status;

/// First bytes of an image that [`Link`] makes. A NUL within, so that it is no text. The length of the image follows, and the number of its
/// texts, each behind its own length.
const MAGIC: &[u8; 16] = b"\x7fSAHASRA-PTX\0\x02\0\0";
/// First bytes of an ELF file.
const ELF: &[u8; 4] = b"\x7fELF";
/// First bytes of an archive of objects.
const ARCHIVE: &[u8; 8] = b"!<arch>\n";
/// Kinds of inputs (`CUjitInputType`).
const CUBIN: u32 = 0;
const PTX: u32 = 1;
const FAT_BINARY: u32 = 2;
const OBJECT: u32 = 3;
const ARCHIVE_OF_OBJECTS: u32 = 4;

/// Reads the texts of an image in memory, whose length only the image says.
pub(crate) fn texts_at(image: HostPointer) -> Result<Vec<String>, Status> {
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
        return Ok(vec![fatbin::text_at(image)?]);
    }
    let mut length = 0;
    if starts_with(ELF)? {
        length = ELF.len();
    } else if starts_with(MAGIC)? {
        let place = HostPointer::of_address(image.address() + MAGIC.len());
        length = place.with_bytes(8, |bytes| word(bytes, 0))?.ok_or(Status::INVALID_IMAGE)?;
    } else {
        while byte_at(image, length)? != 0 {
            length += 1;
        }
    }
    image.with_bytes(length, texts)?
}

/// Reads the texts of an image in a file.
pub(crate) fn texts_of_file(path: Text) -> Result<Vec<String>, Status> {
    texts(&file(path)?)
}

/// Reads a file.
pub(crate) fn file(path: Text) -> Result<Vec<u8>, Status> {
    std::fs::read(path.path()?).map_err(|_| Status::FILE_NOT_FOUND)
}

/// Reads the texts of an image.
pub(crate) fn texts(image: &[u8]) -> Result<Vec<String>, Status> {
    if image.starts_with(ELF) {
        log::once(REMEDY.to_owned());
        return Err(Status::NO_BINARY_FOR_GPU);
    }
    if is_fat_binary(image) {
        return Ok(vec![fatbin::text(image)?]);
    }
    if image.starts_with(MAGIC) {
        return linked(image).ok_or(Status::INVALID_IMAGE);
    }
    Ok(vec![text(image)])
}

fn is_fat_binary(image: &[u8]) -> bool {
    image.first_chunk::<4>().is_some_and(|first| fatbin::begins(*first))
}

/// A text up to its zero byte, or to the end.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn byte_at(image: HostPointer, index: usize) -> Result<u8, Status> {
    In::<u8>::new(image.pointer().cast_const().cast()).at(index)
}

/// The number at an offset.
fn word(bytes: &[u8], offset: usize) -> Option<usize> {
    let word = bytes.get(offset..offset.checked_add(8)?)?;
    usize::try_from(u64::from_le_bytes(word.try_into().ok()?)).ok()
}

/// Texts of an image that [`Link`] made, or `None` if it is damaged.
fn linked(image: &[u8]) -> Option<Vec<String>> {
    let count = word(image, MAGIC.len() + 8)?;
    let mut offset = MAGIC.len() + 16;
    let mut texts = Vec::new();
    for _ in 0..count {
        let length = word(image, offset)?;
        let end = offset.checked_add(8)?.checked_add(length)?;
        texts.push(String::from_utf8_lossy(image.get(offset + 8..end)?).into_owned());
        offset = end;
    }
    Some(texts)
}

/// Texts that are being linked.
pub(crate) struct Link {
    pub(crate) texts: Vec<String>,
    pub(crate) logs: Logs,
    /// The finished image, which belongs to the link until that is destroyed.
    image: Vec<u8>,
}

impl Link {
    /// Link without texts.
    pub(crate) fn new(logs: Logs) -> Self {
        Self {
            texts: Vec::new(),
            logs,
            image: Vec::new(),
        }
    }

    /// Adds the texts of an input of a kind (`CUjitInputType`).
    pub(crate) fn add(&mut self, kind: u32, bytes: &[u8]) -> Result<(), Status> {
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
        if kind == ARCHIVE_OF_OBJECTS {
            // A name that only the archive defines is reported as not declared.
            log::once("an archive of machine code is left out of a link".to_owned());
            return Ok(());
        }
        let texts = texts(bytes).inspect_err(|status| {
            if *status == Status::NO_BINARY_FOR_GPU {
                self.logs.write(REMEDY);
            }
        });
        self.texts.extend(texts?);
        Ok(())
    }

    /// Makes the image of all texts. Returns its address and size.
    pub(crate) fn complete(&mut self) -> (*mut u8, usize) {
        let mut image = MAGIC.to_vec();
        let length = MAGIC.len() + 16 + self.texts.iter().map(|text| 8 + text.len()).sum::<usize>();
        image.extend((length as u64).to_le_bytes());
        image.extend((self.texts.len() as u64).to_le_bytes());
        for text in &self.texts {
            image.extend((text.len() as u64).to_le_bytes());
            image.extend(text.as_bytes());
        }
        self.image = image;
        (self.image.as_mut_ptr(), self.image.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_image_is_refused() {
        let mut link = Link::new(Logs::default());
        for text in ["first", "second\0", ""] {
            link.add(PTX, text.as_bytes()).unwrap();
        }
        link.complete();
        let image = link.image.clone();
        assert_eq!(texts(&image), Ok(vec!["first".to_owned(), "second".to_owned(), String::new()]));
        let in_memory = texts_at(HostPointer::of_address(image.as_ptr() as usize));
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
        other.add(CUBIN, &image).unwrap();
        assert_eq!(other.texts, link.texts);
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
                let added = Link::new(Logs::default()).add(kind, input);
                assert_eq!(added.map_or_else(|status| status.0, |()| 0), code, "{kind} {input:?}");
            }
        }
    }
}
