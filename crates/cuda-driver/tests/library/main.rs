//! The built library, opened as programs open it. Each test runs in a process of its own, because the library's state is that of a process.

mod arguments;
mod array_copies;
mod arrays;
mod callbacks;
mod captures;
mod contexts;
mod driver;
mod errors;
mod graph_memory;
mod graph_work;
mod graphs;
mod libraries;
mod nodes;
mod processes;
mod programs;
mod streams;
mod surfaces;
mod symbols;
mod texels;
mod textures;
mod updates;
mod virtual_memory;
