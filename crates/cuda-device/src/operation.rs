//! Operations that a queue takes in order, without answers.

use bytes::Bytes;

/// Name that the client gives a module. Never given twice in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u64);

/// Name that the client gives a sequence of operations. Never given twice in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A box of rows in device memory: its first byte, and the distances of its rows and slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte.
    pub address: u64,
    /// Distance of two rows in bytes.
    pub row_pitch: u64,
    /// Distance of two slices in bytes.
    pub slice_pitch: u64,
}

impl Region {
    /// Region of one row.
    pub fn linear(address: u64) -> Self {
        Self {
            address,
            row_pitch: 0,
            slice_pitch: 0,
        }
    }

    /// Address of a row, or `None` beyond the address space.
    pub fn row(&self, row: u64, slice: u64) -> Option<u64> {
        let offset = self.row_pitch.checked_mul(row)?.checked_add(self.slice_pitch.checked_mul(slice)?)?;
        self.address.checked_add(offset)
    }
}

/// Size of a box of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub height: u64,
    /// Number of slices.
    pub depth: u64,
}

impl Extent {
    /// Extent of one row.
    pub fn linear(width: u64) -> Self {
        Self {
            width,
            height: 1,
            depth: 1,
        }
    }

    /// Bytes of all rows, or `None` if that is more than 2^64.
    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth)
    }

    /// Row and slice of every row, in order.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (height, depth) = (self.height, self.depth);
        (0..depth).flat_map(move |slice| (0..height).map(move |row| (row, slice)))
    }

    /// Distance in bytes from the first byte of a region to the end of its last row; `None` beyond the address space.
    pub fn span(&self, region: &Region) -> Option<u64> {
        if self.bytes()? == 0 {
            return Some(0);
        }
        let last = region.row(self.height - 1, self.depth - 1)?.checked_add(self.width)?;
        Some(last - region.address)
    }
}

/// Launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    /// Module of the kernel.
    pub module: ModuleId,
    /// Index of the kernel in the module's description.
    pub function: u32,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u32,
    /// Size of a thread's call stack in bytes.
    pub stack_bytes: u32,
    /// Whether all blocks must be resident at the same time.
    pub cooperative: bool,
    /// Parameter block, laid out as the module's description says.
    pub parameters: Bytes,
}

/// Operation of a queue. Operations are executed in the order in which they were submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Makes zeroed memory at an address in [`Properties::addresses`](crate::Properties::addresses).
    Map {
        /// First address, a multiple of 256.
        address: u64,
        bytes: u64,
    },
    /// Frees mapped memory, or ends the sharing of memory. Nothing is freed if the memory could not be mapped.
    Unmap {
        /// First address, as it was mapped.
        address: u64,
    },
    /// Writes rows, which follow each other in `bytes` without gaps.
    Write {
        to: Region,
        /// Size of the rows.
        extent: Extent,
        /// As many bytes as the extent has.
        bytes: Bytes,
    },
    /// Copies rows within device memory. Rows are copied one after another; the ranges of one row may overlap.
    Copy {
        from: Region,
        to: Region,
        /// Size of the rows.
        extent: Extent,
    },
    /// Fills rows with an element.
    Fill {
        to: Region,
        /// Size of the rows, whose width is a multiple of the element's size.
        extent: Extent,
        /// Value of an element.
        value: u32,
        /// Bytes of an element: 1, 2 or 4, of which the lowest bytes of `value` are taken.
        element_bytes: u8,
    },
    Launch(Box<LaunchRequest>),
    /// Notes the device's time under a name that the client chooses.
    Mark(u64),
    /// Unloads a module and frees its variables.
    Unload(ModuleId),
    /// Sets the maximum size of the heap from which kernels allocate, in bytes.
    LimitHeap(u64),
    /// Appends operations to a sequence, creating it if needed. They count as memory of the device, each with
    /// [`stored_bytes`](Operation::stored_bytes), and their sum is rounded up to 256 bytes.
    Extend {
        /// Name of the sequence.
        sequence: SequenceId,
        /// Operations that can be [stored](Operation::is_storable).
        operations: Vec<Operation>,
    },
    /// Replaces operations of a sequence. What they count with does not change.
    Amend {
        /// Name of the sequence.
        sequence: SequenceId,
        /// Index of the first.
        index: u32,
        /// As many operations as are replaced, of the same kinds.
        operations: Vec<Operation>,
    },
    /// Executes the operations of a sequence in order.
    Replay(SequenceId),
    /// Frees a sequence.
    Erase(SequenceId),
}

/// Memory charged for each stored operation, in addition to its payload, in bytes: about the size of its representation.
const STORED_BYTES: u64 = 256;

impl Operation {
    /// Bytes that the operation carries. Each operation within it counts with [`stored_bytes`](Self::stored_bytes).
    pub fn payload(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Launch(launch) => launch.parameters.len(),
            Self::Extend { operations, .. } | Self::Amend { operations, .. } => {
                operations.iter().map(|operation| operation.stored_bytes() as usize).sum()
            }
            _ => 0,
        }
    }

    /// Whether kernels run in it, so that it may take any time.
    pub fn runs_kernels(&self) -> bool {
        matches!(self, Self::Launch(_) | Self::Replay(_))
    }

    /// Whether a sequence can have it.
    pub fn is_storable(&self) -> bool {
        matches!(self, Self::Copy { .. } | Self::Fill { .. } | Self::Launch(_))
    }

    /// Bytes of device memory that the operation counts with in a sequence.
    pub fn stored_bytes(&self) -> u64 {
        STORED_BYTES + self.payload() as u64
    }
}
