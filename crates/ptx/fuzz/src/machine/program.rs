//! What a module says: functions of flat instruction lists, decoded once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kind::Kind;
use crate::model::Model;

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Argument {
    Register(usize),
    Negated(usize),
    Integer(u64),
    /// Bits of an f32, and of an f64 written in full.
    Single(u64),
    Double(u64),
    Special(Special),
    /// A module-scope variable in global memory, and bytes behind its start.
    Symbol(usize, u64),
    /// A shared or local variable: its space and place in it.
    Variable(Space, u64),
    /// A `.param` variable of the function: offset and size.
    Parameter(u64, u64),
    Memory(Box<Argument>, u64),
    Vector(Vec<Argument>),
    Pair(Box<Argument>, Box<Argument>),
    List(Vec<Argument>),
    /// A label, function or list of labels, by name.
    Name(String),
    Nothing,
}

impl Argument {
    /// The elements of a vector; anything else alone.
    pub(super) fn elements(&self) -> &[Self] {
        match self {
            Self::Vector(elements) => elements,
            single => std::slice::from_ref(single),
        }
    }
}

/// A special register (PTX ISA §10); numbers are axes.
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

/// What an access names: its space, and the type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) space: Space,
    pub(super) kind: Kind,
}

impl Access {
    /// Bytes of an element.
    pub(super) fn size(self) -> usize {
        (self.kind.width() / 8) as usize
    }
}

/// What an atomic operation makes of the old value.
#[derive(Clone)]
pub(super) enum Update {
    Add,
    /// By the model of the addition.
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

/// How what several threads bring becomes one.
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

/// What threads make of predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
    Count,
}

/// What threads come together for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// `bar.sync`, or `bar.red` with what it asks.
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

/// What an instruction does.
#[derive(Clone)]
pub(super) enum Operation {
    /// A function of the operands.
    Compute(Arc<Model>),
    Move(Kind),
    Load(Access),
    Store(Access),
    /// Whether the old value is returned.
    Atomic(Access, Update, bool),
    /// Adds this to an address.
    Convert(u64),
    /// Whether an address lies in the space.
    IsSpace(Space),
    Jump(usize),
    JumpTable(Vec<usize>),
    Call,
    Return,
    Exit,
    Trap,
    Nothing,
    Meet(Meeting),
    /// None of these; an error only where it is executed.
    Unknown(String),
}

pub(super) struct Instruction {
    pub(super) guard: Option<(usize, bool)>,
    pub(super) operation: Operation,
    pub(super) arguments: Vec<Argument>,
    pub(super) line: usize,
}

/// A module-scope variable in global memory.
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Offset, variable, addend of addresses in it.
    pub(super) addresses: Vec<(usize, usize, u64)>,
    /// Offset and name of functions whose addresses are in it.
    pub(super) functions: Vec<(usize, String)>,
}

/// Offset and size in a frame's parameter space.
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

/// A module.
#[derive(Default)]
pub struct Program {
    pub(super) functions: Vec<Function>,
    pub(super) variables: Vec<Variable>,
    pub(super) shared: HashMap<String, u64>,
    pub(super) shared_bytes: usize,
}

impl Program {
    /// The function of this name.
    pub(super) fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }

    /// The address that a function has as a value.
    pub(super) fn address(function: usize) -> u64 {
        FUNCTIONS + function as u64 * 16
    }

    /// The function at an address.
    pub(super) fn at_address(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(FUNCTIONS).filter(|offset| offset.is_multiple_of(16))?;
        let index = usize::try_from(offset / 16).ok()?;
        (index < self.functions.len()).then_some(index)
    }
}

/// Functions have addresses from here on.
const FUNCTIONS: u64 = 7 << 60;
