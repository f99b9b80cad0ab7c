//! Tests of the program as a child process, as a shell would start it.

mod connect;
mod delivered_results;
mod exec;
mod kept_results;
mod kernel;
mod program;
mod run;
mod stores;
mod up;
mod up_messages;
