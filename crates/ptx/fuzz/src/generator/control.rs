//! Statements that contain other statements, calls, and early ends.

use std::fmt::Write;

use super::{Context, Generator, Node};

impl Generator<'_> {
    pub(super) fn branch(&mut self, context: &Context) -> Node {
        let (otherwise, end) = (self.label(), self.label());
        let mut inner = Context {
            depth: context.depth + 1,
            block: false,
            members: None,
            ..context.clone()
        };
        let mut other = inner.clone();
        // The condition is used at once, so no statement inside the branch can change it before.
        let predicate = self.predicate();
        let mut open = String::new();
        if context.block && self.random.u8(..4) == 0 {
            // The condition is the same for the whole block.
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

    pub(super) fn repetition(&mut self, context: &Context) -> Node {
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
            calls: context.calls && context.kernel && context.depth == 0,
            ..context.clone()
        };
        let (mut open, mut close) = (String::new(), String::new());
        let mut staying = String::new();
        if self.random.u8(..3) == 0 {
            // All threads iterate equally often.
            inner.block = context.block;
            inner.members.clone_from(&context.members);
            let _ = writeln!(open, "mov.u32 {counter}, {};", self.random.u8(1..4));
        } else {
            let source = self.register(32);
            let _ = writeln!(open, "and.b32 {counter}, {source}, {};", [1, 3, 7][self.random.usize(..3)]);
            if let Some(members) = &context.members
                && self.masks < 60
                && self.random.bool()
            {
                // Fewer lanes take part in each iteration, and the mask of the remaining lanes is known.
                let mask = format!("%m{}", self.masks);
                self.masks += 1;
                let _ = writeln!(open, "mov.b32 {mask}, {members};");
                staying = format!("vote.sync.ballot.b32 {mask}, %q3, {mask};\n");
                inner.members = Some(mask);
            }
        }
        let _ = writeln!(open, "{start}:");
        let body = self.statements(&inner, 4);
        if !inner.block && inner.members.is_none() && self.random.u8(..3) == 0 {
            let _ = writeln!(close, "@{} bra {end};", self.predicate());
        }
        let _ = writeln!(
            close,
            "sub.u32 {counter}, {counter}, 1;\nsetp.gt.s32 %q3, {counter}, 0;\n{staying}@%q3 bra {start};\n{end}:"
        );
        Node::Group {
            parts: vec![(open, body)],
            close,
        }
    }

    pub(super) fn switch(&mut self, context: &Context) -> Node {
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

    /// Generates a call by name or through a pointer. A device function calls only while its parameter `depth` allows it.
    pub(super) fn call(&mut self, context: &Context) -> Node {
        if !context.kernel {
            if self.calls_left == 0 {
                return self.operation();
            }
            self.calls_left -= 1;
        }
        let [first, chooser, target] = [0; 3].map(|_| self.register(32));
        let (second, predicate) = (self.register(64), self.predicate());
        let (function, other) = (self.random.usize(..self.functions), self.random.usize(..self.functions));
        let mut lines = String::new();
        let depth = if context.kernel {
            self.random.u8(..4).to_string()
        } else {
            lines.push_str("sub.u32 %t5, %left, 1;\n");
            "%t5".to_owned()
        };
        let (callee, mut shape) = match self.random.u8(..4) {
            0 => {
                let _ = writeln!(
                    lines,
                    "and.b32 %t4, {chooser}, 3;\nmov.u64 %e5, functions;\nmad.wide.u32 %e5, %t4, 8, %e5;\nld.global.u64 %e5, [%e5];"
                );
                ("%e5".to_owned(), ", shape".to_owned())
            }
            1 => {
                let _ = writeln!(
                    lines,
                    "mov.u64 %e5, f{function};\nmov.u64 %e6, f{other};\nselp.b64 %e5, %e5, %e6, {predicate};"
                );
                ("%e5".to_owned(), ", shape".to_owned())
            }
            _ => (format!("f{function}"), String::new()),
        };
        if !shape.is_empty() && self.random.u8(..3) == 0 {
            let list = self.label();
            let all: Vec<String> = (0..self.functions).map(|index| format!("f{index}")).collect();
            let _ = writeln!(lines, "{list}: .calltargets {};", all.join(", "));
            shape = format!(", {list}");
        }
        let guard = match self.random.u8(..4) {
            0 => format!("@{} ", self.predicate()),
            1 => format!("@!{} ", self.predicate()),
            _ => String::new(),
        };
        let _ = writeln!(
            lines,
            "{{\n.param .b32 a0;\n.param .b64 a1;\n.param .b32 a2;\n.param .b32 back;\n\
             st.param.b32 [a0], {first};\nst.param.b64 [a1], {second};\nst.param.b32 [a2], {depth};\n\
             {guard}call (back), {callee}, (a0, a1, a2){shape};\nld.param.b32 %t6, [back];\n{guard}mov.b32 {target}, %t6;\n}}"
        );
        if !context.kernel {
            let end = self.label();
            lines = format!("setp.eq.u32 %q2, %left, 0;\n@%q2 bra {end};\n{lines}{end}:\n");
        }
        Node::Lines(lines)
    }

    /// Lets some threads return early: from a device function, or from the kernel, except for the first thread of the block.
    pub(super) fn leave(&mut self, context: &Context) -> Node {
        let (predicate, value) = (self.predicate(), self.register(32));
        if !context.kernel {
            return Node::Lines(format!("st.param.b32 [result], {value};\n@{predicate} ret;\n"));
        }
        let word = if self.random.bool() { "exit" } else { "ret" };
        Node::Lines(format!(
            "setp.ne.and.u32 %q2, %me, 0, {predicate};\n@%q2 st.global.v4.b32 [%place+16], {{%r0, %r1, %r2, %r3}};\n@%q2 {word};\n"
        ))
    }
}
