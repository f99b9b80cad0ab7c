//! The results of a burst: their binary form in its ConfigMap, and the rows of `results.csv`.
//!
//! ```text
//! kernel's outputs ─► Layout: one record a chunk ─► ConfigMap: `results`, `counted` ─► Table: rows of results.csv
//! ```
//!
//! The operator writes the ConfigMap. The operator (for `results.csv`), `sahasra run` and the gateway read the records with the same
//! [`Table`], so that all of them show the same rows.

pub mod index_set;
pub mod layout;
pub mod table;

pub use index_set::{DecodeError, IndexSet};
pub use layout::Layout;
pub use table::{Table, TableError};

/// Maximum bytes of results in the ConfigMap: etcd rejects objects of 1.5 MiB, and base64 adds a third.
pub const MAX_INLINE_RESULT_BYTES: u64 = 512 << 10;
/// Maximum bytes of `results.csv`. Of larger results the ConfigMap has the records alone, from which [`Table`] makes the rows.
pub const MAX_CSV_BYTES: usize = 256 << 10;

/// Key of the ConfigMap's `binaryData` with the indices that succeeded or failed ([`IndexSet::encode`]).
pub const COUNTED: &str = "counted";
/// Prefix of the keys of `binaryData` with the indices that failed, one key for each cause ([`IndexSet::encode`]).
pub const FAILED: &str = "failed.";
/// Key of the ConfigMap's `binaryData` with the records: one for each chunk in the order of the index, zeros where a chunk has no result.
pub const RESULTS: &str = "results";
/// Key of the ConfigMap's `data` with the rows of [`Table`], at most [`MAX_CSV_BYTES`].
pub const CSV: &str = "results.csv";
