//! Running a kernel: blocks over a queue, groups of 64 lanes inside a block, paths of lanes inside a group.
//!
//! A worker (one per host thread) takes blocks in order. Inside a block its groups run in turns, each until all its
//! lanes wait or have ended. Inside a group, lanes that went different ways are paths; the one with the lowest program
//! counter runs first, so that paths meet again where the code joins, and after a number of loop iterations another
//! one gets its turn, so that lanes spinning on what another lane must do make progress.

mod address;
mod atomic;
mod barrier;
mod call;
mod cooperative;
mod group;
mod matrix;
mod pattern;
mod print;
mod scratch;
mod system;
mod transaction;
mod warp;
mod worker;

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use print::Output;
pub(crate) use transaction::{COUNT_BITS, PARITY_BIT};

use crate::cancel::Cancel;
use crate::compile::code::Code;
use crate::fault::{Fault, FaultKind};
use crate::memory::{Heap, Memory};

/// Generic addresses of shared memory begin here: above every address of global memory.
pub(crate) const SHARED_WINDOW: u64 = 1 << 62;
/// Generic addresses of local memory begin here.
pub(crate) const LOCAL_WINDOW: u64 = 3 << 61;
/// Generic addresses of the kernel's parameters begin here; they are read only.
pub(crate) const PARAMETER_WINDOW: u64 = 7 << 61;
/// Threads in a block (CUDA's limit on every device).
pub(crate) const BLOCK_LIMIT: u32 = 1024;
/// Static and dynamic shared memory of a block: 227 KiB, the most a block has on current devices.
pub(crate) const SHARED_LIMIT: u64 = 227 * 1024;
/// Stack of a thread's calls in bytes, unless a launch says otherwise. CUDA's own default is smaller, and grows with what the compiler
/// knows to be needed.
const STACK_BYTES: u32 = 8192;
/// Local memory of all threads that run at a time. With 512 KiB a thread, a block of 1024 has 512 MiB.
const LOCAL_LIMIT: u64 = 1 << 30;
/// Steps a worker takes between two looks at the step limit, the cancel flag and other workers' faults.
const FUEL: u64 = 1 << 16;

/// How to launch a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z; at most 1024 in all.
    pub block: [u32; 3],
    /// Dynamic shared memory of each block, in bytes.
    pub dynamic_shared_bytes: u32,
    /// Steps after which the launch ends with [`FaultKind::StepLimit`]. A step is one instruction executed by one
    /// group of up to 64 threads.
    pub step_limit: Option<u64>,
    /// Host threads to run blocks on; 1 means the caller's.
    pub threads: NonZero<usize>,
    /// Stack of each thread's calls of recursive functions and of functions called through pointers, in bytes.
    pub stack_bytes: u32,
    /// Where `printf` goes; nowhere if `None`.
    pub output: Option<Output>,
    /// What `malloc` takes from; the memory's own heap, which all such launches share, if `None`.
    pub heap: Option<Heap>,
    /// All blocks live at the same time, as `cudaLaunchCooperativeKernel` has it. Kernels that synchronise their grid
    /// through cooperative groups are launched so in any case.
    pub cooperative: bool,
    /// Blocks run one after another in order on the caller's thread, so that the order of atomics is always the same.
    pub deterministic: bool,
}

impl Launch {
    /// A launch on the caller's thread without dynamic shared memory or step limit.
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

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchStatistics {
    /// Blocks run.
    pub blocks: u64,
    /// Threads run.
    pub threads: u64,
    /// Instructions executed, counted once for each group of up to 64 threads.
    pub steps: u64,
}

/// A kernel's code with what a launch needs of its module.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) code: &'a Code,
    pub(crate) files: &'a [(u64, String)],
    /// Addresses of module-scope variables.
    pub(crate) symbols: &'a [u64],
}

/// On cache lines of its own: all workers write it, and read what would lie beside it for every block.
#[repr(align(128))]
struct Apart<T>(T);

/// What the workers of one launch share.
pub(crate) struct Session<'a> {
    program: &'a Program<'a>,
    launch: &'a Launch,
    parameters: &'a [u8],
    memory: &'a Memory,
    cancel: &'a Cancel,
    blocks: u64,
    workers: u64,
    /// Local memory of a thread, its call stack included.
    local_bytes: u64,
    cooperative: bool,
    /// Address of the 8 bytes in which cooperative groups count the grid's arrivals; 0 where none are needed.
    workspace: u64,
    next_block: Apart<AtomicU64>,
    steps_left: AtomicU64,
    steps: AtomicU64,
    stop: AtomicBool,
    /// The fault of the lowest block that had one.
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
    let workers = if launch.deterministic {
        1
    } else {
        launch.threads.get().min(usize::try_from(blocks).unwrap_or(usize::MAX))
    };
    let local_bytes = local_bytes(program, launch);
    let padded = volume(launch.block).next_multiple_of(crate::lanes::LANES as u64);
    let all = local_bytes.saturating_mul(padded).saturating_mul(workers as u64);
    if all > LOCAL_LIMIT {
        let reason =
            format!("{local_bytes} bytes of local memory for each of {padded} threads on {workers} workers, at most {LOCAL_LIMIT} in all");
        return Err(Fault::invalid_launch(program.name, reason));
    }
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
            for number in 1..workers as u64 {
                scope.spawn(move || worker::work(session, number));
            }
            worker::work(session, 0);
        });
    }
    if workspace != 0 {
        // Only this launch knows of it.
        let _ = memory.free(crate::memory::DevicePointer(workspace));
    }
    let fault = session.fault.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match fault {
        Some((_, fault)) => Err(fault),
        None => Ok(LaunchStatistics {
            blocks,
            threads: blocks * volume(launch.block),
            steps: session.steps.load(Ordering::Relaxed),
        }),
    }
}

/// Local memory of a thread: variables, fixed frames and the stack, where functions take frames from it.
fn local_bytes(program: &Program<'_>, launch: &Launch) -> u64 {
    let stack = match program.code.stack_pointer {
        // Arguments are written where the next frame will be, before the call is checked.
        Some(_) => u64::from(launch.stack_bytes)
            .saturating_add(program.code.largest_frame)
            .next_multiple_of(32),
        None => 0,
    };
    program.code.local_bytes + stack
}

/// Blocks of a grid or threads of a block; the largest number where it does not fit.
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
    /// Steps for a worker to take. Errors end the worker.
    fn refuel(&self) -> Result<u64, FaultKind> {
        if self.cancel.is_cancelled() {
            return Err(FaultKind::Cancelled);
        }
        if self.launch.step_limit.is_none() {
            return Ok(FUEL);
        }
        // Ever smaller shares, so that none sits on steps another needs.
        let share = |left: u64| left.min((left / (2 * self.workers)).clamp(256, FUEL));
        let taken = self
            .steps_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left - share(left)));
        match share(taken.unwrap_or(0)) {
            0 => Err(FaultKind::StepLimit(self.launch.step_limit.unwrap_or(0))),
            fuel => Ok(fuel),
        }
    }

    /// The next blocks for a worker, in order: ever fewer, so that all end at about the same time. The lowest block that
    /// has not ended is always one that runs: blocks may wait for lower ones.
    fn next_blocks(&self) -> Option<Range<u64>> {
        let share = |next: u64| ((self.blocks - next) / (8 * self.workers)).clamp(1, 16);
        let taken = self.next_block.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < self.blocks).then(|| next + share(next))
        });
        taken.ok().map(|next| next..next + share(next))
    }

    /// Steps a worker did not take.
    fn give_back(&self, steps: u64) {
        if self.launch.step_limit.is_some() {
            self.steps_left.fetch_add(steps, Ordering::Relaxed);
        }
    }

    /// Another worker's fault ends the launch.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether a fault ends the launch before this block. Blocks below the one that had it still run, and may have an
    /// earlier one to tell.
    fn is_stopped_before(&self, block: u64) -> bool {
        let fault = || self.fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.is_stopped() && fault().as_ref().is_none_or(|(at, _)| *at < block)
    }

    fn report(&self, block: u64, fault: Fault) {
        let mut slot = self.fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if slot.as_ref().is_none_or(|(other, _)| block < *other) {
            *slot = Some((block, fault));
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}
