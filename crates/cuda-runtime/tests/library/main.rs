//! The built libraries, as programs use them: linked by a program in C, and opened by name.

mod libraries;
mod programs;
mod symbols;
