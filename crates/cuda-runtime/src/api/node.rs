//! Nodes of graphs. Kernels are named by their addresses in the program; everything else is the driver's.

use std::ffi::c_uint;

use super::copy::{Direction, Volumes};
use super::symbol::place;
use crate::boundary::{Handle, In, Out, Pointer};
use crate::driver::structures::{DriverLaunch, DriverVolumes, NodeParameters, ProgramLaunch};
use crate::{Error, context, exports, registry};

/// Numbers of types of nodes.
const KERNEL: c_uint = 0;
const COPY: c_uint = 1;
const FILL: c_uint = 2;
const HOST: c_uint = 3;
const ALLOCATION: c_uint = 10;
/// Words of a fill, of a function of the host, and before the description of a copy.
const FILL_WORDS: usize = 5;
const HOST_WORDS: usize = 2;
const COPY_WORDS: usize = 2;

impl DriverLaunch {
    /// A launch with the driver's function.
    pub(crate) fn new(launch: &ProgramLaunch) -> Result<Self, Error> {
        let function = registry::function(context::ready()?, launch.function as usize)?;
        Ok(Self {
            launch: ProgramLaunch {
                function: function.0,
                ..*launch
            },
            kernel: Handle::NULL,
            context: Handle::NULL,
        })
    }

    /// The launch with the program's address of the kernel.
    fn for_program(&self) -> ProgramLaunch {
        let function = if self.launch.function == 0 {
            self.kernel.0
        } else {
            self.launch.function
        };
        ProgramLaunch {
            function: registry::address_of(Handle(function)),
            ..self.launch
        }
    }
}

/// A structure within the parameters, at a word.
fn within<T: Copy>(parameters: &mut NodeParameters, word: usize) -> Out<T> {
    Out::new(parameters.parameters[word..].as_mut_ptr().cast())
}

/// The same parameters for the driver library.
pub(crate) fn for_driver(parameters: Out<NodeParameters>) -> Result<NodeParameters, Error> {
    let mut given = parameters.get()?;
    let mut result = NodeParameters {
        parameters: [0; 30],
        ..given
    };
    match given.kind {
        KERNEL => within::<DriverLaunch>(&mut result, 0).set(DriverLaunch::new(&within::<ProgramLaunch>(&mut given, 0).get()?)?)?,
        COPY => {
            let copy = within::<Volumes>(&mut given, COPY_WORDS).get()?.for_driver()?;
            within(&mut result, COPY_WORDS).set(copy)?;
        }
        // Version 13 has contexts behind these, which are not the driver's.
        FILL => result.parameters[..FILL_WORDS].copy_from_slice(&given.parameters[..FILL_WORDS]),
        HOST => result.parameters[..HOST_WORDS].copy_from_slice(&given.parameters[..HOST_WORDS]),
        _ => result.parameters = given.parameters,
    }
    Ok(result)
}

/// The same parameters for programs.
fn for_program(mut parameters: NodeParameters) -> Result<NodeParameters, Error> {
    match parameters.kind {
        KERNEL => {
            let launch = within::<DriverLaunch>(&mut parameters, 0).get()?.for_program();
            parameters.parameters = [0; 30];
            within(&mut parameters, 0).set(launch)?;
        }
        COPY => {
            let copy = within::<DriverVolumes>(&mut parameters, COPY_WORDS).get()?.for_program()?;
            parameters.parameters = [0; 30];
            within(&mut parameters, COPY_WORDS).set(copy)?;
        }
        _ => {}
    }
    Ok(parameters)
}

/// Adds a node of any type.
pub fn add(
    node: Out<Handle>,
    graph: Handle,
    before: Pointer,
    edges: Pointer,
    count: usize,
    parameters: Out<NodeParameters>,
) -> Result<(), Error> {
    let mut given = for_driver(parameters)?;
    context::ready()?.cuGraphAddNode_v2(node, graph, before, edges, count, Out::new(&raw mut given))?;
    if given.kind == ALLOCATION {
        // The address is written behind what was given.
        parameters.set(given)?;
    }
    Ok(())
}

/// Writes the parameters of a node of any type.
pub fn get(node: Handle, parameters: Out<NodeParameters>) -> Result<(), Error> {
    parameters.require()?;
    let mut found = NodeParameters {
        kind: 0,
        reserved: [0; 3],
        parameters: [0; 30],
    };
    context::ready()?.cuGraphNodeGetParams(node, Out::new(&raw mut found))?;
    parameters.set(for_program(found)?)
}

fn add_copy(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, copy: &Volumes) -> Result<(), Error> {
    let copy = copy.for_driver()?;
    context::ready()?.cuGraphAddMemcpyNode(node, graph, before, count, In::new(&raw const copy), Handle::NULL)
}

fn set_copy(node: Handle, copy: &Volumes) -> Result<(), Error> {
    let copy = copy.for_driver()?;
    context::ready()?.cuGraphMemcpyNodeSetParams(node, In::new(&raw const copy))
}

exports! {
    fn cudaGraphAddKernelNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: In<ProgramLaunch>) {
        let launch = DriverLaunch::new(&parameters.get()?)?;
        context::ready()?.cuGraphAddKernelNode_v2(node, graph, before, count, In::new(&raw const launch))
    }

    fn cudaGraphKernelNodeGetParams(node: Handle, parameters: Out<ProgramLaunch>) {
        parameters.require()?;
        let mut launch = std::mem::MaybeUninit::<DriverLaunch>::zeroed();
        context::ready()?.cuGraphKernelNodeGetParams_v2(node, Out::new(launch.as_mut_ptr()))?;
        // SAFETY: numbers and addresses, of which zero is one.
        parameters.set(unsafe { launch.assume_init() }.for_program())
    }

    fn cudaGraphKernelNodeSetParams(node: Handle, parameters: In<ProgramLaunch>) {
        let launch = DriverLaunch::new(&parameters.get()?)?;
        context::ready()?.cuGraphKernelNodeSetParams_v2(node, In::new(&raw const launch))
    }

    fn cudaGraphAddMemcpyNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: In<Volumes>) {
        add_copy(node, graph, before, count, &parameters.get()?)
    }

    fn cudaGraphAddMemcpyNode1D(
        node: Out<Handle>,
        graph: Handle,
        before: Pointer,
        count: usize,
        to: u64,
        from: u64,
        bytes: usize,
        direction: Direction,
    ) {
        add_copy(node, graph, before, count, &Volumes::linear(to, from, bytes, direction))
    }

    fn cudaGraphAddMemcpyNodeToSymbol(
        node: Out<Handle>,
        graph: Handle,
        before: Pointer,
        count: usize,
        symbol: usize,
        from: u64,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        let to = place(symbol, offset, bytes)?;
        add_copy(node, graph, before, count, &Volumes::linear(to, from, bytes, direction))
    }

    fn cudaGraphAddMemcpyNodeFromSymbol(
        node: Out<Handle>,
        graph: Handle,
        before: Pointer,
        count: usize,
        to: u64,
        symbol: usize,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        let from = place(symbol, offset, bytes)?;
        add_copy(node, graph, before, count, &Volumes::linear(to, from, bytes, direction))
    }

    fn cudaGraphMemcpyNodeGetParams(node: Handle, parameters: Out<Volumes>) {
        parameters.require()?;
        let mut copy = std::mem::MaybeUninit::<DriverVolumes>::zeroed();
        context::ready()?.cuGraphMemcpyNodeGetParams(node, Out::new(copy.as_mut_ptr()))?;
        // SAFETY: numbers, of which zero is one.
        parameters.set(unsafe { copy.assume_init() }.for_program()?)
    }

    fn cudaGraphMemcpyNodeSetParams(node: Handle, parameters: In<Volumes>) {
        set_copy(node, &parameters.get()?)
    }

    fn cudaGraphMemcpyNodeSetParams1D(node: Handle, to: u64, from: u64, bytes: usize, direction: Direction) {
        set_copy(node, &Volumes::linear(to, from, bytes, direction))
    }

    fn cudaGraphMemcpyNodeSetParamsToSymbol(
        node: Handle,
        symbol: usize,
        from: u64,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        set_copy(node, &Volumes::linear(place(symbol, offset, bytes)?, from, bytes, direction))
    }

    fn cudaGraphMemcpyNodeSetParamsFromSymbol(
        node: Handle,
        to: u64,
        symbol: usize,
        bytes: usize,
        offset: usize,
        direction: Direction,
    ) {
        set_copy(node, &Volumes::linear(to, place(symbol, offset, bytes)?, bytes, direction))
    }

    fn cudaGraphAddMemsetNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer) {
        context::ready()?.cuGraphAddMemsetNode(node, graph, before, count, parameters, Handle::NULL)
    }

    fn cudaGraphNodeSetParams(node: Handle, parameters: Out<NodeParameters>) {
        let mut parameters = for_driver(parameters)?;
        context::ready()?.cuGraphNodeSetParams(node, Out::new(&raw mut parameters))
    }

    fn cudaGraphKernelNodeCopyAttributes(to: Handle, from: Handle) {
        context::ready()?.cuGraphKernelNodeCopyAttributes(to, from)
    }

    fn cudaGraphKernelNodeGetAttribute(node: Handle, attribute: c_uint, value: Pointer) {
        context::ready()?.cuGraphKernelNodeGetAttribute(node, attribute, value)
    }

    fn cudaGraphKernelNodeSetAttribute(node: Handle, attribute: c_uint, value: Pointer) {
        context::ready()?.cuGraphKernelNodeSetAttribute(node, attribute, value)
    }

    fn cudaGraphMemsetNodeGetParams(node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphMemsetNodeGetParams(node, parameters)
    }

    fn cudaGraphMemsetNodeSetParams(node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphMemsetNodeSetParams(node, parameters)
    }

    fn cudaGraphAddHostNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer) {
        context::ready()?.cuGraphAddHostNode(node, graph, before, count, parameters)
    }

    fn cudaGraphHostNodeGetParams(node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphHostNodeGetParams(node, parameters)
    }

    fn cudaGraphHostNodeSetParams(node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphHostNodeSetParams(node, parameters)
    }

    fn cudaGraphAddChildGraphNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, child: Handle) {
        context::ready()?.cuGraphAddChildGraphNode(node, graph, before, count, child)
    }

    fn cudaGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) {
        context::ready()?.cuGraphChildGraphNodeGetGraph(node, graph)
    }

    fn cudaGraphAddEmptyNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize) {
        context::ready()?.cuGraphAddEmptyNode(node, graph, before, count)
    }

    fn cudaGraphAddEventRecordNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, event: Handle) {
        context::ready()?.cuGraphAddEventRecordNode(node, graph, before, count, event)
    }

    fn cudaGraphAddEventWaitNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, event: Handle) {
        context::ready()?.cuGraphAddEventWaitNode(node, graph, before, count, event)
    }

    fn cudaGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>) {
        context::ready()?.cuGraphEventRecordNodeGetEvent(node, event)
    }

    fn cudaGraphEventRecordNodeSetEvent(node: Handle, event: Handle) {
        context::ready()?.cuGraphEventRecordNodeSetEvent(node, event)
    }

    fn cudaGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>) {
        context::ready()?.cuGraphEventWaitNodeGetEvent(node, event)
    }

    fn cudaGraphEventWaitNodeSetEvent(node: Handle, event: Handle) {
        context::ready()?.cuGraphEventWaitNodeSetEvent(node, event)
    }

    fn cudaGraphAddMemAllocNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, parameters: Pointer) {
        context::ready()?.cuGraphAddMemAllocNode(node, graph, before, count, parameters)
    }

    fn cudaGraphMemAllocNodeGetParams(node: Handle, parameters: Pointer) {
        context::ready()?.cuGraphMemAllocNodeGetParams(node, parameters)
    }

    fn cudaGraphAddMemFreeNode(node: Out<Handle>, graph: Handle, before: Pointer, count: usize, address: u64) {
        context::ready()?.cuGraphAddMemFreeNode(node, graph, before, count, address)
    }

    fn cudaGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) {
        context::ready()?.cuGraphMemFreeNodeGetParams(node, address)
    }
}
