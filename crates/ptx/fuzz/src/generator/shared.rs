//! Statements on memory, and those that threads do together.

use std::fmt::Write;

use super::{Context, Generator, Node, SCRATCH, SCRATCH_BYTES, TABLE};

impl Generator<'_> {
    /// A load or store of the thread's own scratch.
    pub(super) fn scratch(&mut self) -> Node {
        let places = [
            ("global", "%place", SCRATCH),
            ("shared", "%sh", 0),
            ("local", "%lo", 0),
            ("", "%shg", 0),
            ("", "%log", 0),
            ("", "%place", SCRATCH),
        ];
        let (space, base, start) = places[self.random.usize(..places.len())];
        let types = ["b8", "u8", "s8", "b16", "s16", "u16", "b32", "u32", "f32", "s32", "b64", "f64"];
        let name = types[self.random.usize(..types.len())];
        let bits: u32 = name[1..].parse().unwrap_or(32);
        let vector = match self.random.u8(..4) {
            0 => 2,
            1 if bits < 64 => 4,
            _ => 1,
        };
        let size = bits / 8 * vector;
        let offset = start + self.random.u32(..SCRATCH_BYTES / size) * size;
        let dot = if space.is_empty() { String::new() } else { format!(".{space}") };
        let suffix = match vector {
            1 => format!(".{name}"),
            vector => format!(".v{vector}.{name}"),
        };
        let is_load = self.random.bool();
        let mut registers: Vec<String> = Vec::new();
        while registers.len() < vector as usize {
            // Narrow values may lie in wider registers.
            let wider = bits < 32 && vector == 1 && self.random.u8(..4) == 0;
            let register = self.register(if wider { 32 } else { bits });
            if !(is_load && registers.contains(&register)) {
                registers.push(register);
            }
        }
        let list = if vector == 1 {
            registers[0].clone()
        } else {
            format!("{{{}}}", registers.join(", "))
        };
        let volatile = if space != "local" && self.random.u8(..8) == 0 {
            ".volatile"
        } else {
            ""
        };
        let guard = if self.random.u8(..6) == 0 {
            format!("@{} ", self.predicate())
        } else {
            String::new()
        };
        Node::Lines(if is_load {
            format!("{guard}ld{volatile}{dot}{suffix} {list}, [{base}+{offset}];\n")
        } else {
            format!("{guard}st{volatile}{dot}{suffix} [{base}+{offset}], {list};\n")
        })
    }

    /// A load from the table of inputs or the constants at an index that differs between threads.
    pub(super) fn gather(&mut self) -> Node {
        let index = self.register(32);
        let width = [16, 32, 64][self.random.usize(..3)];
        let target = self.register(width);
        Node::Lines(if self.random.u8(..3) == 0 {
            format!("and.b32 %t0, {index}, 7;\nmad.wide.u32 %e0, %t0, 8, %ct;\nld.const.b{width} {target}, [%e0];\n")
        } else {
            let cached = if self.random.bool() { ".nc" } else { "" };
            format!(
                "and.b32 %t0, {index}, {};\nmad.wide.u32 %e0, %t0, 8, %in;\nld.global{cached}.b{width} {target}, [%e0];\n",
                TABLE - 1
            )
        })
    }

    /// One of the accumulators, each with an operation of its own: their order does not matter.
    pub(super) fn accumulate(&mut self) -> Node {
        let slots = [
            ("add", "u32"),
            ("add", "s32"),
            ("add", "u64"),
            ("min", "u32"),
            ("max", "u32"),
            ("min", "s32"),
            ("max", "s32"),
            ("and", "b32"),
            ("or", "b32"),
            ("xor", "b32"),
            ("min", "u64"),
            ("max", "s64"),
            ("xor", "b64"),
            ("or", "b64"),
        ];
        let slot = self.random.usize(..slots.len());
        let (operation, kind) = slots[slot];
        let (space, base) = [("global", "%sums"), ("shared", "%acc")][self.random.usize(..2)];
        let source = self.register(if kind.ends_with("64") { 64 } else { 32 });
        let scope = ["", ".relaxed.gpu", ".relaxed.cta"][self.random.usize(..3)];
        let guard = if self.random.u8(..4) == 0 {
            format!("@{} ", self.predicate())
        } else {
            String::new()
        };
        Node::Lines(if self.random.bool() {
            format!("{guard}red{scope}.{space}.{operation}.{kind} [{base}+{}], {source};\n", slot * 8)
        } else {
            let unused = if kind.ends_with("64") { "%e7" } else { "%t7" };
            format!(
                "{guard}atom{scope}.{space}.{operation}.{kind} {unused}, [{base}+{}], {source};\n",
                slot * 8
            )
        })
    }

    /// An atomic operation on the thread's own scratch, whose old value is used.
    pub(super) fn own_atomic(&mut self) -> Node {
        let (space, base, start) = [("global", "%place", SCRATCH), ("shared", "%sh", 0)][self.random.usize(..2)];
        let operations = [
            "add.u32", "add.u64", "exch.b32", "exch.b64", "cas.b32", "cas.b64", "min.s32", "max.u64", "inc.u32", "dec.u32", "and.b64",
            "xor.b32", "or.b32", "min.s64",
        ];
        let operation = operations[self.random.usize(..operations.len())];
        let width = if operation.ends_with("64") { 64 } else { 32 };
        let offset = start + self.random.u32(..SCRATCH_BYTES / 8) * 8;
        let (target, first) = (self.register(width), self.register(width));
        let second = if operation.starts_with("cas") {
            format!(", {}", self.register(width))
        } else {
            String::new()
        };
        Node::Lines(format!("atom.{space}.{operation} {target}, [{base}+{offset}], {first}{second};\n"))
    }

    /// What the whole block does: barriers, with an exchange through shared memory or a reduction.
    pub(super) fn together(&mut self) -> Node {
        let source = self.register(32);
        let target = self.register(32);
        match self.random.u8(..6) {
            0 => Node::Lines(format!("bar.sync {};\n", self.random.u8(..16))),
            1 if self.vocabulary.barrier_reductions => {
                let (p, q) = (self.predicate(), self.predicate());
                let barrier = self.random.u8(..16);
                Node::Lines(match self.random.u8(..3) {
                    0 => format!("bar.red.popc.u32 {target}, {barrier}, {p};\n"),
                    1 => format!("bar.red.and.pred {p}, {barrier}, {q};\n"),
                    _ => format!("barrier.sync.aligned {barrier};\nbar.red.or.pred {p}, {barrier}, !{q};\n"),
                })
            }
            _ => {
                let distance = self.random.u32(1..self.threads.max(2));
                let place = SCRATCH_BYTES - 4;
                let mut lines = String::new();
                // The place of thread (tid + distance) % threads, between two barriers.
                let _ = writeln!(lines, "st.shared.b32 [%sh+{place}], {source};\nbar.sync 0;");
                let _ = writeln!(
                    lines,
                    "add.u32 %t0, %me, {distance};\nrem.u32 %t0, %t0, {};\nmov.u64 %e0, sh;",
                    self.threads
                );
                let _ = writeln!(
                    lines,
                    "mad.wide.u32 %e0, %t0, {SCRATCH_BYTES}, %e0;\nld.shared.b32 {target}, [%e0+{place}];\nbar.sync 0;"
                );
                Node::Lines(lines)
            }
        }
    }

    /// What the lanes of a warp do that are known to be here.
    pub(super) fn warp(&mut self, context: &Context) -> Node {
        let members = context.members.clone().unwrap_or_default();
        let (source, target) = (self.register(32), self.register(32));
        let (p, q) = (self.predicate(), self.predicate());
        let whole = members == "%full" && self.threads.is_multiple_of(32);
        Node::Lines(match self.random.u8(..10) {
            0..=3 if whole => {
                let mode = ["up", "down", "bfly", "idx"][self.random.usize(..4)];
                // Segments of 32, 16, 8 or 4 lanes.
                let segment = (32 - (32 >> self.random.u32(..4))) << 8;
                let clamp = if mode == "up" { segment } else { segment | 0x1f };
                let lane = if self.random.bool() {
                    self.random.u8(..32).to_string()
                } else {
                    self.register(32)
                };
                let pair = if self.random.bool() { format!("|{p}") } else { String::new() };
                format!("shfl.sync.{mode}.b32 {target}{pair}, {source}, {lane}, {clamp}, {members};\n")
            }
            4 => format!("vote.sync.ballot.b32 {target}, {p}, {members};\n"),
            5 => format!(
                "vote.sync.{}.pred {p}, {q}, {members};\n",
                ["all", "any", "uni"][self.random.usize(..3)]
            ),
            6 if self.vocabulary.matches => {
                // Few different values, so that some are the same.
                format!("and.b32 %t0, {source}, 3;\nmatch.any.sync.b32 {target}, %t0, {members};\n")
            }
            7 if self.vocabulary.matches => {
                let wide = self.register(64);
                format!("match.all.sync.b64 {target}|{p}, {wide}, {members};\n")
            }
            8 | 9 if self.vocabulary.matches => {
                let operations = [
                    "add.u32", "add.s32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32",
                ];
                let operation = operations[self.random.usize(..operations.len())];
                format!("redux.sync.{operation} {target}, {source}, {members};\n")
            }
            _ => format!("bar.warp.sync {members};\n"),
        })
    }
}
