//! Bindings to the PJRT C API, which runs XLA programs on any device with a PJRT plugin. Objects of the plugin are owned, and every error
//! is checked.
//!
//! [`Plugin::load`] opens a plugin and checks its version; [`Client::create`] opens the plugin's first device. A [`Program`] (StableHLO or
//! HLO) is compiled to an [`Executable`]. Host memory is uploaded to a [`Buffer`], [`Executable::execute`] computes buffers from buffers,
//! and [`Buffer::download`] copies a buffer to host memory. The plugin works asynchronously: an [`Event`] reports when an operation has
//! finished and whether it succeeded.
//!
//! A plugin is loaded once and stays loaded until the process ends, because PJRT cannot unload plugins. Names, types and the order of
//! functions follow `xla/pjrt/c/pjrt_c_api.h` of OpenXLA, version 0.114.

mod abi;
mod buffer;
mod client;
mod element_type;
mod error;
mod event;
mod executable;
mod plugin;
mod program;

pub use buffer::{Buffer, Download, View};
pub use client::{Client, Setting};
pub use element_type::ElementType;
pub use error::{Code, Error};
pub use event::Event;
pub use executable::{CompiledMemory, Executable, Shape};
pub use plugin::{LoadError, Plugin};
pub use program::{CompileOptions, Format, Program};
