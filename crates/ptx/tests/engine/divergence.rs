//! Lanes of a group compute the same results as single threads.
//!
//! Random programs full of branches, loops, guards, jumps out of loops, local memory and barriers run once as few blocks of many threads,
//! and once as many blocks of one thread. They do not depend on the shape of the launch, so every byte must be the same. This covers masks,
//! registers that share locations, hoisted values, and remembered addresses.

use std::fmt::Write;

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use sahasra_ptx::{ArgumentList, Cancel, Launch, Memory, Module};

const THREADS: u32 = 150;
/// Number of words that each thread writes.
const WORDS: u64 = 16;
const REGISTERS: u64 = 8;

struct Program {
    random: Rng,
    text: String,
    labels: u32,
    loops: u32,
    /// Label for jumps out of all loops and branches. No such jump may skip a barrier.
    segment_end: u32,
}

impl Program {
    fn draw(&mut self, bound: u64) -> u64 {
        self.random.u64(..bound)
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.draw(words.len() as u64) as usize]
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn register(&mut self) -> String {
        format!("%r{}", self.draw(REGISTERS))
    }

    fn predicate(&mut self) -> String {
        format!("%p{}", self.draw(4))
    }

    /// Returns a register, a constant or a value that is the same for all threads.
    fn source(&mut self) -> String {
        match self.draw(8) {
            0 => format!("{}", self.draw(100)),
            1 => "%r30".to_owned(),
            2 => "%r31".to_owned(),
            _ => self.register(),
        }
    }

    fn operation(&mut self) {
        let guard = match self.draw(4) {
            0 => format!("@{}{} ", self.pick(&["", "!"]), self.predicate()),
            _ => String::new(),
        };
        let (d, a, b) = (self.register(), self.source(), self.source());
        match self.draw(12) {
            0 => self.line(&format!(
                "{guard}setp.{}.u32 {}, {a}, {b};",
                ["lt", "ne", "ge"][b.len() % 3],
                ["%p0", "%p1", "%p2", "%p3"][a.len() % 4]
            )),
            1 => self.line(&format!("{guard}mad.lo.s32 {d}, {a}, {b}, {d};")),
            2 => self.line(&format!("{guard}mov.u32 {d}, {a};")),
            3 => {
                let p = self.predicate();
                self.line(&format!("{guard}selp.b32 {d}, {a}, {b}, {p};"));
            }
            4 => {
                // Through a 64-bit temporary register and back.
                self.line(&format!(
                    "mul.wide.u32 %rd10, {d}, 77; add.s64 %rd11, %rd10, %rd5; {guard}cvt.u32.u64 {d}, %rd11;"
                ));
            }
            5 => self.line(&format!(
                "cvt.rn.f32.u32 %f1, {d}; fma.rn.f32 %f2, %f1, 0f3F000000, %f3; {guard}cvt.rzi.u32.f32 {d}, %f2; mov.f32 %f3, %f1;"
            )),
            6 => {
                let (p, q, r) = (self.predicate(), self.predicate(), self.predicate());
                let operation = self.pick(&["and", "or", "xor"]);
                self.line(&format!("{guard}{operation}.pred {p}, {q}, {r};"));
            }
            7 => {
                // The thread's own word of global memory: one address register at several offsets.
                let (out, back) = (4 * self.draw(WORDS), 4 * self.draw(WORDS));
                self.line(&format!(
                    "{guard}st.global.u32 [%rd5+{out}], {d}; ld.global.u32 {d}, [%rd5+{back}];"
                ));
            }
            8 => {
                self.line(&format!(
                    "and.b32 %r20, {d}, 7; mul.wide.u32 %rd12, %r20, 4; add.s64 %rd13, %rd6, %rd12; {guard}st.local.u32 [%rd13], {a};"
                ));
                self.line(&format!("{guard}ld.local.u32 {d}, [%rd13];"));
            }
            9 => {
                let at = 4 * self.draw(8);
                self.line(&format!("{guard}ld.local.u32 {d}, [%rd6+{at}];"));
            }
            _ => {
                let operation = self.pick(&[
                    "add.u32",
                    "sub.u32",
                    "xor.b32",
                    "and.b32",
                    "or.b32",
                    "min.s32",
                    "max.u32",
                    "mul.lo.u32",
                ]);
                self.line(&format!("{guard}{operation} {d}, {a}, {b};"));
            }
        }
    }

    fn statement(&mut self, depth: u32) {
        match self.draw(if depth > 3 { 6 } else { 9 }) {
            6 => {
                let (other, end) = (self.label(), self.label());
                let p = self.predicate();
                let (a, b) = (self.register(), self.source());
                self.line(&format!("setp.lt.s32 {p}, {a}, {b};\n@{p} bra L{other};"));
                self.statements(depth + 1, 4);
                self.line(&format!("bra L{end};\nL{other}:"));
                self.statements(depth + 1, 4);
                self.line(&format!("L{end}:"));
            }
            7 => {
                // The thread's own value determines the number of iterations.
                let start = self.label();
                let counter = format!("%c{}", self.loops);
                self.loops += 1;
                let source = self.register();
                self.line(&format!(
                    "and.b32 {counter}, {source}, {};\nL{start}:",
                    [3, 7, 15][self.loops as usize % 3]
                ));
                self.statements(depth + 1, 4);
                self.line(&format!(
                    "sub.u32 {counter}, {counter}, 1;\nsetp.lt.s32 %p7, {counter}, 0;\n@!%p7 bra L{start};"
                ));
            }
            8 => {
                let (p, end) = (self.predicate(), self.segment_end);
                self.line(&format!("@{p} bra L{end};"));
            }
            _ => self.operation(),
        }
    }

    fn statements(&mut self, depth: u32, most: u64) {
        for _ in 0..=self.draw(most) {
            self.statement(depth);
        }
    }

    fn new(seed: u64) -> Self {
        let mut program = Self {
            random: Rng::with_seed(seed),
            text: String::new(),
            labels: 0,
            loops: 0,
            segment_end: 0,
        };
        for _ in 0..=program.draw(3) {
            program.segment_end = program.label();
            program.statements(0, 8);
            let end = program.segment_end;
            program.line(&format!("L{end}:\nbar.sync 0;"));
        }
        program
    }

    fn module(&self) -> String {
        let mut text = String::from(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 seed)\n{\n\
             .reg .pred %p<8>; .reg .b32 %r<40>; .reg .b32 %c<64>; .reg .f32 %f<4>; .reg .b64 %rd<20>;\n\
             .local .align 4 .b8 l[32];\n\
             ld.param.u64 %rd1, [out]; ld.param.u32 %r30, [seed]; shl.b32 %r31, %r30, 3;\n\
             mov.u32 %r25, %ctaid.x; mov.u32 %r26, %ntid.x; mov.u32 %r27, %tid.x; mad.lo.u32 %r28, %r25, %r26, %r27;\n\
             setp.ge.u32 %p6, %r28, 150; @%p6 exit;\n\
             mul.wide.u32 %rd4, %r28, 64; add.s64 %rd5, %rd1, %rd4; mov.u64 %rd6, l; mov.f32 %f3, 0f3F800000;\n\
             setp.lt.u32 %p0, %r28, 40; setp.gt.u32 %p1, %r28, 60; setp.eq.u32 %p2, %r28, 77; setp.ne.u32 %p3, %r28, 99;\n",
        );
        for register in 0..8 {
            let _ = writeln!(
                text,
                "mad.lo.u32 %r{register}, %r28, {}, %r30; shr.u32 %r{register}, %r{register}, {};",
                2_654_435_761u32 ^ register,
                register % 4 * 5
            );
            let _ = writeln!(text, "st.local.u32 [%rd6+{}], %r{register};", 4 * register);
        }
        text.push_str(&self.text);
        for register in 0..8 {
            let _ = writeln!(text, "st.global.u32 [%rd5+{}], %r{register};", 4 * register);
        }
        text.push_str("ret;\n}\n");
        text
    }
}

fn run(module: &Module, seed: u32, grid: u32, block: u32) -> Vec<u8> {
    let memory = Memory::new(1 << 20);
    let bytes = u64::from(THREADS) * WORDS * 4;
    let out = memory.allocate(bytes).expect("fits");
    let kernel = module.entry("k").expect("the kernel");
    // Values depend on addresses, so both runs need the same addresses.
    let launch = Launch {
        step_limit: Some(50_000_000),
        ..Launch::new([grid, 1, 1], [block, 1, 1])
    };
    kernel
        .launch(&launch, ArgumentList::new().pointer(out).u32(seed).bytes(), &memory, &Cancel::new())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let mut found = vec![0; bytes as usize];
    memory.read(out, &mut found).expect("inside");
    found
}

/// Checks that the program's results do not depend on the shape of the launch.
fn check(text: &str, seed: u32) -> Result<(), TestCaseError> {
    let module = Module::load(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let alone = run(&module, seed, THREADS, 1);
    for (grid, block) in [(1, 150), (3, 64), (5, 32), (2, 100)] {
        let together = run(&module, seed, grid, block);
        let differs = alone
            .chunks(64)
            .zip(together.chunks(64))
            .position(|(alone, together)| alone != together);
        prop_assert!(differs.is_none(), "thread {differs:?} of {grid} x {block} differs in\n{text}");
    }
    Ok(())
}

#[test]
fn a_group_computes_what_single_threads_compute_in_a_program_that_once_differed() {
    check(include_str!("divergence/once_differed.ptx"), 2_692_916_827).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        max_shrink_iters: 0,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn groups_compute_what_single_threads_compute(seed in any::<u64>()) {
        check(&Program::new(seed).module(), seed as u32)?;
    }
}
