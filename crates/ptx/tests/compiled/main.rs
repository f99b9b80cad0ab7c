//! Whole programs from compilers, run on the engine and checked against host computations that do not use it.

mod corpus;
mod device;
mod examples;
mod kernels;
