//! What compilers make of whole programs, on the engine, against computations on the host that know nothing of it.

mod corpus;
mod device;
mod examples;
mod kernels;
