//! Random programs that are valid, terminate, and leave the same memory however their threads are interleaved: threads write areas of their
//! own, meet at barriers, and share accumulators through operations whose order does not matter.

mod control;
mod memory;
mod operation;
mod text;
mod together;
mod tree;

use fastrand::Rng;

use crate::model::Model;
pub use tree::Node;

/// Bytes of a thread's own area in global memory: the final values of its registers, then its scratch area, and at the end its local and
/// shared memory.
pub const PLACE: u32 = 384;
/// Offset of the scratch area in the thread's own area.
const SCRATCH: u32 = 192;
/// Bytes of a thread's scratch area, in each of global, shared and local memory.
const SCRATCH_BYTES: u32 = 64;
/// Number of accumulators of 8 bytes, in global memory and in each block's shared memory.
pub const ACCUMULATORS: u32 = memory::SLOTS.len() as u32;

const H: usize = 8;
const R: usize = 12;
const D: usize = 8;
const P: usize = 6;

/// Instruction forms that the engine accepts. Programs consist only of them.
pub struct Vocabulary {
    /// Forms with exact results, and their models.
    pub(crate) forms: Vec<(String, Model)>,
}

/// Generated program, and the shape of its launch.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Number of blocks along x.
    pub grid: u32,
    /// Number of threads along x and y.
    pub block: [u32; 2],
    /// Body of the kernel.
    pub nodes: Vec<Node>,
    /// Bodies of the device functions.
    functions: Vec<Vec<Node>>,
    /// Whether threads may end before the others.
    leaves: bool,
}

/// Properties of the position of a statement in a program.
#[derive(Clone)]
struct Context {
    depth: u32,
    /// Whether all threads of the block that have not ended reach the position together.
    block: bool,
    /// Register that holds the mask of the lanes that reach the position together, if the mask is known.
    members: Option<String>,
    /// Whether the position is in the kernel, whose memory may be used, instead of in a device function.
    kernel: bool,
    /// Whether calls are allowed, because the position is not in a loop that would make too many.
    calls: bool,
}

struct Generator<'a> {
    random: Rng,
    vocabulary: &'a Vocabulary,
    labels: u32,
    counters: u32,
    masks: u32,
    /// Number of device functions in the program.
    functions: usize,
    /// Number of calls that the device function may still contain.
    calls_left: u32,
    /// Number of threads of a block.
    threads: u32,
    /// Whether threads may end before the others.
    leaves: bool,
}

impl Generated {
    /// Returns the program of a seed.
    pub fn new(seed: u64, vocabulary: &Vocabulary) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x5a5a_0f0f_1234_9876);
        let block = match random.u8(..8) {
            0 => [1, 1],
            1 => [33, 1],
            2 => [64, 1],
            3 => [70, 1],
            4 => [8, 12],
            5 => [random.u32(2..130), 1],
            _ => [32, 1],
        };
        let grid = random.u32(1..3);
        let functions = if random.u8(..3) == 0 { random.usize(1..4) } else { 0 };
        let leaves = random.u8(..5) == 0;
        let mut generator = Generator {
            random,
            vocabulary,
            labels: 0,
            counters: 0,
            masks: 0,
            functions,
            calls_left: 0,
            threads: block[0] * block[1],
            leaves,
        };
        let bodies = (0..functions)
            .map(|_| {
                generator.calls_left = 1;
                let context = Context {
                    depth: 2,
                    block: false,
                    members: None,
                    kernel: false,
                    calls: true,
                };
                generator.statements(&context, 5)
            })
            .collect();
        let context = Context {
            depth: 0,
            block: true,
            members: Some("%full".to_owned()),
            kernel: true,
            calls: true,
        };
        let nodes = generator.statements(&context, 14);
        Self {
            grid,
            block,
            nodes,
            functions: bodies,
            leaves,
        }
    }

    /// Returns the total number of threads.
    pub fn threads(&self) -> u32 {
        self.grid * self.block[0] * self.block[1]
    }

    /// Returns the bytes of all accumulators: those in global memory, then those of each block.
    pub fn sum_bytes(&self) -> u64 {
        u64::from(ACCUMULATORS * 8 * (self.grid + 1))
    }

    /// Returns the programs with one statement, or one nesting, less.
    pub fn smaller(&self) -> Vec<Self> {
        let mut found: Vec<Self> = tree::smaller(&self.nodes)
            .into_iter()
            .map(|nodes| Self { nodes, ..self.clone() })
            .collect();
        for (index, body) in self.functions.iter().enumerate() {
            for smaller in tree::smaller(body) {
                let mut program = self.clone();
                program.functions[index] = smaller;
                found.push(program);
            }
        }
        found
    }
}

impl Generator<'_> {
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn predicate(&mut self) -> String {
        format!("%p{}", self.random.usize(..P))
    }

    /// Returns a random register of this width in bits.
    fn register(&mut self, width: u32) -> String {
        match width {
            1 => self.predicate(),
            8 | 16 => format!("%h{}", self.random.usize(..H)),
            32 => format!("%r{}", self.random.usize(..R)),
            _ => format!("%d{}", self.random.usize(..D)),
        }
    }

    fn statements(&mut self, context: &Context, most: u32) -> Vec<Node> {
        (0..self.random.u32(1..=most)).map(|_| self.statement(context)).collect()
    }

    fn statement(&mut self, context: &Context) -> Node {
        let deep = context.depth >= 3;
        match self.random.u32(..110) {
            0..=9 if !deep => self.branch(context),
            10..=16 if !deep => self.repetition(context),
            17..=19 if !deep => self.switch(context),
            20..=26 if context.calls && self.functions > 0 => self.call(context),
            27..=35 if context.kernel => self.scratch(),
            36..=40 if context.kernel => self.gather(),
            41..=47 if context.kernel => self.accumulate(),
            48..=51 if context.kernel => self.own_atomic(),
            52..=53 if context.kernel => self.addresses(),
            54..=62 if context.block => self.together(),
            63..=73 if context.members.is_some() => self.warp(context),
            74..=76 => self.carry_chain(),
            77..=78 => self.packing(),
            79..=81 if self.leaves || !context.kernel => self.leave(context),
            _ => self.operation(),
        }
    }
}
