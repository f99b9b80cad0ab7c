//! Program of a run as executors receive it: the wire message, validated once.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use sahasra_crds::burst_job::kernel::MAX_OUTPUT_BYTES;
use sahasra_wire::burst::{Program, argument};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("{0} must be three sizes of at least 1")]
    Shape(&'static str),
    #[error("digest does not match the PTX")]
    Digest,
    #[error("PTX is not UTF-8")]
    NotText,
    #[error("argument {place}: {reason}")]
    Argument {
        /// Index of the argument, from 0.
        place: usize,
        reason: &'static str,
    },
    #[error("chunk timeout must be at least 1 ms")]
    Timeout,
    /// The outputs of a chunk exceed the size of a frame.
    #[error("a chunk's outputs of {bytes} bytes exceed the limit of {limit}")]
    OutputsTooLarge {
        /// Total bytes of a chunk's outputs.
        bytes: u64,
        limit: u64,
    },
}

/// A validated program. Programs are compared by their digests.
#[derive(Debug)]
pub struct ProgramSpec {
    /// The message, without its store.
    pub(crate) program: Program,
    pub(crate) encoded: Bytes,
    /// SHA-256 of `encoded`. Equal programs have equal digests.
    pub(crate) digest: [u8; 32],
    /// Total bytes of a chunk's outputs.
    pub(crate) output_bytes: u64,
}

impl ProgramSpec {
    /// Validates everything that needs neither device nor compiler. The executor compiles the PTX and the parameters.
    ///
    /// # Errors
    /// The first problem found.
    pub fn new(mut program: Program) -> Result<Arc<Self>, ProgramError> {
        for (name, sizes) in [("grid", &program.grid), ("block", &program.block)] {
            if sizes.len() != 3 || sizes.contains(&0) {
                return Err(ProgramError::Shape(name));
            }
        }
        if Sha256::digest(&program.ptx)[..] != program.digest[..] {
            return Err(ProgramError::Digest);
        }
        if std::str::from_utf8(&program.ptx).is_err() {
            return Err(ProgramError::NotText);
        }
        if program.chunk_timeout_milliseconds == 0 {
            return Err(ProgramError::Timeout);
        }
        let mut output_bytes = 0u64;
        for (place, argument) in program.arguments.iter().enumerate() {
            let refuse = |reason| Err(ProgramError::Argument { place, reason });
            match &argument.kind {
                None => return refuse("has no kind"),
                Some(argument::Kind::OutputBytes(0)) => return refuse("output has no bytes"),
                Some(argument::Kind::OutputBytes(bytes)) => output_bytes = output_bytes.saturating_add(*bytes),
                Some(argument::Kind::ChunkIndexBytes(bytes)) if !matches!(bytes, 4 | 8) => {
                    return refuse("chunk index must have 4 or 8 bytes");
                }
                Some(argument::Kind::Scalar(bytes)) if !matches!(bytes.len(), 1 | 2 | 4 | 8) => {
                    return refuse("scalar must have 1, 2, 4 or 8 bytes");
                }
                Some(argument::Kind::Input(input)) if input.bytes.is_empty() => return refuse("input has no bytes"),
                Some(argument::Kind::Constant(bytes)) if bytes.is_empty() => return refuse("constant has no bytes"),
                Some(_) => {}
            }
        }
        if output_bytes > MAX_OUTPUT_BYTES {
            return Err(ProgramError::OutputsTooLarge {
                bytes: output_bytes,
                limit: MAX_OUTPUT_BYTES,
            });
        }
        // The credentials of an object store stay in the agent: an executor never sees them.
        program.store = None;
        let encoded = Bytes::from(program.encode_to_vec());
        let digest = Sha256::digest(&encoded).into();
        Ok(Arc::new(Self {
            program,
            encoded,
            digest,
            output_bytes,
        }))
    }
}
