//! Nodes of graphs, as programs describe them.

use std::ffi::c_void;

use crate::driver::{Program, ok, parameter};

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Kernel {
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub parameters: *const *mut u8,
    pub extra: usize,
    pub kernel: u64,
    pub context: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub to: u64,
    pub pitch: usize,
    pub value: u32,
    pub element_bytes: u32,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Call {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct Allocation {
    pub kind: u32,
    pub handles: u32,
    pub location: [u32; 2],
    pub rest: [u64; 9],
    pub access: usize,
    pub access_count: usize,
    pub bytes: usize,
    pub address: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
pub(crate) struct Instantiation {
    pub flags: u64,
    pub stream: u64,
    pub node: u64,
    pub result: u32,
}

impl Program {
    pub(crate) fn graph(&self) -> u64 {
        let mut graph = 0u64;
        ok!(self.library, cuGraphCreate(&raw mut graph, 0u32));
        graph
    }

    pub(crate) fn with_kernel<T>(&self, address: u64, function: impl FnOnce(&Kernel) -> T) -> T {
        let mut address = address;
        let parameters = [parameter(&mut address)];
        function(&Kernel {
            function: self.function("add_step"),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            parameters: parameters.as_ptr(),
            extra: 0,
            kernel: 0,
            context: 0,
        })
    }

    /// Adds a node that adds 3 to a word.
    pub(crate) fn add_kernel(&self, graph: u64, before: &[u64], address: u64) -> u64 {
        let mut node = 0u64;
        self.with_kernel(address, |kernel| {
            ok!(
                self.library,
                cuGraphAddKernelNode_v2(&raw mut node, graph, before.as_ptr(), before.len(), std::ptr::from_ref(kernel))
            );
        });
        node
    }

    pub(crate) fn add_fill(&self, graph: u64, before: &[u64], address: u64, value: u32) -> u64 {
        let mut node = 0u64;
        let fill = word(address, value);
        ok!(
            self.library,
            cuGraphAddMemsetNode(&raw mut node, graph, before.as_ptr(), before.len(), &raw const fill, 0u64)
        );
        node
    }

    pub(crate) fn run(&self, executable: u64) {
        ok!(self.library, cuGraphLaunch(executable, 0u64));
    }
}

pub(crate) fn word(to: u64, value: u32) -> Fill {
    Fill {
        to,
        pitch: 0,
        value,
        element_bytes: 4,
        width: 1,
        height: 1,
    }
}
