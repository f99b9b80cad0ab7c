//! Launches of executable graphs.

use sahasra_cuda_boundary::missing::refuse;
use sahasra_cuda_device::Operation;

use crate::copy::{Completion, copy, sides};
use crate::driver;
use crate::executable::{Executable, Step};
use crate::graph::Work;
use crate::lane::Lane;
use crate::status::Status;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(crate) const AUTO_FREE: u64 = 1;

/// Launches a graph as the next work of a lane. Work of the host in the graph reads and writes memory when its turn comes, for which this waits.
pub(crate) fn launch(executable: &Executable, lane: &Lane) -> Result<(), Status> {
    if executable.context_id != lane.context.id {
        return refuse("the launch of a graph in a stream of another context");
    }
    let embedded = || {
        let graph = executable.state.lock().graph.duplicate(true);
        if graph.has_memory() {
            return refuse("the launch of a graph that allocates memory in a capture");
        }
        driver::get()?.retain_objects(&graph);
        Ok(Work::Graph(graph))
    };
    if lane.add(embedded)? {
        return Ok(());
    }
    lane.begin()?;
    let steps = {
        let state = executable.state.lock();
        free_before(executable, &state.program)?;
        std::sync::Arc::clone(&state.program.steps)
    };
    steps.iter().try_for_each(|step| run(lane, step))
}

/// Frees memory of an earlier launch, or refuses this one.
fn free_before(executable: &Executable, program: &crate::executable::Program) -> Result<(), Status> {
    let driver = driver::get()?;
    for address in program.allocations() {
        if !driver.is_graph_memory_mapped(address) {
            continue;
        }
        if executable.flags & AUTO_FREE == 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver.free_graph_memory(address)?;
    }
    Ok(())
}

fn run(lane: &Lane, step: &Step) -> Result<(), Status> {
    let driver = driver::get()?;
    match step {
        Step::Replay(stored) => lane.submit(Operation::Replay(stored.id)).map(|_| ()),
        Step::Copy(parameters) => {
            let (to, from, extent) = sides(parameters)?;
            copy(lane, to, from, extent, Completion::Later)
        }
        Step::Call(call) => lane.call_host(*call),
        Step::Wait(event) => lane.wait_for(&*driver.events.get(*event)?),
        Step::Record(event) => lane.record(&*driver.events.get(*event)?),
        Step::Allocate(address) => {
            lane.begin()?;
            driver.map_graph_memory(*address)?;
            lane.note(lane.context.queue.last());
            Ok(())
        }
        Step::Free(address) => {
            lane.begin()?;
            driver.free_graph_memory(*address)?;
            lane.note(lane.context.queue.last());
            Ok(())
        }
    }
}
