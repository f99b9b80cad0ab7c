//! Runs of many programs on all instruction sets and on the reference machine, using all cores.

use std::io::{BufRead, BufReader, Lines};
use std::num::NonZero;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;
use sahasra_ptx::instruction_set;
use sahasra_ptx_fuzz::differential::{check, digest, vocabulary};
use sahasra_ptx_fuzz::generator::{Generated, Vocabulary};

use crate::Level;

/// Number of programs between two progress lines.
const PROGRESS: u64 = 20_000;

/// Process that runs the same programs on another instruction set, because a process uses only one.
struct Other {
    level: Level,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(level: Level, first: u64, programs: u64) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["digests", &first.to_string(), &programs.to_string(), level.name()])
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process for another instruction set")?;
        let output = child.stdout.take().context("the process has no output")?;
        Ok(Self {
            level,
            child,
            lines: BufReader::new(output).lines(),
        })
    }
}

/// Prints, for each program, a digest of the memory that the engine leaves, or the difference found.
pub(crate) fn digests(first: u64, programs: u64) {
    let vocabulary = vocabulary();
    for seed in first..first.saturating_add(programs) {
        match digest(&Generated::new(seed, &vocabulary), seed) {
            Ok(digest) => println!("{digest:016x}"),
            Err(difference) => println!("{difference}"),
        }
    }
}

/// State that the threads of a run share.
struct Run {
    vocabulary: Vocabulary,
    start: Instant,
    done: AtomicU64,
    differences: AtomicU64,
}

impl Run {
    fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Runs the programs of consecutive seeds.
    fn consecutive(&self, first: u64, programs: u64) -> anyhow::Result<()> {
        let mut others = [Level::V3, Level::Baseline]
            .into_iter()
            .map(|level| Other::start(level, first, programs))
            .collect::<Result<Vec<_>, _>>()?;
        for seed in first..first + programs {
            let mine = check(&Generated::new(seed, &self.vocabulary), seed);
            for other in &mut others {
                let line = other.lines.next().context("a process ended early")??;
                if let Ok(digest) = &mine
                    && line != format!("{digest:016x}")
                {
                    self.report(seed, &line, other.level);
                }
            }
            if let Err(difference) = mine {
                self.report(seed, &difference.to_string(), Level::Avx512);
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(PROGRESS) {
                let (differences, seconds) = (self.differences.load(Ordering::Relaxed), self.seconds());
                println!("{done} programs, {differences} differences, {seconds:.0} s");
            }
        }
        for other in &mut others {
            other.child.wait()?;
        }
        Ok(())
    }

    fn report(&self, seed: u64, difference: &str, level: Level) {
        self.differences.fetch_add(1, Ordering::Relaxed);
        let name = level.name();
        println!(
            "program {seed} on {name}: {difference}\n  again: cargo run --release --bin ptx-fuzz -- replay {seed} --instruction-set {name}"
        );
    }
}

/// Runs programs on `jobs` threads, each with two child processes. A program depends only on its seed.
pub(crate) fn run(first: u64, programs: u64, jobs: NonZero<u64>) -> anyhow::Result<ExitCode> {
    let run = Run {
        vocabulary: vocabulary(),
        start: Instant::now(),
        done: AtomicU64::new(0),
        differences: AtomicU64::new(0),
    };
    let jobs = jobs.get().min(programs.max(1));
    let share = |job: u64| first + (u128::from(programs) * u128::from(job) / u128::from(jobs)) as u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|job| {
                let (run, from, to) = (&run, share(job), share(job + 1));
                scope.spawn(move || run.consecutive(from, to - from))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let (done, differences, seconds) = (
        run.done.into_inner(),
        run.differences.into_inner(),
        run.start.elapsed().as_secs_f64(),
    );
    println!(
        "differential: {done} programs from seed {first} on {:?}, v3 and baseline against the reference machine: {differences} differences \
         ({seconds:.0} s, {:.0} programs/s with {jobs} jobs)",
        instruction_set(),
        done as f64 / seconds
    );
    Ok(if differences == 0 && done == programs {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
