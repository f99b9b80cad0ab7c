//! Uploads of tensors: parts are assembled in memory of the tensor's size, which the engine then uses without a copy.

use std::rc::Rc;

use bytes::Bytes;
use sahasra_memory::{Filling, Region};
use sahasra_pjrt::Shape;
use sahasra_wire::session::{Encoding, FailureCode, Part, PartError, Upload};

use super::{Failure, State};
use crate::session::engine::{Engine, Fault, element_type};
use crate::session::payload::Payload;

const MAX_DIMENSIONS: usize = 64;

/// An upload with missing parts.
pub(super) struct Incoming {
    sequence: u64,
    tensor: u64,
    missing: u64,
    /// Destination of the parts, or the failure of the upload.
    outcome: Result<(Shape, Gathered), Rc<Failure>>,
}

/// Violation of the protocol by a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedPart {
    #[error("part without an upload")]
    NoUpload,
    #[error("part exceeds the size of the upload")]
    TooLong,
    /// The part is invalid in itself.
    #[error(transparent)]
    Part(#[from] PartError),
}

/// Contiguous bytes of an upload. If a connection has read them into memory of the tensor's size, they are not copied.
struct Gathered {
    in_place: Region,
    /// Copy of all bytes, once some bytes had to be copied.
    copied: Option<Filling>,
    total: usize,
}

impl Gathered {
    fn new(total: usize) -> Self {
        Self {
            in_place: Region::empty(),
            copied: None,
            total,
        }
    }

    /// Memory for copies. The first call copies the bytes received so far.
    fn memory(&mut self) -> Result<&mut Filling, Fault> {
        let memory = match self.copied.take() {
            Some(memory) => memory,
            None => {
                let made = Filling::new(self.total);
                let mut memory = made.map_err(|error| Fault::new(FailureCode::OutOfMemory, error.to_string()))?;
                memory.extend_from_slice(&self.in_place);
                self.in_place = Region::empty();
                memory
            }
        };
        Ok(self.copied.insert(memory))
    }

    fn push(&mut self, payload: Payload) -> Result<(), Fault> {
        let bytes = match payload {
            Payload::InPlace(bytes) if self.copied.is_none() => {
                if self.in_place.is_empty() && bytes.begins(self.total) {
                    self.in_place = bytes;
                    return Ok(());
                }
                // Avoid a copy if the bytes are contiguous with those received so far.
                match self.in_place.join(bytes) {
                    Ok(()) => return Ok(()),
                    Err(bytes) => bytes.into(),
                }
            }
            other => other.into_bytes(),
        };
        self.memory()?.extend_from_slice(&bytes);
        Ok(())
    }

    fn finish(self) -> Bytes {
        self.copied.map_or(self.in_place, Filling::finish).into()
    }
}

/// Shape of a tensor that a client describes, and its size in host memory in bytes.
pub(super) fn shape(name: &str, dimensions: &[i64]) -> Result<(Shape, u64), Fault> {
    let invalid = |message: String| Fault::new(FailureCode::InvalidArgument, message);
    let Some(element_type) = element_type(name) else {
        return Err(invalid(format!("unknown element type {name:?}")));
    };
    let shape = Shape {
        element_type,
        dimensions: dimensions.to_vec(),
    };
    match shape.host_bytes() {
        Some(bytes) if dimensions.len() <= MAX_DIMENSIONS => Ok((shape, bytes as u64)),
        _ => Err(invalid(format!("invalid array shape {name}{dimensions:?}"))),
    }
}

impl<E: Engine> State<E> {
    pub(super) fn upload(&mut self, sequence: u64, upload: Upload) {
        let outcome = shape(&upload.element_type, &upload.dimensions).and_then(|(shape, bytes)| {
            self.check_context()?;
            if bytes != upload.bytes {
                let message = format!("invalid size of {} bytes: {shape} has {bytes}", upload.bytes);
                return Err(Fault::new(FailureCode::InvalidArgument, message));
            }
            self.reserve(self.engine.device_bytes(bytes), 0)?;
            // The cast is lossless because the session's limit is far below the address space.
            Ok((shape, Gathered::new(bytes as usize)))
        });
        let incoming = Incoming {
            sequence,
            tensor: upload.tensor,
            missing: upload.bytes,
            outcome: outcome.map_err(|fault| self.fail(sequence, || operation(upload.tensor), fault)),
        };
        self.gathered(incoming);
    }

    /// Adds the next part to the upload in progress.
    pub(super) fn part(&mut self, part: Part, payload: Payload) -> Result<(), MalformedPart> {
        let Some(mut incoming) = self.incoming.take() else {
            return Err(MalformedPart::NoUpload);
        };
        let bytes = part.bytes(payload.len())?;
        if bytes as u64 > incoming.missing {
            return Err(MalformedPart::TooLong);
        }
        incoming.missing -= bytes as u64;
        if let Ok((_, gathered)) = &mut incoming.outcome {
            let put = match part.encoding() {
                Encoding::Raw => gathered.push(payload),
                _ => match gathered.memory() {
                    // `bytes` is at most `missing`, so the memory has room.
                    Ok(memory) => {
                        part.decode(&payload.into_bytes(), memory.extend_zeroed(bytes))?;
                        Ok(())
                    }
                    Err(fault) => Err(fault),
                },
            };
            if let Err(fault) = put {
                incoming.outcome = Err(self.fail(incoming.sequence, || operation(incoming.tensor), fault));
            }
        }
        self.gathered(incoming);
        Ok(())
    }

    /// Creates the tensor when all parts have arrived; otherwise waits for further parts.
    fn gathered(&mut self, incoming: Incoming) {
        if incoming.missing > 0 {
            self.incoming = Some(incoming);
            return;
        }
        let made = incoming
            .outcome
            .and_then(|(shape, gathered)| match self.engine.upload(&shape, gathered.finish()) {
                Ok(array) => Ok(self.tensor(array, shape, None)),
                Err(fault) => {
                    self.note(&fault);
                    Err(self.fail(incoming.sequence, || operation(incoming.tensor), fault))
                }
            });
        self.name_tensor(incoming.tensor, made);
    }
}

fn operation(tensor: u64) -> String {
    format!("upload of tensor {tensor}")
}
