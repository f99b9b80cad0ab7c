//! Nodes are added to graphs.

use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out};
use crate::context::Context;
use crate::current;
use crate::driver;
use crate::graph::{Graph, Work};
use crate::instantiate::pieces;
use crate::launch::kernel;
use crate::parameters::{
    AllocationParameters, Copy3d, DEVICE_LOCATION, EdgeData, FillParameters, HostParameters, KernelParameters, KernelParametersV1,
    NODE_PARAMETERS, NodeParameters, PINNED,
};
use crate::status::Status;

use super::graph::check_edges;

/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`.
const MOVE: u32 = 1;

/// The context of a handle, or the current one for null.
pub(crate) fn context(handle: Handle) -> Result<Arc<Context>, Status> {
    match handle {
        Handle::NULL => current::context(),
        _ => driver::get()?.contexts.find(handle).ok_or(Status::INVALID_CONTEXT),
    }
}

/// What a form of a call does with a context that is not that of the function that is named beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatched {
    Ignored,
    Refused,
}

/// The launch of a kernel as a node's work: of a function in its context, or of a kernel of a library in the context that is named.
pub(crate) fn launch(named: &KernelParameters, mismatched: Mismatched) -> Result<Work, Status> {
    let driver = driver::get()?;
    let context = match driver.functions.find(named.handle()) {
        None => self::context(named.context)?,
        Some(function) => {
            let own = driver.modules.get(function.module)?.context.upgrade();
            let own = own.ok_or(Status::CONTEXT_IS_DESTROYED)?;
            let is_checked = mismatched == Mismatched::Refused && named.context != Handle::NULL;
            if is_checked && self::context(named.context)?.id != own.id {
                return Err(Status::INVALID_CONTEXT);
            }
            own
        }
    };
    Ok(Work::Kernel(Box::new(kernel(&context, named, Default::default())?)))
}

/// Work in a context, if that can do it.
pub(crate) fn checked(context: Handle, work: Work) -> Result<Work, Status> {
    pieces(&self::context(context)?, &work)?;
    Ok(work)
}

/// An event as a node's work.
pub(crate) fn of_event(event: Handle, work: impl FnOnce(Handle) -> Work) -> Result<Work, Status> {
    Ok(work(driver::get()?.events.get(event)?.handle))
}

/// A function of the program as a node's work.
pub(crate) fn call(parameters: HostParameters) -> Result<Work, Status> {
    if parameters.function == 0 {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Work::Call(parameters))
}

/// A copy of a graph as a node's work.
fn embedded(graph: &Graph, child: Handle) -> Result<Work, Status> {
    let driver = driver::get()?;
    let child = driver.graphs.get(child)?;
    if child.handle == graph.handle {
        return Err(Status::INVALID_VALUE);
    }
    if child.has_memory() {
        return refuse("the copy of a graph that allocates memory as a node");
    }
    let copy = child.duplicate(true);
    driver.retain_objects(&copy);
    Ok(Work::Graph(copy))
}

/// A graph of the program's own that becomes the work of a node.
fn moved(graph: &Graph, child: Handle) -> Result<Work, Status> {
    let child = driver::get()?.graphs.get(child)?;
    if child.handle == graph.handle || child.is_embedded || child.contains(graph.handle) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Work::Graph(child.embed()))
}

/// Reserves addresses for the memory of a node, and writes the first into the parameters.
fn allocation(out: Out<AllocationParameters>) -> Result<Work, Status> {
    let parameters = out.get()?;
    let pool = parameters.pool;
    if pool.allocation_type != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    if pool.location_type != DEVICE_LOCATION || pool.handle_types != 0 {
        return refuse("a memory pool of the host or for other processes");
    }
    let driver = driver::get()?;
    driver.check_device(pool.location)?;
    let address = driver.reserve_graph_memory(&current::context()?, parameters.bytes as u64)?;
    let parameters = AllocationParameters { address, ..parameters };
    out.set(parameters)?;
    Ok(Work::Allocate(Box::new(parameters)))
}

/// The freeing of memory of a graph, which a graph does once.
fn free(graph: &Graph, address: u64) -> Result<Work, Status> {
    driver::get()?.check_graph_memory(address)?;
    let mut is_freed = false;
    graph.each(&mut |_, _, work| is_freed |= matches!(work, Work::Free(freed) if *freed == address));
    if is_freed {
        Err(Status::INVALID_VALUE)
    } else {
        Ok(Work::Free(address))
    }
}

/// Adds a node. Its dependencies are checked before its work is made, which may change another graph.
fn add(
    node: Out<Handle>,
    graph: Handle,
    (dependencies, count): (In<Handle>, usize),
    work: impl FnOnce(&Graph) -> Result<Work, Status>,
) -> Result<(), Status> {
    node.require()?;
    let driver = driver::get()?;
    let graph = driver.graphs.get(graph)?;
    let dependencies = dependencies.array(count)?;
    graph.nodes.lock().check(&dependencies)?;
    let work = work(&graph)?;
    node.set(driver.add_node(&graph, work, |work| graph.nodes.lock().insert(work, &dependencies))?)
}

/// A structure within [`NodeParameters`], at an offset in their parameters.
pub(crate) fn within<T: Copy>(parameters: Out<NodeParameters>, offset: usize) -> Out<T> {
    Out::new((parameters.address() + NODE_PARAMETERS + offset) as *mut T)
}

/// The work that parameters of any kind describe, but for that which only the addition of a node makes.
pub(crate) fn described(parameters: Out<NodeParameters>, mismatched: Mismatched) -> Result<Option<Work>, Status> {
    let kind = parameters.get()?.kind;
    Ok(Some(match kind {
        0 => launch(&within::<KernelParameters>(parameters, 0).get()?, mismatched)?,
        1 => {
            let copy = Work::Copy(Box::new(within::<Copy3d>(parameters, 16).get()?));
            checked(within::<Handle>(parameters, 8).get()?, copy)?
        }
        2 => {
            let fill = Work::Fill(within::<FillParameters>(parameters, 0).get()?);
            checked(within::<Handle>(parameters, size_of::<FillParameters>()).get()?, fill)?
        }
        3 => call(within::<HostParameters>(parameters, 0).get()?)?,
        5 => Work::Empty,
        6 => of_event(within::<Handle>(parameters, 0).get()?, Work::Wait)?,
        7 => of_event(within::<Handle>(parameters, 0).get()?, Work::Record)?,
        4 | 10 | 11 => return Ok(None),
        8 | 9 => return refuse("a node with external semaphores"),
        12 => return refuse("a node with batched memory operations"),
        13 => return refuse("a conditional node"),
        14..=18 => return refuse("a node of a type later than CUDA 12.8"),
        _ => return Err(Status::INVALID_VALUE),
    }))
}

fn add_any(
    node: Out<Handle>,
    graph: Handle,
    dependencies: (In<Handle>, usize),
    parameters: Out<NodeParameters>,
    mismatched: Mismatched,
) -> Result<(), Status> {
    let kind = parameters.get()?.kind;
    add(node, graph, dependencies, |graph| match described(parameters, mismatched)? {
        Some(work) => Ok(work),
        None if kind == 4 => {
            let child = within::<Handle>(parameters, 0).get()?;
            match within::<u32>(parameters, 8).get()? {
                0 => embedded(graph, child),
                MOVE => moved(graph, child),
                _ => Err(Status::INVALID_VALUE),
            }
        }
        None if kind == 10 => allocation(within(parameters, 0)),
        None => free(graph, within::<u64>(parameters, 0).get()?),
    })
}

exports! {
    fn cuGraphAddKernelNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: In<KernelParametersV1>,
    ) {
        add(node, graph, (dependencies, count), |_| launch(&parameters.get()?.into(), Mismatched::Ignored))
    }

    fn cuGraphAddKernelNode_v2(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: In<KernelParameters>,
    ) {
        add(node, graph, (dependencies, count), |_| launch(&parameters.get()?, Mismatched::Ignored))
    }

    fn cuGraphAddMemcpyNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: In<Copy3d>,
        context: Handle,
    ) {
        add(node, graph, (dependencies, count), |_| {
            checked(context, Work::Copy(Box::new(parameters.get()?)))
        })
    }

    fn cuGraphAddMemsetNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: In<FillParameters>,
        context: Handle,
    ) {
        add(node, graph, (dependencies, count), |_| checked(context, Work::Fill(parameters.get()?)))
    }

    fn cuGraphAddHostNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: In<HostParameters>,
    ) {
        add(node, graph, (dependencies, count), |_| call(parameters.get()?))
    }

    fn cuGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize, child: Handle) {
        add(node, graph, (dependencies, count), |graph| embedded(graph, child))
    }

    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize) {
        add(node, graph, (dependencies, count), |_| Ok(Work::Empty))
    }

    fn cuGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize, event: Handle) {
        add(node, graph, (dependencies, count), |_| of_event(event, Work::Record))
    }

    fn cuGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize, event: Handle) {
        add(node, graph, (dependencies, count), |_| of_event(event, Work::Wait))
    }

    fn cuGraphAddMemAllocNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: Out<AllocationParameters>,
    ) {
        add(node, graph, (dependencies, count), |_| allocation(parameters))
    }

    fn cuGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, dependencies: In<Handle>, count: usize, address: u64) {
        add(node, graph, (dependencies, count), |graph| free(graph, address))
    }

    fn cuGraphAddNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        count: usize,
        parameters: Out<NodeParameters>,
    ) {
        add_any(node, graph, (dependencies, count), parameters, Mismatched::Ignored)
    }

    fn cuGraphAddNode_v2(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        edges: In<EdgeData>,
        count: usize,
        parameters: Out<NodeParameters>,
    ) {
        check_edges(edges, count)?;
        add_any(node, graph, (dependencies, count), parameters, Mismatched::Ignored)
    }

    fn cuGraphAddNode_v3(
        node: Out<Handle>,
        graph: Handle,
        dependencies: In<Handle>,
        edges: In<EdgeData>,
        count: usize,
        parameters: Out<NodeParameters>,
    ) {
        check_edges(edges, count)?;
        add_any(node, graph, (dependencies, count), parameters, Mismatched::Refused)
    }
}
