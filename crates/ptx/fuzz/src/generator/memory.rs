//! Loads, stores and atomic operations.

use super::{Generator, Node, SCRATCH, SCRATCH_BYTES};
use crate::table;

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
                "and.b32 %t0, {index}, {};\nmad.wide.u32 %e0, %t0, {}, %in;\nld.global{cached}.b{width} {target}, [%e0+{}];\n",
                table::VALUES - 1,
                width / 8,
                table::section(width)
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
}
