//! Limits of a kernel's launch: those of CUDA, the same for all devices since compute capability 3.0 (CUDA C++ Programming Guide, technical
//! specifications per compute capability).

/// Maximum number of blocks of a grid in x, y and z.
pub const MAX_GRID: [i64; 3] = [2_147_483_647, 65_535, 65_535];

/// Maximum number of threads of a block in x, y and z.
pub const MAX_BLOCK: [i64; 3] = [1_024, 1_024, 64];

/// Maximum number of threads of a block, all dimensions multiplied.
pub const MAX_THREADS: i64 = 1_024;

/// Message about a block with more than [`MAX_THREADS`].
pub fn block_message() -> String {
    format!("a block has at most {MAX_THREADS} threads in all: lower a dimension")
}
