//! Supervisors with executors that the tests play, hostile ones among them.

mod hostile;
mod played;
mod revoked;
mod turns;
