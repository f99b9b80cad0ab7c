//! Reasons why operations fail.

use sahasra_ptx::{Fault, FaultKind, LinkError, LoadError, LoadErrorKind, MemoryError};

/// Kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The memory is used up.
    OutOfMemory,
    /// An access outside every allocation.
    IllegalAddress,
    /// An access at an address that does not fit its size.
    MisalignedAddress,
    /// The kernel executed `trap`, or broke a rule that a GPU reports the same way.
    Trap,
    Assertion,
    /// The call stack is exhausted.
    StackOverflow,
    /// A call or branch to what is no code.
    InvalidCall,
    /// Threads of a kernel wait for each other forever.
    Deadlock,
    /// The kernel cannot be launched in this shape.
    Launch,
    /// The operation does not fit the state of the queue: the driver library and the device disagree.
    Protocol,
    /// The device or the way to it is lost.
    Lost,
}

/// Failure of an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    /// Place and cause, as text.
    pub message: String,
}

impl Failure {
    /// Failure with a message.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Failure of everything in a queue that was [closed](crate::Queue::close).
    pub fn closed() -> Self {
        Self::new(FailureKind::Lost, "the context was destroyed")
    }

    /// Whether the queue executes nothing more: the memory may hold anything. A launch that was not begun and memory that was not mapped
    /// changed nothing.
    pub fn is_sticky(&self) -> bool {
        !matches!(self.kind, FailureKind::Launch | FailureKind::OutOfMemory)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let kind = match fault.kind {
            FaultKind::OutOfBounds { .. } | FaultKind::NullAccess | FaultKind::InvalidTexture { .. } => FailureKind::IllegalAddress,
            FaultKind::Misaligned { .. } => FailureKind::MisalignedAddress,
            FaultKind::AssertFailed(_) => FailureKind::Assertion,
            FaultKind::StackOverflow { .. } => FailureKind::StackOverflow,
            FaultKind::InvalidCall { .. } | FaultKind::InvalidBranch { .. } => FailureKind::InvalidCall,
            FaultKind::DivergentBarrier(_) | FaultKind::Deadlock(_) | FaultKind::StepLimit(_) => FailureKind::Deadlock,
            FaultKind::InvalidLaunch(_) => FailureKind::Launch,
            FaultKind::Cancelled => FailureKind::Lost,
            _ => FailureKind::Trap,
        };
        Self::new(kind, fault.to_string())
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        let kind = match error {
            MemoryError::OutOfMemory { .. } | MemoryError::AddressesExhausted => FailureKind::OutOfMemory,
            MemoryError::OutOfBounds { .. } => FailureKind::IllegalAddress,
            _ => FailureKind::Protocol,
        };
        Self::new(kind, error.to_string())
    }
}

/// Reason why a module was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadFailure {
    /// The text is not valid PTX.
    #[error("{0}")]
    Invalid(String),
    /// The text is PTX that the device does not run.
    #[error("{0}")]
    Unsupported(String),
    /// The image has no code that the device runs.
    #[error("{0}")]
    NoBinary(String),
    /// An operation before failed, or the module's variables do not fit.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl From<LoadError> for LoadFailure {
    fn from(error: LoadError) -> Self {
        match error.kind {
            LoadErrorKind::Unsupported(_) => Self::Unsupported(error.to_string()),
            _ => Self::Invalid(error.to_string()),
        }
    }
}

impl From<LinkError> for LoadFailure {
    fn from(refused: LinkError) -> Self {
        match (Self::from(refused.error), refused.kernel) {
            (Self::Unsupported(reason), Some(kernel)) => Self::Unsupported(format!("kernel {kernel}: {reason}")),
            (failure, _) => failure,
        }
    }
}
