//! `atom` and `red` (PTX ISA §9.7.13.6, §9.7.13.8).

use super::{At, Lowering};
use crate::compile::ir::{Access, Action, AtomicOperation, Width};
use crate::error::LoadError;
use crate::types::{ScalarType as T, Space};

impl<'a> Lowering<'a> {
    pub(super) fn atomic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let mut space = Space::Generic;
        let mut operation = None;
        let mut scalar = None;
        for word in at.modifiers() {
            match *word {
                "global" => space = Space::Global,
                "shared" | "shared::cta" => space = Space::Shared,
                // All orders and scopes are served by sequentially consistent host atomics.
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" | "noftz" => {}
                "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" | "exch" | "cas" if operation.is_none() => {
                    operation = Some(*word)
                }
                other => match T::from_name(other) {
                    Some(found) if scalar.is_none() => scalar = Some(found),
                    _ => return Err(at.form()),
                },
            }
        }
        let (Some(operation), Some(scalar)) = (operation, scalar) else {
            return Err(at.form());
        };
        let signed = scalar.is_signed();
        let integer = !scalar.is_float();
        let operation = match (operation, scalar) {
            ("add", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::AddInteger,
            ("add", T::F32 | T::F64) => AtomicOperation::AddFloat,
            ("min", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::Minimum { signed },
            ("max", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::Maximum { signed },
            ("inc", T::U32) => AtomicOperation::Increment,
            ("dec", T::U32) => AtomicOperation::Decrement,
            ("and", _) if integer => AtomicOperation::And,
            ("or", _) if integer => AtomicOperation::Or,
            ("xor", _) if integer => AtomicOperation::Xor,
            ("exch", _) if integer => AtomicOperation::Exchange,
            ("cas", _) if integer => AtomicOperation::CompareExchange,
            _ => return Err(at.form()),
        };
        let Some(width @ (Width::W32 | Width::W64)) = Width::of_bytes(scalar.bytes()) else {
            return Err(at.form());
        };
        let operands = at.all_operands();
        let returns = at.instruction.opcode == "atom";
        let expected = usize::from(returns) + 2 + usize::from(operation == AtomicOperation::CompareExchange);
        if operands.len() != expected {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        }
        let (targets, rest) = if returns {
            (vec![self.target(at, &operands[0], width)?], &operands[1..])
        } else {
            (vec![], operands)
        };
        let place = self.address(at, &rest[0])?;
        if let Some(named) = place.space.filter(|_| space == Space::Generic) {
            space = named;
        }
        let mut sources = vec![place.register];
        for operand in &rest[1..] {
            sources.push(self.source(at, operand, scalar)?);
        }
        let access = Access {
            space,
            element: scalar.bytes() as u8,
            count: 1,
            signed: false,
            offset: place.offset,
            ordered: true,
        };
        self.emit(Action::Atomic(access, operation), targets, sources);
        Ok(())
    }
}
