//! Statements that the threads of a block or a warp execute together.

use std::fmt::Write;

use super::{Context, Generator, Node, SCRATCH_BYTES};

/// Offset of the word in a thread's shared scratch area that other threads read.
const EXCHANGED: u32 = SCRATCH_BYTES - 4;

impl Generator<'_> {
    /// Generates a barrier of the whole block, with an exchange through shared memory or a reduction.
    pub(super) fn together(&mut self) -> Node {
        let source = self.register(32);
        let target = self.register(32);
        // A warp that has ended never arrives, and a barrier with a count requires an arrival of each warp.
        let counted = !self.leaves || self.threads <= 32;
        let parts = self.threads > 32 && !self.leaves;
        match self.random.u8(..8) {
            0 => Node::Lines(format!("bar.sync {};\n", self.random.u8(..16))),
            1 | 2 => {
                let (p, q) = (self.predicate(), self.predicate());
                let barrier = self.random.u8(..16);
                // A count is a multiple of whole warps, even if the last warp is not full.
                let count = if counted && self.random.bool() {
                    format!(", {}", self.threads.next_multiple_of(32))
                } else {
                    String::new()
                };
                Node::Lines(match self.random.u8(..3) {
                    0 => format!("bar.red.popc.u32 {target}, {barrier}{count}, {p};\n"),
                    1 => format!("bar.red.and.pred {p}, {barrier}{count}, {q};\n"),
                    _ => format!("barrier.sync.aligned {barrier}{count};\nbar.red.or.pred {p}, {barrier}{count}, !{q};\n"),
                })
            }
            3 | 4 if parts => self.in_two_parts(&source, &target),
            _ => {
                let distance = self.random.u32(1..self.threads.max(2));
                let mut lines = String::new();
                // Reads the word of thread (tid + distance) % threads, between two barriers.
                let _ = writeln!(lines, "st.shared.b32 [%sh+{EXCHANGED}], {source};\nbar.sync 0;");
                let _ = writeln!(lines, "add.u32 %t0, %me, {distance};\nrem.u32 %t0, %t0, {};", self.threads);
                read_exchanged(&mut lines, &target);
                lines.push_str("bar.sync 0;\n");
                Node::Lines(lines)
            }
        }
    }

    /// Divides the block into the first warps and the others: each part has its own barrier, or one part writes for the other to read.
    fn in_two_parts(&mut self, source: &str, target: &str) -> Node {
        let first = self.random.u32(1..self.threads.div_ceil(32)) * 32;
        let (other, end) = (self.label(), self.label());
        let barrier = self.random.u32(1..15);
        let mut lines = String::new();
        let _ = writeln!(
            lines,
            "st.shared.b32 [%sh+{EXCHANGED}], {source};\nsetp.ge.u32 %q1, %me, {first};\n@%q1 bra {other};"
        );
        if self.random.bool() {
            for (start, count, barrier) in [(0, first, barrier), (first, self.threads - first, barrier + 1)] {
                if start > 0 {
                    let _ = writeln!(lines, "bra {end};\n{other}:");
                }
                let distance = self.random.u32(0..count);
                let warps = count.next_multiple_of(32);
                let _ = writeln!(
                    lines,
                    "bar.sync {barrier}, {warps};\nsub.u32 %t0, %me, {start};\nadd.u32 %t0, %t0, {distance};\nrem.u32 %t0, %t0, {count};\n\
                     add.u32 %t0, %t0, {start};"
                );
                read_exchanged(&mut lines, target);
                let _ = writeln!(lines, "bar.sync {barrier}, {warps};");
            }
        } else {
            let all = self.threads.next_multiple_of(32);
            let _ = writeln!(
                lines,
                "membar.cta;\nbar.arrive {barrier}, {all};\nbra {end};\n{other}:\nmov.u32 %t0, {barrier};\nbar.sync %t0, {all};\n\
                 rem.u32 %t0, %me, {first};"
            );
            read_exchanged(&mut lines, target);
        }
        let _ = writeln!(lines, "{end}:\nbar.sync 0;");
        Node::Lines(lines)
    }

    /// Generates a warp operation of the lanes that are known to reach it together.
    pub(super) fn warp(&mut self, context: &Context) -> Node {
        let members = context.members.clone().unwrap_or_default();
        let (source, target) = (self.register(32), self.register(32));
        let (p, q) = (self.predicate(), self.predicate());
        let whole = members == "%full" && self.threads.is_multiple_of(32) && !self.leaves;
        Node::Lines(match self.random.u8(..11) {
            0..=2 if whole => {
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
            0..=3 => self.shuffle_among(&members, &source, &target),
            4 => format!("vote.sync.ballot.b32 {target}, {p}, {members};\n"),
            5 => format!(
                "vote.sync.{}.pred {p}, {}{q}, {members};\n",
                ["all", "any", "uni"][self.random.usize(..3)],
                if self.random.bool() { "!" } else { "" }
            ),
            6 => {
                // Few distinct values, so that some are equal.
                if self.random.bool() {
                    format!("and.b32 %t0, {source}, 3;\nmatch.any.sync.b32 {target}, %t0, {members};\n")
                } else {
                    let wide = self.register(64);
                    format!("and.b64 %e0, {wide}, 1;\nmatch.any.sync.b64 {target}, %e0, {members};\n")
                }
            }
            7 => {
                if self.random.bool() {
                    let wide = self.register(64);
                    format!("match.all.sync.b64 {target}|{p}, {wide}, {members};\n")
                } else {
                    format!("shr.u32 %t0, {source}, 31;\nmatch.all.sync.b32 {target}|{p}, %t0, {members};\n")
                }
            }
            8 | 9 => {
                let operations = [
                    "add.u32", "add.s32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32",
                ];
                let operation = operations[self.random.usize(..operations.len())];
                format!("redux.sync.{operation} {target}, {source}, {members};\n")
            }
            _ => format!("bar.warp.sync {members};\n"),
        })
    }

    /// Generates a shuffle whose mask may lack lanes. The ISA does not specify what a lane reads from a lane outside the mask, so either
    /// all lanes read a lane of the mask, or the others keep their own value.
    fn shuffle_among(&mut self, members: &str, source: &str, target: &str) -> String {
        let mut lines = String::new();
        let mut members = members.to_owned();
        if self.leaves {
            // Lanes of the mask that have not ended.
            let _ = writeln!(lines, "setp.eq.u32 %q0, %me, %me;\nvote.sync.ballot.b32 %t3, %q0, {members};");
            members = "%t3".to_owned();
        }
        let chooser = self.register(32);
        let mode = ["up", "down", "bfly", "idx"][self.random.usize(..4)];
        if mode == "idx" {
            // Selects the n-th lane of the mask.
            let _ = writeln!(
                lines,
                "popc.b32 %t0, {members};\nrem.u32 %t0, {chooser}, %t0;\nadd.u32 %t0, %t0, 1;\nfns.b32 %t0, {members}, 0, %t0;\n\
                 shfl.sync.idx.b32 {target}, {source}, %t0, 31, {members};"
            );
            return lines;
        }
        let distance = self.random.u32(1..32);
        let (clamp, from) = match mode {
            "up" => (0, "sub.u32"),
            "down" => (31, "add.u32"),
            _ => (31, "xor.b32"),
        };
        let _ = writeln!(
            lines,
            "shfl.sync.{mode}.b32 %t1|%q0, {source}, {distance}, {clamp}, {members};\n{from} %t0, %lane, {distance};\nand.b32 %t0, %t0, 31;\n\
             shr.u32 %t0, {members}, %t0;\nand.b32 %t0, %t0, 1;\nsetp.eq.and.u32 %q0, %t0, 1, %q0;\nselp.b32 {target}, %t1, {source}, %q0;"
        );
        lines
    }
}

/// Appends the read of the word that thread `%t0` of the block wrote.
fn read_exchanged(lines: &mut String, target: &str) {
    let _ = writeln!(
        lines,
        "mov.u64 %e0, sh;\nmad.wide.u32 %e0, %t0, {SCRATCH_BYTES}, %e0;\nld.shared.b32 {target}, [%e0+{EXCHANGED}];"
    );
}
