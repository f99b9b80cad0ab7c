//! Loads, stores and atomic operations.

use std::fmt::Write;

use super::{Generator, Node, SCRATCH, SCRATCH_BYTES};
use crate::table;

/// Operand of the operation on an accumulator.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    /// Operand in any register.
    Any,
    /// Constants that are the same for every thread.
    Constants(&'static str),
    /// The lowest bits of a register, as a floating point number.
    Number(u32),
    /// Operand in any register, applied by a compare-and-swap loop.
    Loop,
}

/// The accumulators of 8 bytes each: operation, type and operand, which leave the same result in any order. Sums of ones in half precision
/// also stop, in any order, at the first number to which one cannot be added exactly.
pub(super) const SLOTS: [(&str, &str, Operand); 31] = [
    ("add", "u32", Operand::Any),
    ("add", "s32", Operand::Any),
    ("add", "u64", Operand::Any),
    ("min", "u32", Operand::Any),
    ("max", "u32", Operand::Any),
    ("min", "s32", Operand::Any),
    ("max", "s32", Operand::Any),
    ("min", "u64", Operand::Any),
    ("max", "u64", Operand::Any),
    ("min", "s64", Operand::Any),
    ("max", "s64", Operand::Any),
    ("and", "b32", Operand::Any),
    ("or", "b32", Operand::Any),
    ("xor", "b32", Operand::Any),
    ("and", "b64", Operand::Any),
    ("or", "b64", Operand::Any),
    ("xor", "b64", Operand::Any),
    ("inc", "u32", Operand::Constants("1000")),
    ("dec", "u32", Operand::Constants("777")),
    ("exch", "b32", Operand::Constants("123456789")),
    ("exch", "b64", Operand::Constants("1234567890123456789")),
    ("cas", "b16", Operand::Constants("0, 77")),
    ("cas", "b32", Operand::Constants("0, 7777")),
    ("cas", "b64", Operand::Constants("0, 77777777777")),
    ("add", "f32", Operand::Number(15)),
    ("add", "f64", Operand::Number(65535)),
    ("add.noftz", "f16", Operand::Number(1)),
    ("add.noftz", "bf16", Operand::Number(1)),
    ("add.noftz", "f16x2", Operand::Number(1)),
    ("add.noftz", "bf16x2", Operand::Number(1)),
    ("add", "b32", Operand::Loop),
];

impl Generator<'_> {
    /// Generates a load or store of the thread's own scratch area.
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
            // Accesses of 256 bits exist for global memory only.
            1 | 2 if bits >= 32 && space == "global" => 256 / bits,
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
            // Narrow values may be held in wider registers.
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

    /// Generates a load from the table of inputs or the constants, at an index that differs between threads.
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

    /// Generates an operation on an accumulator. Each accumulator has an operation of its own, so the order does not matter.
    pub(super) fn accumulate(&mut self) -> Node {
        let slot = self.random.usize(..SLOTS.len());
        let (operation, kind, operand) = SLOTS[slot];
        let (space, base) = [("global", "%sums"), ("shared", "%acc")][self.random.usize(..2)];
        let wide = kind.ends_with("64");
        // A value that becomes a floating point number has 32 bits at first.
        let source = self.register(if wide && !matches!(operand, Operand::Number(_)) { 64 } else { 32 });
        // `red` has neither `exch` nor `cas`, and does not acquire.
        let returns = self.random.bool() || matches!(operation, "exch" | "cas") || matches!(operand, Operand::Loop);
        let ordered = if returns { ".acq_rel.gpu" } else { ".release.gpu" };
        let scope = ["", ".relaxed.gpu", ".relaxed.cta", ordered][self.random.usize(..4)];
        let place = format!("[{base}+{}]", slot * 8);
        let guard = if self.random.u8(..4) == 0 {
            format!("@{} ", self.predicate())
        } else {
            String::new()
        };
        let mut lines = String::new();
        let mut operands = match operand {
            Operand::Any => source,
            Operand::Constants(constants) => constants.to_owned(),
            // Small integers, whose sums are exact.
            Operand::Number(most) => {
                let _ = writeln!(lines, "and.b32 %t0, {source}, {most};");
                let (target, single) = match kind {
                    "f64" => ("%e0", "f64"),
                    "f32" => ("%t1", "f32"),
                    "f16" | "f16x2" => ("%u0", "f16"),
                    _ => ("%u0", "bf16"),
                };
                let _ = writeln!(lines, "cvt.rn.{single}.u32 {target}, %t0;");
                if kind.ends_with("x2") {
                    lines.push_str("mov.b32 %t1, {%u0, %u0};\n");
                    "%t1".to_owned()
                } else {
                    target.to_owned()
                }
            }
            Operand::Loop => {
                let start = self.label();
                let relaxed = ["ld.volatile", "ld.relaxed.gpu"][self.random.usize(..2)];
                let _ = writeln!(
                    lines,
                    "{relaxed}.{space}.b32 %t0, {place};\n{start}:\nadd.u32 %t1, %t0, {source};\n\
                     atom{scope}.{space}.cas.b32 %t2, {place}, %t0, %t1;\nsetp.ne.u32 %q0, %t2, %t0;\nmov.b32 %t0, %t2;\n@%q0 bra {start};"
                );
                return Node::Lines(lines);
            }
        };
        let mut form = format!("{operation}.{kind}");
        if kind == "f32" && space == "global" && self.random.bool() {
            form = "add.v2.f32".to_owned();
            operands = "{%t1, %t1}".to_owned();
        }
        let unused = match kind {
            "f16" | "bf16" | "b16" => "%u3",
            _ if wide => "%e7",
            _ => "%t7",
        };
        let unused = if form == "add.v2.f32" { "{%t7, %t6}" } else { unused };
        let _ = if returns {
            writeln!(lines, "{guard}atom{scope}.{space}.{form} {unused}, {place}, {operands};")
        } else {
            writeln!(lines, "{guard}red{scope}.{space}.{form} {place}, {operands};")
        };
        Node::Lines(lines)
    }

    /// Generates an atomic operation on the thread's own scratch area, whose old value is used.
    pub(super) fn own_atomic(&mut self) -> Node {
        let (space, base, start) = [
            (".global", "%place", SCRATCH),
            (".shared", "%sh", 0),
            ("", "%shg", 0),
            ("", "%place", SCRATCH),
        ][self.random.usize(..4)];
        let operations = [
            "add.u32", "add.s32", "add.u64", "exch.b32", "exch.b64", "cas.b16", "cas.b32", "cas.b64", "min.s32", "min.u32", "max.s32",
            "max.u32", "max.u64", "max.s64", "min.u64", "min.s64", "inc.u32", "dec.u32", "and.b32", "and.b64", "xor.b32", "xor.b64",
            "or.b32", "or.b64",
        ];
        let operation = operations[self.random.usize(..operations.len())];
        let width = operation[operation.len() - 2..].parse().unwrap_or(32);
        let offset = start + self.random.u32(..SCRATCH_BYTES / 8) * 8;
        let (target, first) = (self.register(width), self.register(width));
        let second = if operation.starts_with("cas") {
            format!(", {}", self.register(width))
        } else {
            String::new()
        };
        Node::Lines(format!("atom{space}.{operation} {target}, [{base}+{offset}], {first}{second};\n"))
    }

    /// Generates conversions and tests of addresses between spaces, and fences, which change no value.
    pub(super) fn addresses(&mut self) -> Node {
        let (predicate, target) = (self.predicate(), self.register(32));
        let generic = ["%shg", "%log", "%place"][self.random.usize(..3)];
        let space = ["shared", "local", "global"][self.random.usize(..3)];
        let offset = self.random.u32(..SCRATCH_BYTES / 4) * 4;
        Node::Lines(match self.random.u8(..4) {
            0 => format!("isspacep.{space} {predicate}, {generic};\n"),
            1 => format!("cvta.to.shared.u64 %e0, %shg;\nld.shared.b32 {target}, [%e0+{offset}];\n"),
            2 => format!("cvta.to.local.u64 %e0, %log;\nld.local.b32 {target}, [%e0+{offset}];\n"),
            _ => {
                let fences = ["membar.cta", "membar.gl", "fence.acq_rel.gpu", "fence.sc.cta", "nanosleep.u32 20"];
                format!("{};\n", fences[self.random.usize(..fences.len())])
            }
        })
    }
}
