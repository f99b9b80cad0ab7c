//! Functions of graphs whose parameters changed with version 13, and those that came with it.

use std::ffi::c_uint;

use sahasra_cuda_runtime::api::capture::{self, Answers};
use sahasra_cuda_runtime::api::node;
use sahasra_cuda_runtime::boundary::{Handle, Out, Pointer};
use sahasra_cuda_runtime::driver::structures::NodeParameters;
use sahasra_cuda_runtime::{context, exports};

exports! {
    fn cudaStreamGetCaptureInfo(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        nodes: Out<usize>,
        edges: Out<usize>,
        count: Out<usize>,
    ) {
        capture::info(stream, status, Answers { id, graph, nodes, edges, count })
    }

    fn cudaStreamUpdateCaptureDependencies(stream: Handle, nodes: Pointer, edges: Pointer, count: usize, flags: c_uint) {
        capture::update(stream, nodes, edges, count, flags)
    }

    fn cudaGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphGetEdges_v2(graph, from, to, edges, count)
    }

    fn cudaGraphNodeGetDependencies(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependencies_v2(node, nodes, edges, count)
    }

    fn cudaGraphNodeGetDependentNodes(node: Handle, nodes: Out<Handle>, edges: Pointer, count: Out<usize>) {
        context::ready()?.cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count)
    }

    fn cudaGraphAddDependencies(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize) {
        context::ready()?.cuGraphAddDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphRemoveDependencies(graph: Handle, from: Pointer, to: Pointer, edges: Pointer, count: usize) {
        context::ready()?.cuGraphRemoveDependencies_v2(graph, from, to, edges, count)
    }

    fn cudaGraphAddNode(
        node: Out<Handle>,
        graph: Handle,
        before: Pointer,
        edges: Pointer,
        count: usize,
        parameters: Out<NodeParameters>,
    ) {
        node::add(node, graph, before, edges, count, parameters)
    }

    fn cudaGraphGetId(graph: Handle, id: Out<c_uint>) {
        context::ready()?.cuGraphGetId(graph, id)
    }

    fn cudaGraphExecGetId(executable: Handle, id: Out<c_uint>) {
        context::ready()?.cuGraphExecGetId(executable, id)
    }

    fn cudaGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) {
        context::ready()?.cuGraphNodeGetContainingGraph(node, graph)
    }

    fn cudaGraphNodeGetLocalId(node: Handle, id: Out<c_uint>) {
        context::ready()?.cuGraphNodeGetLocalId(node, id)
    }

    fn cudaGraphNodeGetToolsId(node: Handle, id: Out<u64>) {
        context::ready()?.cuGraphNodeGetToolsId(node, id)
    }

    fn cudaGraphNodeGetParams(node: Handle, parameters: Out<NodeParameters>) {
        node::get(node, parameters)
    }
}
