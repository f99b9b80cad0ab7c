//! The operator.

pub mod burst;
