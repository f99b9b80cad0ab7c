//! The exported functions that both versions of the CUDA runtime API have, by area. What each does is documented in NVIDIA's "CUDA Runtime
//! API"; comments here say what differs.

pub mod array;
pub mod array_copy;
pub mod capture;
pub mod copy;
pub mod device;
pub mod error;
pub mod event;
pub mod executable;
pub mod fill;
pub mod function;
pub mod graph;
pub mod launch;
pub mod library;
pub mod memory;
pub mod node;
pub mod pool;
pub mod register;
pub mod stream;
pub mod symbol;
pub mod texture;
