//! Syntax of PTX: lexer, parser, declarations, and the table of supported instruction forms. Compiles and executes nothing, so that privileged
//! processes can use it for admission.
//!
//! [`parser::parse`] turns a text into a [`syntax::Source`], [`outline::Outline::of`] reads its declarations only. Section numbers are those
//! of NVIDIA's "Parallel Thread Execution ISA".

pub mod error;
pub mod instructions;
mod lexer;
pub mod outline;
pub mod parser;
pub mod syntax;
pub mod target;
pub mod types;

/// Maximum size of a kernel's parameters in total, in bytes (PTX ISA §6.4.1 kernel parameters, since version 8.1).
pub const PARAMETER_LIMIT: usize = 32_764;
