//! Proof that the PTX engine is exact: a model of every instruction, a slow reference machine that runs whole programs one
//! thread at a time, a generator of programs, and the runs that compare engine and machine.
//!
//! Nothing here shares code with the engine: [`exact`] computes without rounding, [`model`] says what an instruction form
//! does, [`machine`] reads PTX with a parser of its own and runs it. [`forms`] lists the forms, [`inputs`] finds telling
//! operands, [`single`] runs one form on the engine; [`generator`] writes programs and [`table`] their inputs,
//! [`differential`] runs each on both and compares all memory; [`damage`] feeds the engine text that is hardly PTX.

pub mod damage;
pub mod differential;
pub mod exact;
pub mod forms;
pub mod generator;
pub mod inputs;
pub mod kind;
pub mod machine;
pub mod model;
pub mod single;
pub mod table;
