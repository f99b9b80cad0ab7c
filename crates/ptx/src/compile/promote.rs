//! Promotion of function parameters and results (PTX ISA §7.1) from local memory to registers.
//!
//! A `.param` variable at a fixed address needs no memory if it is read and written by name only, always in the same pieces. Each piece
//! becomes a register, and its loads and stores become copies, so that passing it in a call needs no addressing. A variable stays in memory
//! if its address is taken, if an instruction other than `ld` and `st` names it, or if it is read in other pieces than it was written.

use std::collections::BTreeMap;

use super::ir::{Access, Action, Lowered, Operation, Origin, Register, RegisterId, Width};
use sahasra_ptx_syntax::types::Space;

/// Offset in local memory, and size in bytes, of a piece.
type Piece = (u64, u64);

pub(crate) fn promote(lowered: &mut Lowered) {
    if lowered.parameters.is_empty() {
        return;
    }
    let pieces = pieces(lowered);
    if pieces.is_empty() {
        return;
    }
    let kernel = lowered.functions.len() as u32;
    let mut registers: BTreeMap<Piece, RegisterId> = BTreeMap::new();
    for piece in pieces {
        let Some(width) = Width::of_bytes(piece.1 as usize) else { continue };
        registers.insert(piece, lowered.registers.len() as RegisterId);
        lowered.registers.push(Register {
            width,
            origin: Origin::Code,
        });
        lowered.owners.push(kernel);
    }
    // New index of each operation.
    let mut moved = Vec::with_capacity(lowered.operations.len() + 1);
    let mut kept = Vec::with_capacity(lowered.operations.len());
    for operation in std::mem::take(&mut lowered.operations) {
        moved.push(kept.len());
        let found = accessed(&lowered.registers, &operation).and_then(|(start, access)| {
            let bytes = u64::from(access.element);
            (0..u64::from(access.count))
                .map(|index| registers.get(&(start + index * bytes, bytes)).copied())
                .collect::<Option<Vec<_>>>()
        });
        let Some(found) = found else {
            kept.push(operation);
            continue;
        };
        let is_load = matches!(operation.action, Action::Load(_));
        for (index, register) in found.into_iter().enumerate() {
            let (target, source) = if is_load {
                (operation.targets[index], register)
            } else {
                (register, operation.sources[index + 1])
            };
            kept.push(Operation {
                action: Action::Copy,
                guard: operation.guard,
                targets: vec![target],
                sources: vec![source],
                statement: operation.statement,
            });
        }
    }
    moved.push(kept.len());
    for label in &mut lowered.labels {
        *label = moved[*label];
    }
    lowered.operations = kept;
}

/// Returns the start in local memory of a plain load or store by name, and its access.
fn accessed<'a>(registers: &[Register], operation: &'a Operation) -> Option<(u64, &'a Access)> {
    let (Action::Load(access) | Action::Store(access)) = &operation.action else {
        return None;
    };
    let Origin::Constant(base) = registers[operation.sources[0] as usize].origin else {
        return None;
    };
    (access.space == Space::Local).then(|| (base.wrapping_add_signed(access.offset), access))
}

/// Returns the pieces of variables that can become registers.
fn pieces(lowered: &Lowered) -> Vec<Piece> {
    // By start of a variable: its end, and the pieces that are accessed, or `None` if the variable has to stay in memory.
    let mut variables: BTreeMap<u64, (u64, Option<BTreeMap<u64, u64>>)> = lowered
        .parameters
        .iter()
        .map(|(start, bytes)| (*start, (start + bytes, Some(BTreeMap::new()))))
        .collect();
    for place in &lowered.addresses_taken {
        if let Some((_, found)) = variables.get_mut(place) {
            *found = None;
        }
    }
    for operation in &lowered.operations {
        let Some((start, access)) = accessed(&lowered.registers, operation) else {
            continue;
        };
        let Some((_, (end, found))) = variables.range_mut(..=start).next_back().filter(|(_, (end, _))| start < *end) else {
            continue;
        };
        let bytes = u64::from(access.element);
        let values = match operation.action {
            Action::Load(_) => &operation.targets[..],
            _ => &operation.sources[1..],
        };
        let whole = values
            .iter()
            .all(|register| lowered.registers[*register as usize].width.bytes() as u64 == bytes);
        if !whole || access.ordered || start + bytes * u64::from(access.count) > *end {
            *found = None;
        }
        for index in 0..u64::from(access.count) {
            let at = start + index * bytes;
            if let Some(pieces) = found {
                let before = pieces.range(..at).next_back().is_none_or(|(other, length)| other + length <= at);
                let behind = pieces.range(at + 1..).next().is_none_or(|(other, _)| at + bytes <= *other);
                if before && behind && *pieces.entry(at).or_insert(bytes) == bytes {
                    continue;
                }
                *found = None;
            }
        }
    }
    variables.into_values().filter_map(|(_, pieces)| pieces).flatten().collect()
}

#[cfg(test)]
mod tests {
    use hashbrown::HashMap;

    use super::*;
    use crate::compile::calls::CallGraph;
    use crate::compile::lower;
    use crate::compile::texts::Texts;
    use sahasra_ptx_syntax::parser::parse;

    /// Counts the local accesses before and after promotion in a kernel that calls a function, given its body and the call.
    fn accesses(function: &str, call: &str) -> (usize, usize) {
        let text = format!(
            ".version 8.0 .target sm_80 .address_size 64
             .func (.param .b32 out) f(.param .align 8 .b8 in[16]) {{
                 .reg .b32 %r<4>; .reg .b64 %rd<4>; {function} ret;
             }}
             .visible .entry k() {{
                 .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
                 {{ .param .align 8 .b8 a[16]; .param .b32 v; {call} }}
                 ret;
             }}"
        );
        let source = parse(&text).expect("parses");
        let texts = Texts::new(std::slice::from_ref(&source)).unwrap_or_else(|(_, error)| panic!("{error}"));
        let graph = CallGraph::new(&texts);
        let mut lowered = lower::lower(&texts, &graph, 1, HashMap::new()).expect("lowers");
        let count = |lowered: &Lowered| {
            let local = |operation: &&Operation| matches!(&operation.action, Action::Load(access) | Action::Store(access) if access.space == Space::Local);
            lowered.operations.iter().filter(local).count()
        };
        let before = count(&lowered);
        promote(&mut lowered);
        (before, count(&lowered))
    }

    const CALL: &str = "st.param.b64 [a], %rd1; st.param.b64 [a+8], %rd2; call (v), f, (a); ld.param.b32 %r1, [v];";

    #[test]
    fn parameters_passed_by_name_need_no_memory() {
        let function = "ld.param.b64 %rd1, [in]; ld.param.b64 %rd2, [in+8]; cvt.u32.u64 %r1, %rd1; st.param.b32 [out], %r1;";
        let (before, after) = accesses(function, CALL);
        assert!(before >= 10, "{before}");
        assert_eq!(after, 0);
        let vector = "ld.param.v2.b64 {%rd1, %rd2}, [in]; cvt.u32.u64 %r1, %rd1; st.param.b32 [out], %r1;";
        assert_eq!(accesses(vector, CALL).1, 0);
    }

    #[test]
    fn variables_whose_address_or_other_pieces_are_used_stay_in_memory() {
        // Passed in pieces of 8 bytes, but read in pieces of 4: the callee's copy stays (2 stores, 2 loads), the caller's is promoted.
        let function = "ld.param.b32 %r1, [in]; ld.param.b32 %r2, [in+4]; st.param.b32 [out], %r1;";
        assert_eq!(accesses(function, CALL).1, 4);
        // The address is used as a value, so every access of the variable stays (2 stores by the call, 2 loads).
        let function = "mov.u64 %rd1, in; ld.local.b32 %r1, [%rd1]; ld.param.b64 %rd2, [in]; st.param.b32 [out], %r1;";
        assert_eq!(accesses(function, CALL).1, 4);
        // The register is wider than the access, so the value is extended, not copied.
        let function = "ld.param.b32 %rd1, [in]; cvt.u32.u64 %r1, %rd1; st.param.b32 [out], %r1;";
        assert_eq!(accesses(function, CALL).1, 3);
    }
}
