//! Why a launch ended early, and where.

use std::fmt;
use std::ops::Deref;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside every allocation, or past a variable's space.
    #[error("access of {bytes} bytes is out of bounds")]
    OutOfBounds {
        /// Bytes of the access.
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
    /// `trap`.
    #[error("trap")]
    Trap,
    /// `__assertfail`.
    #[error("assertion failed: {0}")]
    AssertFailed(String),
    /// The stack of a thread's calls is used up; see [`Launch::stack_bytes`](crate::Launch::stack_bytes).
    #[error("call stack overflow: frames beyond {limit} bytes")]
    StackOverflow {
        /// Bytes of the stack.
        limit: u64,
    },
    /// A call through a pointer that leads to no function.
    #[error("call of {target:#x}, where no function is")]
    InvalidCall {
        /// The pointer.
        target: u64,
    },
    /// `brx.idx` with an index behind its list of targets.
    #[error("branch index {index} of {targets} targets")]
    InvalidBranch {
        /// The index.
        index: u32,
        /// Length of the list.
        targets: u32,
    },
    /// `free` of what `malloc` did not return, or twice.
    #[error("free of what is not allocated")]
    InvalidFree,
    /// A thread at a `.sync` operation that its own member mask does not name, or whose mask differs from another's.
    #[error("member masks of a .sync operation do not match: {0}")]
    SyncMaskMismatch(String),
    /// Threads wait at different barriers, none of which can complete.
    #[error("threads wait at different barriers: {0}")]
    DivergentBarrier(String),
    /// Every thread left waits for one that cannot come.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// The launch's step limit is used up.
    #[error("step limit of {0} reached")]
    StepLimit(u64),
    /// [`Cancel`](crate::Cancel) was set.
    #[error("cancelled")]
    Cancelled,
    /// Grid, block, arguments or memory that this kernel cannot be launched with.
    #[error("invalid launch: {0}")]
    InvalidLaunch(String),
}

/// A launch that ended early. What its blocks had written stays written. Dereferences to its [`FaultReport`].
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

/// What ended a launch, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// The instruction, as in the PTX text; empty where none was reached.
    pub instruction: String,
    /// Its line in the PTX text, from 1; 0 where none was reached.
    pub line: u32,
    /// File and line of the source, where the PTX carries `.loc`.
    pub source: Option<(String, u32)>,
    /// `%ctaid` of the block.
    pub block: Option<[u32; 3]>,
    /// `%tid` of the (first) thread.
    pub thread: Option<[u32; 3]>,
    /// The address, for memory faults: in the state space the instruction names.
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
