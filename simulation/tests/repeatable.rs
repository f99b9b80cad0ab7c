//! A seed is all that it takes to see again what happened.

use std::process::Command;

/// What the program prints of its seeds.
fn simulation(arguments: &[&str], padding: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sahasra-simulation"))
        .args(arguments)
        // Shifts where the stack begins.
        .env("PADDING", padding)
        .output()
        .expect("the program was built for this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn trace_of(seed: u64, padding: &str) -> u64 {
    let text = simulation(&["--seed", &seed.to_string()], padding);
    let trace = text.split_once("trace ").and_then(|(_, rest)| rest.split_once(','));
    trace
        .and_then(|(trace, _)| u64::from_str_radix(trace, 16).ok())
        .unwrap_or_else(|| panic!("no trace in {text}"))
}

#[test]
fn the_same_seed_gives_the_same_trace_in_every_process() {
    for seed in [3, 12, 21] {
        let first = trace_of(seed, "");
        assert_eq!(first, trace_of(seed, &"x".repeat(4099)), "seed {seed}");
        assert_ne!(first, trace_of(seed + 1, ""), "another seed");
    }
}

#[test]
fn a_seed_does_not_depend_on_those_before_it() {
    let alone = [5, 6, 7].map(|seed| trace_of(seed, "")).into_iter().fold(0, u64::wrapping_add);
    let text = simulation(&["--first-seed", "5", "--seed-count", "3", "--jobs", "2"], "padding");
    assert!(text.contains(&format!("traces {alone:016x}")), "{alone:016x} is not in {text}");
}

/// Faults that have found an error, without those that it does not need. They repeat it as long as the requests before it stay the same.
#[test]
fn seeds_that_have_found_an_error_hold() {
    for (seed, left_out) in [("749", "0,2,3,4,5,6,7,8,10"), ("3325", "3,4,8,9,10")] {
        simulation(&["--seed", seed, "--skip-faults", left_out], "");
    }
}
