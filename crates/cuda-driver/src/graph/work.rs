//! What the nodes of a graph do.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use sahasra_cuda_device::{LaunchRequest, ModuleId};

use crate::boundary::Handle;
use crate::context::Context;
use crate::module::Entry;
use crate::parameters::{AllocationParameters, Copy3d, FillParameters, HostParameters};

use super::Graph;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const COOPERATIVE: u32 = 2;

/// Whether the attributes of a launch make it a cooperative one.
pub(crate) fn is_cooperative(attributes: &BTreeMap<u32, [u32; 16]>) -> bool {
    attributes.get(&COOPERATIVE).is_some_and(|value| value[0] != 0)
}

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(Box<Kernel>),
    Copy(Box<Copy3d>),
    Fill(FillParameters),
    Call(HostParameters),
    Graph(Arc<Graph>),
    Empty,
    /// Waits for an event.
    Wait(Handle),
    /// Records an event.
    Record(Handle),
    Allocate(Box<AllocationParameters>),
    /// Frees memory at an address.
    Free(u64),
}

/// Launch of a kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    /// The function as the program named it.
    pub(crate) function: Handle,
    /// The kernel of a library, if that is what the program named.
    pub(crate) kernel: Handle,
    pub(crate) context: Weak<Context>,
    pub(crate) context_handle: Handle,
    pub(crate) context_id: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) module: ModuleId,
    pub(crate) index: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameters: Bytes,
    /// Addresses of the parameters in the block, which programs read.
    pub(crate) places: Arc<[usize]>,
    /// Values of `CUlaunchAttribute`s.
    pub(crate) attributes: BTreeMap<u32, [u32; 16]>,
}

impl Kernel {
    /// The launch, with a call stack of `stack_bytes` for each thread.
    pub(crate) fn request(&self, stack_bytes: u32) -> LaunchRequest {
        LaunchRequest {
            module: self.module,
            function: self.index,
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.shared_bytes,
            stack_bytes,
            cooperative: is_cooperative(&self.attributes),
            parameters: self.parameters.clone(),
        }
    }
}

impl Work {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Fill(_) => 2,
            Self::Call(_) => 3,
            Self::Graph(_) => 4,
            Self::Empty => 5,
            Self::Wait(_) => 6,
            Self::Record(_) => 7,
            Self::Allocate(_) => 10,
            Self::Free(_) => 11,
        }
    }
}
