//! The built library, opened as programs open it. Each test runs in a process of its own, because the library's state is that of a process.

mod arguments;
mod callbacks;
mod contexts;
mod driver;
mod errors;
mod libraries;
mod processes;
mod programs;
mod symbols;
mod virtual_memory;
