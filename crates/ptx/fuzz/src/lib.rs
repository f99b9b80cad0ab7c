//! Exactness tests of the PTX engine: a model of every instruction, a slow reference machine that runs whole programs one thread at a time,
//! a generator of programs, and comparisons of the engine with the machine.
//!
//! Nothing in this crate shares code with the engine. [`exact`] computes without rounding, [`model`] defines the results of an instruction
//! form, and [`machine`] reads PTX with its own parser and executes it. [`forms`] lists the forms, [`inputs`] selects operands that test
//! them well, and [`single`] runs one form on the engine. [`generator`] writes programs and [`table`] their inputs; [`differential`] runs
//! each program on both and compares all memory. [`damage`] feeds the engine damaged text.

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
