//! Each rule once, as a story.

mod builders;
mod explanations;
mod placement;
mod reservations;
mod sharing;
