//! The results of a burst as its ConfigMap keeps them, and as people read them.
//!
//! ```text
//! kernel's outputs ─► Layout: one record a chunk ─► ConfigMap: `results`, `counted` ─► Table: rows of results.csv
//! ```
//!
//! The operator writes the ConfigMap; what shows results (the operator, for `results.csv`; `sahasra run`; the gateway) reads the
//! records with the same [`Table`], so that all of them show the same rows, however many there are.

pub mod index_set;
pub mod layout;
pub mod table;

pub use index_set::{DecodeError, IndexSet};
pub use layout::Layout;
pub use table::{Table, TableError};

/// Most bytes of results that are kept in the ConfigMap: etcd refuses objects of 1.5 MiB, and base64 adds a third.
pub const MAX_INLINE_RESULT_BYTES: u64 = 512 << 10;
/// Most bytes of `results.csv`; of more the records alone are kept, and [`Table`] makes the rows.
pub const MAX_CSV_BYTES: usize = 256 << 10;

/// Key of the ConfigMap's `binaryData` with the indices that succeeded or failed ([`IndexSet::encode`]).
pub const COUNTED: &str = "counted";
/// What the keys begin with that name the indices which failed, one a cause.
pub const FAILED: &str = "failed.";
/// Key of the ConfigMap's `binaryData` with the records: one a chunk in the order of the index, zeros where there is none.
pub const RESULTS: &str = "results";
/// Key of the ConfigMap's `data` with the results as text.
pub const CSV: &str = "results.csv";
