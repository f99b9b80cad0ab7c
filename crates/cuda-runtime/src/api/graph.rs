//! Graphs. Their handles, and those of nodes, are the driver's.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, Out, Pointer, Text};
use crate::{context, exports};

exports! {
    fn cudaGraphCreate(graph: Out<Handle>, flags: c_uint) {
        context::ready()?.cuGraphCreate(graph, flags)
    }

    fn cudaGraphDestroy(graph: Handle) {
        context::ready()?.cuGraphDestroy(graph)
    }

    fn cudaGraphClone(clone: Out<Handle>, graph: Handle) {
        context::ready()?.cuGraphClone(clone, graph)
    }

    fn cudaGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle) {
        context::ready()?.cuGraphNodeFindInClone(node, original, clone)
    }

    fn cudaGraphNodeGetType(node: Handle, kind: Out<c_uint>) {
        context::ready()?.cuGraphNodeGetType(node, kind)
    }

    fn cudaGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        context::ready()?.cuGraphGetNodes(graph, nodes, count)
    }

    fn cudaGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        context::ready()?.cuGraphGetRootNodes(graph, nodes, count)
    }

    fn cudaGraphDestroyNode(node: Handle) {
        context::ready()?.cuGraphDestroyNode(node)
    }

    fn cudaGraphDebugDotPrint(graph: Handle, path: Text, flags: c_uint) {
        context::ready()?.cuGraphDebugDotPrint(graph, path, flags)
    }

    fn cudaDeviceGraphMemTrim(device: c_int) {
        context::ready()?.cuDeviceGraphMemTrim(device)
    }

    fn cudaDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: Out<u64>) {
        context::ready()?.cuDeviceGetGraphMemAttribute(device, attribute, value)
    }

    fn cudaDeviceSetGraphMemAttribute(device: c_int, attribute: c_uint, value: Out<u64>) {
        context::ready()?.cuDeviceSetGraphMemAttribute(device, attribute, value)
    }

    fn cudaUserObjectCreate(object: Out<Handle>, data: Pointer, destroy: Pointer, references: c_uint, flags: c_uint) {
        context::ready()?.cuUserObjectCreate(object, data, destroy, references, flags)
    }

    fn cudaUserObjectRetain(object: Handle, count: c_uint) {
        context::ready()?.cuUserObjectRetain(object, count)
    }

    fn cudaUserObjectRelease(object: Handle, count: c_uint) {
        context::ready()?.cuUserObjectRelease(object, count)
    }

    fn cudaGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) {
        context::ready()?.cuGraphRetainUserObject(graph, object, count, flags)
    }

    fn cudaGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) {
        context::ready()?.cuGraphReleaseUserObject(graph, object, count)
    }
}
