//! Bytecode: what the interpreter runs.

use std::collections::HashMap;
use std::sync::Arc;

use super::ir::{
    AtomicOperation, BarrierReduction, LaneMask, MatrixOperation, Reduction, Shuffle, Special, Statement, SystemCall, Vote, Width,
};
use crate::lanes::LaneFunction;
use crate::lanes::memory::{LoadFunction, StoreFunction};
use crate::types::Space;

/// A register of 64 elements, or a predicate: byte offset into one of three areas, which the low two bits name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// Areas of registers.
pub(crate) const GROUP: u32 = 0;
/// Values that are the same for every lane of a block.
pub(crate) const UNIFORM: u32 = 1;
/// Constants of the kernel: shared by all launches, never written.
pub(crate) const CONSTANT: u32 = 2;

impl Place {
    pub(crate) fn new(area: u32, offset: u32) -> Self {
        Self(offset | area)
    }

    pub(crate) fn area(self) -> u32 {
        self.0 & 3
    }

    pub(crate) fn offset(self) -> usize {
        (self.0 & !3) as usize
    }
}

/// What the interpreter's loop does with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// `run(d, a, b, c)` for all lanes.
    Lane,
    Load,
    Store,
    Atomic,
    /// To `detail`, all lanes.
    Jump,
    /// To `detail` where the guard holds.
    Branch,
    /// The next instruction begins a block.
    Fall,
    /// To one of a table's targets, lane by lane.
    BranchTable,
    Call,
    /// What the call before saved comes back.
    Restore,
    Return,
    Exit,
    Trap,
    System,
    Barrier,
    /// A warp operation: lanes wait for each other.
    Warp,
    ActiveMask,
    Fence,
    Clock,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) kind: Kind,
    /// Lanes that are elsewhere may still read the old value of `d`: write under the mask.
    pub(crate) keeps: bool,
    /// `d` overlaps a source: compute beside it.
    pub(crate) overlaps: bool,
    pub(crate) width: Width,
    /// What is known of the addresses in `d` no longer holds; 0 where nothing is kept of it.
    pub(crate) forgets: u16,
    pub(crate) guarded: bool,
    pub(crate) guard_negated: bool,
    pub(crate) guard: Place,
    pub(crate) d: Place,
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) c: Place,
    /// Branch target, or index into the table of the kind.
    pub(crate) detail: u32,
    pub(crate) run: LaneFunction,
}

/// One `ld`, `st`, `atom` or `red`.
#[derive(Clone, Debug)]
pub(crate) struct MemoryDetail {
    pub(crate) space: Space,
    /// Bytes of one element.
    pub(crate) element: u32,
    pub(crate) count: u32,
    pub(crate) offset: i64,
    /// The address register has 32 bits.
    pub(crate) narrow_address: bool,
    /// The address is the same for all lanes, known without looking.
    pub(crate) uniform_address: bool,
    /// Where the pattern of the address register is remembered until it is written; 0 for nowhere.
    pub(crate) pattern: u16,
    /// Offset of each element behind the access's address in host memory.
    pub(crate) steps: Vec<usize>,
    /// Where the interpreter remembers the allocation this instruction last touched.
    pub(crate) site: u32,
    pub(crate) address: Place,
    /// Targets of a load, values of a store or atomic.
    pub(crate) registers: Vec<Place>,
    pub(crate) load: Option<LoadFunction>,
    pub(crate) store: Option<StoreFunction>,
    pub(crate) atomic: Option<AtomicOperation>,
    pub(crate) target: Option<Place>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WarpKind {
    Barrier,
    Shuffle(Shuffle),
    Vote(Vote),
    Match { all: bool, wide: bool },
    Reduce(Reduction),
    Matrix(MatrixOperation),
}

#[derive(Clone, Debug)]
pub(crate) struct WarpDetail {
    pub(crate) kind: WarpKind,
    pub(crate) targets: Vec<Place>,
    pub(crate) sources: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierDetail {
    pub(crate) waits: bool,
    pub(crate) number: Place,
    pub(crate) count: Option<Place>,
    /// Reduction, its predicate and where its result goes.
    pub(crate) reduction: Option<(BarrierReduction, Place, Place)>,
}

/// One `call`.
#[derive(Clone, Debug)]
pub(crate) struct CallDetail {
    pub(crate) callee: CallTarget,
    /// Registers that a further activation of the caller may overwrite.
    pub(crate) saves: Arc<[(Place, Width)]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CallTarget {
    Function(Function),
    /// The register that holds the function's address.
    Pointer(Place),
}

/// Where a device function begins, and the frame it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) pc: u32,
    pub(crate) frame_bytes: u64,
}

/// A call of the device runtime.
#[derive(Clone, Debug)]
pub(crate) struct SystemDetail {
    pub(crate) call: SystemCall,
    pub(crate) sources: Vec<Place>,
    pub(crate) target: Option<Place>,
}

/// A value written before the code runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaunchValue {
    Parameter { offset: u32, bytes: u8, signed: bool },
    Symbol { index: u32, addend: i64 },
    DynamicShared { addend: i64 },
    Special(Special),
}

/// 64-byte aligned storage for registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(pub(crate) Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Lines {
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    /// At least this many bytes; new ones are zero.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
    }

    /// Zeros at least this many bytes, making room for them.
    pub(crate) fn clear(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(64);
        let old = self.0.len().min(lines);
        self.0[..old].fill(Line([0; 64]));
        self.grow(bytes);
    }

    pub(crate) fn pointer(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    /// Run once a launch on each worker, then once a block.
    pub(crate) launch_prologue: Vec<Instruction>,
    pub(crate) block_prologue: Vec<Instruction>,
    pub(crate) launch_values: Vec<(Place, Width, LaunchValue)>,
    pub(crate) block_values: Vec<(Place, Width, u8)>,
    /// Set once a launch in each group.
    pub(crate) lane_values: Vec<(Place, Width, Special)>,
    pub(crate) constants: Lines,
    pub(crate) uniform_bytes: usize,
    pub(crate) group_bytes: usize,
    pub(crate) memory: Vec<MemoryDetail>,
    pub(crate) warps: Vec<WarpDetail>,
    pub(crate) barriers: Vec<BarrierDetail>,
    pub(crate) calls: Vec<CallDetail>,
    pub(crate) systems: Vec<SystemDetail>,
    /// Targets of `brx.idx`, and the register of the index.
    pub(crate) tables: Vec<(Place, Vec<u32>)>,
    /// Functions that a pointer may lead to, by address.
    pub(crate) functions: Vec<(u64, Function)>,
    /// Where the kernel begins.
    pub(crate) entry: u32,
    /// Where frames begin, where functions have any.
    pub(crate) stack_pointer: Option<Place>,
    /// Bytes of the largest frame.
    pub(crate) largest_frame: u64,
    /// Statement of each instruction.
    pub(crate) origins: Vec<u32>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) static_shared_bytes: u64,
    pub(crate) shared_alignment: u64,
    pub(crate) local_bytes: u64,
    /// Bytes of one lane's local memory that lie together before the next lane's.
    pub(crate) local_granule: u64,
    /// Patterns remembered in each group, the unused first one included.
    pub(crate) patterns: usize,
    pub(crate) uses_symbols: bool,
    /// Reads where the grid's arrivals are counted, and so synchronises its grid.
    pub(crate) uses_grid_workspace: bool,
}

impl Code {
    /// Memory that the code takes, without what is small whatever the kernel.
    pub(crate) fn bytes(&self) -> usize {
        fn of<T>(items: &[T]) -> usize {
            size_of_val(items)
        }
        let accesses = self.memory.iter().map(|detail| of(&detail.steps) + of(&detail.registers));
        let warps = self.warps.iter().map(|detail| of(&detail.targets) + of(&detail.sources));
        let tables = self.tables.iter().map(|(_, targets)| of(targets));
        // Calls share these.
        let distinct: HashMap<_, _> = self.calls.iter().map(|detail| (detail.saves.as_ptr(), of(&detail.saves))).collect();
        let texts = self.statements.iter().map(|statement| statement.text.len());
        let behind: usize = accesses.chain(warps).chain(tables).chain(distinct.into_values()).chain(texts).sum();
        behind
            + of(&self.instructions)
            + of(&self.launch_prologue)
            + of(&self.block_prologue)
            + of(&self.constants.0)
            + of(&self.memory)
            + of(&self.warps)
            + of(&self.tables)
            + of(&self.calls)
            + of(&self.origins)
            + of(&self.statements)
    }
}

impl LaneMask {
    /// The mask of a lane of a warp, 0 to 31.
    pub(crate) fn of(self, lane: u32) -> u32 {
        let equal = 1u32 << lane;
        match self {
            Self::Equal => equal,
            Self::Less => equal - 1,
            Self::LessOrEqual => equal | (equal - 1),
            Self::Greater => !(equal | (equal - 1)),
            Self::GreaterOrEqual => !(equal - 1),
        }
    }
}
