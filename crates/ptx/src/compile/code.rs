//! Bytecode that the interpreter executes.

use hashbrown::HashMap;
use std::sync::Arc;

use super::ir::{
    AtomicOperation, BarrierReduction, LaneMask, MatrixOperation, Reduction, Shuffle, Special, Statement, SystemCall, Vote, Width,
};
use crate::lanes::LaneFunction;
use crate::lanes::memory::{LoadFunction, StoreFunction};
use sahasra_ptx_syntax::types::Space;

/// Location of a register (64 elements, or a predicate): a byte offset into one of three areas. The low two bits select the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u32);

/// Area of the registers of one group.
pub(crate) const GROUP: u32 = 0;
/// Area of the values that are the same for every lane of a block.
pub(crate) const UNIFORM: u32 = 1;
/// Area of the kernel's constants, which all launches share and which are never written.
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

/// Action of the interpreter's loop for an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Calls `run(d, a, b, c)`, which computes all lanes.
    Lane,
    Load,
    Store,
    Atomic,
    /// Unconditional jump of all lanes to `detail`.
    Jump,
    /// Branch to `detail` of the lanes whose guard holds.
    Branch,
    /// Fall through to the next instruction, which starts a basic block.
    Fall,
    /// Branch of each lane to one of the targets of a table.
    BranchTable,
    Call,
    /// Restores the registers that the preceding call saved.
    Restore,
    Return,
    Exit,
    Trap,
    System,
    Barrier,
    /// Arrival at the barrier of the cluster (`detail` 0), or wait for it.
    Cluster,
    /// Operation at which the lanes of a warp wait for each other.
    Warp,
    ActiveMask,
    Fence,
    Clock,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) kind: Kind,
    /// Whether to write only the lanes of the mask, because lanes on other paths may still read the old value of `d`.
    pub(crate) keeps: bool,
    /// Whether `d` is also a source, so that the result is computed in the side buffer and then copied to `d`.
    pub(crate) overlaps: bool,
    pub(crate) width: Width,
    /// Index of the address pattern that is invalidated when the instruction writes `d`; 0 for none.
    pub(crate) forgets: u16,
    pub(crate) guarded: bool,
    pub(crate) guard_negated: bool,
    pub(crate) guard: Place,
    pub(crate) d: Place,
    pub(crate) a: Place,
    pub(crate) b: Place,
    pub(crate) c: Place,
    /// Branch target, or index into the table that belongs to `kind`.
    pub(crate) detail: u32,
    pub(crate) run: LaneFunction,
}

/// Details of one `ld`, `st`, `atom` or `red`.
#[derive(Clone, Debug)]
pub(crate) struct MemoryDetail {
    pub(crate) space: Space,
    /// Size of one element in bytes.
    pub(crate) element: u32,
    pub(crate) count: u32,
    pub(crate) offset: i64,
    /// Whether the address register has 32 bits.
    pub(crate) narrow_address: bool,
    /// Whether all lanes use the same address, as known at compile time.
    pub(crate) uniform_address: bool,
    /// Index of the pattern remembered for the address register until the register is written; 0 for none.
    pub(crate) pattern: u16,
    /// Offset of each element in host memory from the start of the access, in bytes.
    pub(crate) steps: Vec<usize>,
    /// Index of the cache slot for the allocation that this instruction last accessed.
    pub(crate) site: u32,
    pub(crate) address: Place,
    /// Targets of a load, or values of a store or atomic.
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
    /// The reduction, its predicate, and the target of its result.
    pub(crate) reduction: Option<(BarrierReduction, Place, Place)>,
}

#[derive(Clone, Debug)]
pub(crate) struct CallDetail {
    pub(crate) callee: CallTarget,
    /// Registers to save, because another activation of the caller may overwrite them.
    pub(crate) saves: Arc<[(Place, Width)]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum CallTarget {
    Function(Function),
    /// Register that holds the address of the function.
    Pointer(Place),
}

/// Entry point and frame size of a device function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) pc: u32,
    pub(crate) frame_bytes: u64,
}

/// Details of a call to CUDA's device runtime.
#[derive(Clone, Debug)]
pub(crate) struct SystemDetail {
    pub(crate) call: SystemCall,
    pub(crate) sources: Vec<Place>,
    pub(crate) targets: Vec<Place>,
}

/// Value that is written to a register before the code runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaunchValue {
    Parameter { offset: u32, bytes: u8, signed: bool },
    Symbol { index: u32, addend: i64 },
    DynamicShared { addend: i64 },
    Special(Special),
}

/// Storage for registers, aligned to 64 bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(pub(crate) Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Lines {
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    /// Grows the storage to at least `bytes` bytes. New bytes are zero.
    pub(crate) fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
    }

    /// Zeroes at least the first `bytes` bytes, and grows the storage as needed.
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
    /// Instructions that each worker runs once per launch.
    pub(crate) launch_prologue: Vec<Instruction>,
    pub(crate) block_prologue: Vec<Instruction>,
    pub(crate) launch_values: Vec<(Place, Width, LaunchValue)>,
    pub(crate) block_values: Vec<(Place, Width, u8)>,
    /// Values that are written to each group once per launch.
    pub(crate) lane_values: Vec<(Place, Width, Special)>,
    pub(crate) constants: Lines,
    pub(crate) uniform_bytes: usize,
    pub(crate) group_bytes: usize,
    pub(crate) memory: Vec<MemoryDetail>,
    pub(crate) warps: Vec<WarpDetail>,
    pub(crate) barriers: Vec<BarrierDetail>,
    pub(crate) calls: Vec<CallDetail>,
    pub(crate) systems: Vec<SystemDetail>,
    /// Branch tables of `brx.idx`: the register that holds the index, and the targets.
    pub(crate) tables: Vec<(Place, Vec<u32>)>,
    /// Functions whose address is taken, sorted by address.
    pub(crate) functions: Vec<(u64, Function)>,
    /// Program counter of the first instruction of the kernel.
    pub(crate) entry: u32,
    /// Register that holds the start of the next frame, if any function has a frame.
    pub(crate) stack_pointer: Option<Place>,
    /// Size of the largest frame in bytes.
    pub(crate) largest_frame: u64,
    /// Index of the statement that each instruction comes from.
    pub(crate) origins: Vec<u32>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) static_shared_bytes: u64,
    pub(crate) shared_alignment: u64,
    pub(crate) local_bytes: u64,
    /// Number of consecutive bytes that belong to one lane in the interleaved local memory.
    pub(crate) local_granule: u64,
    /// Number of address patterns remembered per group, including the unused pattern 0.
    pub(crate) patterns: usize,
    pub(crate) uses_symbols: bool,
    /// Whether the code synchronises the grid, because it reads the address of the grid's arrival counter.
    pub(crate) uses_grid_workspace: bool,
}

impl Code {
    /// Memory of the code in bytes, except for parts whose size does not depend on the kernel.
    pub(crate) fn bytes(&self) -> usize {
        fn of<T>(items: &[T]) -> usize {
            size_of_val(items)
        }
        let accesses = self.memory.iter().map(|detail| of(&detail.steps) + of(&detail.registers));
        let warps = self.warps.iter().map(|detail| of(&detail.targets) + of(&detail.sources));
        let tables = self.tables.iter().map(|(_, targets)| of(targets));
        // Calls share lists of saved registers, so each list is counted once.
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
    /// Value of the mask register for one lane of a warp, 0 to 31.
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
