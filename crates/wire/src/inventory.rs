//! Inventory of an agent: its devices, grants and sessions.

use std::time::Duration;

use crate::grants::Grant;

/// State of an agent, as the operator needs it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Inventory {
    #[prost(string, tag = "1")]
    pub worker: String,
    #[prost(string, tag = "2")]
    pub boot_id: String,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<Device>,
    /// All grants, draining ones included. A grant that was released in part while more slices were in use than it kept is listed twice:
    /// the slices that it kept, and those that are draining.
    #[prost(message, repeated, tag = "4")]
    pub grants: Vec<Grant>,
    /// Whether the agent shuts down and accepts no new work.
    #[prost(bool, tag = "5")]
    pub shutting_down: bool,
    /// Every session for which the agent holds a slice, and for some minutes also sessions whose executor ended by itself.
    #[prost(message, repeated, tag = "6")]
    pub sessions: Vec<SessionLoad>,
}

/// Statistics of one session on an agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionLoad {
    #[prost(string, tag = "1")]
    pub owner_uid: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(uint64, tag = "4")]
    pub tensors: u64,
    /// Device memory of the stored tensors, in bytes.
    #[prost(uint64, tag = "5")]
    pub stored_bytes: u64,
    #[prost(uint64, tag = "6")]
    pub active_executions: u64,
    /// Time since the last request or execution of the session, in milliseconds. Counted from the grant if there was none.
    #[prost(uint64, tag = "7")]
    pub idle_milliseconds: u64,
    #[prost(bool, tag = "8")]
    pub connected: bool,
    /// Whether clients can connect, because the agent has the session's engine.
    #[prost(bool, tag = "9")]
    pub streams: bool,
    /// Description of how the session's executor ended by itself, with the tail of its log; the grant ended with the executor. Empty as
    /// long as the executor has not ended by itself.
    #[prost(string, tag = "10")]
    pub ended: String,
    /// Age of the session's grant, in milliseconds.
    #[prost(uint64, tag = "11")]
    pub held_milliseconds: u64,
}

impl SessionLoad {
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_milliseconds)
    }

    pub fn held(&self) -> Duration {
        Duration::from_millis(self.held_milliseconds)
    }
}

/// A device and its load.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Name of the device, unique on this worker.
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub model: String,
    #[prost(string, tag = "3")]
    pub class: String,
    #[prost(uint64, tag = "4")]
    pub total_bytes: u64,
    /// Memory available for grants, in bytes.
    #[prost(uint64, tag = "5")]
    pub allocatable_bytes: u64,
    /// Memory in use by grants, draining ones included, in bytes.
    #[prost(uint64, tag = "6")]
    pub leased_bytes: u64,
    #[prost(uint64, tag = "7")]
    pub active_executions: u64,
    #[prost(uint64, tag = "8")]
    pub tensor_count: u64,
    #[prost(uint64, tag = "9")]
    pub stored_tensor_bytes: u64,
    #[prost(bool, tag = "10")]
    pub healthy: bool,
}
