//! A burst: from a `BurstJob` to counted results.
//!
//! The modules here that decide are pure: [`account`] (which chunk is where), [`aggregate`] (what the
//! results say), [`checkpoint`] (what survives a crash), [`results_store`] (what stands in an object store), [`window`] (how
//! much a device is given at once), [`budget`] (how often the API server is written to), [`validate`] and [`status`].
//!
//! [`mod@reconcile`] gives each job to the [`intake`], which fetches ([`mod@observe`]) and validates, and then to a [`coordinator`] of its own;
//! [`mod@observe`] and [`objects`] speak with the API server.

pub use sahasra_results::{index_set, layout};

pub mod account;
pub mod aggregate;
pub mod budget;
pub mod checkpoint;
pub mod coordinator;
pub mod exact_sum;
pub mod intake;
pub mod objects;
pub mod observe;
pub mod reconcile;
pub mod results_store;
pub mod status;
pub mod student;
pub mod validate;
pub mod window;
