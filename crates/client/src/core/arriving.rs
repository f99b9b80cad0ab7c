//! Tensors on their way here: parts go one after the other into memory for the whole, as they come or decoded.

use sahasra_memory::Filling;
use sahasra_wire::session::{Encoding, Part, compression::Mode};

use super::{Array, Core, Event, Incoming};
use crate::Error;

/// A download that is on its way.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) request: u64,
    pub(super) array: Array,
    /// Where its bytes go; elsewhere while a part is being read.
    pub(super) memory: Option<Filling>,
    pub(super) bytes: u64,
    /// Bytes that are there.
    pub(super) filled: u64,
    /// Bytes that the part will be that is being read; its frame's number.
    pub(super) part: Option<(u64, u64)>,
}

/// A part that is being read.
#[derive(Debug, PartialEq)]
pub struct Taking {
    /// The tensor's.
    memory: Filling,
    /// What is to be decoded, and memory for its payload.
    encoded: Option<(Part, Filling)>,
}

impl Taking {
    /// Where its payload goes.
    pub fn buffer(&mut self) -> &mut Filling {
        match &mut self.encoded {
            Some((_, payload)) => payload,
            None => &mut self.memory,
        }
    }

    /// The payload is there: decodes it where it has to be, for which nobody else need wait. It goes back by [`Core::filled`].
    ///
    /// # Errors
    /// [`Error::Protocol`] when it does not decode.
    pub fn finish(self) -> Result<Filling, Error> {
        let mut memory = self.memory;
        if let Some((part, payload)) = self.encoded {
            let payload = payload.finish();
            let wrong = |error| Error::protocol(format!("a download has {error}"));
            let bytes = part.bytes(payload.len()).map_err(wrong)?;
            // Looked at when it came: there is room for as many.
            part.decode(&payload, memory.extend_zeroed(bytes)).map_err(wrong)?;
        }
        Ok(memory)
    }
}

impl Core {
    pub(super) fn part(&mut self, sequence: u64, part: Part, payload_bytes: u64) -> Result<Incoming, Error> {
        let Some(arriving) = &mut self.arriving else {
            return Err(Error::protocol("a part belongs to no tensor"));
        };
        let is_raw = part.encoding == i32::from(Encoding::Raw);
        if !is_raw && self.mode == Mode::Never {
            return Err(Error::protocol("a part is encoded in a way that was not asked for"));
        }
        let payload_bytes = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
        let bytes = part.bytes(payload_bytes);
        let bytes = bytes.map_err(|error| Error::protocol(format!("a download has {error}")))? as u64;
        if bytes == 0 || arriving.filled + bytes > arriving.bytes {
            return Err(Error::protocol("a part does not fit its tensor"));
        }
        let encoded = match is_raw {
            true => None,
            false => {
                let payload = Filling::new(payload_bytes);
                let payload = payload.map_err(|error| Error::protocol(format!("a part cannot be taken: {error}")))?;
                Some((part, payload))
            }
        };
        let Some(memory) = arriving.memory.take() else {
            return Err(Error::protocol("a part comes in the middle of another"));
        };
        arriving.part = Some((bytes, sequence));
        Ok(Incoming::Fill(Taking { memory, encoded }))
    }

    /// The part that was read is in the buffer.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is not what was to come.
    pub fn filled(&mut self, buffer: Filling) -> Result<Incoming, Error> {
        let Some(mut arriving) = self.arriving.take() else {
            return Err(Error::protocol("a payload belongs to no tensor"));
        };
        let Some((bytes, sequence)) = arriving.part.take() else {
            return Err(Error::protocol("a payload belongs to no part"));
        };
        arriving.filled += bytes;
        if buffer.filled() as u64 != arriving.filled {
            return Err(Error::protocol("a payload is not as long as it was to be"));
        }
        self.count(sequence, bytes);
        if arriving.filled < arriving.bytes {
            arriving.memory = Some(buffer);
            self.arriving = Some(arriving);
            return Ok(Incoming::Nothing);
        }
        arriving.array.data = buffer.finish();
        Ok(Incoming::Answer(arriving.request, Ok(Event::Array(arriving.array))))
    }

    /// The connection broke while this part was being read: it comes again as a whole.
    pub fn interrupted(&mut self, taking: Taking) {
        if let Some(arriving) = &mut self.arriving
            && arriving.part.take().is_some()
        {
            let mut memory = taking.memory;
            // It was that long before.
            memory.truncate(arriving.filled as usize);
            arriving.memory = Some(memory);
        }
    }
}
