//! `ptx-fuzz`: long runs against the PTX engine, and repetitions of single programs.

mod differential;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use sahasra_ptx::{InstructionSet, limit_instruction_set};
use sahasra_ptx_fuzz::differential::{check, shrink, vocabulary};
use sahasra_ptx_fuzz::generator::Generated;
use sahasra_ptx_fuzz::model::Model;
use sahasra_ptx_fuzz::{damage, forms, inputs, single};

/// Checks the PTX engine: programs against a reference machine, and damaged text.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs programs on every instruction set and on the reference machine.
    Differential {
        /// Seed of the first program.
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        /// Number of programs.
        #[arg(long, default_value_t = 20_000)]
        programs: u64,
        /// Number of threads, each with two further processes [default: the number of cores].
        #[arg(long)]
        jobs: Option<NonZero<u64>>,
    },
    /// Runs one program again, and reduces it if the results differ.
    Replay {
        /// Seed of the program.
        seed: u64,
        /// Instruction set of the engine.
        #[arg(long, default_value = "avx512")]
        instruction_set: Level,
        /// Prints the program even if nothing differs.
        #[arg(long)]
        print: bool,
    },
    /// Prints a digest for each program, for `differential`, which compares instruction sets.
    #[command(hide = true)]
    Digests { first: u64, programs: u64, level: Level },
    /// Loads and runs damaged PTX.
    Mutate {
        /// Seed of the first text.
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        /// Time after which the run ends.
        #[arg(long, default_value = "120s", value_parser = humantime::parse_duration)]
        duration: Duration,
        /// Folder with PTX files to damage.
        #[arg(long, default_value = "crates/ptx/tests")]
        corpus: PathBuf,
        /// Number of threads [default: the number of cores].
        #[arg(long)]
        jobs: Option<NonZero<u64>>,
    },
    /// Prints a module with one kernel for each instruction form that has a model.
    Forms,
    /// Checks with NVIDIA's assembler that the module of `forms` and generated programs are valid.
    Assemble {
        /// Seed of the first program.
        #[arg(long, default_value_t = 1)]
        first_seed: u64,
        /// Number of programs.
        #[arg(long, default_value_t = 200)]
        programs: u64,
        /// Path of the assembler, which the wheel nvidia-cuda-nvcc-cu12 contains.
        #[arg(long, default_value = "ptxas")]
        ptxas: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Level {
    Baseline,
    V3,
    Avx512,
}

impl Level {
    fn limit(self) {
        limit_instruction_set(match self {
            Self::Baseline => InstructionSet::Baseline,
            Self::V3 => InstructionSet::V3,
            Self::Avx512 => InstructionSet::Avx512,
        });
    }

    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::V3 => "v3",
            Self::Avx512 => "avx512",
        }
    }
}

fn cores() -> NonZero<u64> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    NonZero::new(cores.get() as u64).unwrap_or(NonZero::<u64>::MIN)
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Command::Differential {
            first_seed,
            programs,
            jobs,
        } => differential::run(first_seed, programs, jobs.unwrap_or_else(cores)),
        Command::Replay {
            seed,
            instruction_set,
            print,
        } => Ok(program(seed, instruction_set, print)),
        Command::Digests { first, programs, level } => {
            level.limit();
            differential::digests(first, programs);
            Ok(ExitCode::SUCCESS)
        }
        Command::Mutate {
            first_seed,
            duration,
            corpus,
            jobs,
        } => damage(first_seed, duration, &corpus, jobs.unwrap_or_else(cores).get()),
        Command::Forms => {
            print!("{}", all_forms());
            Ok(ExitCode::SUCCESS)
        }
        Command::Assemble {
            first_seed,
            programs,
            ptxas,
        } => assemble(first_seed, programs, &ptxas),
    }
}

fn program(seed: u64, level: Level, print: bool) -> ExitCode {
    level.limit();
    let program = Generated::new(seed, &vocabulary());
    match check(&program, seed) {
        Ok(digest) => {
            if print {
                println!("{}", program.text());
            }
            println!("// no difference, digest {digest:016x}");
            ExitCode::SUCCESS
        }
        Err(difference) => {
            println!("// {difference}; making it smaller");
            let (small, difference) = shrink(&program, seed, &difference);
            println!(
                "// {difference}: {} blocks of {:?} threads\n{}",
                small.grid,
                small.block,
                small.text()
            );
            ExitCode::FAILURE
        }
    }
}

/// Damages texts on `jobs` threads until the time is over. A text depends only on its seed.
fn damage(first: u64, limit: Duration, folder: &Path, jobs: u64) -> anyhow::Result<ExitCode> {
    let corpus = damage::corpus(folder).with_context(|| folder.display().to_string())?;
    if corpus.is_empty() {
        bail!("no PTX files in {}", folder.display());
    }
    let start = Instant::now();
    let (next, refused, wrong) = (AtomicU64::new(first), AtomicU64::new(0), AtomicU64::new(0));
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    let texts_of_a_thread = || -> anyhow::Result<()> {
        while start.elapsed() < limit {
            let seed = count(&next);
            let text = damage::text(seed, &corpus);
            match std::panic::catch_unwind(|| damage::survive(&text)) {
                Ok(Ok(damage::Survived::Refused)) => drop(count(&refused)),
                Ok(Ok(damage::Survived::Ran)) => {}
                Ok(Err(reason)) => {
                    count(&wrong);
                    println!("text {seed}: {reason}");
                }
                Err(_) => {
                    count(&wrong);
                    let path = std::env::temp_dir().join(format!("ptx-fuzz-{seed}.ptx"));
                    std::fs::write(&path, &text)?;
                    println!("text {seed}: a panic; the text is {}", path.display());
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(texts_of_a_thread)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let (texts, refused, wrong) = (next.into_inner() - first, refused.into_inner(), wrong.into_inner());
    println!(
        "mutate: {texts} texts from seed {first} in {} s with {jobs} jobs, {refused} refused, {} run: {wrong} panics or hangs",
        limit.as_secs(),
        texts - refused - wrong
    );
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn all_forms() -> String {
    let mut random = fastrand::Rng::with_seed(1);
    let mut module = String::new();
    for (index, form) in forms::all().iter().enumerate() {
        let Some(model) = Model::of(form) else { continue };
        let list = inputs::lists(&model, 1, &mut random).remove(0);
        let immediates: Vec<u64> = model.immediates.iter().map(|(place, _)| list[*place]).collect();
        let text = single::kernel(form, &model, &immediates).replace(".entry k(", &format!(".entry k{index}("));
        let body = text.find(".visible").unwrap_or(0);
        if index == 0 {
            module.push_str(&text[..body]);
        }
        module.push_str(&format!("// {form}\n{}", &text[body..]));
    }
    module
}

fn assemble(first: u64, programs: u64, ptxas: &Path) -> anyhow::Result<ExitCode> {
    let vocabulary = vocabulary();
    let path = std::env::temp_dir().join(format!("ptx-fuzz-assemble-{}.ptx", std::process::id()));
    let accepts = |text: &str, name: &str| -> anyhow::Result<bool> {
        std::fs::write(&path, text)?;
        let output = Process::new(ptxas)
            .args(["-arch=sm_100", "-O0", "-o", "/dev/null"])
            .arg(&path)
            .output()
            .with_context(|| ptxas.display().to_string())?;
        if !output.status.success() {
            println!(
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()
            );
        }
        Ok(output.status.success())
    };
    let mut refused = u64::from(!accepts(&all_forms(), "the module of all forms")?);
    for seed in first..first.saturating_add(programs) {
        let text = Generated::new(seed, &vocabulary).text();
        refused += u64::from(!accepts(&text, &format!("program {seed}"))?);
    }
    std::fs::remove_file(&path)?;
    println!("assemble: {} forms and {programs} programs: {refused} refused", forms::all().len());
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
