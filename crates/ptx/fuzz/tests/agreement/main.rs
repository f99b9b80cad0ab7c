//! The engine against models and a reference machine written from the PTX ISA, and against text that is damaged.

mod coverage;
mod exactness;
mod kernels;
mod matrices;
mod mutations;
mod programs;
