//! Texts that the engine loads, runs and rejects, mostly PTX of a few lines.

mod atomics;
mod barriers;
mod bulk;
mod calls;
mod clusters;
mod divergence;
mod early;
mod faults;
mod instruction_sets;
mod instructions;
mod linking;
mod loading;
mod matrices;
mod outline;
mod stack;
mod targets;
mod textures;
mod transactions;
mod vectors;
mod video;
