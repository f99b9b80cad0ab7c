//! `atom` and `red` (PTX ISA §9.7.13.6, §9.7.13.8).

use super::{At, Lowering};
use crate::compile::ir::{Access, Action, AtomicOperation, Width};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

/// Modifiers of an instruction.
struct Modifiers<'a> {
    space: Space,
    operation: &'a str,
    scalar: T,
    /// Number of elements of a vector; 1 without one.
    count: usize,
}

impl<'a> Modifiers<'a> {
    fn of(at: At<'a, '_>) -> Result<Self, LoadError> {
        let mut space = Space::Generic;
        let mut operation = None;
        let mut scalar = None;
        let mut count = 1;
        for word in at.modifiers() {
            match *word {
                "global" => space = Space::Global,
                "shared" | "shared::cta" => space = Space::Shared,
                // Sequentially consistent host atomics implement all orders and scopes.
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" | "noftz" => {}
                hint if hint.starts_with("L2::") => {}
                "v2" => count = 2,
                "v4" => count = 4,
                "v8" => count = 8,
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
        Ok(Self {
            space,
            operation,
            scalar,
            count,
        })
    }
}

/// Returns the operation of this name on values of this type.
pub(super) fn operation(name: &str, scalar: T) -> Option<AtomicOperation> {
    let signed = scalar.is_signed();
    let integer = !scalar.is_float();
    let brain = matches!(scalar, T::Bf16 | T::Bf16x2);
    Some(match (name, scalar) {
        ("add", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::AddInteger,
        ("add", T::F32 | T::F64) => AtomicOperation::AddFloat,
        ("add", T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2) => AtomicOperation::AddHalf { brain },
        ("min", T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2) => AtomicOperation::MinimumHalf { brain },
        ("max", T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2) => AtomicOperation::MaximumHalf { brain },
        ("min", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::Minimum { signed },
        ("max", T::U32 | T::S32 | T::U64 | T::S64) => AtomicOperation::Maximum { signed },
        ("inc", T::U32) => AtomicOperation::Increment,
        ("dec", T::U32) => AtomicOperation::Decrement,
        ("and", _) if integer => AtomicOperation::And,
        ("or", _) if integer => AtomicOperation::Or,
        ("xor", _) if integer => AtomicOperation::Xor,
        ("exch", _) if integer => AtomicOperation::Exchange,
        ("cas", _) if integer => AtomicOperation::CompareExchange,
        _ => return None,
    })
}

impl<'a> Lowering<'a> {
    pub(super) fn atomic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let Modifiers {
            mut space,
            operation,
            scalar,
            count,
        } = Modifiers::of(at)?;
        let operation = self::operation(operation, scalar).ok_or_else(|| at.form())?;
        let width = match Width::of_bytes(scalar.bytes()) {
            Some(width @ (Width::W32 | Width::W64)) => width,
            // 16-bit atomics are `cas.b16` and additions of a single half (§9.7.13.6).
            Some(Width::W16) if scalar.bytes() == 2 => match operation {
                AtomicOperation::CompareExchange
                | AtomicOperation::AddHalf { .. }
                | AtomicOperation::MinimumHalf { .. }
                | AtomicOperation::MaximumHalf { .. } => Width::W16,
                _ => return Err(at.form()),
            },
            _ => return Err(at.form()),
        };
        let hinted = at.modifiers().contains(&"L2::cache_hint");
        let operands = at.all_operands();
        let operands = &operands[..operands.len().saturating_sub(usize::from(hinted))];
        let returns = at.instruction.opcode == "atom";
        let expected = usize::from(returns) + 2 + usize::from(operation == AtomicOperation::CompareExchange);
        if operands.len() != expected {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        }
        let (target, rest) = if returns {
            (Some(&operands[0]), &operands[1..])
        } else {
            (None, operands)
        };
        let place = self.address(at, &rest[0])?;
        if let Some(named) = place.space.filter(|_| space == Space::Generic) {
            space = named;
        }
        // A vector consists of `count` independent atomics.
        if count > 1 && operation == AtomicOperation::CompareExchange {
            return Err(at.form());
        }
        let mut elements = Vec::new();
        for index in 0..count {
            let part = |operand: &Operand<'a>| match operand {
                Operand::Vector(parts) if count > 1 && parts.len() == count => Ok(parts[index].clone()),
                single if count == 1 => Ok(single.clone()),
                _ => Err(at.invalid("the vector does not have the instruction's width")),
            };
            let mut sources = vec![place.register];
            for operand in &rest[1..] {
                sources.push(self.source(at, &part(operand)?, scalar)?);
            }
            let targets = match target {
                Some(target) => vec![self.target(at, &part(target)?, width)?],
                None => vec![],
            };
            elements.push((targets, sources));
        }
        for (index, (targets, sources)) in elements.into_iter().enumerate() {
            let access = Access {
                space,
                element: scalar.bytes() as u8,
                count: 1,
                signed: false,
                offset: place.offset.wrapping_add((index * scalar.bytes()) as i64),
                ordered: true,
            };
            self.emit(Action::Atomic(access, operation), targets, sources);
        }
        Ok(())
    }
}
