//! Updates of executable graphs: each is carried out as a whole, or not at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::boundary::Handle;
use crate::context::Context;
use crate::driver;
use crate::executable::{Executable, Piece, State};
use crate::graph::{Graph, Node, Nodes, Work};
use crate::instantiate::{Refusal, enabled_pieces, store};
use crate::status::Status;

/// Why an executable graph was not updated (`CUgraphExecUpdateResult`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// What the result of the call says.
    Unexpected = 1,
    Topology = 2,
    Kind = 3,
    Parameters = 5,
    Unsupported = 6,
}

/// A difference between graphs that an update does not bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) difference: Difference,
    /// Node of the new graph, or null.
    pub(crate) node: Handle,
    /// Node of the executable graph, or null.
    pub(crate) from: Handle,
    pub(crate) status: Status,
}

impl Mismatch {
    fn new(difference: Difference, node: Handle, from: Handle) -> Self {
        Self {
            difference,
            node,
            from,
            status: Status::GRAPH_EXEC_UPDATE_FAILURE,
        }
    }
}

impl From<Refusal> for Mismatch {
    fn from(refusal: Refusal) -> Self {
        let difference = match refusal.status {
            Status::INVALID_VALUE | Status::INVALID_HANDLE => Difference::Parameters,
            Status::NOT_SUPPORTED => Difference::Unsupported,
            _ => Difference::Unexpected,
        };
        let status = match difference {
            Difference::Unexpected => refusal.status,
            _ => Status::GRAPH_EXEC_UPDATE_FAILURE,
        };
        Self {
            difference,
            node: refusal.node,
            from: Handle::NULL,
            status,
        }
    }
}

/// Replaces the work of a node of an executable graph. `change` gets the node as it is and returns what it becomes.
pub(crate) fn update(executable: &Executable, node: Handle, change: impl Fn(&mut Node) -> Result<(), Status>) -> Result<(), Status> {
    let context = executable.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?;
    let mut state = executable.state.lock();
    let changed = state.graph.with_node(node, &mut |node: &mut Node| {
        let mut changed = node.clone();
        change(&mut changed)?;
        let pieces = enabled_pieces(&context, &changed)?;
        let before = std::mem::replace(node, changed);
        Ok::<_, Status>((before, pieces))
    });
    let (before, pieces) = changed.ok_or(Status::INVALID_VALUE)??;
    let graph = Arc::clone(&state.graph);
    replace(&context, &mut state, &graph, vec![(node, pieces)])
        .inspect_err(|_| {
            graph.with_node(node, &mut |node| *node = before.clone());
        })
        .map_err(|refusal| refusal.status)
}

/// Replaces the work of nodes, where it fits into the stored sequences, or else stores all of `graph`, which has the new work.
fn replace(context: &Arc<Context>, state: &mut State, graph: &Graph, changes: Vec<(Handle, Vec<Piece>)>) -> Result<(), Refusal> {
    context.check()?;
    if state.program.has_place_for(&changes) {
        state.program.amend(context, changes)?;
    } else {
        let (program, charged) = store(context, graph)?;
        state.program = program;
        driver::get()?.release(std::mem::replace(&mut state.charged, charged));
    }
    Ok(())
}

/// Takes the work of the nodes of another graph that has the same shape.
pub(crate) fn update_all(executable: &Executable, graph: &Graph) -> Result<(), Mismatch> {
    let new = graph.snapshot();
    let mut state = executable.state.lock();
    let mut works = HashMap::new();
    pair(&state.graph, &new, &mut works)?;
    take(executable, &mut state, &works)
}

/// Takes the work of the nodes of an embedded graph, which must have the shape of that of a node.
pub(crate) fn update_embedded(executable: &Executable, node: Handle, graph: &Graph) -> Result<(), Status> {
    let new = graph.snapshot();
    let mut state = executable.state.lock();
    let child = state.graph.with_node(node, &mut |node| match &node.work {
        Work::Graph(child) => Some(Arc::clone(child)),
        _ => None,
    });
    let child = child.flatten().ok_or(Status::INVALID_VALUE)?;
    let mut works = HashMap::new();
    let taken = pair(&child, &new, &mut works).and_then(|()| take(executable, &mut state, &works));
    taken.map_err(|mismatch| match mismatch.status {
        Status::GRAPH_EXEC_UPDATE_FAILURE => Status::INVALID_VALUE,
        status => status,
    })
}

/// New work for nodes of an executable graph, with the nodes that have it.
type Works = HashMap<Handle, (Handle, Work)>;

/// Gives nodes of an executable graph their new work.
fn take(executable: &Executable, state: &mut State, works: &Works) -> Result<(), Mismatch> {
    let context = executable.context.upgrade().ok_or(Refusal::from(Status::CONTEXT_IS_DESTROYED))?;
    let graph = state.graph.snapshot();
    let mut changes = Vec::with_capacity(works.len());
    graph.each_mut(&mut |handle, node| {
        let Some((source, work)) = works.get(&handle) else {
            return Ok(());
        };
        node.work = work.clone();
        let pieces = enabled_pieces(&context, node).map_err(|status| Mismatch {
            from: handle,
            ..Refusal::of_node(status, *source).into()
        })?;
        changes.push((handle, pieces));
        Ok::<_, Mismatch>(())
    })?;
    replace(&context, state, &graph, changes)?;
    state.graph = graph;
    Ok(())
}

/// Collects the new work of the nodes of a graph from another one of the same shape. Nodes are paired from those without dependents on,
/// against the direction of edges, in the order in which nodes and edges were added.
fn pair(old: &Graph, new: &Graph, works: &mut Works) -> Result<(), Mismatch> {
    let (old_nodes, new_nodes) = (old.nodes.lock(), new.nodes.lock());
    if old_nodes.iter().count() != new_nodes.iter().count() {
        return Err(Mismatch::new(Difference::Topology, Handle::NULL, Handle::NULL));
    }
    let last = |nodes: &Nodes| -> Vec<Handle> {
        let last = nodes.iter().filter(|(_, node)| node.dependents.is_empty());
        last.map(|(handle, _)| handle).collect()
    };
    let (old_last, new_last) = (last(&old_nodes), last(&new_nodes));
    if old_last.len() != new_last.len() {
        let node = new_last.get(old_last.len()).copied().unwrap_or(Handle::NULL);
        return Err(Mismatch::new(Difference::Topology, node, Handle::NULL));
    }
    let (mut pairs, mut taken) = (HashMap::new(), HashSet::new());
    // The pair, and the node of the new graph whose edge led to it.
    let mut open: Vec<(Handle, Handle, Handle)> = old_last.iter().zip(&new_last).map(|(old, new)| (*old, *new, *new)).collect();
    open.reverse();
    while let Some((from, node, behind)) = open.pop() {
        match pairs.get(&node) {
            Some(known) if *known == from => continue,
            None if taken.insert(from) => {}
            _ => return Err(Mismatch::new(Difference::Topology, behind, from)),
        }
        pairs.insert(node, from);
        let (Ok(old), Ok(new)) = (old_nodes.get(from), new_nodes.get(node)) else {
            return Err(Mismatch::new(Difference::Topology, node, from));
        };
        if old.work.kind() != new.work.kind() {
            return Err(Mismatch::new(Difference::Kind, node, from));
        }
        if old.dependencies.len() != new.dependencies.len() {
            return Err(Mismatch::new(Difference::Topology, node, from));
        }
        let before = old.dependencies.iter().zip(&new.dependencies);
        open.extend(before.rev().map(|(old, new)| (*old, *new, node)));
        match (&old.work, &new.work) {
            (Work::Graph(old), Work::Graph(new)) => pair(old, new, works)?,
            (Work::Kernel(old), Work::Kernel(new)) if old.context_id != new.context_id => {
                return Err(Mismatch::new(Difference::Parameters, node, from));
            }
            (Work::Allocate(old), Work::Allocate(new)) if old.address != new.address => {
                return Err(Mismatch::new(Difference::Parameters, node, from));
            }
            (_, work) => {
                works.insert(from, (node, work.clone()));
            }
        }
    }
    if pairs.len() == new_nodes.iter().count() {
        return Ok(());
    }
    // A cycle, which no node without dependents is behind.
    let rest = new_nodes.iter().find(|(handle, _)| !pairs.contains_key(handle));
    let node = rest.map_or(Handle::NULL, |(handle, _)| handle);
    Err(Mismatch::new(Difference::Topology, node, Handle::NULL))
}
