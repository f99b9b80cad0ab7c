//! The program as a shell sees it.

mod kernel;
mod program;
mod run;
mod up;
