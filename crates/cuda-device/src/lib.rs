//! What a CUDA driver library asks of a device, without anything of CUDA's C interface.
//!
//! A [`Device`] says what it is ([`Properties`]) and opens [`Queue`]s, one for each context. A queue takes [`Operation`]s in order and answers
//! none of them: only reading, loading a module and waiting have an answer, which is what a queue at the far end of a network needs. The client
//! chooses the addresses of its memory, so that an allocation needs no answer either. A failed operation is reported by the next call
//! that waits.
//!
//! ```text
//! driver library ──► dyn Queue ──► local::CpuQueue (order, worker thread) ──► Engine ──► sahasra_ptx::{Memory, Module}
//! ```
//!
//! [`CpuDevice`] runs operations in this process on the PTX engine for CPUs. The executor of sessions has a GPU as another [`WatchedDevice`].

mod addresses;
#[cfg(any(test, feature = "contract"))]
#[expect(clippy::unwrap_used, reason = "a suite of tests")]
pub mod contract;
mod device;
mod engine;
mod failure;
pub mod fat_binary;
mod image;
mod local;
mod module;
mod operation;
mod sequences;
mod unmapped;
pub mod wire;

pub use addresses::KeptAddresses;
pub use device::{Device, Ended, Freed, Lost, Properties, Queue, Ticket, WatchedDevice};
pub use engine::Engine;
pub use failure::{Failure, FailureKind, LoadFailure};
pub use image::{REMEDY, is_machine_code, texts};
pub use local::{CPU_NAME, CPU_UUID, CpuDevice};
pub use module::{FunctionDescription, ModuleDescription, ParameterPlace, VariableDescription};
pub use operation::{Extent, LaunchRequest, ModuleId, Operation, Region, SequenceId};
pub use sahasra_ptx::{AddressMode, Channel, DevicePointer, HostBlock, Texture, with_signals_blocked};
pub use sequences::{MAX_SEQUENCE_OPERATIONS, MAX_SEQUENCES, Sequences};
pub use unmapped::{MAX_UNMAPPED, Unmapped};
