//! Tests of the program as a child process, as a shell would start it.

mod handed_over;
mod kept;
mod kernel;
mod program;
mod run;
mod stores;
mod up;
mod up_messages;
