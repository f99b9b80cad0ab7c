//! Reference machine: reads PTX with its own parser and executes it in the simplest way, one thread at a time.
//!
//! The text is split into words (`token`) and parsed into functions (`parse`, `program`); each instruction is decoded once (`decode`).
//! Threads execute one instruction after another (`thread`, `call`, `access`, `warp`). The threads of a block are coroutines: each runs
//! until it waits at a barrier or for its warp, ends, or has used up its turn. All arithmetic is that of [`model`](crate::model). Blocks
//! run one after another.

mod access;
mod call;
mod decode;
mod memory;
mod parse;
mod program;
mod thread;
mod token;
mod warp;

pub use memory::GlobalMemory;
pub use parse::parse;
pub use program::Program;

use thread::{State, Thread};
use warp::Barrier;

/// Reason why a program could not be read or did not run to completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The text is not PTX that this machine reads.
    #[error("line {0}: {1}")]
    Parse(usize, String),
    /// An access outside memory, a trap, or an instruction without meaning.
    #[error("{0}")]
    Fault(String),
    /// All remaining threads wait.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// The program executed more instructions than allowed.
    #[error("step limit")]
    StepLimit,
}

/// Maximum instructions of a thread in one turn, so that other threads continue while one spins.
const TURN: u32 = 2000;

/// Shape of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Numbers of blocks along x, y, z.
    pub grid: [u32; 3],
    /// Numbers of threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of shared memory after the static shared variables.
    pub dynamic_shared: u32,
    /// Maximum number of instructions of all threads together.
    pub step_limit: u64,
}

/// State of a running block.
struct Block<'a> {
    program: &'a Program,
    shape: Shape,
    index: [u32; 3],
    shared: Vec<u8>,
    barriers: [Barrier; 16],
    /// Address of each module-scope variable.
    symbols: &'a [u64],
    steps: u64,
}

/// Runs a kernel. `arguments` is its packed parameter buffer. Module-scope variables are added to `memory`.
pub fn run(program: &Program, entry: &str, shape: Shape, arguments: &[u8], memory: &mut GlobalMemory) -> Result<(), MachineError> {
    let function = program
        .function(entry)
        .ok_or_else(|| MachineError::Fault(format!("no kernel {entry}")))?;
    let symbols = memory.place(program).map_err(MachineError::Fault)?;
    let mut steps = shape.step_limit;
    for z in 0..shape.grid[2] {
        for y in 0..shape.grid[1] {
            for x in 0..shape.grid[0] {
                let mut block = Block {
                    program,
                    shape,
                    index: [x, y, z],
                    shared: vec![0; program.shared_bytes + shape.dynamic_shared as usize],
                    barriers: [Barrier::default(); 16],
                    symbols: &symbols,
                    steps,
                };
                block.run(function, arguments, memory)?;
                steps = block.steps;
            }
        }
    }
    Ok(())
}

impl Block<'_> {
    fn run(&mut self, function: usize, arguments: &[u8], memory: &mut GlobalMemory) -> Result<(), MachineError> {
        let [x, y, z] = self.shape.block;
        let mut threads: Vec<Thread> = (0..x * y * z)
            .map(|linear| {
                let index = [linear % x, linear / x % y, linear / x / y];
                Thread::new(self.program, function, index, linear, arguments)
            })
            .collect();
        loop {
            let mut moved = false;
            for thread in &mut threads {
                let mut turn = TURN;
                while thread.state == State::Running && turn > 0 {
                    if self.steps == 0 {
                        return Err(MachineError::StepLimit);
                    }
                    self.steps -= 1;
                    turn -= 1;
                    moved = true;
                    self.step(thread, memory)
                        .map_err(|reason| MachineError::Fault(format!("block {:?} thread {:?}: {reason}", self.index, thread.index)))?;
                }
            }
            if threads.iter().all(|thread| thread.state == State::Ended) {
                return Ok(());
            }
            let barriers = self.release_barriers(&mut threads).map_err(MachineError::Fault)?;
            let warps = self.release_warps(&mut threads).map_err(MachineError::Fault)?;
            if !moved && !barriers && !warps {
                let waiting: Vec<String> = threads
                    .iter()
                    .filter(|thread| thread.state != State::Ended)
                    .take(4)
                    .map(|thread| format!("thread {:?} at {}", thread.index, thread.place(self.program)))
                    .collect();
                return Err(MachineError::Deadlock(waiting.join(", ")));
            }
        }
    }
}
