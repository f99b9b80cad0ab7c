//! Host memory that programs allocate or register, and memory that host and device share. If the device is in this process, kernels
//! access such memory at its host address.

use std::sync::Arc;

use sahasra_cuda_device::HostBlock;

use crate::boundary::Handle;
use crate::context::Context;

/// What a range of host memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Allocated,
    Registered,
    Managed,
}

/// A range of host memory.
pub(crate) struct HostRange {
    pub(crate) block: Arc<HostBlock>,
    pub(crate) flags: u32,
    pub(crate) context_handle: Handle,
    pub(crate) context_id: u64,
    pub(crate) origin: Origin,
}

impl HostRange {
    pub(crate) fn new(context: &Context, block: Arc<HostBlock>, flags: u32, origin: Origin) -> Self {
        Self {
            block,
            flags,
            context_handle: context.handle,
            context_id: context.id,
            origin,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// Whether it belongs to its context, and ends with it.
    pub(crate) fn is_managed(&self) -> bool {
        self.origin == Origin::Managed
    }
}
