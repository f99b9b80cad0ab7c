//! A seed determines a run: repeating it gives the same trace.

use std::process::Command;

/// Runs the simulation with these arguments and returns its output. `padding` is an environment variable.
fn simulation(arguments: &[&str], padding: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sahasra-simulation"))
        .args(arguments)
        // The size of the environment shifts the start of the stack, which must not change a trace.
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

/// Sets of faults that have found an error, without faults that are unnecessary for it. A set repeats its error only while the run sends
/// the same requests as then.
#[test]
fn seeds_that_once_found_an_error_pass() {
    for (seed, left_out) in [("749", "0,2,3,4,5,6,7,8,10"), ("3325", "3,4,8,9,10")] {
        simulation(&["--seed", seed, "--skip-faults", left_out], "");
    }
}
