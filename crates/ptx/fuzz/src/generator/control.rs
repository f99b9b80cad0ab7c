//! Statements that contain others, and calls.

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

    pub(super) fn call(&mut self) -> Node {
        let function = self.random.usize(..self.functions);
        let (first, second, target) = (self.register(32), self.register(64), self.register(32));
        Node::Lines(format!(
            "{{\n.param .b32 a0;\n.param .b64 a1;\n.param .b32 back;\nst.param.b32 [a0], {first};\nst.param.b64 [a1], {second};\n\
             call (back), f{function}, (a0, a1);\nld.param.b32 {target}, [back];\n}}\n"
        ))
    }
}
