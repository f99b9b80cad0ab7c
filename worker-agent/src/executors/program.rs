//! A program as an executor gets it: the wire message, checked once.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use sahasra_crds::burst_job::kernel::MAX_OUTPUT_BYTES;
use sahasra_wire::burst::{Program, argument};
use sha2::{Digest, Sha256};

/// Why a program is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// Grid or block do not have three sizes, or one of them is 0.
    #[error("{0} must be three sizes of at least 1")]
    Shape(&'static str),
    /// The PTX does not have the digest.
    #[error("digest does not match the PTX")]
    Digest,
    /// The PTX is not text.
    #[error("PTX is not UTF-8")]
    NotText,
    /// An argument without a kind, or with one that cannot be.
    #[error("argument {place}: {reason}")]
    Argument {
        /// Its place, from 0.
        place: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// No time for a chunk.
    #[error("chunk timeout must be at least 1 ms")]
    Timeout,
    /// Outputs of a chunk that no frame can carry.
    #[error("a chunk's outputs of {bytes} bytes exceed the limit of {limit}")]
    OutputsTooLarge {
        /// Bytes of a chunk's outputs.
        bytes: u64,
        /// Most bytes.
        limit: u64,
    },
}

/// A checked program. Cheap to clone; compared by identity of what it does.
#[derive(Clone, Debug)]
pub struct ProgramSpec {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    program: Program,
    encoded: Bytes,
    digest: [u8; 32],
    output_bytes: u64,
}

impl ProgramSpec {
    /// Checks everything that needs neither device nor compiler: PTX and parameters are compiled in the executor.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(mut program: Program) -> Result<Self, ProgramError> {
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
        // The rights to an object store are the agent's affair: an executor never sees them.
        program.store = None;
        let encoded = Bytes::from(program.encode_to_vec());
        let digest = Sha256::digest(&encoded).into();
        Ok(Self {
            inner: Arc::new(Inner {
                program,
                encoded,
                digest,
                output_bytes,
            }),
        })
    }

    /// The message, without its store.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// The message's bytes.
    pub fn encoded(&self) -> &Bytes {
        &self.inner.encoded
    }

    /// SHA-256 of [`ProgramSpec::encoded`]: equal programs have equal ones.
    pub fn digest(&self) -> [u8; 32] {
        self.inner.digest
    }

    /// Bytes that a chunk's outputs have in all.
    pub fn output_bytes(&self) -> u64 {
        self.inner.output_bytes
    }
}
