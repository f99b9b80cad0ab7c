//! Graphs: nodes, edges, copies. Nodes have the order of a stream; edges with other data are refused.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use sahasra_cuda_boundary::{log, missing::refuse};

use crate::boundary::{Handle, In, Out, Text};
use crate::current;
use crate::driver;
use crate::graph::{Graph, Nodes};
use crate::parameters::EdgeData;
use crate::status::Status;

/// `CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES`. The other flags ask for parameters of nodes.
const HANDLES: c_uint = 1 << 10;

/// Refuses edges that are no plain order.
pub(crate) fn check_edges(edges: In<EdgeData>, count: usize) -> Result<(), Status> {
    if edges.is_null() || edges.array(count)?.iter().all(|edge| *edge == EdgeData([0; 8])) {
        return Ok(());
    }
    refuse("an edge of a graph with ports or a type")
}

/// Writes a list, or only its length if there is no place for it.
fn list(found: &[Handle], out: Out<Handle>, edges: Out<EdgeData>, count: Out<usize>) -> Result<(), Status> {
    count.require()?;
    if out.address() == 0 {
        return count.set(found.len());
    }
    let room = count.get()?;
    for index in 0..room {
        out.set_at(index, found.get(index).copied().unwrap_or(Handle::NULL))?;
        edges.element_if_wanted(index, EdgeData([0; 8]));
    }
    count.set(found.len().min(room))
}

/// Runs a function on the nodes of a graph.
fn nodes<T>(graph: Handle, function: impl FnOnce(&mut Nodes) -> Result<T, Status>) -> Result<T, Status> {
    function(&mut driver::get()?.graphs.get(graph)?.nodes.lock())
}

/// The graph of a node.
fn graph_of(node: Handle) -> Result<Arc<Graph>, Status> {
    driver::get()?.nodes.get(node)
}

fn edges(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> Result<(), Status> {
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    nodes(graph, |nodes| {
        for (handle, node) in nodes.iter() {
            sources.extend(node.dependents.iter().map(|_| handle));
            targets.extend(&node.dependents);
        }
        Ok(())
    })?;
    if (from.address() == 0) != (to.address() == 0) {
        return Err(Status::INVALID_VALUE);
    }
    let room = count.get()?;
    list(&sources, from, data, count)?;
    count.set(room)?;
    list(&targets, to, Out::null(), count)
}

fn dependencies(node: Handle, out: Out<Handle>, edges: Out<EdgeData>, count: Out<usize>) -> Result<(), Status> {
    let found = graph_of(node)?.nodes.lock().get(node)?.dependencies.clone();
    list(&found, out, edges, count)
}

fn dependents(node: Handle, out: Out<Handle>, edges: Out<EdgeData>, count: Out<usize>) -> Result<(), Status> {
    let found = graph_of(node)?.nodes.lock().get(node)?.dependents.clone();
    list(&found, out, edges, count)
}

fn pairs(from: In<Handle>, to: In<Handle>, count: usize) -> Result<Vec<(Handle, Handle)>, Status> {
    Ok(from.array(count)?.into_iter().zip(to.array(count)?).collect())
}

fn connect(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Result<(), Status> {
    let pairs = pairs(from, to, count)?;
    nodes(graph, |nodes| nodes.connect(&pairs))
}

fn disconnect(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Result<(), Status> {
    let pairs = pairs(from, to, count)?;
    if driver::get()?.graphs.get(graph)?.has_memory() {
        return refuse("the removal of edges of a graph that allocates memory");
    }
    nodes(graph, |nodes| nodes.disconnect(&pairs))
}

exports! {
    fn cuGraphCreate(graph: Out<Handle>, flags: c_uint) {
        graph.require()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let created = Graph::new();
        driver::get()?.add_graph(&created);
        graph.set(created.handle)
    }

    fn cuGraphDestroy(graph: Handle) {
        driver::get()?.destroy_graph(graph, current::context().ok().as_ref())
    }

    fn cuGraphClone(clone: Out<Handle>, original: Handle) {
        clone.require()?;
        let driver = driver::get()?;
        let original = driver.graphs.get(original)?;
        if original.has_memory() {
            return refuse("the copy of a graph that allocates memory");
        }
        let copy = original.duplicate(false);
        driver.retain_objects(&copy);
        driver.add_graph(&copy);
        clone.set(copy.handle)
    }

    fn cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle) {
        node.set(nodes(clone, |nodes| nodes.copy_of(original).ok_or(Status::INVALID_VALUE))?)
    }

    fn cuGraphGetId(graph: Handle, id: Out<c_uint>) {
        id.set(driver::get()?.graphs.get(graph)?.id)
    }

    fn cuGraphGetNodes(graph: Handle, out: Out<Handle>, count: Out<usize>) {
        let found = nodes(graph, |nodes| Ok(nodes.iter().map(|(handle, _)| handle).collect::<Vec<_>>()))?;
        list(&found, out, Out::null(), count)
    }

    fn cuGraphGetRootNodes(graph: Handle, out: Out<Handle>, count: Out<usize>) {
        let found = nodes(graph, |nodes| {
            let roots = nodes.iter().filter(|(_, node)| node.dependencies.is_empty());
            Ok(roots.map(|(handle, _)| handle).collect::<Vec<_>>())
        })?;
        list(&found, out, Out::null(), count)
    }

    fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) {
        edges(graph, from, to, Out::null(), count)
    }

    fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        edges(graph, from, to, data, count)
    }

    fn cuGraphNodeGetDependencies(node: Handle, out: Out<Handle>, count: Out<usize>) {
        dependencies(node, out, Out::null(), count)
    }

    fn cuGraphNodeGetDependencies_v2(node: Handle, out: Out<Handle>, edges: Out<EdgeData>, count: Out<usize>) {
        dependencies(node, out, edges, count)
    }

    fn cuGraphNodeGetDependentNodes(node: Handle, out: Out<Handle>, count: Out<usize>) {
        dependents(node, out, Out::null(), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(node: Handle, out: Out<Handle>, edges: Out<EdgeData>, count: Out<usize>) {
        dependents(node, out, edges, count)
    }

    fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        connect(graph, from, to, count)
    }

    fn cuGraphAddDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, edges: In<EdgeData>, count: usize) {
        check_edges(edges, count)?;
        connect(graph, from, to, count)
    }

    fn cuGraphRemoveDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        disconnect(graph, from, to, count)
    }

    fn cuGraphRemoveDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, edges: In<EdgeData>, count: usize) {
        check_edges(edges, count)?;
        disconnect(graph, from, to, count)
    }

    fn cuGraphDestroyNode(node: Handle) {
        driver::get()?.remove_node(node, current::context().ok().as_ref())
    }

    fn cuGraphNodeGetType(node: Handle, kind: Out<c_uint>) {
        kind.set(graph_of(node)?.nodes.lock().get(node)?.work.kind())
    }

    fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) {
        graph.set(graph_of(node)?.handle)
    }

    fn cuGraphNodeGetLocalId(node: Handle, id: Out<c_uint>) {
        id.set(graph_of(node)?.nodes.lock().get(node)?.local)
    }

    fn cuGraphNodeGetToolsId(node: Handle, id: Out<u64>) {
        graph_of(node)?;
        id.set(node.0)
    }

    /// Writes the graph as text in Graphviz's language.
    fn cuGraphDebugDotPrint(graph: Handle, path: Text, flags: c_uint) {
        let path = path.path()?;
        let text = driver::get()?.graphs.get(graph)?.dot(flags & !HANDLES != 0);
        std::fs::write(&path, text).map_err(|error| {
            log::line(&format!("failed to write {}: {error}", path.display()));
            Status::OPERATING_SYSTEM
        })
    }

    /// Memory of graphs is mapped for as long as a launch has it: nothing is kept.
    fn cuDeviceGraphMemTrim(device: c_int) {
        driver::get()?.check_device(device)
    }

    fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: Out<u64>) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        value.set(driver.with_graph_memory(|memory| match attribute {
            0 | 2 => Ok(memory.used),
            1 | 3 => Ok(memory.most_used),
            _ => Err(Status::INVALID_VALUE),
        })?)
    }

    fn cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: In<u64>) {
        let driver = driver::get()?;
        driver.check_device(device)?;
        if !matches!(attribute, 1 | 3) || value.get()? != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver.with_graph_memory(|memory| memory.most_used = memory.used);
        Ok(())
    }
}
