//! Runs bursts, from a `BurstJob` to counted results.
//!
//! The modules that make decisions are pure: [`account`] (the state of each chunk), [`aggregate`] (the aggregate of the results),
//! [`checkpoint`] (the state that survives a crash), [`results_store`] (the layout of results in an object store), [`window`] (how many
//! chunks a device receives at a time), [`budget`] (the rate of writes to the API server), [`validate`] and [`status`].
//!
//! [`mod@reconcile`] passes each job to the [`intake`], which fetches its inputs ([`mod@observe`]) and validates it, and then starts a
//! [`coordinator`] for the job. [`mod@observe`] and [`objects`] call the API server.

pub use sahasra_results::index_set;
use sahasra_results::layout;

mod account;
mod aggregate;
mod budget;
pub mod checkpoint;
pub mod coordinator;
mod exact_sum;
pub mod intake;
pub mod objects;
pub mod observe;
pub mod reconcile;
pub mod results_store;
mod status;
mod student;
pub mod validate;
mod window;
