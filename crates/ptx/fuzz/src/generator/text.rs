//! Text around a program's statements: the initial values of registers and memory, and the code that stores the final ones.

use std::fmt::Write;

use super::{ACCUMULATORS, D, Generated, H, P, PLACE, R, SCRATCH, SCRATCH_BYTES};
use crate::table;

/// Parameters of every device function: two values, and the depth to which calls may still nest.
const PARAMETERS: &str = "(.param .b32 first, .param .b64 second, .param .b32 depth)";
/// Prototype of calls through pointers.
const SHAPE: &str = "shape: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b64 _, .param .b32 _);\n";

impl Generated {
    /// Returns the text of the module.
    pub fn text(&self) -> String {
        let mut text = String::from(".version 8.8\n.target sm_100\n.address_size 64\n");
        let constants: Vec<String> = (0..64u32).map(|index| (index * 37 % 256).to_string()).collect();
        let _ = writeln!(text, ".const .align 8 .b8 table[64] = {{{}}};", constants.join(", "));
        let registers = format!(
            ".reg .pred %p<{P}>, %q<4>;\n.reg .b16 %h<{H}>, %u<4>;\n.reg .b32 %r<{R}>, %t<8>, %c<64>, %m<64>, %full;\n.reg .b64 %d<{D}>, %e<8>;\n"
        );
        // All functions are declared before the first definition, because each may call any other.
        let count = self.functions.len();
        for index in 0..count {
            let _ = writeln!(text, ".func (.param .b32 result) f{index} {PARAMETERS};");
        }
        if count > 0 {
            let table: Vec<String> = (0..4).map(|index| format!("f{}", index % count)).collect();
            let _ = writeln!(text, ".global .align 8 .u64 functions[4] = {{{}}};", table.join(", "));
        }
        for index in 0..count {
            self.function(index, &registers, &mut text);
        }
        self.prologue(&registers, &mut text);
        for node in &self.nodes {
            node.write(&mut text);
        }
        self.epilogue(&mut text);
        text
    }

    /// Appends a device function. Its parameters give the initial values of its registers.
    fn function(&self, index: usize, registers: &str, text: &mut String) {
        let mut body = String::new();
        for node in &self.functions[index] {
            node.write(&mut body);
        }
        let _ = writeln!(
            text,
            ".func (.param .b32 result) f{index} {PARAMETERS}\n{{\n{registers}.reg .b32 %left;\n{SHAPE}"
        );
        text.push_str("ld.param.b32 %r0, [first];\nld.param.b64 %d0, [second];\nld.param.b32 %left, [depth];\n");
        // Only registers that occur in the body are initialised.
        let named = |register: &str| body.contains(register);
        for index in 1..R {
            if index < H || named(&format!("%r{index}")) {
                let _ = writeln!(text, "add.u32 %r{index}, %r0, {};", index * 77_777);
            }
        }
        for index in 1..D {
            if named(&format!("%d{index}")) {
                let _ = writeln!(text, "mul.lo.u64 %d{index}, %d0, {};", index * 123_457 + 2);
            }
        }
        for index in 0..H {
            if named(&format!("%h{index}")) {
                let _ = writeln!(text, "cvt.u16.u32 %h{index}, %r{index};");
            }
        }
        for index in 0..P {
            if named(&format!("%p{index}")) {
                let _ = writeln!(text, "setp.lt.s32 %p{index}, %r{index}, 1000;");
            }
        }
        text.push_str(&body);
        for index in 1..R {
            if named(&format!("%r{index}")) {
                let _ = writeln!(text, "xor.b32 %r0, %r0, %r{index};");
            }
        }
        text.push_str("st.param.b32 [result], %r0;\nret;\n}\n");
    }

    fn prologue(&self, registers: &str, text: &mut String) {
        let threads = self.block[0] * self.block[1];
        let shape = if self.functions.is_empty() { "" } else { SHAPE };
        let _ = write!(
            text,
            ".visible .entry k(.param .u64 places, .param .u64 sums, .param .u64 input)\n{{\n{registers}{shape}\
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
        // Accumulators and scratch areas are zero at first. The first threads of the block initialise the accumulators.
        text.push_str("mov.b64 %e1, 0;\n");
        each_accumulator(text, "Z", false, "mad.wide.u32 %e0, %t3, 8, %acc;\nst.shared.u64 [%e0], %e1;");
        for offset in (0..SCRATCH_BYTES).step_by(16) {
            let _ = writeln!(
                text,
                "st.shared.v2.u64 [%sh+{offset}], {{%e1, %e1}};\nst.local.v2.u64 [%lo+{offset}], {{%e1, %e1}};"
            );
        }
        // The initial values of the registers are a window of the table of inputs, whose index differs from thread to thread.
        for (width, letter, count, step) in [(16, 'h', H, 5), (32, 'r', R, 11), (64, 'd', D, 23)] {
            let windows = table::VALUES * width / 128;
            let _ = writeln!(
                text,
                "mul.lo.u32 %t4, %gid, {step};\nand.b32 %t4, %t4, {};\nmad.wide.u32 %e1, %t4, 16, %in;",
                windows - 1
            );
            vectors(letter, width, count, |vector, list, offset| {
                let _ = writeln!(text, "ld.global.{vector} {list}, [%e1+{}];", table::section(width) + offset);
            });
        }
        for index in 0..P {
            let _ = writeln!(text, "and.b32 %t4, %gid, {};\nsetp.eq.u32 %p{index}, %t4, 0;", 1 << index);
        }
        text.push_str("bar.sync 0;\n");
    }

    fn epilogue(&self, text: &mut String) {
        for (width, letter, count, start) in [(16, 'h', H, 0), (32, 'r', R, 16), (64, 'd', D, 64)] {
            vectors(letter, width, count, |vector, list, offset| {
                let _ = writeln!(text, "st.global.{vector} [%place+{}], {list};", start + offset);
            });
        }
        text.push_str("mov.u32 %t0, 0;\n");
        for index in 0..P {
            let _ = writeln!(text, "@%p{index} or.b32 %t0, %t0, {};", 1 << index);
        }
        text.push_str("st.global.b32 [%place+128], %t0;\n");
        for (start, space, base) in [(1, "local", "%lo"), (2, "shared", "%sh")] {
            for offset in (0..SCRATCH_BYTES).step_by(16) {
                let _ = writeln!(
                    text,
                    "ld.{space}.v2.u64 {{%e0, %e1}}, [{base}+{offset}];\nst.global.v2.u64 [%place+{}], {{%e0, %e1}};",
                    SCRATCH + start * SCRATCH_BYTES + offset
                );
            }
        }
        // The block's accumulators are stored when all threads are done.
        let _ = writeln!(text, "bar.sync 0;\nmov.u32 %t1, %ctaid.x;\nadd.u32 %t1, %t1, 1;");
        let _ = writeln!(text, "mad.wide.u32 %sums, %t1, {}, %sums;", ACCUMULATORS * 8);
        each_accumulator(
            text,
            "Y",
            self.leaves,
            "mad.wide.u32 %e0, %t3, 8, %acc;\nld.shared.u64 %e1, [%e0];\nmad.wide.u32 %e0, %t3, 8, %sums;\nst.global.u64 [%e0], %e1;",
        );
        text.push_str("ret;\n}\n");
    }
}

/// Appends statements for each accumulator, whose number is in `%t3`. All threads of the block share the work, or the first thread does it
/// alone.
fn each_accumulator(text: &mut String, label: &str, alone: bool, statements: &str) {
    let step = if alone {
        // The first thread never ends early.
        format!("setp.ne.u32 %q0, %me, 0;\n@%q0 bra {label}1;\nmov.u32 %t0, 1;")
    } else {
        "mov.u32 %t0, %ntid.x;\nmov.u32 %t3, %ntid.y;\nmul.lo.u32 %t0, %t0, %t3;".to_owned()
    };
    let _ = writeln!(
        text,
        "{step}\nmov.u32 %t3, %me;\n{label}0:\nsetp.ge.u32 %q0, %t3, {ACCUMULATORS};\n@%q0 bra {label}1;\n{statements}\n\
         add.u32 %t3, %t3, %t0;\nbra {label}0;\n{label}1:"
    );
}

/// Calls `each` for the registers of a width, as vectors of at most 16 bytes, with type, list and offset.
fn vectors(letter: char, width: u32, count: usize, mut each: impl FnMut(&str, &str, u32)) {
    let most = (128 / width as usize).min(4);
    for start in (0..count).step_by(most) {
        let list: Vec<String> = (start..start + most).map(|index| format!("%{letter}{index}")).collect();
        each(
            &format!("v{most}.b{width}"),
            &format!("{{{}}}", list.join(", ")),
            start as u32 * width / 8,
        );
    }
}
