//! `sahasra kernel`: describes and compiles kernels, without a pool.

pub mod check;
pub mod compile;
mod describe;
mod nvrtc;
