//! Runs one instruction form on the engine, in a kernel that applies the form to a list of operands, one thread per list.

use std::fmt::Write;

use sahasra_ptx::{ArgumentList, Cancel, DevicePointer, Launch, LoadError, Memory, MemoryError, Module};

use crate::forms::register_width;
use crate::kind::{Class, Kind, mask};
use crate::model::Model;

/// Reason why a form could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SingleError {
    #[error("refused: {}", .0.reason())]
    Refused(LoadError),
    #[error("fault: {0}")]
    Fault(String),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

fn register(width: u32, index: usize) -> String {
    let letter = match width {
        1 => "%p",
        16 => "%h",
        32 => "%r",
        _ => "%d",
    };
    format!("{letter}{index}")
}

/// Whether the form is one of the instructions with carry (PTX ISA §9.7.2).
pub fn is_carrying(form: &str) -> bool {
    let mut words = form.split('.');
    matches!(words.next(), Some("addc" | "subc" | "madc")) || words.any(|word| word == "cc")
}

/// Returns the instruction with its operands as a statement.
pub fn statement(form: &str, targets: &[String], sources: &[String]) -> String {
    let mut operands = vec![targets.join("|")];
    operands.extend(sources.iter().cloned());
    format!("{form} {};", operands.join(", "))
}

/// Returns a kernel in which thread i reads its operands (8 bytes each) and the carry (4 bytes used of 8), and writes two values.
pub fn kernel(form: &str, model: &Model, immediates: &[u64]) -> String {
    let mut text = String::from(
        ".version 8.6\n.target sm_100\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)\n{\n\
         .reg .pred %p<20>;\n.reg .b16 %h<20>;\n.reg .b32 %r<40>;\n.reg .b64 %d<40>;\n\
         mov.u32 %r30, %ctaid.x;\nmov.u32 %r31, %ntid.x;\nmov.u32 %r32, %tid.x;\nmad.lo.u32 %r33, %r30, %r31, %r32;\n\
         ld.param.u32 %r34, [n];\nsetp.ge.u32 %p10, %r33, %r34;\n@%p10 ret;\nld.param.u64 %d30, [in];\nld.param.u64 %d31, [out];\n",
    );
    let words = model.sources.len() + 1;
    let _ = writeln!(text, "mul.wide.u32 %d32, %r33, {};\nadd.s64 %d30, %d30, %d32;", words * 8);
    let _ = writeln!(text, "mul.wide.u32 %d33, %r33, 16;\nadd.s64 %d31, %d31, %d33;");
    let mut sources = Vec::new();
    let mut immediate = immediates.iter();
    for (index, kind) in model.sources.iter().enumerate() {
        if model.immediates.iter().any(|(place, _)| *place == index) {
            sources.push(immediate.next().map_or_else(String::new, u64::to_string));
            continue;
        }
        let width = register_width(*kind);
        let name = register(width, index + 1);
        let _ = match width {
            1 => writeln!(text, "ld.global.u64 %d20, [%d30+{}];\nsetp.ne.u64 {name}, %d20, 0;", index * 8),
            64 => writeln!(text, "ld.global.u64 {name}, [%d30+{}];", index * 8),
            _ => writeln!(text, "ld.global.b{width} {name}, [%d30+{}];", index * 8),
        };
        sources.push(name);
    }
    let targets: Vec<String> = model
        .targets
        .iter()
        .enumerate()
        .map(|(index, kind)| register(register_width(*kind), index + 11))
        .collect();
    let carrying = is_carrying(form);
    if carrying {
        let _ = writeln!(text, "ld.global.u32 %r20, [%d30+{}];", model.sources.len() * 8);
        text.push_str("add.cc.u32 %r21, %r20, -1;\n");
    }
    let _ = writeln!(text, "{}", statement(form, &targets, &sources));
    if carrying {
        text.push_str("addc.u32 %r22, 0, 0;\ncvt.u64.u32 %d22, %r22;\nst.global.u64 [%d31+8], %d22;\n");
    }
    for (index, kind) in model.targets.iter().enumerate() {
        let width = register_width(*kind);
        let name = register(width, index + 11);
        let _ = match width {
            1 => writeln!(text, "selp.u64 %d21, 1, 0, {name};"),
            64 => writeln!(text, "mov.b64 %d21, {name};"),
            _ => writeln!(text, "cvt.u64.u{width} %d21, {name};"),
        };
        let _ = writeln!(text, "st.global.u64 [%d31+{}], %d21;", index * 8);
    }
    text.push_str("ret;\n}\n");
    text
}

/// Returns the content of a register that is wider than the type: the value with sign or zero extension.
pub fn extended(kind: Kind, value: u64) -> u64 {
    let width = register_width(kind);
    if kind.class == Class::Signed && kind.width() < width {
        kind.integer(value) as u64 & mask(width)
    } else {
        value
    }
}

/// Runs the form on the engine for each list of operands (with a carry each). Returns the two values that each thread wrote.
pub fn run(form: &str, model: &Model, lists: &[Vec<u64>]) -> Result<Vec<[u64; 2]>, SingleError> {
    let immediates: Vec<u64> = model.immediates.iter().map(|(index, _)| lists[0][*index]).collect();
    let text = kernel(form, model, &immediates);
    let module = Module::load(&text).map_err(SingleError::Refused)?;
    let memory = Memory::new(1 << 26);
    let mut bytes = Vec::new();
    for (at, list) in lists.iter().enumerate() {
        for word in list.iter().copied().chain([at as u64 & 1]) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    let input = memory.allocate(bytes.len() as u64)?;
    memory.write(input, &bytes)?;
    let output = memory.allocate(lists.len() as u64 * 16)?;
    let arguments = ArgumentList::new().pointer(input).pointer(output).u32(lists.len() as u32);
    let kernel = module.entry("k").ok_or_else(|| SingleError::Fault("no kernel".into()))?;
    // The block size leaves groups that are not full.
    let launch = Launch::new([lists.len().div_ceil(100) as u32, 1, 1], [100, 1, 1]);
    kernel
        .launch(&launch, arguments.bytes(), &memory, &Cancel::new())
        .map_err(|fault| SingleError::Fault(fault.to_string()))?;
    let mut found = vec![0; lists.len() * 16];
    memory.read(DevicePointer(output.0), &mut found)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Ok(found.chunks_exact(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect())
}

/// Compares the values that [`run`] returned with those of the model.
pub fn compare(form: &str, model: &Model, lists: &[Vec<u64>], found: &[[u64; 2]]) -> Result<(), String> {
    for (at, (list, found)) in lists.iter().zip(found).enumerate() {
        let carry = at & 1 == 1;
        let expected = model.apply(list, carry);
        let first = extended(model.targets[0], expected.values[0]);
        let mut right = if first == expected.values[0] {
            model.accepts(list, first, found[0])
        } else {
            first == found[0]
        };
        let second = match model.targets.get(1) {
            Some(_) => Some(expected.values[1]),
            None => is_carrying(form).then(|| u64::from(expected.carry.unwrap_or(carry))),
        };
        right &= second.is_none_or(|second| second == found[1]);
        if !right {
            return Err(format!(
                "{form} of {list:x?} with carry {carry}: found {:#x} {:#x}, expected {first:#x} {second:x?}",
                found[0], found[1]
            ));
        }
    }
    Ok(())
}
