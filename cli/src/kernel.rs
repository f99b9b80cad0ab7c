//! `sahasra kernel`: describes and compiles kernels, without a pool.

pub(crate) mod check;
pub(crate) mod compile;
mod describe;
mod nvrtc;
