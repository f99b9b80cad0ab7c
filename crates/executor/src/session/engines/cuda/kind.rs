//! Kinds of operations: whose they are, and which of them belong to other engines.

use sahasra_wire::session::client_frame::Kind;

/// Number of the context that an operation creates if there is none.
pub(super) fn context(kind: &Kind) -> Option<u64> {
    match kind {
        Kind::CudaBatch(batch) => Some(batch.context),
        Kind::CudaWrite(write) => Some(write.context),
        Kind::CudaRead(read) => Some(read.context),
        Kind::CudaLoad(load) => Some(load.context),
        Kind::CudaWait(wait) => Some(wait.context),
        _ => None,
    }
}

/// Whether the engine's thread refuses an operation of another engine. Returns the operation's name then.
pub(super) fn misplaced(kind: &Kind) -> Option<&'static str> {
    match kind {
        Kind::Upload(_) | Kind::Part(_) => Some("an upload"),
        Kind::Allocate(_) => Some("an allocation of a tensor"),
        Kind::Compile(_) => Some("a compilation"),
        Kind::Execute(_) | Kind::Launch(_) => Some("an execution"),
        Kind::Download(_) => Some("a download"),
        _ => None,
    }
}
