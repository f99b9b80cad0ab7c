//! Lowering of syntax to operations: resolves names, and checks types and operand counts. Each instruction family has its own file.

mod arithmetic;
mod asynchronous;
mod at;
mod atomic;
mod bits;
mod bulk;
mod call;
mod cluster;
mod compare;
mod control;
mod convert;
mod convert_narrow;
mod data;
mod float;
mod float_pairs;
mod function;
mod matrix;
mod names;
mod registers;
mod special;
mod stack;
mod texture;
mod transaction;
mod video;
mod video_scalar;
mod warp;

use hashbrown::HashMap;
use std::borrow::Cow;

use at::At;

use super::calls::{CallGraph, frame_layout, function_address};
use super::ir::{Action, FunctionBody, LabelId, Lowered, Operation, Origin, Register, RegisterId, Special, Statement, Width};
use super::texts::Texts;
use crate::lanes::{LaneFunction, logic, select};
use sahasra_ptx_syntax::error::{LoadError, LoadErrorKind, Position};
use sahasra_ptx_syntax::instructions::{self, Dialect};
use sahasra_ptx_syntax::parser::collapse;
use sahasra_ptx_syntax::syntax::{self, Instruction, Operand, Variable};

/// Maximum local memory of a thread in bytes (CUDA's limit on every device).
const LOCAL_LIMIT: u64 = 512 << 10;
/// Maximum size of one shared or local variable in bytes, so that sums of sizes cannot overflow.
const SPACE_LIMIT: u64 = 1 << 31;

pub(crate) struct Lowering<'a> {
    texts: &'a Texts<'a>,
    /// Index of the text of the function that is being lowered, and its dialect.
    text: usize,
    dialect: Dialect,
    parameters: HashMap<&'a str, (u32, u32)>,
    scopes: Vec<Scope<'a>>,
    fixed: HashMap<(Width, Origin), RegisterId>,
    /// Module-scope `.shared` and `.local` variables that have an address: by index, with their start.
    module_places: HashMap<usize, u64>,
    /// Module-scope registers that a function has named, by text. All functions share them.
    module_registers: HashMap<(usize, &'a str), registers::Elements>,
    /// Whether there are vector registers in scope, or were.
    has_vectors: bool,
    label_positions: Vec<Option<usize>>,
    location: Option<(u64, u32)>,
    statement: u32,
    guard: Option<(RegisterId, bool)>,
    /// Register of the condition code `CC.CF` in this function, once an instruction has used it.
    carry: Option<RegisterId>,
    pub(super) graph: &'a CallGraph,
    /// The function whose body is being lowered.
    context: function::Context,
    /// Indices of the module's functions, in the order of [`Lowered::functions`].
    function_indices: Vec<usize>,
    /// Start in local memory of the frames that have a fixed address, by function.
    fixed_frames: HashMap<usize, u64>,
    /// Registers that hold the size of a function's frame. Their values are set once the frames are complete.
    frame_sizes: Vec<(usize, RegisterId)>,
    /// Whether the kernel is launched with clusters.
    has_cluster: bool,
    /// Sum of the bytes that calls copy to and from frames.
    copied_bytes: u64,
    result: Lowered,
}

/// Names declared in one scope, between two braces.
#[derive(Default)]
struct Scope<'a> {
    registers: HashMap<&'a str, RegisterId>,
    /// Families such as `.reg .b32 %r<8>` by prefix. Their registers are created on first use.
    families: HashMap<&'a str, registers::Family>,
    /// Elements of vector registers, once an instruction has named them.
    vectors: HashMap<&'a str, registers::Elements>,
    variables: HashMap<&'a str, names::Place>,
    labels: HashMap<&'a str, LabelId>,
    /// Sizes in bytes of the elements of `variables`.
    element_bytes: HashMap<&'a str, u64>,
    /// Sizes in bytes of the `.param` variables among `variables`.
    parameter_bytes: HashMap<&'a str, u64>,
    branch_targets: HashMap<&'a str, Vec<&'a str>>,
    prototypes: HashMap<&'a str, (&'a [Variable<'a>], &'a [Variable<'a>])>,
    call_targets: HashMap<&'a str, &'a [&'a str]>,
}

/// Whether the operand is this register or contains it.
fn names(operand: &Operand<'_>, register: &str) -> bool {
    match operand {
        Operand::Name(name, _) => *name == register,
        Operand::Pair(first, second) => names(first, register) || names(second, register),
        Operand::Vector(parts) => parts.iter().any(|part| names(part, register)),
        _ => false,
    }
}

/// Lowers the kernel at `index` and the device functions that it may call.
///
/// # Errors
/// The first error, and the index of its text.
pub(crate) fn lower<'a>(
    texts: &'a Texts<'a>,
    graph: &'a CallGraph,
    index: usize,
    parameters: HashMap<&'a str, (u32, u32)>,
) -> Result<Lowered, (usize, LoadError)> {
    let mut lowering = Lowering {
        texts,
        text: 0,
        dialect: texts.dialect(0),
        parameters,
        scopes: Vec::new(),
        fixed: HashMap::new(),
        module_places: HashMap::new(),
        module_registers: HashMap::new(),
        has_vectors: texts.has_vectors,
        label_positions: Vec::new(),
        location: None,
        statement: 0,
        guard: None,
        carry: None,
        graph,
        context: function::Context::kernel(),
        function_indices: graph.reachable(index),
        fixed_frames: HashMap::new(),
        frame_sizes: Vec::new(),
        has_cluster: texts.functions[index].0.has_cluster,
        copied_bytes: 0,
        result: Lowered {
            shared_alignment: 16,
            ..Lowered::default()
        },
    };
    match lowering.kernel(index) {
        Ok(()) => Ok(lowering.result),
        Err(error) => Err((lowering.text, error)),
    }
}

/// Index of a file among the files of all texts.
pub(crate) fn file_key(text: usize, file: u64) -> u64 {
    (text as u64) << 48 | file & ((1 << 48) - 1)
}

impl<'a> Lowering<'a> {
    fn kernel(&mut self, index: usize) -> Result<(), LoadError> {
        let lowering = self;
        let (function, text) = lowering.texts.functions[index];
        lowering.functions()?;
        lowering.enter_text(text);
        let entry = lowering.new_label();
        lowering.place_label(entry);
        lowering.result.entry = entry;
        let body = function.body.as_deref().unwrap_or_default();
        if function::allocates(body) {
            lowering.stack_pointer();
        }
        lowering.begin_statement(format!(".entry {}", function.name), function.position);
        // The base of the stack is known once all fixed addresses are assigned.
        let stack_base = lowering.result.stack_pointer.map(|pointer| {
            let base = lowering.new_register(Width::W64);
            lowering.emit(Action::Copy, vec![pointer], vec![base]);
            base
        });
        lowering.scope(body)?;
        // The end of the body acts as `ret` (PTX ISA §9.7.12.1 requires one, but compilers omit it after `trap`).
        lowering.begin_statement("}".to_owned(), function.position);
        lowering.emit(Action::Exit, vec![], vec![]);
        let end = lowering.result.operations.len() - 1;
        lowering.result.labels = lowering.label_positions.iter().map(|position| position.unwrap_or(end)).collect();
        lowering.result.local_bytes = lowering.result.local_bytes.next_multiple_of(32);
        if let Some(base) = stack_base {
            lowering.result.registers[base as usize].origin = Origin::Constant(lowering.result.local_bytes);
        }
        for (number, size) in std::mem::take(&mut lowering.frame_sizes) {
            let bytes = lowering.result.functions[number].frame_bytes;
            lowering.result.registers[size as usize].origin = Origin::Constant(bytes);
        }
        let kernel = lowering.result.functions.len() as u32;
        lowering.result.owners.resize(lowering.result.registers.len(), kernel);
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
        Ok(())
    }

    /// Begins with a function of a text.
    fn enter_text(&mut self, text: usize) {
        if self.text != text {
            self.text = text;
            self.dialect = self.texts.dialect(text);
        }
    }

    /// Lowers every device function that the kernel may call.
    fn functions(&mut self) -> Result<(), LoadError> {
        for index in self.function_indices.clone() {
            let label = self.new_label();
            self.result.functions.push(FunctionBody {
                address: function_address(index),
                label,
                address_taken: self.graph.address_taken[index],
                recursive: self.graph.recursive[index],
                frame_bytes: 0,
            });
            if !self.graph.has_frame(index) {
                let (function, _) = self.texts.functions[index];
                let (_, _, bytes) = frame_layout(&function.results, &function.parameters);
                let start = self.result.local_bytes.next_multiple_of(16);
                self.fixed_frames.insert(index, start);
                self.result.local_bytes = start + bytes;
            }
        }
        for (number, index) in self.function_indices.clone().into_iter().enumerate() {
            self.device_function(index, number)?;
            self.result.owners.resize(self.result.registers.len(), number as u32);
        }
        Ok(())
    }

    /// Begins a statement that is not an instruction of the text.
    fn begin_statement(&mut self, text: String, position: Position) {
        self.guard = None;
        self.statement = self.result.statements.len() as u32;
        self.result.statements.push(Statement {
            text,
            line: position.line,
            source: None,
        });
    }

    pub(crate) fn label(&self, name: &str) -> Option<LabelId> {
        self.scopes.iter().rev().find_map(|scope| scope.labels.get(name)).copied()
    }

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
            match statement {
                syntax::Statement::BranchTargets { name, labels } => {
                    scope.branch_targets.insert(name, labels.clone());
                }
                syntax::Statement::Prototype { name, results, parameters } => {
                    scope.prototypes.insert(name, (results, parameters));
                }
                syntax::Statement::CallTargets { name, functions } => {
                    scope.call_targets.insert(name, functions);
                }
                _ => {}
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
                syntax::Statement::Static { name, index } => {
                    let place = names::Place::Static(self.texts.static_variable(self.text, *index));
                    if let Some(scope) = self.scopes.last_mut() {
                        scope.variables.insert(name, place);
                        let (variable, _) = self.texts.variables[self.texts.static_variable(self.text, *index)];
                        scope.element_bytes.insert(name, variable.scalar.bytes() as u64);
                    }
                }
                syntax::Statement::Location { file, line } => {
                    let file = file_key(self.text, *file);
                    self.location = u32::try_from(*line).ok().filter(|line| *line > 0).map(|line| (file, line));
                }
                syntax::Statement::Scope(inner) => self.scope(inner)?,
                syntax::Statement::Instruction(instruction) => self.instruction(instruction)?,
                syntax::Statement::BranchTargets { .. } | syntax::Statement::Prototype { .. } | syntax::Statement::CallTargets { .. } => {}
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
        let form = instructions::canonical(instruction.opcode, &instruction.modifiers, self.dialect);
        let elements = self.expand_vectors(instruction);
        let changed = match &form {
            Ok(Cow::Owned(form)) => Some(Instruction {
                modifiers: form.clone(),
                ..elements.unwrap_or_else(|| instruction.clone())
            }),
            _ => elements,
        };
        let at = At {
            instruction: changed.as_ref().unwrap_or(instruction),
        };
        self.statement = self.result.statements.len() as u32;
        self.result.statements.push(Statement {
            text: collapse(instruction.text),
            line: instruction.position.line,
            source: self.location,
        });
        self.guard = None;
        self.guard = match instruction.guard {
            Some(guard) => {
                let mut register = self.typed_register(at, guard.register, Width::Predicate)?;
                if instruction.operands.first().is_some_and(|target| names(target, guard.register)) {
                    // The instruction writes its own guard, possibly before the last of several results, so it is guarded by a copy.
                    let copy = self.new_register(Width::Predicate);
                    self.lane(logic::<select::PredicateCopy>(), copy, &[register]);
                    register = copy;
                }
                Some((register, guard.negated))
            }
            None => None,
        };
        if let Err(reason) = form {
            return Err(at.unsupported(reason));
        }
        match instruction.opcode {
            // Dependent grids never run at the same time in this engine, so there is nothing to wait for.
            "griddepcontrol" => Ok(()),
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
            "st" | "red" if at.modifiers().contains(&"async") => self.access_async(at),
            "st" if at.modifiers().first() == Some(&"bulk") => self.store_bulk(at),
            "st" => self.store(at),
            "mapa" => self.map_address(at),
            "getctarank" => self.block_rank(at),
            "clusterlaunchcontrol" => self.launch_control(at),
            "prefetch" | "prefetchu" | "discard" | "applypriority" => Ok(()),
            "atom" | "red" => self.atomic(at),
            "membar" | "fence" => self.fence(at),
            "call" => self.call(at),
            "ret" => self.ret(),
            "brx" => self.branch_indexed(at),
            "bra" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent" => self.control(at),
            "barrier" if at.modifiers().first() == Some(&"cluster") => self.cluster_barrier(at),
            "bar" | "barrier" => self.barrier(at),
            "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => self.matrix(at),
            "alloca" | "stacksave" | "stackrestore" => self.stack(at),
            "cp" if at.modifiers().contains(&"bulk") => self.bulk(at),
            "cp" => self.copy_async(at),
            "mbarrier" => self.transaction_barrier(at),
            "tex" | "txq" | "suq" | "suld" | "sust" => self.texture(at),
            "isspacep" => self.is_space(at),
            "createpolicy" => self.create_policy(at),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.warp(at),
            "vadd2" | "vsub2" | "vavrg2" | "vabsdiff2" | "vmin2" | "vmax2" | "vset2" | "vadd4" | "vsub4" | "vavrg4" | "vabsdiff4"
            | "vmin4" | "vmax4" | "vset4" => self.video(at),
            "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vshl" | "vshr" | "vset" | "vmad" => self.scalar_video(at),
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

    /// Emits the operations of `body` without a guard, after a branch that skips them if the guard does not hold.
    pub(crate) fn skippable<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let Some((register, negated)) = self.guard.take() else {
            return body(self);
        };
        let behind = self.new_label();
        self.guard = Some((register, !negated));
        self.emit(Action::Branch(behind), vec![], vec![]);
        self.guard = None;
        let done = body(self);
        self.place_label(behind);
        done
    }

    /// Emits an operation that cannot be predicated.
    pub(crate) fn emit_skippable(&mut self, action: Action, targets: Vec<RegisterId>, sources: Vec<RegisterId>) {
        self.skippable(|lowering| lowering.emit(action, targets, sources));
    }

    pub(crate) fn new_register(&mut self, width: Width) -> RegisterId {
        self.result.registers.push(Register {
            width,
            origin: Origin::Code,
        });
        self.result.registers.len() as RegisterId - 1
    }

    /// Returns the register of a value that is defined outside the code.
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
