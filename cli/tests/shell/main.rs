//! The program as a shell sees it.

mod handed_over;
mod kept;
mod kernel;
mod program;
mod run;
mod stores;
mod up;
