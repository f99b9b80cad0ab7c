//! Texts that the engine loads, runs and rejects, mostly PTX of a few lines.

mod barriers;
mod calls;
mod divergence;
mod early;
mod faults;
mod instruction_sets;
mod instructions;
mod linking;
mod loading;
mod outline;
mod textures;
mod transactions;
mod vectors;
mod video;
