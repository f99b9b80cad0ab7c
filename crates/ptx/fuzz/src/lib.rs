//! Proof that the PTX engine is exact: a model of every instruction, and what compares the engine with it.
//!
//! Nothing here shares code with the engine: [`exact`] computes without rounding and [`model`] says what an instruction
//! form does, both from the ISA's text. [`forms`] lists the forms, [`inputs`] finds telling operands, [`single`] runs one
//! form on the engine.

pub mod exact;
pub mod forms;
pub mod inputs;
pub mod kind;
pub mod model;
pub mod single;
