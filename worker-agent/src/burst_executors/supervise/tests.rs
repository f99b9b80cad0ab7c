//! Tests of supervisors against executors that the tests simulate, hostile ones included.

mod hostile;
mod played;
mod revoked;
mod silence;
mod turns;
