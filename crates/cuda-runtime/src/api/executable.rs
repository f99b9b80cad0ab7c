//! Executable graphs. Their handles are the driver's.

use std::ffi::c_uint;

use super::copy::{Direction, Volumes};
use super::node::for_driver;
use super::symbol::place;
use crate::boundary::{Handle, In, Out, Pointer};
use crate::driver::structures::{DriverLaunch, NodeParameters, ProgramLaunch};
use crate::{Error, context, exports};

/// Replaces the copy of a node.
fn set_copy(executable: Handle, node: Handle, copy: &Volumes) -> Result<(), Error> {
    let copy = copy.for_driver()?;
    context::ready()?.cuGraphExecMemcpyNodeSetParams(executable, node, In::new(&raw const copy), Handle::NULL)
}

exports! {
    fn cudaGraphInstantiate(executable: Out<Handle>, graph: Handle, flags: u64) {
        context::ready()?.cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    fn cudaGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, flags: u64) {
        context::ready()?.cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    fn cudaGraphInstantiateWithParams(executable: Out<Handle>, graph: Handle, parameters: Pointer) {
        context::ready()?.cuGraphInstantiateWithParams(executable, graph, parameters)
    }

    fn cudaGraphExecGetFlags(executable: Handle, flags: Out<u64>) {
        context::ready()?.cuGraphExecGetFlags(executable, flags)
    }

    fn cudaGraphExecUpdate(executable: Handle, graph: Handle, result: Pointer) {
        context::ready()?.cuGraphExecUpdate_v2(executable, graph, result)
    }

    fn cudaGraphUpload(executable: Handle, stream: Handle) {
        context::ready()?.cuGraphUpload(executable, stream)
    }

    fn cudaGraphLaunch(executable: Handle, stream: Handle) {
        context::ready()?.cuGraphLaunch(executable, stream)
    }

    fn cudaGraphExecDestroy(executable: Handle) {
        context::ready()?.cuGraphExecDestroy(executable)
    }

    fn cudaGraphNodeSetEnabled(executable: Handle, node: Handle, is_enabled: c_uint) {
        context::ready()?.cuGraphNodeSetEnabled(executable, node, is_enabled)
    }

    fn cudaGraphNodeGetEnabled(executable: Handle, node: Handle, is_enabled: Out<c_uint>) {
        context::ready()?.cuGraphNodeGetEnabled(executable, node, is_enabled)
    }

    fn cudaGraphExecKernelNodeSetParams(executable: Handle, node: Handle, parameters: In<ProgramLaunch>) {
        let launch = DriverLaunch::new(&parameters.get()?)?;
        context::ready()?.cuGraphExecKernelNodeSetParams_v2(executable, node, In::new(&raw const launch))
    }

    fn cudaGraphExecMemcpyNodeSetParams(executable: Handle, node: Handle, parameters: In<Volumes>) {
        set_copy(executable, node, &parameters.get()?)
    }

    fn cudaGraphExecMemcpyNodeSetParams1D(
        executable: Handle,
        node: Handle,
        to: u64,
        from: u64,
        bytes: usize,
        direction: Direction,
    ) {
        set_copy(executable, node, &Volumes::linear(to, from, bytes, direction))
    }

    fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
        executable: Handle,
        node: Handle,
        symbol: usize,
        from: u64,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        set_copy(executable, node, &Volumes::linear(place(symbol, offset, bytes)?, from, bytes, direction))
    }

    fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
        executable: Handle,
        node: Handle,
        to: u64,
        symbol: usize,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        set_copy(executable, node, &Volumes::linear(to, place(symbol, offset, bytes)?, bytes, direction))
    }

    fn cudaGraphExecMemsetNodeSetParams(executable: Handle, node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphExecMemsetNodeSetParams(executable, node, parameters, Handle::NULL)
    }

    fn cudaGraphExecNodeSetParams(executable: Handle, node: Handle, parameters: Out<NodeParameters>) {
        let mut parameters = for_driver(parameters)?;
        context::ready()?.cuGraphExecNodeSetParams(executable, node, Out::new(&raw mut parameters))
    }

    fn cudaGraphExecHostNodeSetParams(executable: Handle, node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphExecHostNodeSetParams(executable, node, parameters)
    }

    fn cudaGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, child: Handle) {
        context::ready()?.cuGraphExecChildGraphNodeSetParams(executable, node, child)
    }

    fn cudaGraphExecEventRecordNodeSetEvent(executable: Handle, node: Handle, event: Handle) {
        context::ready()?.cuGraphExecEventRecordNodeSetEvent(executable, node, event)
    }

    fn cudaGraphExecEventWaitNodeSetEvent(executable: Handle, node: Handle, event: Handle) {
        context::ready()?.cuGraphExecEventWaitNodeSetEvent(executable, node, event)
    }
}
