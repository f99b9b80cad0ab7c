//! Syntax that the parser produces: directives and statements with unresolved names.

use crate::error::Position;
use crate::types::{ScalarType, Space};

/// A parsed module.
#[derive(Debug, Default)]
pub struct Source<'a> {
    pub version: (u32, u32),
    pub target: &'a str,
    pub address_size: u32,
    pub functions: Vec<Function<'a>>,
    pub variables: Vec<Variable<'a>>,
    /// `.global` and `.const` variables declared in functions, which [`Statement::Static`] names.
    pub statics: Vec<Variable<'a>>,
    /// Module-scope `.reg` declarations. Each thread has one such register for all functions.
    pub registers: Vec<Registers<'a>>,
    /// `.alias`: a name for a function, and the function.
    pub aliases: Vec<(&'a str, &'a str)>,
    pub files: Vec<(u64, &'a str)>,
}

/// Linking directive of a function or variable (PTX ISA §11.6). Names without a directive are private to their text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    #[default]
    Private,
    Visible,
    External,
    Weak,
    Common,
}

/// `.entry` or `.func` (PTX ISA §5.4 kernel and function directives). A body of `None` is a declaration.
#[derive(Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub position: Position,
    pub is_entry: bool,
    pub linkage: Linkage,
    /// Results, as in `.func (…) name`.
    pub results: Vec<Variable<'a>>,
    pub parameters: Vec<Variable<'a>>,
    pub body: Option<Vec<Statement<'a>>>,
    /// `.maxntid`, or `.reqntid` with `required` set.
    pub thread_limit: Option<ThreadLimit>,
    /// Whether the kernel is launched with clusters: `.explicitcluster`, `.reqnctapercluster` or `.blocksareclusters`.
    pub has_cluster: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    pub extent: [u32; 3],
    pub required: bool,
}

/// A variable or parameter declaration (PTX ISA §5.4.1).
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    pub name: &'a str,
    pub position: Position,
    pub space: Space,
    pub scalar: ScalarType,
    /// Total number of elements; `None` for `[]` (dynamic shared memory).
    pub elements: Option<u64>,
    pub alignment: u64,
    pub is_pointer: bool,
    pub linkage: Linkage,
    /// A `.reg` parameter or result of a function.
    pub is_register: bool,
    pub initial: Vec<Initial<'a>>,
}

impl Variable<'_> {
    pub fn is_external(&self) -> bool {
        self.linkage == Linkage::External
    }

    /// Returns the size in bytes, 0 for an open array, or `None` if the size does not fit in 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.elements.unwrap_or(0).checked_mul(self.scalar.bytes() as u64)
    }
}

/// Initial value at a byte offset.
#[derive(Clone, Debug)]
pub struct Initial<'a> {
    pub offset: u64,
    pub value: InitialValue<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum InitialValue<'a> {
    Constant(Constant),
    /// Address of a variable plus `addend` bytes, also written `generic(name)`.
    Address {
        name: &'a str,
        addend: i64,
        /// Bits of the address that are stored, shifted down to bit 0.
        mask: u64,
    },
}

/// Literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    Integer(u64),
    Single(u32),
    Double(u64),
}

impl Constant {
    /// Returns the bits of this literal as `scalar`. Returns `None` for an integer literal of a float type, which the ISA does not convert
    /// (PTX ISA §4.5.2), and for a float literal of an integer type of another width.
    pub fn bits(self, scalar: ScalarType) -> Option<u64> {
        Some(match (self, scalar) {
            (Self::Integer(_), scalar) if scalar.is_float() => return None,
            (Self::Integer(value), _) => match scalar.bytes() {
                0 | 8 | 16 => value,
                bytes => value & ((1u64 << (8 * bytes)) - 1),
            },
            (Self::Single(bits), ScalarType::F64) => f64::from(f32::from_bits(bits)).to_bits(),
            (Self::Single(bits), _) if scalar.bytes() == 4 => u64::from(bits),
            (Self::Double(bits), ScalarType::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
            (Self::Double(bits), _) if scalar.bytes() == 8 => bits,
            _ => return None,
        })
    }
}

#[derive(Debug)]
pub enum Statement<'a> {
    Label {
        name: &'a str,
        position: Position,
    },
    Instruction(Instruction<'a>),
    Registers(Registers<'a>),
    Variable(Variable<'a>),
    /// A `.global` or `.const` variable of a function: its name, and its index in [`Source::statics`].
    Static {
        name: &'a str,
        index: usize,
    },
    /// `.loc`: file index and line of the source that follows.
    Location {
        file: u64,
        line: u64,
    },
    Scope(Vec<Statement<'a>>),
    /// `name: .branchtargets a, b;` (PTX ISA §11.2.1).
    BranchTargets {
        name: &'a str,
        labels: Vec<&'a str>,
    },
    /// `name: .callprototype (…) _ (…);` (PTX ISA §11.2.3).
    Prototype {
        name: &'a str,
        results: Vec<Variable<'a>>,
        parameters: Vec<Variable<'a>>,
    },
    /// `name: .calltargets f, g;` (PTX ISA §11.2.2).
    CallTargets {
        name: &'a str,
        functions: Vec<&'a str>,
    },
}

/// `.reg` (PTX ISA §5.1.1): one name, or `count` names made of a prefix and a number.
#[derive(Debug)]
pub struct Registers<'a> {
    pub name: &'a str,
    pub scalar: ScalarType,
    /// Number of elements: 2 or 4 for `.v2` and `.v4`, else 1.
    pub elements: u8,
    pub count: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    pub position: Position,
    /// Text of the statement, for errors and faults.
    pub text: &'a str,
    pub guard: Option<Guard<'a>>,
    pub opcode: &'a str,
    pub modifiers: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
}

/// `@p` or `@!p` (PTX ISA §8.3).
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    pub register: &'a str,
    pub negated: bool,
}

/// Operand (PTX ISA §6).
#[derive(Clone, Debug)]
pub enum Operand<'a> {
    /// Register, label, variable or function, plus an addend in bytes. The kind is determined when names are resolved.
    Name(&'a str, i64),
    /// Component of a special register or of a vector register, such as `%tid.x`, or part of a register, such as `%r1.b0`.
    Component(&'a str, &'a str),
    Constant(Constant),
    /// Negated predicate, such as `!p`.
    Not(&'a str),
    /// Address, such as `[name+4]` or `[16]`.
    Address {
        base: Option<&'a str>,
        addend: i64,
    },
    /// Address with coordinates or further names, such as `[texture, {x, y}]`.
    Coordinates(Vec<Operand<'a>>),
    /// Element of an array, such as `table[3]` (PTX ISA §6.4.2).
    Element(&'a str, i64),
    /// Negated operand of `vmad`, such as `-a`.
    Minus(Box<Operand<'a>>),
    /// Vector, such as `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// Pair of destinations, such as `p|q`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// List in a call, such as `(a, b)`.
    List(Vec<Operand<'a>>),
    /// Discarded destination, `_`.
    Sink,
}
