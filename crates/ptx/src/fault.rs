//! Faults: the reasons why a launch ended early, and their location.

use std::fmt;
use std::ops::Deref;

/// Kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside every allocation, or past the end of a variable's state space.
    #[error("access of {bytes} bytes is out of bounds")]
    OutOfBounds {
        /// Size of the access in bytes.
        bytes: u32,
    },
    /// An address that is not a multiple of the access size.
    #[error("address is not aligned to {alignment} bytes")]
    Misaligned {
        /// Alignment needed, in bytes.
        alignment: u32,
    },
    /// An access within the first 64 KiB of the generic or global space.
    #[error("access through a null pointer")]
    NullAccess,
    /// The `trap` instruction.
    #[error("trap")]
    Trap,
    /// A failed `assert`, which calls `__assertfail`.
    #[error("assertion failed: {0}")]
    AssertFailed(String),
    /// The stack of a thread, for calls and `alloca`, is exhausted; see [`Launch::stack_bytes`](crate::Launch::stack_bytes).
    #[error("stack overflow: frames and allocations beyond {limit} bytes")]
    StackOverflow {
        /// Size of the stack in bytes.
        limit: u64,
    },
    /// A call through a pointer that is not the address of a function.
    #[error("call of {target:#x}, where no function is")]
    InvalidCall {
        /// Value of the pointer.
        target: u64,
    },
    /// `brx.idx` with an index past the end of its list of targets.
    #[error("branch index {index} of {targets} targets")]
    InvalidBranch {
        index: u32,
        /// Length of the list.
        targets: u32,
    },
    /// `free` of an address that `malloc` did not return, or that was already freed.
    #[error("free of what is not allocated")]
    InvalidFree,
    /// A texture or surface instruction whose handle is not the address of a [`Texture`](crate::Texture) descriptor.
    #[error("{handle:#x} is not the handle of a texture or surface")]
    InvalidTexture {
        /// Value of the handle.
        handle: u64,
    },
    /// `mapa` to a block that is not in the cluster, which has one block.
    #[error("block {rank} of a cluster of one block")]
    InvalidRank {
        /// Rank of the block in the cluster.
        rank: u32,
    },
    /// A thread executes a `.sync` operation whose member mask does not include it, or differs from another thread's mask.
    #[error("member masks of a .sync operation do not match: {0}")]
    SyncMaskMismatch(String),
    /// Threads wait at different barriers, none of which can complete.
    #[error("threads wait at different barriers: {0}")]
    DivergentBarrier(String),
    /// Every remaining thread waits for another thread that cannot arrive.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// The step limit of the launch is exhausted.
    #[error("step limit of {0} reached")]
    StepLimit(u64),
    /// [`Cancel`](crate::Cancel) was set.
    #[error("cancelled")]
    Cancelled,
    /// Grid, block, arguments or memory with which the kernel cannot be launched.
    #[error("invalid launch: {0}")]
    InvalidLaunch(String),
}

/// Fault that ended a launch early. Data that its blocks had written stays written. Dereferences to its [`FaultReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(Box<FaultReport>);

impl Deref for Fault {
    type Target = FaultReport;

    fn deref(&self) -> &FaultReport {
        &self.0
    }
}

impl From<FaultReport> for Fault {
    fn from(report: FaultReport) -> Self {
        Self(Box::new(report))
    }
}

/// Kind and location of the fault that ended a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    pub kind: FaultKind,
    pub kernel: String,
    /// The instruction, as in the PTX text; empty if no instruction was reached.
    pub instruction: String,
    /// Line of the instruction in the PTX text, from 1; 0 if no instruction was reached.
    pub line: u32,
    /// File and line of the source, if the PTX has `.loc` directives.
    pub source: Option<(String, u32)>,
    /// `%ctaid` of the block.
    pub block: Option<[u32; 3]>,
    /// `%tid` of the thread, or of the first of several.
    pub thread: Option<[u32; 3]>,
    /// Address of a memory fault, in the state space that the instruction names.
    pub address: Option<u64>,
}

impl Fault {
    pub(crate) fn invalid_launch(kernel: &str, reason: impl Into<String>) -> Self {
        FaultReport {
            kind: FaultKind::InvalidLaunch(reason.into()),
            kernel: kernel.to_owned(),
            instruction: String::new(),
            line: 0,
            source: None,
            block: None,
            thread: None,
            address: None,
        }
        .into()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kernel, self.kind)?;
        if let Some(address) = self.address {
            write!(formatter, " at address {address:#x}")?;
        }
        if !self.instruction.is_empty() {
            write!(formatter, " in `{}` (PTX line {})", self.instruction, self.line)?;
        }
        if let Some((file, line)) = &self.source {
            write!(formatter, " from {file}:{line}")?;
        }
        if let Some([x, y, z]) = self.block {
            write!(formatter, ", block ({x}, {y}, {z})")?;
        }
        if let Some([x, y, z]) = self.thread {
            write!(formatter, ", thread ({x}, {y}, {z})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
