//! Behaviour of the chunks of a modelled burst: a pure function of the burst's salt, the chunk's index and the attempt.
//!
//! The two lowest bits of the salt select the [`Manner`] of the burst.

use std::time::Duration;

use sahasra_wire::burst::{Program, argument::Kind};

/// PTX of the bursts: never executed here, but checked at admission.
pub const PTX: &str = include_str!("../../e2e/tests/data/kernels/steps.ptx");
/// Entry of [`PTX`].
pub const ENTRY: &str = "steps";

/// Outcome of an attempt at a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeds,
    /// The kernel traps, at every attempt.
    Fails,
    /// The kernel never ends.
    Hangs,
    Crashes,
    /// The kernel poisons the device's context.
    Poisons,
}

/// Planned behaviour of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub outcome: Outcome,
    /// Duration of the attempt.
    pub lasts: Duration,
}

/// Behaviour of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Well,
    /// Some kernels trap, at every attempt.
    Traps,
    /// Some first attempts hang, crash or poison the context; the next ones succeed.
    Stumbles,
    /// Every chunk succeeds at the first attempt, within 2 ms.
    Brief,
}

/// Returns a salt of the given manner.
pub fn salted(manner: Manner, random: u32) -> u32 {
    let manner = match manner {
        Manner::Well => 0,
        Manner::Traps => 1,
        Manner::Stumbles => 2,
        Manner::Brief => 3,
    };
    (random & !3) | manner
}

/// Returns the salt of a program: its last scalar.
pub fn salt(program: &Program) -> u32 {
    let scalars = program.arguments.iter().filter_map(|argument| match &argument.kind {
        Some(Kind::Scalar(bytes)) => Some(bytes.as_ref().try_into().map_or(0, u32::from_le_bytes)),
        _ => None,
    });
    scalars.last().unwrap_or(0)
}

/// Returns a random number that depends only on the arguments. The index comes before the purpose, because first numbers of consecutive seeds
/// are alike in their lowest bits.
fn drawn(salt: u32, index: u64, purpose: u64) -> u64 {
    let arguments = [u64::from(salt), index, purpose];
    arguments
        .iter()
        .fold(0, |seed, argument| fastrand::Rng::with_seed(seed ^ argument).u64(..))
}

/// Returns the result of a chunk.
pub fn value(salt: u32, index: u64) -> u32 {
    (drawn(salt, index, 1) % 100_000) as u32
}

/// Returns whether a chunk's kernel traps.
pub fn traps(salt: u32, index: u64) -> bool {
    salt & 3 == 1 && drawn(salt, index, 2).is_multiple_of(8)
}

/// Returns whether some attempts of a burst's chunks hang, crash or poison the context.
pub fn stumbles(salt: u32) -> bool {
    salt & 3 == 2
}

/// Returns the planned behaviour of an attempt.
pub fn run(salt: u32, index: u64, attempt: u32) -> Planned {
    let random = drawn(salt, index, 3 + u64::from(attempt));
    // From 3 ms to about 1 s, short durations more often.
    let lasts = if salt & 3 == 3 {
        Duration::from_micros(500 + random % 1_500)
    } else {
        Duration::from_millis(2 + (1_u64 << (random % 11)) + (random >> 8) % 16)
    };
    let outcome = if traps(salt, index) {
        Outcome::Fails
    } else if stumbles(salt) && attempt == 1 {
        match (random >> 16) % 24 {
            0 => Outcome::Hangs,
            1 => Outcome::Crashes,
            2 => Outcome::Poisons,
            _ => Outcome::Succeeds,
        }
    } else {
        Outcome::Succeeds
    };
    Planned { outcome, lasts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_behave_as_their_salt_determines() {
        let chunks = |manner| {
            let salt = salted(manner, 0x1234_5678);
            (0..500).map(move |index| run(salt, index, 1).outcome)
        };
        assert!(chunks(Manner::Well).all(|outcome| outcome == Outcome::Succeeds));
        assert!(chunks(Manner::Brief).all(|outcome| outcome == Outcome::Succeeds));
        assert!(chunks(Manner::Traps).any(|outcome| outcome == Outcome::Fails));
        for expected in [Outcome::Hangs, Outcome::Crashes, Outcome::Poisons, Outcome::Succeeds] {
            assert!(chunks(Manner::Stumbles).any(|outcome| outcome == expected), "{expected:?}");
        }
        let salt = salted(Manner::Stumbles, 0x1234_5678);
        assert!((0..500).all(|index| run(salt, index, 2).outcome == Outcome::Succeeds));
    }
}
