//! Executable graphs.

use std::ffi::{c_char, c_uint};
use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, In, Out};
use crate::driver;
use crate::executable::Executable;
use crate::graph::Work;
use crate::instantiate::{Refusal, instantiate};
use crate::lane::Lane;
use crate::parameters::{Copy3d, FillParameters, HostParameters, KernelParameters, KernelParametersV1, NodeParameters};
use crate::replay;
use crate::status::Status;
use crate::update::{update, update_all, update_embedded};

use super::node::{Mismatched, call, checked, described, launch, of_event};
use super::node_parameters::replace;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, and all flags.
const DEVICE_LAUNCH: u64 = 4;
const FLAGS: u64 = 15;
/// `CUDA_GRAPH_INSTANTIATE_ERROR` and others.
const SUCCESS: c_uint = 0;
const ERROR: c_uint = 1;
const INVALID_STRUCTURE: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InstantiateParameters {
    flags: u64,
    stream: Handle,
    node: Handle,
    result: c_uint,
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UpdateResult {
    result: c_uint,
    node: Handle,
    from: Handle,
}

fn create(out: Out<Handle>, graph: Handle, flags: u64) -> Result<(), Refusal> {
    out.require()?;
    if flags & !FLAGS != 0 {
        return Err(Status::INVALID_VALUE.into());
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Ok(refuse::<_, Status>("a graph that kernels launch")?);
    }
    let graph = driver::get()?.graphs.get(graph)?;
    Ok(out.set(instantiate(&graph, flags)?)?)
}

fn create_with_node(out: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<c_char>, bytes: usize) -> Result<(), Status> {
    if bytes > 0 {
        log.set_if_wanted(0);
    }
    create(out, graph, 0).map_err(|refusal| {
        node.set_if_wanted(refusal.node);
        refusal.status
    })
}

fn of(executable: Handle) -> Result<Arc<Executable>, Status> {
    driver::get()?.executables.get(executable)
}

/// Replaces the work of a node of an executable graph by work of the same kind.
fn set(executable: Handle, node: Handle, work: &Work) -> Result<(), Status> {
    update(&*of(executable)?, node, |node| replace(node, work.clone()))
}

/// Takes the work of another graph. Returns the status with the result for the program, which has it also if the update fails.
fn take(executable: Handle, graph: Handle) -> Result<(UpdateResult, Result<(), Status>), Status> {
    let graph = driver::get()?.graphs.get(graph)?;
    let outcome = update_all(&*of(executable)?, &graph);
    let result = match outcome {
        Ok(()) => UpdateResult {
            result: SUCCESS,
            node: Handle::NULL,
            from: Handle::NULL,
        },
        Err(mismatch) => UpdateResult {
            result: mismatch.difference as c_uint,
            node: mismatch.node,
            from: mismatch.from,
        },
    };
    Ok((result, outcome.map_err(|mismatch| mismatch.status)))
}

exports! {
    fn cuGraphInstantiate(out: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<c_char>, bytes: usize) {
        create_with_node(out, graph, node, log, bytes)
    }

    fn cuGraphInstantiate_v2(out: Out<Handle>, graph: Handle, node: Out<Handle>, log: Out<c_char>, bytes: usize) {
        create_with_node(out, graph, node, log, bytes)
    }

    fn cuGraphInstantiateWithFlags(out: Out<Handle>, graph: Handle, flags: u64) {
        create(out, graph, flags).map_err(|refusal| refusal.status)
    }

    fn cuGraphInstantiateWithParams(out: Out<Handle>, graph: Handle, parameters: Out<InstantiateParameters>) {
        let asked = parameters.get()?;
        if asked.stream != Handle::NULL {
            Lane::of(asked.stream)?;
        }
        let outcome = create(out, graph, asked.flags);
        let (node, result) = match &outcome {
            Ok(()) => (Handle::NULL, SUCCESS),
            Err(refusal) if refusal.is_cycle => (refusal.node, INVALID_STRUCTURE),
            Err(refusal) if refusal.status == Status::NOT_SUPPORTED => (refusal.node, NOT_SUPPORTED),
            Err(refusal) => (refusal.node, ERROR),
        };
        parameters.set(InstantiateParameters { node, result, ..asked })?;
        outcome.map_err(|refusal| refusal.status)
    }

    fn cuGraphExecDestroy(executable: Handle) {
        let driver = driver::get()?;
        let removed = driver.executables.remove(executable)?;
        driver.destroy_executable(&removed);
        Ok(())
    }

    fn cuGraphExecGetFlags(executable: Handle, flags: Out<u64>) {
        flags.set(of(executable)?.flags)
    }

    fn cuGraphExecGetId(executable: Handle, id: Out<c_uint>) {
        id.set(of(executable)?.id)
    }

    /// The device has the graph since it was instantiated.
    fn cuGraphUpload(executable: Handle, stream: Handle) {
        of(executable)?;
        Lane::of(stream)?.refuse_capture()
    }

    fn cuGraphLaunch(executable: Handle, stream: Handle) {
        let lane = Lane::of(stream)?;
        replay::launch(&*of(executable)?, &lane)
    }

    fn cuGraphExecKernelNodeSetParams(executable: Handle, node: Handle, parameters: In<KernelParametersV1>) {
        set(executable, node, &launch(&parameters.get()?.into(), Mismatched::Ignored)?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(executable: Handle, node: Handle, parameters: In<KernelParameters>) {
        set(executable, node, &launch(&parameters.get()?, Mismatched::Ignored)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(executable: Handle, node: Handle, parameters: In<Copy3d>, context: Handle) {
        set(executable, node, &checked(context, Work::Copy(Box::new(parameters.get()?)))?)
    }

    fn cuGraphExecMemsetNodeSetParams(executable: Handle, node: Handle, parameters: In<FillParameters>, context: Handle) {
        set(executable, node, &checked(context, Work::Fill(parameters.get()?))?)
    }

    fn cuGraphExecHostNodeSetParams(executable: Handle, node: Handle, parameters: In<HostParameters>) {
        set(executable, node, &call(parameters.get()?)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, child: Handle) {
        let child = driver::get()?.graphs.get(child)?;
        update_embedded(&*of(executable)?, node, &child)
    }

    fn cuGraphExecEventRecordNodeSetEvent(executable: Handle, node: Handle, event: Handle) {
        set(executable, node, &of_event(event, Work::Record)?)
    }

    fn cuGraphExecEventWaitNodeSetEvent(executable: Handle, node: Handle, event: Handle) {
        set(executable, node, &of_event(event, Work::Wait)?)
    }

    fn cuGraphExecNodeSetParams(executable: Handle, node: Handle, parameters: Out<NodeParameters>) {
        set(executable, node, &described(parameters, Mismatched::Ignored)?.ok_or(Status::NOT_SUPPORTED)?)
    }

    fn cuGraphNodeSetEnabled(executable: Handle, node: Handle, is_enabled: c_uint) {
        update(&*of(executable)?, node, |node| {
            if !matches!(node.work, Work::Kernel(_) | Work::Copy(_) | Work::Fill(_)) {
                return Err(Status::INVALID_VALUE);
            }
            node.is_enabled = is_enabled != 0;
            Ok(())
        })
    }

    fn cuGraphNodeGetEnabled(executable: Handle, node: Handle, is_enabled: Out<c_uint>) {
        let executable = of(executable)?;
        let state = executable.state.lock();
        let found = state.graph.with_node(node, &mut |node| node.is_enabled);
        is_enabled.set(found.ok_or(Status::INVALID_VALUE)?.into())
    }

    fn cuGraphExecUpdate(executable: Handle, graph: Handle, node: Out<Handle>, result: Out<c_uint>) {
        let (taken, outcome) = take(executable, graph)?;
        node.set_if_wanted(taken.node);
        result.set_if_wanted(taken.result);
        outcome
    }

    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, result: Out<UpdateResult>) {
        let (taken, outcome) = take(executable, graph)?;
        result.set_if_wanted(taken);
        outcome
    }
}
