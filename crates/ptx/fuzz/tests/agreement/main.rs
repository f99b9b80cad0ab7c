//! The engine against models and a reference machine that are written from the PTX ISA, and against damaged text.

mod coverage;
mod exactness;
mod kernels;
mod matrices;
mod mutations;
mod programs;
