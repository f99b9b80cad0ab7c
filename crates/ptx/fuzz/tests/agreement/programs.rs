//! Random programs and damaged text for about a minute; `make fuzz` runs many more.

use std::path::Path;

use sahasra_ptx_fuzz::generator::Generated;
use sahasra_ptx_fuzz::{damage, differential};

/// Number of programs from each of two seeds.
const PROGRAMS: u64 = 1000;
const TEXTS: u64 = 4000;

fn agree(first: u64) {
    let vocabulary = differential::vocabulary();
    for seed in first..first + PROGRAMS {
        let program = Generated::new(seed, &vocabulary);
        if let Err(difference) = differential::check(&program, seed) {
            let (small, difference) = differential::shrink(&program, seed, &difference);
            panic!(
                "program {seed}: {difference}, with {} blocks of {:?} threads:\n{}",
                small.grid,
                small.block,
                small.text()
            );
        }
    }
}

#[test]
fn engine_and_reference_machine_leave_the_same_memory() {
    agree(1);
}

#[test]
fn engine_and_reference_machine_leave_the_same_memory_again() {
    agree(1 << 40);
}

#[test]
fn damaged_text_is_rejected_or_runs() {
    let corpus = damage::corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")).expect("the corpus");
    for seed in 0..TEXTS {
        let text = damage::text(seed, &corpus);
        if let Err(reason) = damage::survive(&text) {
            panic!("text {seed}: {reason}");
        }
    }
}
