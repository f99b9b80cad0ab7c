//! PTX on the CPU: a compiler to bytecode, and a SIMT interpreter that executes groups of 64 lanes (two warps).
//!
//! The statements that [`sahasra_ptx_syntax`] parses are lowered to checked, typed operations
//! (`compile::lower`) and encoded as bytecode with allocated registers (`compile`). Groups of lanes execute the bytecode (`execute`,
//! `lanes`) on global [`Memory`]. Section numbers in the sources are those of NVIDIA's "Parallel Thread Execution ISA".
//!
//! ```
//! use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};
//!
//! let module = Module::load(
//!     ".version 7.0 .target sm_80 .address_size 64
//!      .visible .entry fill(.param .u64 out, .param .u32 value) {
//!          .reg .b32 %r<3>; .reg .b64 %rd<4>;
//!          ld.param.u64 %rd1, [out];
//!          ld.param.u32 %r1, [value];
//!          mov.u32 %r2, %tid.x;
//!          mul.wide.u32 %rd2, %r2, 4;
//!          add.s64 %rd3, %rd1, %rd2;
//!          st.global.u32 [%rd3], %r1;
//!          ret;
//!      }",
//! )?;
//! let memory = Memory::new(1 << 20);
//! let out = memory.allocate(4 * 100)?;
//! let kernel = module.entry("fill").ok_or("no such kernel")?;
//! let arguments = ArgumentList::new().pointer(out).u32(7);
//! kernel.launch(&Launch::new([1, 1, 1], [100, 1, 1]), arguments.bytes(), &memory, &Cancel::new())?;
//! let mut bytes = [0; 4];
//! memory.read(out.offset(4 * 99), &mut bytes)?;
//! assert_eq!(u32::from_le_bytes(bytes), 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cache;
mod cancel;
mod compile;
mod execute;
mod fault;
mod lanes;
mod memory;
mod module;
mod signals;
mod texture;

pub use cache::{CacheStatistics, ModuleCache};
pub use cancel::Cancel;
pub use execute::{Launch, LaunchStatistics, Output};
pub use fault::{Fault, FaultKind, FaultReport};
pub use lanes::{InstructionSet, instruction_set, limit_instruction_set};
pub use memory::{DevicePointer, HEAP_BYTES, Heap, HostBlock, Memory, MemoryError, Reservation};
pub use module::{ArgumentList, Kernel, LinkError, LoadedModule, Module, Parameter};
pub use sahasra_ptx_syntax::PARAMETER_LIMIT;
pub use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind, Position};
pub use sahasra_ptx_syntax::outline::{EntryOutline, Outline, ParameterOutline};
pub use sahasra_ptx_syntax::target::NEWEST_VERSION;
pub use sahasra_ptx_syntax::types::ScalarType;
pub use signals::with_signals_blocked;
pub use texture::{AddressMode, Channel, Texture};
