//! Incoming tensors: parts are read one after the other, raw or decoded, into memory for the whole tensor.

use sahasra_memory::Filling;
use sahasra_wire::session::{Encoding, Part, compression::Mode};

use super::{Array, Core, Event, Incoming};
use crate::Error;

#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) request: u64,
    pub(super) array: Array,
    /// Destination of the bytes. `None` while a [`Taking`] has it.
    pub(super) memory: Option<Filling>,
    pub(super) bytes: u64,
    pub(super) filled: u64,
    /// Decoded size of the part that is being read, size of its message, and the sequence number of its frame.
    pub(super) part: Option<(u64, u64, u64)>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Taking {
    memory: Filling,
    /// Message of an encoded part, and memory for its payload; `None` for a raw part.
    encoded: Option<(Part, Filling)>,
}

impl Taking {
    pub(crate) fn buffer(&mut self) -> &mut Filling {
        match &mut self.encoded {
            Some((_, payload)) => payload,
            None => &mut self.memory,
        }
    }

    /// Decodes the payload, if it is encoded, after it has been read. Needs no lock. The result must be passed to [`Core::filled`].
    pub(crate) fn finish(self) -> Result<Filling, Error> {
        let mut memory = self.memory;
        if let Some((part, payload)) = self.encoded {
            let payload = payload.finish();
            let wrong = |error| Error::protocol(format!("a download has {error}"));
            let bytes = part.bytes(payload.len()).map_err(wrong)?;
            // [`Core::part`] has checked that the memory has room for these bytes.
            part.decode(&payload, memory.extend_zeroed(bytes)).map_err(wrong)?;
        }
        Ok(memory)
    }
}

impl Core {
    pub(super) fn part(&mut self, sequence: u64, part: Part, message_bytes: u64, payload_bytes: u64) -> Result<Incoming, Error> {
        let Some(arriving) = &mut self.arriving else {
            return Err(Error::protocol("part without a tensor"));
        };
        let is_raw = part.encoding == i32::from(Encoding::Raw);
        if !is_raw && self.mode == Mode::Never {
            return Err(Error::protocol("encoding of a part that was not requested"));
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
                let payload = payload.map_err(|error| Error::protocol(format!("failed to receive a part: {error}")))?;
                Some((part, payload))
            }
        };
        let Some(memory) = arriving.memory.take() else {
            return Err(Error::protocol("part in the middle of another part"));
        };
        arriving.part = Some((bytes, message_bytes, sequence));
        Ok(Incoming::Fill(Taking { memory, encoded }))
    }

    /// Processes a part after its payload has been read and decoded into `buffer`.
    pub(crate) fn filled(&mut self, buffer: Filling) -> Result<Incoming, Error> {
        let Some(mut arriving) = self.arriving.take() else {
            return Err(Error::protocol("payload without a tensor"));
        };
        let Some((bytes, message_bytes, sequence)) = arriving.part.take() else {
            return Err(Error::protocol("payload without a part"));
        };
        arriving.filled += bytes;
        if buffer.filled() as u64 != arriving.filled {
            return Err(Error::protocol("unexpected length of a payload"));
        }
        self.count(sequence, message_bytes + bytes);
        if arriving.filled < arriving.bytes {
            arriving.memory = Some(buffer);
            self.arriving = Some(arriving);
            return Ok(Incoming::Nothing);
        }
        arriving.array.data = buffer.finish();
        Ok(Incoming::Answer(arriving.request, Ok(Event::Array(arriving.array))))
    }

    /// Resets a part that was being read when the connection broke. The executor sends the whole part again.
    pub(crate) fn interrupted(&mut self, taking: Taking) {
        if let Some(arriving) = &mut self.arriving
            && arriving.part.take().is_some()
        {
            let mut memory = taking.memory;
            // The memory is cut to its length before the part.
            memory.truncate(arriving.filled as usize);
            arriving.memory = Some(memory);
        }
    }
}
