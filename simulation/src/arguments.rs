//! Command line of the simulation: its arguments, and the commands that they select.

use std::{collections::BTreeSet, num::NonZeroUsize, process::ExitCode, time::Instant};

use clap::Parser;
use sahasra_ledger_model::Bounds;
use sahasra_simulation::{plan::Plan, run::Outcome};

use crate::{
    isolation::{self, Child},
    seed::{outcome, plan, start},
    shrink,
};

/// Runs the whole system in virtual time, one seed after the other, and checks the invariants.
#[derive(Debug, Parser)]
#[command(
    name = "sahasra-simulation",
    after_help = "Exit code 0 if no seed and no state violates an invariant; 1 otherwise, with the command that repeats the failure."
)]
pub(crate) struct Arguments {
    /// Run only this seed, and print its faults.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Faults of the seed to leave out, by their numbers, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "seed")]
    skip_faults: Vec<usize>,
    /// Print every event of the seed to standard error.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seed_count: u64,
    /// First seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first_seed: u64,
    /// Maximum number of seeds that run at the same time [default: the number of processors].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Continue after a seed that fails, without a search for the smallest set of faults.
    #[arg(long)]
    keep_going: bool,
    /// Visit every state of the model of grants instead of running seeds.
    #[arg(long)]
    check_model: bool,
    /// Bounds of the model: messages that each coordinator sends, messages in flight at the same time, duplicated messages, kernels,
    /// restarts of the agent [default: two sets of bounds, one after the other].
    #[arg(
        long,
        value_name = "messages=N,in-flight=N,duplicates=N,kernels=N,restarts=N",
        value_parser = bounds,
        requires = "check_model"
    )]
    model_bounds: Option<Bounds>,
}

/// Parses bounds of the model. Bounds that are absent from `text` are those of [`Bounds::small`].
fn bounds(text: &str) -> Result<Bounds, String> {
    let mut bounds = Bounds::small();
    for part in text.split(',') {
        let (name, number) = part.split_once('=').unwrap_or((part, ""));
        let number: u8 = number
            .parse()
            .map_err(|_| format!("invalid bound {part:?}: expected NAME=N with N from 0 to 255"))?;
        match name {
            "messages" => bounds.messages = number,
            "in-flight" => bounds.under_way = number.into(),
            "duplicates" => bounds.repeats = number,
            "kernels" => bounds.kernels = number,
            "restarts" => bounds.restarts = number,
            _ => return Err(format!("{name:?} is not a bound of the model")),
        }
    }
    Ok(bounds)
}

impl Arguments {
    /// Runs the selected command.
    pub(crate) fn run(&self) -> ExitCode {
        match self.seed {
            _ if self.check_model => self.visit(),
            Some(seed) => self.one(seed),
            None => self.many(),
        }
    }

    fn jobs(&self) -> usize {
        let jobs = self.jobs.or_else(|| std::thread::available_parallelism().ok());
        jobs.map_or(1, NonZeroUsize::get)
    }

    fn visit(&self) -> ExitCode {
        let all = [Bounds::small(), Bounds::large()];
        let chosen = self.model_bounds.as_ref().map_or(&all[..], std::slice::from_ref);
        for bounds in chosen {
            let visited = bounds.clone().visit(self.jobs());
            println!("{visited}");
            if !visited.violations.is_empty() {
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }

    fn one(&self, seed: u64) -> ExitCode {
        let skipped: BTreeSet<usize> = self.skip_faults.iter().copied().collect();
        let plan = plan(seed, &skipped);
        if self.trace {
            eprintln!("{plan:#?}");
        }
        let outcome = match start(seed, &skipped, self.trace) {
            Ok(child) => outcome(child.wait()),
            Err(error) => outcome(Err(error.to_string())),
        };
        println!(
            "seed {seed}: trace {:016x}, {} events, {:.1} s of virtual time",
            outcome.trace,
            outcome.events,
            outcome.milliseconds as f64 / 1000.0
        );
        for (index, fault) in Plan::of(seed).faults.iter().enumerate() {
            let left_out = if skipped.contains(&index) { " (left out)" } else { "" };
            println!(
                "  fault {index}: at {} ms for {} ms {:?}{left_out}",
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
        let (began, jobs) = (Instant::now(), self.jobs());
        let mut next = self.first_seed;
        let end = self.first_seed + self.seed_count;
        let mut running: Vec<(u64, Child)> = Vec::new();
        let (mut virtual_seconds, mut events, mut traces, mut failures) = (0.0, 0, 0_u64, 0);
        while next < end || !running.is_empty() {
            while next < end && running.len() < jobs {
                match start(next, &BTreeSet::new(), false) {
                    Ok(child) => running.push((next, child)),
                    Err(error) => {
                        eprintln!("failed to start a process for a seed: {error}");
                        return ExitCode::FAILURE;
                    }
                }
                next += 1;
            }
            let index = isolation::first_ended(running.iter().map(|(_, child)| child));
            let (seed, child) = running.swap_remove(index);
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
            self.seed_count - failures,
            self.seed_count,
            self.first_seed,
            virtual_seconds / 3600.0,
            took * 1000.0 / self.seed_count.max(1) as f64,
        );
        if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
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
        command.push_str(&format!(" --skip-faults {}", numbers.join(",")));
    }
    println!("repeat it with:\n  {command}");
    ExitCode::FAILURE
}
