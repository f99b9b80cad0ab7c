//! XLA programs on whatever device a PJRT plugin drives: bindings to the PJRT C API, with what it hands out owned and every
//! error checked.
//!
//! [`Plugin::load`] opens a plugin and agrees on a version; [`Client::create`] opens its devices. From there data flows
//! through two kinds of object: a [`Program`] (StableHLO or HLO) is compiled to an [`Executable`], host memory is uploaded to
//! a [`Buffer`], [`Executable::execute`] makes buffers of buffers, [`Buffer::download`] brings one back. Everything is
//! asynchronous in the plugin: an [`Event`] says when, and whether it went well.
//!
//! A plugin is loaded once and stays until the process ends: PJRT cannot take one out. Names, types and the order of
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
pub use client::{Client, Device, MemoryStats, Setting};
pub use element_type::ElementType;
pub use error::{Code, Error};
pub use event::Event;
pub use executable::{CompiledMemory, Executable, Shape};
pub use plugin::{LoadError, Plugin};
pub use program::{CompileOptions, Format, Program};
