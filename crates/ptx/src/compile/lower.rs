//! Syntax to operations: names resolved, types and operand counts checked, each instruction family in its own file.

mod arithmetic;
mod atomic;
mod bits;
mod compare;
mod control;
mod convert;
mod convert_narrow;
mod data;
mod float;
mod names;
mod warp;

use std::collections::HashMap;

use super::ir::{Action, LabelId, Lowered, Operation, Origin, Register, RegisterId, Special, Statement, Width};
use crate::error::{LoadError, LoadErrorKind};
use crate::lanes::LaneFunction;
use crate::parser::collapse;
use crate::syntax::{self, Function, Instruction, Operand, Source};
use crate::types::ScalarType;

/// Local memory of a thread (CUDA's limit on every device).
const LOCAL_LIMIT: u64 = 512 << 10;
/// No single shared or local variable is larger, so that sums of sizes cannot overflow.
const SPACE_LIMIT: u64 = 1 << 31;

pub(crate) struct Lowering<'a> {
    source: &'a Source<'a>,
    /// Module-scope variables by name.
    symbols: &'a HashMap<&'a str, u32>,
    parameters: HashMap<&'a str, (u32, u32)>,
    scopes: Vec<Scope<'a>>,
    fixed: HashMap<(Width, Origin), RegisterId>,
    module_shared: HashMap<&'a str, u64>,
    label_positions: Vec<Option<usize>>,
    location: Option<(u64, u32)>,
    statement: u32,
    guard: Option<(RegisterId, bool)>,
    /// `CC.CF` of the function, once an instruction used it.
    carry: Option<RegisterId>,
    result: Lowered,
}

/// Names declared between two braces.
#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<&'a str, RegisterId>,
    /// `.reg .b32 %r<8>`: prefix, count, width; made when used.
    families: Vec<(&'a str, u64, ScalarType)>,
    variables: HashMap<&'a str, names::Place>,
    labels: HashMap<&'a str, LabelId>,
}

/// The statement being lowered: gives its errors their place.
#[derive(Clone, Copy)]
pub(crate) struct At<'a, 'b> {
    instruction: &'b Instruction<'a>,
}

impl<'a> At<'a, '_> {
    fn error(&self, kind: LoadErrorKind) -> LoadError {
        LoadError::new(self.instruction.position, collapse(self.instruction.text), kind)
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> LoadError {
        self.error(LoadErrorKind::Unsupported(what.into()))
    }

    pub(crate) fn invalid(&self, what: impl Into<String>) -> LoadError {
        self.error(LoadErrorKind::Invalid(what.into()))
    }

    pub(crate) fn undeclared(&self, name: &str) -> LoadError {
        self.error(LoadErrorKind::Undeclared(name.to_owned()))
    }

    /// The form as written is not one this engine runs.
    pub(crate) fn form(&self) -> LoadError {
        let mut form = self.instruction.opcode.to_owned();
        for modifier in &self.instruction.modifiers {
            form.push('.');
            form.push_str(modifier);
        }
        self.unsupported(format!("instruction form {form}"))
    }

    pub(crate) fn modifiers(&self) -> &[&'a str] {
        &self.instruction.modifiers
    }

    /// The operands, exactly `N` of them.
    pub(crate) fn operands<const N: usize>(&self) -> Result<&[Operand<'a>; N], LoadError> {
        self.instruction
            .operands
            .as_slice()
            .try_into()
            .map_err(|_| self.invalid(format!("expected {N} operands, found {}", self.instruction.operands.len())))
    }

    pub(crate) fn all_operands(&self) -> &[Operand<'a>] {
        &self.instruction.operands
    }

    /// Takes `.rn`-like words out of the modifiers: the words there that are in `known`, and the rest.
    pub(crate) fn split(&self, known: &[&str]) -> (Vec<&'a str>, Vec<&'a str>) {
        self.instruction.modifiers.iter().partition(|word| known.contains(word))
    }

    /// The only type among `rest`.
    pub(crate) fn one_type(&self, rest: &[&str]) -> Result<ScalarType, LoadError> {
        match rest {
            [name] => ScalarType::from_name(name).ok_or_else(|| self.form()),
            _ => Err(self.form()),
        }
    }
}

/// Lowers one kernel.
pub(crate) fn lower<'a>(
    source: &'a Source<'a>,
    symbols: &'a HashMap<&'a str, u32>,
    function: &'a Function<'a>,
    body: &'a [syntax::Statement<'a>],
    parameters: HashMap<&'a str, (u32, u32)>,
) -> Result<Lowered, LoadError> {
    let mut lowering = Lowering {
        source,
        symbols,
        parameters,
        scopes: Vec::new(),
        fixed: HashMap::new(),
        module_shared: HashMap::new(),
        label_positions: Vec::new(),
        location: None,
        statement: 0,
        guard: None,
        carry: None,
        result: Lowered {
            shared_alignment: 16,
            ..Lowered::default()
        },
    };
    lowering.scope(body)?;
    // Falling off the end returns (PTX ISA §9.7.12.1 asks for `ret`, compilers leave it out behind `trap`).
    lowering.result.statements.push(Statement {
        text: "}".to_owned(),
        line: function.position.line,
        source: None,
    });
    lowering.statement = lowering.result.statements.len() as u32 - 1;
    lowering.guard = None;
    lowering.emit(Action::Exit, vec![], vec![]);
    let end = lowering.result.operations.len() - 1;
    lowering.result.labels = lowering.label_positions.iter().map(|position| position.unwrap_or(end)).collect();
    let refuse = |what: &str| {
        let reason = LoadErrorKind::Unsupported(what.to_owned());
        Err(LoadError::new(function.position, format!(".entry {}", function.name), reason))
    };
    if lowering.result.static_shared_bytes > crate::execute::SHARED_LIMIT {
        return refuse("more than 227 KiB of shared memory");
    }
    if lowering.result.local_bytes > LOCAL_LIMIT {
        return refuse("more than 512 KiB of local memory a thread");
    }
    Ok(lowering.result)
}

impl<'a> Lowering<'a> {
    fn scope(&mut self, statements: &'a [syntax::Statement<'a>]) -> Result<(), LoadError> {
        let mut scope = Scope::default();
        for statement in statements {
            if let syntax::Statement::Label { name, position } = statement {
                let id = self.new_label();
                if scope.labels.insert(name, id).is_some() {
                    return Err(LoadError::new(
                        *position,
                        *name,
                        LoadErrorKind::Invalid("label is declared twice".into()),
                    ));
                }
            }
        }
        self.scopes.push(scope);
        for statement in statements {
            match statement {
                syntax::Statement::Label { name, .. } => {
                    let id = self.scopes.last().and_then(|scope| scope.labels.get(name)).copied();
                    if let Some(id) = id {
                        self.place_label(id);
                    }
                }
                syntax::Statement::Registers(registers) => self.declare_registers(registers),
                syntax::Statement::Variable(variable) => self.declare_variable(variable)?,
                syntax::Statement::Location { file, line } => {
                    self.location = u32::try_from(*line).ok().filter(|line| *line > 0).map(|line| (*file, line));
                }
                syntax::Statement::Scope(inner) => self.scope(inner)?,
                syntax::Statement::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        self.scopes.pop();
        Ok(())
    }

    pub(crate) fn new_label(&mut self) -> LabelId {
        self.label_positions.push(None);
        self.label_positions.len() as LabelId - 1
    }

    pub(crate) fn place_label(&mut self, label: LabelId) {
        self.label_positions[label as usize] = Some(self.result.operations.len());
    }

    fn instruction(&mut self, instruction: &'a Instruction<'a>) -> Result<(), LoadError> {
        let at = At { instruction };
        self.statement = self.result.statements.len() as u32;
        self.result.statements.push(Statement {
            text: collapse(instruction.text),
            line: instruction.position.line,
            source: self.location,
        });
        self.guard = match instruction.guard {
            Some(guard) => Some((self.typed_register(at, guard.register, Width::Predicate)?, guard.negated)),
            None => None,
        };
        match instruction.opcode {
            "addc" | "subc" | "madc" | "add" | "sub" | "mul" | "mad" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad" | "mul24"
            | "mad24" | "fma" => self.arithmetic(at),
            "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "ex2" | "lg2" | "tanh" | "copysign" | "testp" => self.float_function(at),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "popc" | "clz" | "brev" | "bfe" | "bfi" | "bfind" | "prmt"
            | "lop3" | "bmsk" | "szext" | "fns" => self.bits(at),
            "dp4a" | "dp2a" => self.dot_product(at),
            "setp" | "set" | "selp" | "slct" => self.comparison(at),
            "cvt" => self.conversion(at),
            "mov" => self.mov(at),
            "cvta" => self.cvta(at),
            "ld" | "ldu" => self.load(at),
            "st" => self.store(at),
            "prefetch" | "prefetchu" | "discard" | "applypriority" => Ok(()),
            "atom" | "red" => self.atomic(at),
            "membar" | "fence" => self.fence(at),
            "bra" | "ret" | "exit" | "trap" | "brkpt" | "call" | "nanosleep" | "pmevent" => self.control(at),
            "bar" | "barrier" => self.barrier(at),
            "shfl" | "vote" | "match" | "redux" | "activemask" => self.warp(at),
            _ => Err(at.form()),
        }
    }

    pub(crate) fn emit(&mut self, action: Action, targets: Vec<RegisterId>, sources: Vec<RegisterId>) {
        let operation = Operation {
            action,
            guard: self.guard,
            targets,
            sources,
            statement: self.statement,
        };
        self.result.operations.push(operation);
    }

    /// `target = function(sources…)`.
    pub(crate) fn lane(&mut self, function: LaneFunction, target: RegisterId, sources: &[RegisterId]) {
        self.emit(Action::Lane(function), vec![target], sources.to_vec());
    }

    /// Emits under no guard what must not be predicated, skipped by a branch where the guard fails.
    pub(crate) fn emit_skippable(&mut self, action: Action, targets: Vec<RegisterId>, sources: Vec<RegisterId>) {
        match self.guard.take() {
            None => self.emit(action, targets, sources),
            Some((register, negated)) => {
                let behind = self.new_label();
                self.guard = Some((register, !negated));
                self.emit(Action::Branch(behind), vec![], vec![]);
                self.guard = None;
                self.emit(action, targets, sources);
                self.place_label(behind);
            }
        }
    }

    pub(crate) fn new_register(&mut self, width: Width) -> RegisterId {
        self.result.registers.push(Register {
            width,
            origin: Origin::Code,
        });
        self.result.registers.len() as RegisterId - 1
    }

    /// The register that holds a value fixed outside the code.
    pub(crate) fn fixed(&mut self, width: Width, origin: Origin) -> RegisterId {
        if let Some(found) = self.fixed.get(&(width, origin)) {
            return *found;
        }
        self.result.registers.push(Register { width, origin });
        let id = self.result.registers.len() as RegisterId - 1;
        self.fixed.insert((width, origin), id);
        id
    }

    pub(crate) fn constant(&mut self, width: Width, bits: u64) -> RegisterId {
        let kept = match width {
            Width::Predicate => 0u64.wrapping_sub(bits & 1),
            Width::W16 => bits & 0xffff,
            Width::W32 => bits & 0xffff_ffff,
            Width::W64 => bits,
        };
        self.fixed(width, Origin::Constant(kept))
    }

    pub(crate) fn zero(&mut self, width: Width) -> RegisterId {
        self.fixed(width, Origin::Special(Special::Zero))
    }

    pub(crate) fn width(&self, register: RegisterId) -> Width {
        self.result.registers[register as usize].width
    }
}
