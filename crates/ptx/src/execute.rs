//! Execution of a kernel: workers take blocks from a queue, a block consists of groups of 64 lanes, and divergent lanes of a group form
//! paths.
//!
//! A worker (one per host thread) takes blocks in order. The groups of a block run in turns, each until all of its lanes wait or have
//! ended. In a group, lanes that have diverged form separate paths. The path with the lowest program counter runs first, so that paths
//! reconverge where the code joins. After a number of loop iterations another path runs, so that lanes which spin until another lane makes
//! progress do not block it.

mod address;
mod atomic;
mod barrier;
mod bulk;
mod call;
mod cooperative;
mod group;
mod matrix;
mod matrix_quads;
mod matrix_words;
mod pattern;
mod print;
mod scratch;
mod system;
mod texture;
mod transaction;
mod warp;
mod worker;

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use print::Output;
pub(crate) use transaction::{COUNT_BITS, PARITY_BIT};

use parking_lot::Mutex;

use crate::cancel::Cancel;
use crate::compile::code::Code;
use crate::fault::{Fault, FaultKind};
use crate::memory::{Heap, Memory};
use crate::signals::with_signals_blocked;

/// Start of shared memory in the generic address space, above every address of global memory.
pub(crate) const SHARED_WINDOW: u64 = 1 << 62;
/// Start of local memory in the generic address space.
pub(crate) const LOCAL_WINDOW: u64 = 3 << 61;
/// Start of the kernel's parameters, which are read-only, in the generic address space.
pub(crate) const PARAMETER_WINDOW: u64 = 7 << 61;
/// Maximum threads of a block (CUDA's limit on every device).
pub(crate) const BLOCK_LIMIT: u32 = 1024;
/// Maximum shared memory of a block, static and dynamic, in bytes: 227 KiB as on current devices.
pub(crate) const SHARED_LIMIT: u64 = 227 * 1024;
/// Default size of a thread's call stack in bytes. CUDA's own default is smaller, and grows by what the compiler knows to be needed.
const STACK_BYTES: u32 = 8192;
/// Maximum local memory of all threads that run at a time, in bytes. With 512 KiB per thread, a block of 1024 threads has 512 MiB.
const LOCAL_LIMIT: u64 = 1 << 30;
/// Steps between two checks by a worker of the step limit, the cancel flag and the faults of other workers.
const FUEL: u64 = 1 << 16;

/// Configuration of a kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Numbers of blocks along x, y and z.
    pub grid: [u32; 3],
    /// Numbers of threads of a block along x, y and z; at most 1024 in all.
    pub block: [u32; 3],
    /// Dynamic shared memory of each block, in bytes.
    pub dynamic_shared_bytes: u32,
    /// Steps after which the launch ends with [`FaultKind::StepLimit`]. A step is one instruction executed by one
    /// group of up to 64 threads.
    pub step_limit: Option<u64>,
    /// Maximum number of host threads that run blocks; 1 means the caller's thread. Kernels with much local memory use fewer.
    pub threads: NonZero<usize>,
    /// Size of each thread's call stack in bytes, used by recursive functions and functions called through pointers.
    pub stack_bytes: u32,
    /// Destination of `printf`. The text is discarded if `None`.
    pub output: Option<Output>,
    /// Heap that `malloc` allocates from. If `None`, the heap of the [`Memory`], which all launches without their own heap share.
    pub heap: Option<Heap>,
    /// Whether to keep all blocks resident at the same time, like `cudaLaunchCooperativeKernel`. Kernels that synchronise their grid
    /// through cooperative groups are always launched this way.
    pub cooperative: bool,
    /// Whether to run blocks in order, one after another, on the caller's thread, so that the order of atomics is always the same.
    pub deterministic: bool,
}

impl Launch {
    /// Returns a launch on the caller's thread, without dynamic shared memory and without a step limit.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            dynamic_shared_bytes: 0,
            step_limit: None,
            threads: NonZero::<usize>::MIN,
            stack_bytes: STACK_BYTES,
            output: None,
            heap: None,
            cooperative: false,
            deterministic: false,
        }
    }
}

/// Statistics of a completed launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchStatistics {
    pub blocks: u64,
    pub threads: u64,
    /// Instructions executed, counted once for each group of up to 64 threads.
    pub steps: u64,
}

/// Code of a kernel, and the parts of its module that a launch needs.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) code: &'a Code,
    pub(crate) files: &'a [(u64, String)],
    /// Addresses of module-scope variables.
    pub(crate) symbols: &'a [u64],
}

/// Value on cache lines of its own, because all workers write it and also read the adjacent data for every block.
#[repr(align(128))]
struct Apart<T>(T);

/// State that the workers of one launch share.
pub(crate) struct Session<'a> {
    program: &'a Program<'a>,
    launch: &'a Launch,
    parameters: &'a [u8],
    memory: &'a Memory,
    cancel: &'a Cancel,
    blocks: u64,
    workers: u64,
    /// Local memory of a thread in bytes, including its call stack.
    local_bytes: u64,
    cooperative: bool,
    /// Address of the 8 bytes in which cooperative groups count the arrivals of the grid; 0 if the kernel needs none.
    workspace: u64,
    next_block: Apart<AtomicU64>,
    steps_left: AtomicU64,
    steps: AtomicU64,
    stop: AtomicBool,
    /// Fault of the lowest block that faulted, with the number of the block.
    fault: Mutex<Option<(u64, Fault)>>,
}

pub(crate) fn run(
    program: &Program<'_>,
    launch: &Launch,
    parameters: &[u8],
    memory: &Memory,
    cancel: &Cancel,
) -> Result<LaunchStatistics, Fault> {
    check(program, launch)?;
    let blocks = volume(launch.grid);
    let local_bytes = local_bytes(program, launch);
    let padded = volume(launch.block).next_multiple_of(crate::lanes::LANES as u64);
    let of_block = local_bytes.saturating_mul(padded);
    if of_block > LOCAL_LIMIT {
        let reason = format!("{local_bytes} bytes of local memory for each of {padded} threads, at most {LOCAL_LIMIT} in all");
        return Err(Fault::invalid_launch(program.name, reason));
    }
    let workers = if launch.deterministic {
        1
    } else {
        // Each worker has the local memory of one block.
        let affordable = LOCAL_LIMIT / of_block.max(1);
        launch
            .threads
            .get()
            .min(usize::try_from(blocks.min(affordable)).unwrap_or(usize::MAX))
    };
    let cooperative = launch.cooperative || program.code.uses_grid_workspace;
    if cooperative {
        let groups = padded as usize / crate::lanes::LANES;
        let shared = program.code.static_shared_bytes + u64::from(launch.dynamic_shared_bytes);
        let one = cooperative::resident_bytes(program.code.group_bytes, groups, local_bytes, shared);
        if one.saturating_mul(blocks) > LOCAL_LIMIT {
            let reason = format!("{blocks} blocks of {one} bytes each cannot live at the same time in {LOCAL_LIMIT} bytes");
            return Err(Fault::invalid_launch(program.name, reason));
        }
    }
    let workspace = if program.code.uses_grid_workspace {
        let allocated = memory.allocate(8);
        allocated
            .map_err(|error| Fault::invalid_launch(program.name, format!("the grid's workspace: {error}")))?
            .0
    } else {
        0
    };
    let session = Session {
        program,
        local_bytes,
        cooperative,
        workspace,
        launch,
        parameters,
        memory,
        cancel,
        blocks,
        workers: workers as u64,
        next_block: Apart(AtomicU64::new(0)),
        steps_left: AtomicU64::new(launch.step_limit.unwrap_or(u64::MAX)),
        steps: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        fault: Mutex::new(None),
    };
    if workers == 1 {
        worker::work(&session, 0);
    } else {
        let session = &session;
        std::thread::scope(|scope| {
            with_signals_blocked(|| {
                for number in 1..workers as u64 {
                    scope.spawn(move || worker::work(session, number));
                }
            });
            worker::work(session, 0);
        });
    }
    if workspace != 0 {
        // Cannot fail, because only this launch knows the address.
        let _ = memory.free(crate::memory::DevicePointer(workspace));
    }
    let fault = session.fault.into_inner();
    match fault {
        Some((_, fault)) => Err(fault),
        None => Ok(LaunchStatistics {
            blocks,
            threads: blocks * volume(launch.block),
            steps: session.steps.load(Ordering::Relaxed),
        }),
    }
}

/// Local memory of a thread in bytes: variables, fixed frames, and the call stack if functions take frames from it.
fn local_bytes(program: &Program<'_>, launch: &Launch) -> u64 {
    let stack = match program.code.stack_pointer {
        // Arguments are written to the next frame before the call is checked against the limit of the stack.
        Some(_) => u64::from(launch.stack_bytes)
            .saturating_add(program.code.largest_frame)
            .next_multiple_of(32),
        None => 0,
    };
    program.code.local_bytes + stack
}

/// Returns the blocks of a grid or the threads of a block, saturating at the maximum.
pub(crate) fn volume(extent: [u32; 3]) -> u64 {
    extent.iter().fold(1, |product, extent| product.saturating_mul(u64::from(*extent)))
}

fn check(program: &Program<'_>, launch: &Launch) -> Result<(), Fault> {
    let refuse = |reason: String| Err(Fault::invalid_launch(program.name, reason));
    let [x, y, z] = launch.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return refuse(format!("grid ({x}, {y}, {z}) is not within (2147483647, 65535, 65535)"));
    }
    let [x, y, z] = launch.block;
    let threads = volume(launch.block);
    if threads == 0 || threads > u64::from(BLOCK_LIMIT) || z > 64 {
        return refuse(format!(
            "block ({x}, {y}, {z}) does not have 1 to {BLOCK_LIMIT} threads, at most 64 along z"
        ));
    }
    let shared = program.code.static_shared_bytes + u64::from(launch.dynamic_shared_bytes);
    if shared > SHARED_LIMIT {
        return refuse(format!("{shared} bytes of shared memory, at most {SHARED_LIMIT}"));
    }
    Ok(())
}

impl Session<'_> {
    /// Takes steps for a worker from the launch's limit. An error ends the worker.
    fn refuel(&self) -> Result<u64, FaultKind> {
        if self.cancel.is_cancelled() {
            return Err(FaultKind::Cancelled);
        }
        if self.launch.step_limit.is_none() {
            return Ok(FUEL);
        }
        // The shares shrink, so that no worker holds steps that another worker needs.
        let share = |left: u64| left.min((left / (2 * self.workers)).clamp(256, FUEL));
        let taken = self
            .steps_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left - share(left)));
        match share(taken.unwrap_or(0)) {
            0 => Err(FaultKind::StepLimit(self.launch.step_limit.unwrap_or(0))),
            fuel => Ok(fuel),
        }
    }

    /// Takes the next blocks for a worker, in order. The shares shrink, so that all workers end at about the same time. The lowest block
    /// that has not ended is always running, because blocks may wait for lower ones.
    fn next_blocks(&self) -> Option<Range<u64>> {
        let share = |next: u64| ((self.blocks - next) / (8 * self.workers)).clamp(1, 16);
        let taken = self.next_block.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < self.blocks).then(|| next + share(next))
        });
        taken.ok().map(|next| next..next + share(next))
    }

    /// Returns unused steps of a worker to the launch.
    fn give_back(&self, steps: u64) {
        if self.launch.step_limit.is_some() {
            self.steps_left.fetch_add(steps, Ordering::Relaxed);
        }
    }

    /// Whether the fault of another worker ends the launch.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether a fault ends the launch before this block. Blocks below the faulting block still run, because they may report an earlier
    /// fault.
    fn is_stopped_before(&self, block: u64) -> bool {
        self.is_stopped() && self.fault.lock().as_ref().is_none_or(|(at, _)| *at < block)
    }

    fn report(&self, block: u64, fault: Fault) {
        let mut slot = self.fault.lock();
        if slot.as_ref().is_none_or(|(other, _)| block < *other) {
            *slot = Some((block, fault));
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}
