//! Random programs that are valid, end, and leave the same memory however their threads are interleaved: threads write
//! places of their own, meet at barriers, and share accumulators through operations whose order does not matter.

mod control;
mod memory;
mod operation;
mod text;
mod together;
mod tree;

use fastrand::Rng;

use crate::model::Model;
pub use tree::Node;

/// Bytes of a thread's own place in global memory: what it leaves in its registers, then its scratch, and at the end
/// what it had in local and shared memory.
pub const PLACE: u32 = 384;
/// Where scratch begins in it.
const SCRATCH: u32 = 192;
/// Bytes of scratch in global, shared and local memory each.
const SCRATCH_BYTES: u32 = 64;
/// Accumulators of 8 bytes, in global memory and in each block's shared memory.
pub const ACCUMULATORS: u32 = 24;

const H: usize = 8;
const R: usize = 12;
const D: usize = 8;
const P: usize = 6;

/// What the engine takes: programs are made of nothing else.
pub struct Vocabulary {
    /// Forms with exact results, and their models.
    pub(crate) forms: Vec<(String, Model)>,
    /// Instructions with a carry.
    pub(crate) carries: bool,
    /// Device functions.
    pub(crate) calls: bool,
    /// `brx.idx`.
    pub(crate) switches: bool,
    /// `match` and `redux`.
    pub(crate) matches: bool,
    /// `bar.red`.
    pub(crate) barrier_reductions: bool,
}

/// A program and how to launch it.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Blocks along x.
    pub grid: u32,
    /// Threads along x and y.
    pub block: [u32; 2],
    /// The body.
    pub nodes: Vec<Node>,
    functions: Vec<(String, Vec<Node>)>,
}

/// Where in a program a statement stands.
#[derive(Clone)]
struct Context {
    depth: u32,
    /// Every thread of the block comes here together.
    block: bool,
    /// The register with the mask of the lanes that come here together, where that is known.
    members: Option<String>,
    /// Memory may be used; not in device functions.
    memory: bool,
}

struct Generator<'a> {
    random: Rng,
    vocabulary: &'a Vocabulary,
    labels: u32,
    counters: u32,
    masks: u32,
    functions: usize,
    /// Threads of a block.
    threads: u32,
}

impl Generated {
    /// The program of a seed.
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
        let mut generator = Generator {
            random,
            vocabulary,
            labels: 0,
            counters: 0,
            masks: 0,
            functions: 0,
            threads: block[0] * block[1],
        };
        let mut functions = Vec::new();
        if vocabulary.calls && generator.random.u8(..3) == 0 {
            for _ in 0..generator.random.u8(1..3) {
                let context = Context {
                    depth: 2,
                    block: false,
                    members: None,
                    memory: false,
                };
                let body = generator.statements(&context, 5);
                functions.push((format!("f{}", generator.functions), body));
                generator.functions += 1;
            }
        }
        let context = Context {
            depth: 0,
            block: true,
            members: Some("%full".to_owned()),
            memory: true,
        };
        let nodes = generator.statements(&context, 14);
        Self {
            grid,
            block,
            nodes,
            functions,
        }
    }

    /// Threads in all.
    pub fn threads(&self) -> u32 {
        self.grid * self.block[0] * self.block[1]
    }

    /// Bytes of the accumulators: those in global memory, then each block's.
    pub fn sum_bytes(&self) -> u64 {
        u64::from(ACCUMULATORS * 8 * (self.grid + 1))
    }

    /// Programs with one statement, or one nesting, less.
    pub fn smaller(&self) -> Vec<Self> {
        let mut found: Vec<Self> = tree::smaller(&self.nodes)
            .into_iter()
            .map(|nodes| Self { nodes, ..self.clone() })
            .collect();
        for (index, (_, body)) in self.functions.iter().enumerate() {
            for smaller in tree::smaller(body) {
                let mut program = self.clone();
                program.functions[index].1 = smaller;
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

    /// A register of so many bits.
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
        match self.random.u32(..100) {
            0..=9 if !deep => self.branch(context),
            10..=16 if !deep => self.repetition(context),
            17..=19 if !deep && self.vocabulary.switches => self.switch(context),
            20..=24 if context.memory && self.functions > 0 => self.call(),
            25..=34 if context.memory => self.scratch(),
            35..=39 if context.memory => self.gather(),
            40..=45 if context.memory => self.accumulate(),
            46..=49 if context.memory => self.own_atomic(),
            50..=57 if context.memory && context.block => self.together(),
            58..=66 if context.members.is_some() => self.warp(context),
            67..=69 if self.vocabulary.carries => self.carry_chain(),
            70..=71 => self.packing(),
            _ => self.operation(),
        }
    }
}
