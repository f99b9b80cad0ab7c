//! A burst: from a `BurstJob` to counted results.
//!
//! The modules here that decide are pure: [`index_set`], [`account`] (which chunk is where), [`aggregate`] (what the
//! results say), [`layout`] (how a chunk's outputs lie in a record) and [`checkpoint`] (what survives a crash).

pub mod account;
pub mod aggregate;
pub mod checkpoint;
pub mod exact_sum;
pub mod index_set;
pub mod layout;
