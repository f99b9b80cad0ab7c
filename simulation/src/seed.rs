//! One seed in a process of its own.

use std::{collections::BTreeSet, time::Duration};

use sahasra_simulation::{
    plan::Plan,
    run::{Outcome, run},
};

use crate::isolation::{self, Child};

/// Limit of processor time per seed, in real time. A seed that exceeds it counts as hung.
const PROCESSOR_LIMIT: Duration = Duration::from_secs(60);

/// Returns the plan of a seed without some of its faults.
pub(crate) fn plan(seed: u64, without: &BTreeSet<usize>) -> Plan {
    let mut plan = Plan::of(seed);
    let mut index = 0;
    plan.faults.retain(|_| {
        index += 1;
        !without.contains(&(index - 1))
    });
    plan
}

/// Runs a seed in a separate process.
pub(crate) fn start(seed: u64, without: &BTreeSet<usize>, trace: bool) -> std::io::Result<Child> {
    isolation::fork(seed, PROCESSOR_LIMIT, || {
        let outcome = run(&plan(seed, without), trace);
        let Outcome {
            trace,
            events,
            milliseconds,
            broken,
        } = outcome;
        let mut text = format!("{trace:016x} {events} {milliseconds}\n");
        for what in broken {
            text.push_str(&what.replace('\n', " "));
            text.push('\n');
        }
        text
    })
}

/// Parses the outcome that a seed's process printed.
pub(crate) fn outcome(said: Result<String, String>) -> Outcome {
    let failed = |what: String| Outcome {
        trace: 0,
        events: 0,
        milliseconds: 0,
        broken: vec![what],
    };
    let said = match said {
        Ok(said) => said,
        Err(error) => return failed(error),
    };
    let mut lines = said.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let trace = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
    let events = words.next().and_then(|word| word.parse().ok());
    let milliseconds = words.next().and_then(|word| word.parse().ok());
    let (Some(trace), Some(events), Some(milliseconds)) = (trace, events, milliseconds) else {
        return failed("the process of the seed panicked".to_owned());
    };
    Outcome {
        trace,
        events,
        milliseconds,
        broken: lines.map(str::to_owned).collect(),
    }
}
