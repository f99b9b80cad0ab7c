//! Parameters of the nodes of a graph. Executable graphs that exist keep theirs.

use std::ffi::c_uint;

use crate::boundary::{Handle, In, Out};
use crate::driver;
use crate::graph::{Kernel, Node, Work};
use crate::parameters::{
    AllocationParameters, Copy3d, FillParameters, HostParameters, KernelParameters, KernelParametersV1, NodeParameters,
};
use crate::status::Status;

use super::launch::check_attribute;
use super::node::{Mismatched, call, checked, described, launch, of_event, within};

/// Runs a function on a node.
fn node<T>(handle: Handle, function: impl FnOnce(&mut Node) -> Result<T, Status>) -> Result<T, Status> {
    let graph = driver::get()?.nodes.get(handle)?;
    let mut nodes = graph.nodes.lock();
    function(nodes.get_mut(handle)?)
}

/// Replaces the work of a node by work of the same kind.
pub(crate) fn replace(node: &mut Node, new: Work) -> Result<(), Status> {
    if node.work.kind() != new.kind() {
        return Err(Status::INVALID_VALUE);
    }
    node.work = match (&node.work, new) {
        (Work::Kernel(old), Work::Kernel(mut new)) => {
            new.attributes.clone_from(&old.attributes);
            Work::Kernel(new)
        }
        (_, new) => new,
    };
    Ok(())
}

fn set(handle: Handle, work: Work) -> Result<(), Status> {
    node(handle, |node| replace(node, work))
}

/// Runs a function on the launch of a node.
fn kernel<T>(handle: Handle, function: impl FnOnce(&mut Kernel) -> Result<T, Status>) -> Result<T, Status> {
    node(handle, |node| match &mut node.work {
        Work::Kernel(kernel) => function(kernel),
        _ => Err(Status::INVALID_VALUE),
    })
}

/// A launch as programs describe it. The parameters are those that the node keeps.
fn description(kernel: &Kernel) -> KernelParameters {
    let places = match kernel.places.len() {
        0 => std::ptr::null(),
        _ => kernel.places.as_ptr().cast(),
    };
    KernelParameters {
        launch: KernelParametersV1 {
            function: kernel.function,
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: kernel.shared_bytes,
            parameters: In::new(places),
            extra: In::new(std::ptr::null()),
        },
        kernel: kernel.kernel,
        context: kernel.context_handle,
    }
}

/// Writes the parameters that `read` finds in the node's work. `INVALID_VALUE` if the node has another kind of work.
fn get<T: Copy>(handle: Handle, out: Out<T>, read: impl FnOnce(&Work) -> Option<T>) -> Result<(), Status> {
    out.set(node(handle, |node| read(&node.work).ok_or(Status::INVALID_VALUE))?)
}

exports! {
    fn cuGraphKernelNodeGetParams(node: Handle, parameters: Out<KernelParametersV1>) {
        parameters.set(kernel(node, |kernel| Ok(description(kernel).launch))?)
    }

    fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: Out<KernelParameters>) {
        parameters.set(kernel(node, |kernel| Ok(description(kernel)))?)
    }

    fn cuGraphKernelNodeSetParams(node: Handle, parameters: In<KernelParametersV1>) {
        set(node, launch(&parameters.get()?.into(), Mismatched::Ignored)?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: In<KernelParameters>) {
        set(node, launch(&parameters.get()?, Mismatched::Ignored)?)
    }

    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_uint, value: Out<[u32; 16]>) {
        value.set(kernel(node, |kernel| Ok(kernel.attributes.get(&attribute).copied().unwrap_or_default()))?)
    }

    fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: c_uint, value: In<[u32; 16]>) {
        let value = value.get()?;
        check_attribute(attribute, &value)?;
        kernel(node, |kernel| {
            kernel.attributes.insert(attribute, value);
            Ok(())
        })
    }

    fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) {
        let attributes = kernel(from, |kernel| Ok(kernel.attributes.clone()))?;
        kernel(to, |kernel| {
            kernel.attributes = attributes;
            Ok(())
        })
    }

    fn cuGraphMemcpyNodeGetParams(node: Handle, parameters: Out<Copy3d>) {
        get(node, parameters, |work| match work {
            Work::Copy(copy) => Some(**copy),
            _ => None,
        })
    }

    fn cuGraphMemcpyNodeSetParams(node: Handle, parameters: In<Copy3d>) {
        set(node, checked(Handle::NULL, Work::Copy(Box::new(parameters.get()?)))?)
    }

    fn cuGraphMemsetNodeGetParams(node: Handle, parameters: Out<FillParameters>) {
        get(node, parameters, |work| match work {
            Work::Fill(fill) => Some(*fill),
            _ => None,
        })
    }

    fn cuGraphMemsetNodeSetParams(node: Handle, parameters: In<FillParameters>) {
        set(node, checked(Handle::NULL, Work::Fill(parameters.get()?))?)
    }

    fn cuGraphHostNodeGetParams(node: Handle, parameters: Out<HostParameters>) {
        get(node, parameters, |work| match work {
            Work::Call(call) => Some(*call),
            _ => None,
        })
    }

    fn cuGraphHostNodeSetParams(node: Handle, parameters: In<HostParameters>) {
        set(node, call(parameters.get()?)?)
    }

    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        get(node, graph, |work| match work {
            Work::Graph(child) => Some(child.handle),
            _ => None,
        })
    }

    fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>) {
        get(node, event, |work| match work {
            Work::Record(event) => Some(*event),
            _ => None,
        })
    }

    fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle) {
        set(node, of_event(event, Work::Record)?)
    }

    fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>) {
        get(node, event, |work| match work {
            Work::Wait(event) => Some(*event),
            _ => None,
        })
    }

    fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle) {
        set(node, of_event(event, Work::Wait)?)
    }

    fn cuGraphMemAllocNodeGetParams(node: Handle, parameters: Out<AllocationParameters>) {
        get(node, parameters, |work| match work {
            Work::Allocate(parameters) => Some(**parameters),
            _ => None,
        })
    }

    fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) {
        get(node, address, |work| match work {
            Work::Free(address) => Some(*address),
            _ => None,
        })
    }

    fn cuGraphNodeGetParams(node: Handle, parameters: Out<NodeParameters>) {
        parameters.require()?;
        let graph = driver::get()?.nodes.get(node)?;
        let work = graph.nodes.lock().get(node)?.work.clone();
        parameters.set(NodeParameters {
            kind: work.kind(),
            reserved: [0; 3],
            parameters: [0; 30],
        })?;
        match work {
            Work::Kernel(kernel) => within(parameters, 0).set(description(&kernel)),
            Work::Copy(copy) => within(parameters, 16).set(*copy),
            Work::Fill(fill) => within(parameters, 0).set(fill),
            Work::Call(call) => within(parameters, 0).set(call),
            Work::Graph(child) => within(parameters, 0).set(child.handle),
            Work::Empty => Ok(()),
            Work::Wait(event) | Work::Record(event) => within(parameters, 0).set(event),
            Work::Allocate(allocation) => within(parameters, 0).set(*allocation),
            Work::Free(address) => within(parameters, 0).set(address),
        }
    }

    fn cuGraphNodeSetParams(node: Handle, parameters: Out<NodeParameters>) {
        set(node, described(parameters, Mismatched::Ignored)?.ok_or(Status::NOT_SUPPORTED)?)
    }

    fn cuGraphNodeSetParams_v2(node: Handle, parameters: Out<NodeParameters>) {
        set(node, described(parameters, Mismatched::Refused)?.ok_or(Status::NOT_SUPPORTED)?)
    }
}
