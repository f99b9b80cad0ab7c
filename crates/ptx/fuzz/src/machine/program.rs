//! Parsed module: functions as flat lists of instructions, which are decoded once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kind::Kind;
use crate::model::Model;

/// Operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    Register(usize),
    Negated(usize),
    Integer(u64),
    /// Bits of an f32; `Double` holds those of an f64, and of a decimal constant.
    Single(u64),
    Double(u64),
    Special(Special),
    /// Module-scope variable in global memory, and an offset from its start in bytes.
    Symbol(usize, u64),
    /// Shared or local variable: its space and its address in the space.
    Variable(Space, u64),
    /// `.param` variable of the function: offset and size in bytes.
    Parameter(u64, u64),
    Memory(Box<Argument>, u64),
    Vector(Vec<Argument>),
    Pair(Box<Argument>, Box<Argument>),
    List(Vec<Argument>),
    /// Name of a label, a function or a list of labels.
    Name(String),
    Nothing,
}

impl Argument {
    /// Returns the elements of a vector, or any other operand as a single element.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Self::Vector(elements) => elements,
            single => std::slice::from_ref(single),
        }
    }
}

/// Special register (PTX ISA §10). Those of an axis have its number: 0 for x, 1 for y, 2 for z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Thread(usize),
    BlockExtent(usize),
    Block(usize),
    GridExtent(usize),
    Lane,
    Warp,
    MaskEqual,
    MaskBelow,
    MaskUpTo,
    MaskAbove,
    MaskFrom,
}

impl Special {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let axis = |make: fn(usize) -> Self| match name.rsplit('.').next() {
            Some("x") => Some(make(0)),
            Some("y") => Some(make(1)),
            Some("z") => Some(make(2)),
            _ => None,
        };
        match name.split('.').next()? {
            "%tid" => axis(Self::Thread),
            "%ntid" => axis(Self::BlockExtent),
            "%ctaid" => axis(Self::Block),
            "%nctaid" => axis(Self::GridExtent),
            "%laneid" => Some(Self::Lane),
            "%warpid" => Some(Self::Warp),
            "%lanemask_eq" => Some(Self::MaskEqual),
            "%lanemask_lt" => Some(Self::MaskBelow),
            "%lanemask_le" => Some(Self::MaskUpTo),
            "%lanemask_gt" => Some(Self::MaskAbove),
            "%lanemask_ge" => Some(Self::MaskFrom),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
    Parameter,
    Generic,
}

impl Space {
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Some(match word.split("::").next().unwrap_or(word) {
            "global" | "const" => Self::Global,
            "shared" => Self::Shared,
            "local" => Self::Local,
            "param" => Self::Parameter,
            _ => return None,
        })
    }
}

/// State space and element type of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) space: Space,
    pub(super) kind: Kind,
}

impl Access {
    /// Size of an element in bytes.
    pub(super) fn size(self) -> usize {
        (self.kind.width() / 8) as usize
    }
}

/// Update of the old value by an atomic operation.
#[derive(Clone)]
pub(super) enum Update {
    Add,
    /// Addition of floats, computed by its model.
    AddFloat(Arc<Model>),
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Minimum,
    Maximum,
    Increment,
    Decrement,
}

/// Operation that combines the values of several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    Add,
    Minimum,
    Maximum,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Function of the predicates of several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
    Count,
}

/// Instruction at which threads meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// `bar.sync`, or `bar.red` with its function.
    Barrier(Option<Vote>),
    /// `bar.arrive`.
    Arrival,
    WarpBarrier,
    Shuffle(Shuffle),
    Vote(Vote),
    MatchAny(Kind),
    MatchAll(Kind),
    Reduce(Reduction, Kind),
}

/// Operation of an instruction.
#[derive(Clone)]
pub(super) enum Operation {
    /// Function of the operands.
    Compute(Arc<Model>),
    Move(Kind),
    Load(Access),
    Store(Access),
    /// Atomic operation, and whether it returns the old value.
    Atomic(Access, Update, bool),
    /// Adds a constant to an address.
    Convert(u64),
    /// Tests whether an address is in the space.
    IsSpace(Space),
    Jump(usize),
    JumpTable(Vec<usize>),
    Call,
    Return,
    Exit,
    Trap,
    Nothing,
    Meet(Meeting),
    /// Unknown instruction, which is an error only if it is executed.
    Unknown(String),
}

pub(super) struct Instruction {
    pub(super) guard: Option<(usize, bool)>,
    pub(super) operation: Operation,
    pub(super) arguments: Vec<Argument>,
    pub(super) line: usize,
}

/// Module-scope variable in global memory.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Addresses of variables in the initial value: offset, variable, addend.
    pub(super) addresses: Vec<(usize, usize, u64)>,
    /// Addresses of functions in the initial value: offset and name.
    pub(super) functions: Vec<(usize, String)>,
}

/// Offset and size of a parameter in the parameter space of a frame.
pub(super) type Slot = (u64, u64);

#[derive(Default)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) returns: Vec<Slot>,
    pub(super) parameters: Vec<Slot>,
    pub(super) parameter_bytes: u64,
    pub(super) local_bytes: u64,
    pub(super) widths: Vec<u32>,
    pub(super) code: Vec<Instruction>,
}

/// Parsed module.
#[derive(Default)]
pub struct Program {
    pub(super) functions: Vec<Function>,
    pub(super) variables: Vec<Variable>,
    pub(super) shared: HashMap<String, u64>,
    pub(super) shared_bytes: usize,
}

impl Program {
    /// Returns the index of the function of this name.
    pub(super) fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }

    /// Returns the address of a function as a value.
    pub(super) fn address(function: usize) -> u64 {
        FUNCTIONS + function as u64 * 16
    }

    /// Returns the index of the function at an address.
    pub(super) fn at_address(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(FUNCTIONS).filter(|offset| offset.is_multiple_of(16))?;
        let index = usize::try_from(offset / 16).ok()?;
        (index < self.functions.len()).then_some(index)
    }
}

/// Address of the first function.
const FUNCTIONS: u64 = 7 << 60;
