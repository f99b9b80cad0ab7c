//! Random programs that are valid, end, and leave the same memory however their threads are interleaved: threads write
//! places of their own, meet at barriers, and share accumulators through operations whose order does not matter.

mod operation;
mod shared;
mod tree;

use std::fmt::Write;

use fastrand::Rng;

use crate::model::Model;
pub use tree::Node;

/// Bytes of a thread's own place in global memory: what it leaves in its registers, then scratch.
pub const PLACE: u32 = 320;
/// Where scratch begins in it.
const SCRATCH: u32 = 192;
/// Bytes of scratch in global, shared and local memory each.
const SCRATCH_BYTES: u32 = 64;
/// Elements of 8 bytes in the table of inputs.
pub const TABLE: u32 = 256;
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

    /// The module's text.
    pub fn text(&self) -> String {
        let mut text = String::from(".version 8.6\n.target sm_100\n.address_size 64\n");
        let constants: Vec<String> = (0..64u32).map(|index| (index * 37 % 256).to_string()).collect();
        let _ = writeln!(text, ".const .align 8 .b8 table[64] = {{{}}};", constants.join(", "));
        let registers = format!(
            ".reg .pred %p<{P}>, %q<4>;\n.reg .b16 %h<{H}>, %u<4>;\n.reg .b32 %r<{R}>, %t<8>, %c<64>, %m<64>, %full;\n.reg .b64 %d<{D}>, %e<8>;\n"
        );
        for (name, body) in &self.functions {
            let _ = writeln!(
                text,
                ".func (.param .b32 result) {name} (.param .b32 first, .param .b64 second)\n{{\n{registers}"
            );
            text.push_str("ld.param.b32 %r0, [first];\nld.param.b64 %d0, [second];\n");
            for index in 1..R {
                let _ = writeln!(text, "add.u32 %r{index}, %r0, {};", index * 77_777);
            }
            for index in 1..D {
                let _ = writeln!(text, "mul.lo.u64 %d{index}, %d0, {};", index * 123_457 + 2);
            }
            for index in 0..H {
                let _ = writeln!(text, "cvt.u16.u32 %h{index}, %r{index};");
            }
            for index in 0..P {
                let _ = writeln!(text, "setp.lt.s32 %p{index}, %r{index}, 1000;");
            }
            for node in body {
                node.write(&mut text);
            }
            for index in 1..R {
                let _ = writeln!(text, "xor.b32 %r0, %r0, %r{index};");
            }
            text.push_str("st.param.b32 [result], %r0;\nret;\n}\n");
        }
        let threads = self.block[0] * self.block[1];
        let _ = write!(
            text,
            ".visible .entry k(.param .u64 places, .param .u64 sums, .param .u64 input)\n{{\n{registers}\
             .reg .b32 %me, %gid, %lane;\n.reg .b64 %place, %sums, %in, %sh, %shg, %lo, %log, %acc, %ct;\n\
             .shared .align 16 .b8 sh[{}];\n.shared .align 16 .b8 acc[{}];\n.local .align 16 .b8 lo[{SCRATCH_BYTES}];\n",
            threads * SCRATCH_BYTES,
            ACCUMULATORS * 8,
        );
        text.push_str(
            "ld.param.u64 %place, [places];\nld.param.u64 %sums, [sums];\nld.param.u64 %in, [input];\n\
             mov.u32 %t0, %ntid.x;\nmov.u32 %t1, %tid.y;\nmov.u32 %t2, %tid.x;\nmad.lo.u32 %me, %t0, %t1, %t2;\n\
             mov.u32 %lane, %laneid;\nmov.u32 %t1, %ntid.y;\nmul.lo.u32 %t0, %t0, %t1;\nmov.u32 %t1, %ctaid.x;\nmad.lo.u32 %gid, %t1, %t0, %me;\n\
             and.b32 %t1, %me, -32;\nsub.u32 %t1, %t0, %t1;\nmin.u32 %t1, %t1, 32;\nsub.u32 %t1, 32, %t1;\nmov.u32 %t2, -1;\nshr.u32 %full, %t2, %t1;\n",
        );
        let _ = write!(
            text,
            "mad.wide.u32 %place, %gid, {PLACE}, %place;\nmov.u64 %sh, sh;\nmad.wide.u32 %sh, %me, {SCRATCH_BYTES}, %sh;\n\
             cvta.shared.u64 %shg, %sh;\nmov.u64 %lo, lo;\ncvta.local.u64 %log, %lo;\nmov.u64 %acc, acc;\nmov.u64 %ct, table;\n"
        );
        // Accumulators and scratch begin as zeros; the first threads of the block see to the former.
        let _ = writeln!(text, "mov.u32 %t3, %me;\nZ0:\nsetp.ge.u32 %q0, %t3, {ACCUMULATORS};\n@%q0 bra Z1;");
        text.push_str("mad.wide.u32 %e0, %t3, 8, %acc;\nst.shared.u64 [%e0], 0;\nadd.u32 %t3, %t3, %t0;\nbra Z0;\nZ1:\n");
        for offset in (0..SCRATCH_BYTES).step_by(8) {
            let _ = writeln!(text, "st.shared.u64 [%sh+{offset}], 0;\nst.local.u64 [%lo+{offset}], 0;");
        }
        // Registers begin with what the table of inputs holds for the thread.
        let load = |text: &mut String, place: usize, what: String| {
            let _ = writeln!(text, "mad.lo.u32 %t4, %gid, 29, {};\nand.b32 %t4, %t4, {};", place * 7, TABLE - 1);
            let _ = writeln!(text, "mad.wide.u32 %e1, %t4, 8, %in;\n{what}");
        };
        for index in 0..H {
            load(&mut text, index, format!("ld.global.b16 %h{index}, [%e1];"));
        }
        for index in 0..R {
            load(&mut text, 20 + index, format!("ld.global.b32 %r{index}, [%e1];"));
        }
        for index in 0..D {
            load(&mut text, 50 + index, format!("ld.global.b64 %d{index}, [%e1];"));
        }
        for index in 0..P {
            let _ = writeln!(text, "and.b32 %t4, %gid, {};\nsetp.eq.u32 %p{index}, %t4, 0;", 1 << index);
        }
        text.push_str("bar.sync 0;\n");
        for node in &self.nodes {
            node.write(&mut text);
        }
        self.epilogue(&mut text);
        text
    }

    fn epilogue(&self, text: &mut String) {
        for index in 0..H {
            let _ = writeln!(text, "st.global.b16 [%place+{}], %h{index};", index * 2);
        }
        for index in 0..R {
            let _ = writeln!(text, "st.global.b32 [%place+{}], %r{index};", 16 + index * 4);
        }
        for index in 0..D {
            let _ = writeln!(text, "st.global.b64 [%place+{}], %d{index};", 64 + index * 8);
        }
        text.push_str("mov.u32 %t0, 0;\n");
        for index in 0..P {
            let _ = writeln!(text, "selp.u32 %t1, {}, 0, %p{index};\nor.b32 %t0, %t0, %t1;", 1 << index);
        }
        text.push_str("st.global.b32 [%place+128], %t0;\n");
        for offset in (0..SCRATCH_BYTES).step_by(8) {
            let _ = writeln!(
                text,
                "ld.local.u64 %e0, [%lo+{offset}];\nst.global.u64 [%place+{}], %e0;",
                SCRATCH + SCRATCH_BYTES + offset
            );
        }
        // The block's accumulators, by its first thread when all are done.
        text.push_str("bar.sync 0;\nsetp.ne.u32 %q0, %me, 0;\n@%q0 ret;\nmov.u32 %t0, %ctaid.x;\n");
        let _ = writeln!(text, "mad.wide.u32 %e1, %t0, {}, %sums;", ACCUMULATORS * 8);
        for slot in 0..ACCUMULATORS {
            let _ = writeln!(
                text,
                "ld.shared.u64 %e0, [%acc+{}];\nst.global.u64 [%e1+{}], %e0;",
                slot * 8,
                (slot + ACCUMULATORS) * 8
            );
        }
        text.push_str("ret;\n}\n");
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

    fn branch(&mut self, context: &Context) -> Node {
        let (otherwise, end) = (self.label(), self.label());
        let mut inner = Context {
            depth: context.depth + 1,
            block: false,
            members: None,
            ..context.clone()
        };
        let mut other = inner.clone();
        // A condition of its own, that nothing inside changes before it is used.
        let predicate = self.predicate();
        let mut open = String::new();
        if context.block && self.random.u8(..4) == 0 {
            // The same for the whole block.
            inner = Context {
                depth: context.depth + 1,
                ..context.clone()
            };
            other = inner.clone();
            let _ = writeln!(
                open,
                "mov.u32 %t0, %ctaid.x;\nsetp.eq.u32 {predicate}, %t0, {};",
                self.random.u8(..2)
            );
        } else if let Some(members) = &context.members
            && self.masks < 60
            && self.random.bool()
        {
            let (taken, left) = (format!("%m{}", self.masks), format!("%m{}", self.masks + 1));
            self.masks += 2;
            let _ = writeln!(
                open,
                "vote.sync.ballot.b32 {taken}, {predicate}, {members};\nnot.b32 {left}, {taken};\nand.b32 {left}, {left}, {members};"
            );
            inner.members = Some(taken);
            other.members = Some(left);
        }
        let _ = writeln!(open, "@!{predicate} bra {otherwise};");
        let then = self.statements(&inner, 4);
        let middle = format!("bra {end};\n{otherwise}:\n");
        let otherwise = if self.random.bool() {
            self.statements(&other, 3)
        } else {
            Vec::new()
        };
        Node::Group {
            parts: vec![(open, then), (middle, otherwise)],
            close: format!("{end}:\n"),
        }
    }

    fn repetition(&mut self, context: &Context) -> Node {
        if self.counters >= 60 {
            return self.operation();
        }
        let counter = format!("%c{}", self.counters);
        self.counters += 1;
        let (start, end) = (self.label(), self.label());
        let mut inner = Context {
            depth: context.depth + 1,
            block: false,
            members: None,
            ..context.clone()
        };
        let mut open = String::new();
        if self.random.u8(..3) == 0 {
            // As often for every thread.
            inner.block = context.block;
            inner.members.clone_from(&context.members);
            let _ = writeln!(open, "mov.u32 {counter}, {};", self.random.u8(1..4));
        } else {
            let source = self.register(32);
            let _ = writeln!(open, "and.b32 {counter}, {source}, {};", [1, 3, 7][self.random.usize(..3)]);
        }
        let _ = writeln!(open, "{start}:");
        let body = self.statements(&inner, 4);
        let mut close = String::new();
        if !inner.block && inner.members.is_none() && self.random.u8(..3) == 0 {
            let _ = writeln!(close, "@{} bra {end};", self.predicate());
        }
        let _ = writeln!(
            close,
            "sub.u32 {counter}, {counter}, 1;\nsetp.gt.s32 %q3, {counter}, 0;\n@%q3 bra {start};\n{end}:"
        );
        Node::Group {
            parts: vec![(open, body)],
            close,
        }
    }

    fn switch(&mut self, context: &Context) -> Node {
        let inner = Context {
            depth: context.depth + 1,
            block: false,
            members: None,
            ..context.clone()
        };
        let labels: Vec<String> = (0..4).map(|_| self.label()).collect();
        let (end, table) = (self.label(), self.label());
        let source = self.register(32);
        let mut parts = vec![(
            format!(
                "{table}: .branchtargets {};\nand.b32 %t0, {source}, 3;\nbrx.idx %t0, {table};\n",
                labels.join(", ")
            ),
            Vec::new(),
        )];
        for label in labels {
            let body = self.statements(&inner, 2);
            let leave = if self.random.u8(..4) > 0 {
                format!("bra {end};\n")
            } else {
                String::new()
            };
            parts.push((format!("{label}:\n"), body));
            parts.push((leave, Vec::new()));
        }
        Node::Group {
            parts,
            close: format!("{end}:\n"),
        }
    }

    fn call(&mut self) -> Node {
        let function = self.random.usize(..self.functions);
        let (first, second, target) = (self.register(32), self.register(64), self.register(32));
        Node::Lines(format!(
            "{{\n.param .b32 a0;\n.param .b64 a1;\n.param .b32 back;\nst.param.b32 [a0], {first};\nst.param.b64 [a1], {second};\n\
             call (back), f{function}, (a0, a1);\nld.param.b32 {target}, [back];\n}}\n"
        ))
    }
}
