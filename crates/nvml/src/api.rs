//! The exported functions of NVML, by area. What each does is documented in NVIDIA's "NVML API Reference"; comments here say what differs.

pub(crate) mod device;
pub(crate) mod identity;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod system;
