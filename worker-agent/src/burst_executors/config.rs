//! Configuration of an executor pool.

use std::path::PathBuf;
use std::time::Duration;

use crate::args::DeviceArguments;

/// Default length of a turn. A start costs a GPU context and a compilation, about one second: less than a tenth of it.
const TURN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Program of the executors, which is called with `executor` as its first argument: the agent's own.
    pub program: PathBuf,
    pub devices: DeviceArguments,
    /// Time without work after which an executor ends.
    pub idle_timeout: Duration,
    /// Length of a turn: when another namespace waits, an executor that has had its device for this long ends after its running chunks.
    pub turn: Duration,
    /// Time after a chunk's timeout at which an executor that has not ended the chunk is killed.
    pub grace: Duration,
    /// Time that an executor has to become ready, and to prepare a program (a driver may compile the PTX).
    pub start_timeout: Duration,
    /// Limit of bytes of a run's events that wait to be taken. At this limit the executor pauses.
    pub max_event_bytes: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            // The running program, even if its file has been replaced meanwhile.
            program: PathBuf::from("/proc/self/exe"),
            devices: DeviceArguments::default(),
            idle_timeout: Duration::from_secs(60),
            turn: TURN,
            grace: Duration::from_secs(2),
            start_timeout: Duration::from_secs(120),
            max_event_bytes: 8 << 20,
        }
    }
}
