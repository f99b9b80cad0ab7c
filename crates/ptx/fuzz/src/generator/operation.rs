//! Statements that use registers only.

use std::fmt::Write;

use super::{Generator, Node};
use crate::exact::{BF16, F16, F32, F64, Format};
use crate::kind::{Class, Kind, mask};
use crate::model::Judge;
use crate::{inputs, single};

impl Generator<'_> {
    /// Returns a constant of the type as text, if the type has constants.
    fn constant(&mut self, kind: Kind) -> Option<String> {
        let edges = inputs::edges(kind);
        let bits = if self.random.bool() {
            edges[self.random.usize(..edges.len())]
        } else {
            inputs::random(kind, &mut self.random)
        };
        match kind.class {
            Class::Float(format) if format == F32 => Some(format!("0f{bits:08X}")),
            Class::Float(format) if format == F64 => Some(format!("0d{bits:016X}")),
            Class::Float(_) | Class::Predicate => None,
            _ if kind.lanes == 2 => None,
            Class::Signed => Some(kind.integer(bits).max(kind.range().0 + 1).to_string()),
            _ => Some(bits.to_string()),
        }
    }

    /// Returns an operand of the type: a register, or sometimes a constant.
    fn operand(&mut self, kind: Kind, constants: bool) -> String {
        if constants
            && self.random.u8(..5) == 0
            && let Some(constant) = self.constant(kind)
        {
            return constant;
        }
        let register = self.register(kind.width());
        if kind.width() == 1 && self.random.u8(..4) == 0 {
            format!("!{register}")
        } else {
            register
        }
    }

    pub(super) fn operation(&mut self) -> Node {
        let vocabulary = self.vocabulary;
        let (form, model) = &vocabulary.forms[self.random.usize(..vocabulary.forms.len())];
        let mut lines = String::new();
        let mut sources = Vec::new();
        let last = model.sources.len() - 1;
        let constant_at = self.random.usize(..=last);
        // Only predicates that combine comparisons may be negated.
        let opcode = form.split('.').next().unwrap_or_default();
        let logic = matches!(opcode, "and" | "or" | "xor" | "not" | "selp");
        for (index, kind) in model.sources.iter().enumerate() {
            if let Some((_, most)) = model.immediates.iter().find(|(place, _)| *place == index) {
                sources.push(self.random.u64(..=*most).to_string());
            } else if model.nonzero == Some(index) {
                // The divisor is made positive too, because the most negative number divided by -1 overflows.
                let source = self.register(kind.width());
                let (temporary, bits) = match kind.width() {
                    16 => ("%u2", 16),
                    32 => ("%t6", 32),
                    _ => ("%e6", 64),
                };
                let _ = writeln!(
                    lines,
                    "and.b{bits} {temporary}, {source}, {};\nor.b{bits} {temporary}, {temporary}, 1;",
                    mask(kind.width() - 1)
                );
                sources.push(temporary.to_owned());
            } else if kind.width() == 1 && logic {
                sources.push(self.predicate());
            } else {
                // At most one constant; none for conversions, nor for operands of video instructions.
                let constants = index == constant_at && last > 0 && kind.bits > 8 && !opcode.starts_with('v');
                let field = match opcode {
                    "bfe" => index > 0,
                    "bfi" => index > 1,
                    _ => false,
                };
                sources.push(if constants && field && self.random.u8(..5) == 0 {
                    // Position and length of a bit field are constants of 8 bits.
                    self.random.u8(..).to_string()
                } else {
                    self.operand(*kind, constants && !field)
                });
            }
        }
        let first = self.register(model.targets[0].width());
        let mut targets = vec![first.clone()];
        if let Some(kind) = model.targets.get(1) {
            let second = self.register(kind.width());
            if second != first {
                targets.push(second);
            }
            // Only comparisons of scalars may omit their second result.
            let two = model.targets[0].width() > 1 || model.sources[0].lanes == 2;
            if targets.len() < 2 && two {
                return Node::Lines(String::new());
            }
            if !two && self.random.bool() {
                targets.truncate(1);
            }
        }
        if self.random.u8(..8) == 0 {
            let negation = if self.random.bool() { "!" } else { "" };
            let _ = write!(lines, "@{negation}{} ", self.predicate());
        }
        let _ = writeln!(lines, "{}", single::statement(form, &targets, &sources));
        if let Judge::AnyNan(format) = model.judge {
            canonical(&mut lines, &first, format, model.targets[0].lanes);
        }
        Node::Lines(lines)
    }

    /// Generates addition, subtraction or multiplication over several words.
    pub(super) fn carry_chain(&mut self) -> Node {
        let mut lines = String::new();
        let width = if self.random.bool() { 32 } else { 64 };
        let length = self.random.u32(2..5);
        for step in 0..length {
            let (read, write) = (step > 0, step + 1 < length);
            let (multiply, subtracts) = (self.random.u8(..3) == 0, self.random.u8(..3) == 0);
            let c = if read { "c" } else { "" };
            let cc = if write { ".cc" } else { "" };
            let [target, first, second, third] = [0; 4].map(|_| self.register(width));
            let _ = if multiply {
                let part = if self.random.bool() { "lo" } else { "hi" };
                writeln!(lines, "mad{c}.{part}{cc}.u{width} {target}, {first}, {second}, {third};")
            } else {
                let opcode = if subtracts { "sub" } else { "add" };
                writeln!(lines, "{opcode}{c}{cc}.u{width} {target}, {first}, {second};")
            };
        }
        Node::Lines(lines)
    }

    /// Generates packing and unpacking of registers.
    pub(super) fn packing(&mut self) -> Node {
        let [a, b, c, d] = [0; 4].map(|_| self.register(16));
        let [r, s] = [0; 2].map(|_| self.register(32));
        let wide = self.register(64);
        Node::Lines(match self.random.u8(..6) {
            0 if a != b => format!("mov.b32 {{{a}, {b}}}, {r};\n"),
            1 => format!("mov.b32 {r}, {{{a}, {b}}};\n"),
            2 if r != s => format!("mov.b64 {{{r}, {s}}}, {wide};\n"),
            3 => format!("mov.b64 {wide}, {{{r}, {s}}};\n"),
            4 => format!("mov.b64 {wide}, {{{a}, {b}, {c}, {d}}};\n"),
            _ => {
                let (p, q) = (self.predicate(), self.predicate());
                format!("mov.pred {p}, {q};\nmov.b32 {r}, {s};\n")
            }
        })
    }
}

/// Replaces every NaN with the canonical one, because the ISA does not specify which NaN an operation gives.
fn canonical(lines: &mut String, register: &str, format: Format, lanes: u32) {
    let (magnitude, infinity, nan) = (format.sign() - 1, format.infinity(), format.canonical_nan());
    let mut one = |register: &str, temporary: &str, bits: u32| {
        let _ = writeln!(
            lines,
            "and.b{bits} {temporary}, {register}, {magnitude};\nsetp.gt.u{bits} %q0, {temporary}, {infinity};\nselp.b{bits} {register}, {nan}, {register}, %q0;"
        );
    };
    match (format, lanes) {
        (F32, _) => one(register, "%t0", 32),
        (F64, _) => one(register, "%e0", 64),
        (F16 | BF16, 1) => one(register, "%u2", 16),
        _ => {
            let _ = writeln!(lines, "mov.b32 {{%u0, %u1}}, {register};");
            for half in ["%u0", "%u1"] {
                let _ = writeln!(
                    lines,
                    "and.b16 %u2, {half}, {magnitude};\nsetp.gt.u16 %q0, %u2, {infinity};\nselp.b16 {half}, {nan}, {half}, %q0;"
                );
            }
            let _ = writeln!(lines, "mov.b32 {register}, {{%u0, %u1}};");
        }
    }
}
