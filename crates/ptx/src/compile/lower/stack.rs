//! `alloca`, `stacksave` and `stackrestore` (PTX ISA §9.7.17), on the stack from which functions take their frames.

use super::{At, Lowering};
use crate::compile::ir::{Action, SystemCall, Width};
use crate::lanes::convert::Resize;
use crate::lanes::unary;
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::{Constant, Operand};
use sahasra_ptx_syntax::types::ScalarType as T;

/// Alignment of an allocation that names none, in bytes. Frames need it too.
const ALIGNMENT: u64 = 16;
/// Largest alignment of an allocation, in bytes.
const ALIGNMENT_LIMIT: u64 = 1 << 23;

impl<'a> Lowering<'a> {
    pub(super) fn stack(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let scalar = at.one_type(at.modifiers())?;
        let narrow = scalar == T::U32;
        let width = if narrow { Width::W32 } else { Width::W64 };
        let pointer = self.stack_pointer();
        if at.instruction.opcode == "stackrestore" {
            let [source] = at.operands()?;
            let source = self.source(at, source, scalar)?;
            if narrow {
                self.lane(unary::<Resize<u32, u64>>(), pointer, &[source]);
            } else {
                self.emit(Action::Copy, vec![pointer], vec![source]);
            }
            return Ok(());
        }
        let operands = at.all_operands();
        let (target, size, alignment) = match (at.instruction.opcode, operands) {
            ("stacksave", [target]) => (target, None, ALIGNMENT),
            ("alloca", [target, size]) => (target, Some(size), ALIGNMENT),
            ("alloca", [target, size, Operand::Constant(Constant::Integer(alignment))]) => (target, Some(size), *alignment),
            _ => return Err(at.invalid("wrong operands")),
        };
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_LIMIT {
            return Err(at.invalid("the alignment is not a power of two up to 2^23"));
        }
        let target = self.target(at, target, width)?;
        let address = match size {
            Some(size) => {
                let size = self.source(at, size, scalar)?;
                let guard = self.guard.take();
                let mut wide = size;
                if narrow {
                    wide = self.new_register(Width::W64);
                    self.lane(unary::<Resize<u32, u64>>(), wide, &[size]);
                }
                self.guard = guard;
                let address = self.new_register(Width::W64);
                let call = SystemCall::AllocateStack {
                    alignment: alignment.max(ALIGNMENT),
                };
                self.emit(Action::System(call), vec![address, pointer], vec![wide, pointer]);
                address
            }
            None => pointer,
        };
        if narrow {
            self.lane(unary::<Resize<u64, u32>>(), target, &[address]);
        } else {
            self.emit(Action::Copy, vec![target], vec![address]);
        }
        Ok(())
    }
}
