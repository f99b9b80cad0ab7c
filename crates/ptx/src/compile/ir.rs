//! The checked, typed form between syntax and bytecode: operations on numbered registers.

use crate::lanes::LaneFunction;
use crate::types::Space;

/// A virtual register: what the text declares, and the constants, parameters and special registers it reads.
pub(crate) type RegisterId = u32;

/// A label of the function.
pub(crate) type LabelId = u32;

/// How a register is held: 64 elements of this many bytes, or one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    Predicate,
    W16,
    W32,
    W64,
}

impl Width {
    /// The width that holds values of so many bytes; 8-bit registers are held in 16 bits.
    pub(crate) fn of_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            0 => Some(Self::Predicate),
            1 | 2 => Some(Self::W16),
            4 => Some(Self::W32),
            8 => Some(Self::W64),
            _ => None,
        }
    }

    /// Bytes of one element; 0 for predicates.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Predicate => 0,
            Self::W16 => 2,
            Self::W32 => 4,
            Self::W64 => 8,
        }
    }
}

/// Special registers (PTX ISA §10) whose value a launch, a block or a lane's place fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Thread(u8),
    BlockExtent(u8),
    Block(u8),
    GridExtent(u8),
    Lane,
    Warp,
    WarpCount,
    LaneMask(LaneMask),
    DynamicSharedBytes,
    TotalSharedBytes,
    /// `%envreg1` and `%envreg2`: where cooperative groups count the grid's arrivals.
    GridWorkspace {
        high: bool,
    },
    Zero,
}

/// `%lanemask_*` (PTX ISA §10.12-16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where a register's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// Operations write it.
    Code,
    Constant(u64),
    /// Bytes of the kernel's parameters, extended to the register.
    Parameter {
        offset: u32,
        bytes: u8,
        signed: bool,
    },
    /// Address of a module-scope variable plus bytes.
    Symbol {
        index: u32,
        addend: i64,
    },
    /// Offset of dynamic shared memory plus bytes: known when all static shared variables are.
    DynamicShared {
        addend: i64,
    },
    Special(Special),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub(crate) width: Width,
    pub(crate) origin: Origin,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) guard: Option<(RegisterId, bool)>,
    pub(crate) targets: Vec<RegisterId>,
    pub(crate) sources: Vec<RegisterId>,
    /// Index of the statement it comes from.
    pub(crate) statement: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Pure: targets[0] from up to three sources, lane by lane.
    Lane(LaneFunction),
    /// targets[0] = sources[0], widths equal.
    Copy,
    /// sources[0] is the address.
    Load(Access),
    /// sources[0] is the address, the rest the values.
    Store(Access),
    /// sources: address, operand, for `cas` the new value. targets: the old value, unless `red`.
    Atomic(Access, AtomicOperation),
    /// To a label, under the guard if there is one.
    Branch(LabelId),
    /// `brx.idx`: sources[0] is the index.
    BranchTable(Vec<LabelId>),
    /// A function; where it is called through a pointer, sources[0] is that.
    Call(Callee),
    /// What a call saved of the registers comes back. Always the operation behind the call.
    Restore,
    /// From a function of [`Lowered::functions`].
    Return(usize),
    Exit,
    Trap,
    /// A function of the CUDA runtime: its arguments and what it returns.
    System(SystemCall),
    /// sources: barrier number, thread count where given, predicate where reduced. targets: the reduction.
    Barrier {
        waits: bool,
        counted: bool,
        reduction: Option<BarrierReduction>,
    },
    /// sources[0] is the member mask of each warp operation.
    WarpBarrier,
    /// targets: value, whether the source lane was in range. sources: mask, value, lane, clamp.
    Shuffle(Shuffle),
    /// sources: mask, predicate.
    Vote(Vote),
    /// sources: mask, value. targets: mask of equal lanes, for `all` the predicate.
    Match {
        all: bool,
    },
    /// sources: mask, value.
    Reduce(Reduction),
    /// sources: mask, then what the operation says.
    Matrix(MatrixOperation),
    ActiveMask,
    Fence,
    /// Steps taken by this worker, as a clock.
    Clock,
}

/// Whom a call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// A function of [`Lowered::functions`].
    Function(usize),
    Pointer,
}

/// Functions that CUDA's device runtime provides to every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// sources: format, arguments. targets: conversions done.
    Print,
    /// sources: message, file, line, function.
    AssertFail,
    /// sources: bytes. targets: address.
    Allocate,
    /// sources: address.
    Free,
}

/// `barrier.red` (PTX ISA §9.7.13.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    Count,
    All,
    Any,
}

impl Action {
    /// Whether lanes may part, wait or leave behind it.
    pub(crate) fn ends_block(&self) -> bool {
        matches!(
            self,
            Self::Branch(_) | Self::BranchTable(_) | Self::Call(_) | Self::Return(_) | Self::Exit | Self::Trap | Self::Barrier { .. }
        )
    }

    /// Whether lanes of a warp wait for each other at it.
    pub(crate) fn synchronises_warp(&self) -> bool {
        matches!(
            self,
            Self::WarpBarrier | Self::Shuffle(_) | Self::Vote(_) | Self::Match { .. } | Self::Reduce(_) | Self::Matrix(_)
        )
    }
}

/// A memory access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Bytes of one element in memory: 1, 2, 4, 8.
    pub(crate) element: u8,
    /// Elements: 1, 2, 4 or 8.
    pub(crate) count: u8,
    /// Whether elements narrower than the register are sign-extended.
    pub(crate) signed: bool,
    pub(crate) offset: i64,
    /// Element by element through host atomics: volatile, relaxed, acquire, release.
    pub(crate) ordered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOperation {
    AddInteger,
    AddFloat,
    /// Of f16 or bf16, one or both halves of 32 bits.
    AddHalf {
        brain: bool,
    },
    Minimum {
        signed: bool,
    },
    Maximum {
        signed: bool,
    },
    Increment,
    Decrement,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    /// At an `mbarrier` object: arrivals in the operand's low half, bytes to come in its high half.
    Arrive {
        drop: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Add,
    Minimum { signed: bool },
    Maximum { signed: bool },
    And,
    Or,
    Xor,
}

/// What a matrix holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixElement {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
    E4m3,
    E5m2,
}

impl MatrixElement {
    /// Elements of a register: 32 bits, or 64 for f64.
    pub(crate) fn in_register(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::S8 | Self::U8 | Self::E4m3 | Self::E5m2 => 4,
            _ => 1,
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(self) -> u64 {
        if self == Self::F64 { 8 } else { u64::from(4 / self.in_register()) }
    }
}

/// Which matrix of a `wmma` a fragment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixPart {
    A,
    B,
    C,
    D,
}

/// Matrix operations of a warp (PTX ISA §9.7.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixOperation {
    /// sources: registers of a, b and c. Elements are those of d, a, b, c.
    Multiply {
        shape: [u8; 3],
        elements: [MatrixElement; 4],
        saturate: bool,
        /// Fragments of `wmma`.
        opaque: bool,
    },
    /// sources: address, stride, for stores the registers.
    Move {
        rows: u8,
        columns: u8,
        by_rows: bool,
        element: MatrixElement,
        store: bool,
        space: Space,
        offset: i64,
    },
    /// sources: address of a row, for stores the registers.
    Rows {
        transposed: bool,
        store: bool,
        space: Space,
        offset: i64,
    },
    /// sources: the register.
    Transpose,
}

/// A function lowered: operations in order, labels as positions between them.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    pub(crate) operations: Vec<Operation>,
    /// Index of the operation a label stands before.
    pub(crate) labels: Vec<usize>,
    pub(crate) registers: Vec<Register>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) static_shared_bytes: u64,
    pub(crate) shared_alignment: u64,
    pub(crate) local_bytes: u64,
    pub(crate) uses_dynamic_shared: bool,
    pub(crate) uses_symbols: bool,
    /// `.param` variables at fixed places in local memory: start and bytes.
    pub(crate) parameters: Vec<(u64, u64)>,
    /// Starts of those whose addresses became values, or that other instructions than `ld` and `st` name.
    pub(crate) addresses_taken: Vec<u64>,
    /// The device functions whose operations come first.
    pub(crate) functions: Vec<FunctionBody>,
    /// Function of [`Lowered::functions`] that owns each register; that many for the kernel's own.
    pub(crate) owners: Vec<u32>,
    /// Where the kernel begins.
    pub(crate) entry: LabelId,
    /// The register that holds where the next frame begins, where a function has one.
    pub(crate) stack_pointer: Option<RegisterId>,
}

/// A device function among the operations.
#[derive(Clone, Debug)]
pub(crate) struct FunctionBody {
    /// Its address as a value.
    pub(crate) address: u64,
    pub(crate) label: LabelId,
    pub(crate) address_taken: bool,
    pub(crate) recursive: bool,
    /// Bytes of its frame; 0 where its variables have fixed places.
    pub(crate) frame_bytes: u64,
}

/// A statement of the text, for faults.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) line: u32,
    /// Index into the module's files, and line.
    pub(crate) source: Option<(u64, u32)>,
}
