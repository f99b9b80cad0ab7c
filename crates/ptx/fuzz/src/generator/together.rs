//! What threads of a block or a warp do together.

use std::fmt::Write;

use super::{Context, Generator, Node, SCRATCH_BYTES};

impl Generator<'_> {
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
