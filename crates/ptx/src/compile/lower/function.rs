//! Bodies of device functions (PTX ISA §7.1): frames, locations of parameters and results, and `ret` (§9.7.12.6).

use super::call::Base;
use super::names::Place;
use super::{Lowering, Scope};
use crate::compile::calls::{Slot, frame_layout};
use crate::compile::ir::{Action, RegisterId, Width};
use crate::lanes::binary;
use crate::lanes::integer as int;
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind};
use sahasra_ptx_syntax::syntax::{Function, Statement};

/// State of the function whose body is being lowered.
pub(super) struct Context {
    /// Index in [`Lowered::functions`](crate::compile::ir::Lowered::functions); `None` for the kernel.
    pub(super) number: Option<usize>,
    /// Register that holds the start of the frame, if the function has one.
    pub(super) frame: Option<RegisterId>,
    pub(super) frame_bytes: u64,
    /// Elements of results declared as registers, with their slots in the frame.
    results: Vec<(RegisterId, Slot)>,
    /// Stack pointer at the start of a function that allocates on the stack but has no frame.
    stack: Option<RegisterId>,
}

impl Context {
    pub(super) fn kernel() -> Self {
        Self {
            number: None,
            frame: None,
            frame_bytes: 0,
            results: Vec::new(),
            stack: None,
        }
    }
}

/// Whether statements allocate on the stack. The recursion is bounded, because the parser limits how deep scopes nest.
pub(super) fn allocates(statements: &[Statement<'_>]) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Scope(inner) => allocates(inner),
        Statement::Instruction(instruction) => matches!(instruction.opcode, "alloca" | "stacksave" | "stackrestore"),
        _ => false,
    })
}

impl<'a> Lowering<'a> {
    /// Returns the register that holds the start of the next frame.
    pub(super) fn stack_pointer(&mut self) -> RegisterId {
        match self.result.stack_pointer {
            Some(register) => register,
            None => {
                let register = self.new_register(Width::W64);
                self.result.stack_pointer = Some(register);
                register
            }
        }
    }

    /// Lowers the device function at `index` in the module, which is `number` among the lowered functions.
    pub(super) fn device_function(&mut self, index: usize, number: usize) -> Result<(), LoadError> {
        let (function, text) = self.texts.functions[index];
        self.enter_text(text);
        let Some(body) = &function.body else { return Ok(()) };
        let (results, parameters, frame_bytes) = frame_layout(&function.results, &function.parameters);
        let fixed = self.fixed_frames.get(&index).copied();
        self.context = Context {
            number: Some(number),
            frame: None,
            frame_bytes,
            results: Vec::new(),
            stack: None,
        };
        self.carry = None;
        self.location = None;
        self.begin_statement(format!(".func {}", function.name), function.position);
        let label = self.result.functions[number].label;
        self.place_label(label);
        let base = match fixed {
            Some(offset) => {
                if allocates(body) {
                    let (pointer, saved) = (self.stack_pointer(), self.new_register(Width::W64));
                    self.emit(Action::Copy, vec![saved], vec![pointer]);
                    self.context.stack = Some(saved);
                }
                Base::Fixed(offset)
            }
            None => {
                let pointer = self.stack_pointer();
                let frame = self.new_register(Width::W64);
                self.context.frame = Some(frame);
                self.emit(Action::Copy, vec![frame], vec![pointer]);
                // This constant is set at the end, when the size of the frame is known.
                let size = self.new_register(Width::W64);
                self.frame_sizes.push((number, size));
                self.lane(binary::<int::Add<u64>>(), pointer, &[pointer, size]);
                Base::Register(frame)
            }
        };
        let mut scope = Scope::default();
        for (variables, slots) in [(&function.results, &results), (&function.parameters, &parameters)] {
            for (variable, slot) in variables.iter().zip(slots) {
                let place = match base {
                    Base::Fixed(offset) => {
                        self.result.parameters.push((offset + slot.offset, slot.bytes));
                        Place::Local(offset + slot.offset)
                    }
                    Base::Register(_) => Place::Frame(slot.offset),
                };
                if !variable.is_register {
                    scope.variables.insert(variable.name, place);
                    continue;
                }
                let Some(elements) = self.declare_parameter(variable, &mut scope) else {
                    return Err(self.refused(function, "a register parameter of this type"));
                };
                for (register, part) in elements.zip(slot.elements()) {
                    if std::ptr::eq(variables, &function.results) {
                        self.context.results.push((register, part));
                    } else {
                        self.load_value(base, part, register);
                    }
                }
            }
        }
        self.scopes.push(scope);
        self.scope(body)?;
        self.begin_statement("}".to_owned(), function.position);
        self.return_from_function();
        self.scopes.pop();
        self.result.functions[number].frame_bytes = if fixed.is_some() {
            0
        } else {
            self.context.frame_bytes.next_multiple_of(16).max(16)
        };
        self.context = Context::kernel();
        Ok(())
    }

    fn refused(&self, function: &Function<'_>, what: &str) -> LoadError {
        LoadError::new(
            function.position,
            format!(".func {}", function.name),
            LoadErrorKind::Unsupported(what.to_owned()),
        )
    }

    /// Emits `ret` of a device function, without a guard.
    fn return_from_function(&mut self) {
        let Some(number) = self.context.number else { return };
        let base = match self.context.frame {
            Some(frame) => Base::Register(frame),
            None => Base::Fixed(self.fixed_frames.get(&self.function_indices[number]).copied().unwrap_or(0)),
        };
        for (register, slot) in std::mem::take(&mut self.context.results) {
            self.store_value(base, slot, register);
            self.context.results.push((register, slot));
        }
        if let Some(start) = self.context.frame.or(self.context.stack) {
            let pointer = self.stack_pointer();
            self.emit(Action::Copy, vec![pointer], vec![start]);
        }
        self.emit(Action::Return(number), vec![], vec![]);
    }

    /// `ret`: ends the thread in a kernel, and returns to the caller in a function.
    pub(super) fn ret(&mut self) -> Result<(), LoadError> {
        if self.context.number.is_none() {
            self.emit(Action::Exit, vec![], vec![]);
            return Ok(());
        }
        self.skippable(Self::return_from_function);
        Ok(())
    }
}
