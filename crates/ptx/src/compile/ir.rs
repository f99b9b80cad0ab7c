//! Intermediate representation between syntax and bytecode: checked, typed operations on numbered registers.

mod matrix;

pub(crate) use matrix::{MatrixElement, MatrixOperation, MatrixPart, WordProduct};

use crate::lanes::LaneFunction;
use sahasra_ptx_syntax::types::Space;

/// Virtual register: one that the text declares, or a constant, parameter or special register that the text reads.
pub(crate) type RegisterId = u32;

pub(crate) type LabelId = u32;

/// Storage format of a register: 64 elements of this many bytes, or of one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    Predicate,
    W16,
    W32,
    W64,
}

impl Width {
    /// Returns the width that holds values of this many bytes. 8-bit values are held in 16 bits.
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

/// Special registers (PTX ISA §10) whose value is fixed by the launch, the block or the position of the lane.
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
    /// `%envreg1` and `%envreg2`: address at which cooperative groups count the arrivals of the grid.
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

/// Origin of a register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// Written by operations of the code.
    Code,
    Constant(u64),
    /// Bytes of the kernel's parameters, extended to the width of the register.
    Parameter {
        offset: u32,
        bytes: u8,
        signed: bool,
    },
    /// Address of a module-scope variable plus `addend` bytes.
    Symbol {
        index: u32,
        addend: i64,
    },
    /// Offset of dynamic shared memory plus `addend` bytes, known once all static shared variables are.
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

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) guard: Option<(RegisterId, bool)>,
    pub(crate) targets: Vec<RegisterId>,
    pub(crate) sources: Vec<RegisterId>,
    /// Index of the statement that the operation comes from.
    pub(crate) statement: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Pure function of up to three sources, written to targets[0], lane by lane.
    Lane(LaneFunction),
    /// Copies sources[0] to targets[0]; both have the same width.
    Copy,
    /// Loads from the address in sources[0].
    Load(Access),
    /// Stores the values in the remaining sources to the address in sources[0].
    Store(Access),
    /// sources: address, operand, and the new value for `cas`. targets: the old value, except for `red`.
    Atomic(Access, AtomicOperation),
    /// Branches to a label, under the guard if there is one.
    Branch(LabelId),
    /// `brx.idx`: sources[0] is the index.
    BranchTable(Vec<LabelId>),
    /// Calls a function. If the call is through a pointer, sources[0] is the pointer.
    Call(Callee),
    /// Restores the registers that a call saved. Always the operation right after the call.
    Restore,
    /// Returns from a function of [`Lowered::functions`].
    Return(usize),
    Exit,
    Trap,
    /// Calls CUDA's device runtime. sources: the arguments. targets: the result.
    System(SystemCall),
    /// sources: barrier number, thread count if given, predicate if reduced. targets: result of the reduction.
    Barrier {
        waits: bool,
        counted: bool,
        reduction: Option<BarrierReduction>,
    },
    /// Arrives at the barrier of the cluster, or waits for the phase in which the lane arrived.
    Cluster {
        waits: bool,
    },
    /// Synchronises lanes of a warp. As in every warp operation, sources[0] is the member mask.
    WarpBarrier,
    /// sources: mask, value, lane, clamp. targets: value, and a predicate that tells whether the source lane was in range.
    Shuffle(Shuffle),
    /// sources: mask, predicate.
    Vote(Vote),
    /// sources: mask, value. targets: mask of the lanes with an equal value, and for `all` a predicate.
    Match {
        all: bool,
    },
    /// sources: mask, value.
    Reduce(Reduction),
    /// sources: mask, then those that the [`MatrixOperation`] lists.
    Matrix(MatrixOperation),
    ActiveMask,
    Fence,
    /// Clock that counts the steps of this worker.
    Clock,
}

/// Target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// A function of [`Lowered::functions`].
    Function(usize),
    Pointer,
}

/// Functions of CUDA's device runtime, which every kernel may call, accesses to textures, and bulk copies, lane by lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// sources: format, arguments. targets: number of conversions.
    Print,
    /// sources: message, file, line, function.
    AssertFail,
    /// sources: bytes. targets: address.
    Allocate,
    /// sources: address.
    Free,
    /// sources: handles of the texture and of the sampler, then layer and coordinates. targets: four words.
    Fetch(Geometry),
    /// sources: handle, layer and coordinates, and for stores the values. targets of loads: the values.
    Surface {
        geometry: Geometry,
        /// Size of each value in bytes, and their number.
        element: u8,
        count: u8,
        store: bool,
        outside: Outside,
    },
    /// sources: handle. targets: the extent along an axis.
    Extent(u8),
    /// sources: bytes, stack pointer. targets: the address of the allocation, and the stack pointer behind it.
    AllocateStack { alignment: u64 },
    /// sources: destination, source, bytes, and perhaps the mask of the bytes to write in each 16.
    Bulk(BulkCopy),
    /// Sets consecutive bytes to zero. sources: address, bytes.
    Clear(Space),
    /// sources: rank of a block in its cluster, which must be that of the only block.
    CheckRank,
}

/// Copy or reduction of consecutive bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkCopy {
    pub(crate) to: Space,
    pub(crate) from: Space,
    /// Operation on the elements of the destination, and their size in bytes.
    pub(crate) reduction: Option<(AtomicOperation, u8)>,
}

/// Shape of a texture or surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) dimensions: u8,
    pub(crate) is_layered: bool,
    /// Whether coordinates are integers, in texels.
    pub(crate) is_integer: bool,
}

/// Treatment of surface coordinates that are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    Trap,
    Clamp,
    Zero,
}

/// `barrier.red` (PTX ISA §9.7.13.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    Count,
    All,
    Any,
}

impl Action {
    /// Whether lanes may diverge, wait or end after this operation.
    pub(crate) fn ends_block(&self) -> bool {
        matches!(
            self,
            Self::Branch(_)
                | Self::BranchTable(_)
                | Self::Call(_)
                | Self::Return(_)
                | Self::Exit
                | Self::Trap
                | Self::Barrier { .. }
                | Self::Cluster { .. }
        )
    }

    /// Whether the lanes of a warp wait for each other at this operation.
    pub(crate) fn synchronises_warp(&self) -> bool {
        matches!(
            self,
            Self::WarpBarrier | Self::Shuffle(_) | Self::Vote(_) | Self::Match { .. } | Self::Reduce(_) | Self::Matrix(_)
        )
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Size of one element in memory in bytes: 1, 2, 4 or 8.
    pub(crate) element: u8,
    /// Number of elements: 1, 2, 4 or 8.
    pub(crate) count: u8,
    /// Whether elements narrower than the register are sign-extended.
    pub(crate) signed: bool,
    pub(crate) offset: i64,
    /// Whether each element is accessed with a host atomic: volatile, relaxed, acquire or release.
    pub(crate) ordered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOperation {
    AddInteger,
    AddFloat,
    /// Addition of f16 or bf16: a single value in 16 bits, or both halves of 32 bits.
    AddHalf {
        brain: bool,
    },
    /// The lesser of f16 or bf16, and the greater, as for [`AddHalf`](Self::AddHalf).
    MinimumHalf {
        brain: bool,
    },
    MaximumHalf {
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
    /// Arrival at an `mbarrier` object. The operand holds the number of arrivals in its low half, and the change of the pending transaction
    /// bytes in its high half.
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

/// Result of lowering a kernel: operations in order, and labels as positions between them.
#[derive(Debug, Default)]
pub(crate) struct Lowered {
    pub(crate) operations: Vec<Operation>,
    /// Index of the operation after each label.
    pub(crate) labels: Vec<usize>,
    pub(crate) registers: Vec<Register>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) static_shared_bytes: u64,
    pub(crate) shared_alignment: u64,
    pub(crate) local_bytes: u64,
    pub(crate) uses_dynamic_shared: bool,
    pub(crate) uses_symbols: bool,
    /// `.param` variables at fixed addresses in local memory: start and size in bytes.
    pub(crate) parameters: Vec<(u64, u64)>,
    /// Starts of the `.param` variables whose address is used as a value, or that instructions other than `ld` and `st` name.
    pub(crate) addresses_taken: Vec<u64>,
    /// Device functions, whose operations precede those of the kernel.
    pub(crate) functions: Vec<FunctionBody>,
    /// Owner of each register: an index into [`Lowered::functions`], or the number of functions for the kernel itself.
    pub(crate) owners: Vec<u32>,
    /// Label of the first operation of the kernel.
    pub(crate) entry: LabelId,
    /// Register that holds the start of the next frame, if any function has a frame.
    pub(crate) stack_pointer: Option<RegisterId>,
}

/// Device function among the operations.
#[derive(Clone, Debug)]
pub(crate) struct FunctionBody {
    /// Address of the function as a value.
    pub(crate) address: u64,
    pub(crate) label: LabelId,
    pub(crate) address_taken: bool,
    pub(crate) recursive: bool,
    /// Size of the frame in bytes; 0 if the variables have fixed addresses.
    pub(crate) frame_bytes: u64,
}

/// Statement of the text, for fault reports.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) line: u32,
    /// Index into the module's files, and line in the file.
    pub(crate) source: Option<(u64, u32)>,
}
