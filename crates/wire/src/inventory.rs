//! What an agent has and what it has lent.

use crate::grants::Grant;

/// The agent's whole state as the operator needs it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Inventory {
    /// Name of the `GpuWorker`.
    #[prost(string, tag = "1")]
    pub worker: String,
    /// Names this start of the agent.
    #[prost(string, tag = "2")]
    pub boot_id: String,
    /// The devices.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<Device>,
    /// Every grant, draining ones included. One given back in part while more was in use than it kept stands here twice:
    /// what it kept, and what drains.
    #[prost(message, repeated, tag = "4")]
    pub grants: Vec<Grant>,
    /// It takes no new work.
    #[prost(bool, tag = "5")]
    pub shutting_down: bool,
    /// Every session that it holds a slice for, and for some minutes those whose executor ended by itself.
    #[prost(message, repeated, tag = "6")]
    pub sessions: Vec<SessionLoad>,
}

/// A session on an agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SessionLoad {
    /// UID of the owner of its grant.
    #[prost(string, tag = "1")]
    pub owner_uid: String,
    /// Namespace of the `GpuSession`.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Tensors stored.
    #[prost(uint64, tag = "4")]
    pub tensors: u64,
    /// Their bytes.
    #[prost(uint64, tag = "5")]
    pub stored_bytes: u64,
    /// Executions that have begun and not ended.
    #[prost(uint64, tag = "6")]
    pub active_executions: u64,
    /// For how long nothing was asked of it and nothing ran, in milliseconds; since the grant when nothing ever did.
    #[prost(uint64, tag = "7")]
    pub idle_milliseconds: u64,
    /// A client is connected.
    #[prost(bool, tag = "8")]
    pub connected: bool,
    /// A client may connect: the agent has the engine.
    #[prost(bool, tag = "9")]
    pub streams: bool,
    /// Its executor ended by itself, and its grant with it: how, and its last words. Empty as long as it has not.
    #[prost(string, tag = "10")]
    pub ended: String,
    /// For how long it has had its grant, in milliseconds.
    #[prost(uint64, tag = "11")]
    pub held_milliseconds: u64,
}

/// A device and its load.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Name on this worker.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Model as the driver tells it.
    #[prost(string, tag = "2")]
    pub model: String,
    /// Class from the configuration.
    #[prost(string, tag = "3")]
    pub class: String,
    /// All memory in bytes.
    #[prost(uint64, tag = "4")]
    pub total_bytes: u64,
    /// What may be lent, in bytes.
    #[prost(uint64, tag = "5")]
    pub allocatable_bytes: u64,
    /// What is lent, draining included, in bytes.
    #[prost(uint64, tag = "6")]
    pub leased_bytes: u64,
    /// Running now.
    #[prost(uint64, tag = "7")]
    pub active_executions: u64,
    /// Tensors stored.
    #[prost(uint64, tag = "8")]
    pub tensor_count: u64,
    /// Their bytes.
    #[prost(uint64, tag = "9")]
    pub stored_tensor_bytes: u64,
    /// It answers.
    #[prost(bool, tag = "10")]
    pub healthy: bool,
}
