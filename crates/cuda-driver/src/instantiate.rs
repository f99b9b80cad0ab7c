//! Graphs become executable: each node's work is turned into operations of the device and steps of the host.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::Operation;

use crate::boundary::Handle;
use crate::context::Context;
use crate::copy::{plan, plan_fill, sides};
use crate::current;
use crate::driver;
use crate::executable::{Executable, Piece, Program, State, Step, charge};
use crate::graph::{Graph, Kernel, Node, Work};
use crate::ranges::counted;
use crate::status::Status;
use crate::table::new_handle;

/// Why a graph cannot become executable, and the node that is the reason.
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) node: Handle,
    /// Whether the nodes depend on each other in a circle.
    pub(crate) is_cycle: bool,
}

impl Refusal {
    /// A refusal for the work of a node.
    pub(crate) fn of_node(status: Status, node: Handle) -> Self {
        Self {
            status,
            node,
            is_cycle: false,
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::of_node(status, Handle::NULL)
    }
}

/// The parts of a node's work in a context, but for those of an embedded graph.
pub(crate) fn pieces(context: &Arc<Context>, work: &Work) -> Result<Vec<Piece>, Status> {
    let host = |step| Ok(vec![Piece::Host(step)]);
    Ok(match work {
        Work::Kernel(kernel) => vec![Piece::Device(launch(context, kernel)?)],
        Work::Copy(copy) => {
            let (to, from, extent) = sides(copy)?;
            match plan(context, to, from, extent)? {
                Some(operations) => operations.into_iter().map(Piece::Device).collect(),
                None => return host(Step::Copy(copy.clone())),
            }
        }
        Work::Fill(fill) => {
            let (to, extent, element_bytes) = fill.rows()?;
            let operations = plan_fill(context, to, extent, fill.value, element_bytes)?;
            operations.into_iter().map(Piece::Device).collect()
        }
        Work::Call(call) => return host(Step::Call(*call)),
        Work::Wait(event) => return host(Step::Wait(*event)),
        Work::Record(event) => return host(Step::Record(*event)),
        Work::Allocate(parameters) => return host(Step::Allocate(parameters.address)),
        Work::Free(address) => return host(Step::Free(*address)),
        Work::Graph(_) | Work::Empty => Vec::new(),
    })
}

fn launch(context: &Arc<Context>, kernel: &Kernel) -> Result<Operation, Status> {
    if kernel.context_id != context.id {
        return refuse("a graph with nodes of several contexts");
    }
    let stack_bytes = context.stack_bytes.load(Ordering::Relaxed) as u32;
    Ok(Operation::Launch(Box::new(kernel.request(stack_bytes))))
}

/// The parts of all nodes, embedded graphs in the place of their nodes, in the order of their execution.
fn all_pieces(context: &Arc<Context>, graph: &Graph, all: &mut Vec<(Handle, Vec<Piece>)>) -> Result<(), Refusal> {
    let nodes = graph.nodes.lock();
    let mut parts = HashMap::new();
    for (handle, node) in nodes.iter() {
        let pieces = enabled_pieces(context, node).map_err(|status| Refusal::of_node(status, handle))?;
        parts.insert(handle, pieces);
    }
    let is_on_device = |handle: Handle| parts[&handle].iter().all(|piece| matches!(piece, Piece::Device(_)));
    let order = nodes.order(is_on_device).map_err(|node| Refusal {
        status: Status::INVALID_VALUE,
        node,
        is_cycle: true,
    })?;
    for handle in order {
        match nodes.get(handle).map(|node| &node.work) {
            Ok(Work::Graph(child)) => all_pieces(context, child, all)?,
            _ => all.push((handle, parts.remove(&handle).unwrap_or_default())),
        }
    }
    Ok(())
}

/// The parts of a node's work, if the node is enabled.
pub(crate) fn enabled_pieces(context: &Arc<Context>, node: &Node) -> Result<Vec<Piece>, Status> {
    if node.is_enabled {
        pieces(context, &node.work)
    } else {
        Ok(Vec::new())
    }
}

/// The context of a graph's kernels, or the current one.
fn context_of(graph: &Graph) -> Result<Arc<Context>, Status> {
    let mut found = None;
    graph.each(&mut |_, _, work| {
        if let Work::Kernel(kernel) = work {
            found.get_or_insert_with(|| kernel.context.clone());
        }
    });
    match found {
        Some(context) => context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED),
        None => current::context(),
    }
}

/// Stores the operations of a graph. They count as memory of the device.
pub(crate) fn store(context: &Arc<Context>, graph: &Graph) -> Result<(Program, u64), Refusal> {
    let mut all = Vec::new();
    all_pieces(context, graph, &mut all)?;
    let charged = counted(charge(&all)).ok_or(Status::OUT_OF_MEMORY)?;
    let driver = driver::get()?;
    driver.charge(charged)?;
    let program = Program::store(context, all).inspect_err(|_| driver.release(charged))?;
    Ok((program, charged))
}

/// Makes an executable graph of a graph as it is now.
pub(crate) fn instantiate(graph: &Graph, flags: u64) -> Result<Handle, Refusal> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let driver = driver::get()?;
    check_memory(graph)?;
    let graph = graph.snapshot();
    let context = context_of(&graph)?;
    context.check()?;
    let (program, charged) = store(&context, &graph)?;
    driver.retain_for_executable(&graph);
    let handle = new_handle();
    let executable = Executable {
        handle,
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        context: Arc::downgrade(&context),
        context_id: context.id,
        flags,
        state: Mutex::new(State { graph, program, charged }),
    };
    driver.executables.insert(handle, Arc::new(executable));
    Ok(handle)
}

/// Refuses a second executable graph with the same memory.
fn check_memory(graph: &Graph) -> Result<(), Status> {
    let driver = driver::get()?;
    let mut is_used = false;
    graph.each(&mut |_, _, work| {
        if let Work::Allocate(parameters) = work {
            is_used |= driver.is_instantiated(parameters.address);
        }
    });
    if is_used {
        return refuse("a second executable graph of a graph that allocates memory");
    }
    Ok(())
}
