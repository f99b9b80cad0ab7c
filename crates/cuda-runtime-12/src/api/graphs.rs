//! Functions of graphs of which version 12 has forms without and with data of edges.

use std::ffi::c_uint;
use std::ptr::null_mut;

use sahasra_cuda_runtime::api::capture::{self, Answers};
use sahasra_cuda_runtime::api::node;
use sahasra_cuda_runtime::boundary::{Handle, Out, Pointer};
use sahasra_cuda_runtime::driver::structures::NodeParameters;
use sahasra_cuda_runtime::{context, exports};

fn no_edges() -> Pointer {
    Pointer::new(null_mut())
}

fn answers(id: Out<u64>, graph: Out<Handle>, nodes: Out<usize>, edges: Out<usize>, count: Out<usize>) -> Answers {
    Answers {
        id,
        graph,
        nodes,
        edges,
        count,
    }
}

exports! {
    fn cudaStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) {
        capture::info(stream, status, answers(id, Out::null(), Out::null(), Out::null(), Out::null()))
    }

    fn cudaStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        count: Out<usize>,
    ) {
        capture::info(stream, status, answers(id, graph, nodes, Out::null(), count))
    }

    fn cudaStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        edges: Out<usize>,
        count: Out<usize>,
    ) {
        capture::info(stream, status, answers(id, graph, nodes, edges, count))
    }

    fn cudaStreamUpdateCaptureDependencies(stream: Handle, nodes: Pointer, count: usize, flags: c_uint) {
        capture::update(stream, nodes, no_edges(), count, flags)
    }

    fn cudaStreamUpdateCaptureDependencies_v2(stream: Handle, nodes: Pointer, edges: Pointer, count: usize, flags: c_uint) {
        capture::update(stream, nodes, edges, count, flags)
    }

    fn cudaGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) {
        context::ready()?.cuGraphGetEdges_v2(graph, from, to, no_edges(), count)
    }

    fn cudaGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphGetEdges_v2(graph, from, to, edges, count)
    }

    fn cudaGraphNodeGetDependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependencies_v2(node, nodes, no_edges(), count)
    }

    fn cudaGraphNodeGetDependencies_v2(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependencies_v2(node, nodes, edges, count)
    }

    fn cudaGraphNodeGetDependentNodes(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependentNodes_v2(node, nodes, no_edges(), count)
    }

    fn cudaGraphNodeGetDependentNodes_v2(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count)
    }

    fn cudaGraphAddDependencies(graph: Handle, from: Pointer, to: Pointer, count: usize) {
        context::ready()?.cuGraphAddDependencies_v2(graph, from, to, no_edges(), count)
    }

    fn cudaGraphAddDependencies_v2(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize) {
        context::ready()?.cuGraphAddDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphRemoveDependencies(graph: Handle, from: Pointer, to: Pointer, count: usize) {
        context::ready()?.cuGraphRemoveDependencies_v2(graph, from, to, no_edges(), count)
    }

    fn cudaGraphRemoveDependencies_v2(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize) {
        context::ready()?.cuGraphRemoveDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphAddNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Out<NodeParameters>) {
        node::add(node, graph, before, no_edges(), count, parameters)
    }

    fn cudaGraphAddNode_v2(
        node: Out<Handle>,
        graph: Handle,
        before: Pointer,
        edges: Pointer,
        count: usize,
        parameters: Out<NodeParameters>,
    ) {
        node::add(node, graph, before, edges, count, parameters)
    }
}
