//! One scenario for each rule of the scheduler.

mod builders;
mod explanations;
mod placement;
mod reservations;
mod sharing;
