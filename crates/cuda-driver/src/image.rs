//! Images of modules as programs pass them: PTX, a fat binary that has PTX, or what `cuLinkComplete` makes of several PTX texts.

use sahasra_cuda_boundary::log;
use sahasra_cuda_device::LoadFailure;

use crate::boundary::{HostPointer, In, Out};
use crate::fatbin;
use crate::status::Status;

/// First bytes of an image that [`Link`] makes. A NUL within, so that it is no text.
const MAGIC: &[u8; 16] = b"\x7fSAHASRA-PTX\0\x01\0\0";
/// First bytes of an ELF file.
const ELF: &[u8; 4] = b"\x7fELF";
/// First bytes of an archive of objects.
const ARCHIVE: &[u8; 8] = b"!<arch>\n";
/// What to do about machine code.
pub(crate) const REMEDY: &str = "the image has machine code for a GPU and this device runs PTX: compile for PTX, as nvcc does with \
     -gencode arch=compute_80,code=compute_80, or use a session on a GPU node";

/// Reads the texts of an image, whose length nobody knows but the image.
pub(crate) fn texts(image: HostPointer) -> Result<Vec<String>, Status> {
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
    if starts_with(ELF)? {
        log::once(REMEDY.to_owned());
        return Err(Status::NO_BINARY_FOR_GPU);
    }
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
    if starts_with(MAGIC)? {
        return linked(image);
    }
    let mut length = 0;
    while byte_at(image, length)? != 0 {
        length += 1;
    }
    let text = image.with_bytes(length, |bytes| String::from_utf8_lossy(bytes).into_owned())?;
    Ok(vec![text])
}

fn byte_at(image: HostPointer, index: usize) -> Result<u8, Status> {
    In::<u8>::new(image.pointer().cast_const().cast()).at(index)
}

/// Texts of an image that [`Link`] made.
fn linked(image: HostPointer) -> Result<Vec<String>, Status> {
    let at = |offset: usize| HostPointer::of_address(image.address() + offset);
    let word = |offset: usize| {
        In::<u64>::new(at(offset).pointer().cast_const().cast())
            .get()
            .map(|word| word as usize)
    };
    let mut offset = MAGIC.len();
    let count = word(offset)?;
    offset += 8;
    let mut texts = Vec::new();
    for _ in 0..count {
        let length = word(offset)?;
        offset += 8;
        let text = at(offset).with_bytes(length, |bytes| String::from_utf8_lossy(bytes).into_owned())?;
        texts.push(text);
        offset += length;
    }
    Ok(texts)
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

    /// Adds the text of an input.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if let Some(first) = bytes.first_chunk::<4>()
            && fatbin::begins(*first)
        {
            self.texts.push(fatbin::text(bytes)?);
            return Ok(());
        }
        if bytes.starts_with(ELF) {
            self.logs.write(REMEDY);
            log::once(REMEDY.to_owned());
            return Err(Status::NO_BINARY_FOR_GPU);
        }
        if bytes.starts_with(ARCHIVE) {
            // A name that only the archive defines is reported as not declared.
            log::once("an archive of machine code is left out of a link".to_owned());
            return Ok(());
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        self.texts.push(String::from_utf8_lossy(&bytes[..end]).into_owned());
        Ok(())
    }

    /// Makes the image of all texts. Returns its address and size.
    pub(crate) fn complete(&mut self) -> (*mut u8, usize) {
        let mut image = MAGIC.to_vec();
        image.extend((self.texts.len() as u64).to_le_bytes());
        for text in &self.texts {
            image.extend((text.len() as u64).to_le_bytes());
            image.extend(text.as_bytes());
        }
        self.image = image;
        (self.image.as_mut_ptr(), self.image.len())
    }
}

/// Places for messages, among the options of a compilation (`CUjit_option`).
#[derive(Default)]
pub(crate) struct Logs {
    /// Where the error log goes, its size in bytes, and where its length goes.
    error: Option<(usize, usize, Option<usize>)>,
    info_length: Option<usize>,
}

const INFO_LOG_SIZE: u32 = 4;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;
const WALL_TIME: u32 = 2;

impl Logs {
    /// Finds the places among the options. Values are pointers, or numbers in the place of pointers.
    pub(crate) fn read(count: u32, options: In<u32>, values: Out<usize>) -> Result<Self, Status> {
        let mut logs = Self::default();
        if count == 0 {
            return Ok(logs);
        }
        values.require()?;
        let (mut buffer, mut size, mut place) = (0, 0, None);
        for index in 0..count as usize {
            let value = values.element(index);
            match options.at(index)? {
                ERROR_LOG => buffer = value.get()?,
                ERROR_LOG_SIZE => {
                    // An unsigned int in the place of a pointer: the upper half may hold anything.
                    size = value.get()? as u32 as usize;
                    place = Some(value.address());
                }
                INFO_LOG_SIZE => logs.info_length = Some(value.address()),
                WALL_TIME => value.cast::<f32>().set(0.0)?,
                _ => {}
            }
        }
        if buffer != 0 && size > 0 {
            logs.error = Some((buffer, size, place));
        }
        Ok(logs)
    }

    /// Writes a message to the error log, with a zero byte at its end.
    pub(crate) fn write(&self, message: &str) {
        let Some((buffer, size, place)) = self.error else { return };
        let length = message.len().min(size - 1);
        // Refuses nothing: the buffer is not null and the size is that of the caller.
        let _ = HostPointer::of_address(buffer).with_bytes_mut(length + 1, |bytes| {
            bytes[..length].copy_from_slice(&message.as_bytes()[..length]);
            bytes[length] = 0;
        });
        if let Some(place) = place {
            Out::new(place as *mut usize).set_if_wanted(length);
        }
    }

    /// Writes that there is no message.
    pub(crate) fn clear(&self) {
        self.write("");
        if let Some(place) = self.info_length {
            Out::new(place as *mut usize).set_if_wanted(0);
        }
    }

    /// Reports a failure in the error log and on stderr.
    pub(crate) fn report(&self, failure: &LoadFailure) -> Status {
        let message = failure.to_string();
        self.write(&message);
        log::line(&format!("module not loaded: {message}"));
        Status::from(failure)
    }
}
