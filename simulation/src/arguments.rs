//! Command line of the simulation: its arguments, and the commands that they select.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, Instant},
};

use sahasra_simulation::{
    model::Bounds,
    plan::Plan,
    run::{Outcome, run},
};

use crate::{
    isolation::{self, Child},
    shrink,
};

const HELP: &str = "\
sahasra-simulation: runs the whole system in virtual time, one seed after the other, and checks what must hold.

  --seed N           that seed alone: prints what happened
  --without A,B      leaves those of its faults out, by their numbers
  --trace            shows every event on standard error
  --seeds COUNT      so many seeds [1000]
  --from N           from that one on [0]
  --jobs COUNT       so many at a time [as many as there are processors]
  --model            visits every state of the model of grants instead
  --bounds M,U,R,K,S of the model: messages of each coordinator, under way at a time, repeated; kernels; restarts
  --keep-going       goes on after a seed that fails, and shrinks none

Exit code 0 when everything held; 1 when not: then the command is printed that repeats the failure.";

/// Limit of processor time per seed, in real time. A seed that exceeds it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of the command line.
#[derive(Debug)]
pub struct Arguments {
    seed: Option<u64>,
    without: BTreeSet<usize>,
    trace: bool,
    seeds: u64,
    from: u64,
    jobs: usize,
    keep_going: bool,
    model: bool,
    bounds: Vec<Bounds>,
}

/// Parses the command line.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seed: None,
        without: BTreeSet::new(),
        trace: false,
        seeds: 1000,
        from: 0,
        keep_going: false,
        model: false,
        bounds: vec![Bounds::small(), Bounds::large()],
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match argument.as_str() {
            "--seed" => parsed.seed = Some(number(value()?)?),
            "--seeds" => parsed.seeds = number(value()?)?,
            "--from" => parsed.from = number(value()?)?,
            "--jobs" => parsed.jobs = usize::try_from(number(value()?)?.max(1)).unwrap_or(1),
            "--keep-going" => parsed.keep_going = true,
            "--model" => parsed.model = true,
            "--bounds" => {
                let text = value()?;
                let numbers: Result<Vec<u8>, _> = text.split(',').map(str::parse).collect();
                let Ok(&[messages, under_way, repeats, kernels, restarts]) = numbers.as_deref() else {
                    return Err(format!("{text} is not five numbers"));
                };
                parsed.bounds = vec![Bounds {
                    messages,
                    under_way: usize::from(under_way),
                    repeats,
                    kernels,
                    restarts,
                    ..Bounds::small()
                }];
            }
            "--trace" => parsed.trace = true,
            "--without" => {
                let text = value()?;
                for part in text.split(',').filter(|part| !part.is_empty()) {
                    parsed
                        .without
                        .insert(usize::try_from(number(part.to_owned())?).unwrap_or(usize::MAX));
                }
            }
            _ => return Err(HELP.to_owned()),
        }
    }
    Ok(parsed)
}

/// Returns the plan of a seed without some of its faults.
pub fn plan(seed: u64, without: &BTreeSet<usize>) -> Plan {
    let mut plan = Plan::of(seed);
    let mut place = 0;
    plan.faults.retain(|_| {
        place += 1;
        !without.contains(&(place - 1))
    });
    plan
}

/// Runs a seed in a separate process.
pub fn start(seed: u64, without: &BTreeSet<usize>, trace: bool) -> std::io::Result<Child> {
    isolation::fork(seed, PATIENCE, || {
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
pub fn outcome(said: Result<String, String>) -> Outcome {
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
        return failed("it said nothing: it panicked".to_owned());
    };
    Outcome {
        trace,
        events,
        milliseconds,
        broken: lines.map(str::to_owned).collect(),
    }
}

impl Arguments {
    /// Runs the selected command.
    pub fn run(&self) -> ExitCode {
        match self.seed {
            _ if self.model => visit(&self.bounds, self.jobs),
            Some(seed) => self.one(seed),
            None => self.many(),
        }
    }

    fn one(&self, seed: u64) -> ExitCode {
        let plan = plan(seed, &self.without);
        if self.trace {
            eprintln!("{plan:#?}");
        }
        let outcome = match start(seed, &self.without, self.trace) {
            Ok(child) => outcome(child.wait()),
            Err(error) => outcome(Err(error.to_string())),
        };
        println!(
            "seed {seed}: trace {:016x}, {} events, {:.1} s of virtual time",
            outcome.trace,
            outcome.events,
            outcome.milliseconds as f64 / 1000.0
        );
        for (place, fault) in Plan::of(seed).faults.iter().enumerate() {
            let left_out = if self.without.contains(&place) { " (left out)" } else { "" };
            println!(
                "  fault {place}: at {} ms for {} ms {:?}{left_out}",
                fault.at, fault.lasts, fault.kind
            );
        }
        for what in &outcome.broken {
            println!("  BROKEN {what}");
        }
        if outcome.broken.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn many(&self) -> ExitCode {
        let began = Instant::now();
        let mut next = self.from;
        let end = self.from + self.seeds;
        let mut running: Vec<(u64, Child)> = Vec::new();
        let (mut virtual_seconds, mut events, mut traces, mut failures) = (0.0, 0, 0_u64, 0);
        while next < end || !running.is_empty() {
            while next < end && running.len() < self.jobs {
                match start(next, &BTreeSet::new(), false) {
                    Ok(child) => running.push((next, child)),
                    Err(error) => {
                        eprintln!("no process for a seed: {error}");
                        return ExitCode::FAILURE;
                    }
                }
                next += 1;
            }
            let place = isolation::first_ended(running.iter().map(|(_, child)| child));
            let (seed, child) = running.swap_remove(place);
            let outcome = outcome(child.wait());
            if !outcome.broken.is_empty() && self.keep_going {
                failures += 1;
                println!("seed {seed} fails: {}", outcome.broken.join("; "));
            } else if !outcome.broken.is_empty() {
                for (_, child) in running {
                    child.end();
                }
                return failed(seed, &outcome);
            }
            virtual_seconds += outcome.milliseconds as f64 / 1000.0;
            events += outcome.events;
            // A sum does not depend on the order in which the seeds end.
            traces = traces.wrapping_add(outcome.trace);
        }
        let took = began.elapsed().as_secs_f64();
        println!(
            "{} of {} seeds from {} clean: {:.1} h of virtual time, {events} events, in {took:.1} s ({:.0} ms a seed); traces {traces:016x}",
            self.seeds - failures,
            self.seeds,
            self.from,
            virtual_seconds / 3600.0,
            took * 1000.0 / self.seeds.max(1) as f64,
        );
        if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn visit(bounds: &[Bounds], threads: usize) -> ExitCode {
    for bounds in bounds {
        let visited = bounds.clone().visit(threads);
        println!("{visited}");
        if !visited.violations.is_empty() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Prints what is wrong, the smallest set of faults with which it fails, and the command that repeats the failure.
fn failed(seed: u64, outcome: &Outcome) -> ExitCode {
    println!("seed {seed} fails:");
    for what in &outcome.broken {
        println!("  BROKEN {what}");
    }
    let without = shrink::fewest_faults(seed);
    let plan = plan(seed, &without);
    println!("with as few faults as it takes:");
    for fault in &plan.faults {
        println!("  at {} ms for {} ms: {:?}", fault.at, fault.lasts, fault.kind);
    }
    let mut command = format!("cargo run --profile simulation --package sahasra-simulation -- --seed {seed}");
    if !without.is_empty() {
        let numbers: Vec<String> = without.iter().map(usize::to_string).collect();
        command.push_str(&format!(" --without {}", numbers.join(",")));
    }
    println!("repeat it with:\n  {command}");
    ExitCode::FAILURE
}
