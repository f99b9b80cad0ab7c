//! Measures the overhead of sessions for a client in Rust, and prints JSON lines; `session_pool` starts the pool.
//!
//!     session_client steps PLACES STEP ROUNDS           dependent training steps: seconds of each round, local and remote
//!     session_client many PLACES STEP ROUNDS COUNT...   COUNT concurrent sessions on one worker: seconds of each round, and memory
//!
//! PLACES is the output of `session_pool`. STEP is the path, without suffix, of the files that `bench/sessions/export_step.py` wrote. Local
//! rounds run in this process, on the plugin that `SAHASRA_PJRT_PLUGIN` names.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_client::{Format, Gateway, Options, Program, Session, Target, Tensor, Token, named};
use sahasra_pjrt::{Buffer, Client, CompileOptions, ElementType, Executable, Plugin};
use serde_json::{Value, json};

/// Number of dependent steps in a round.
const STEPS: usize = 1000;
/// Number of steps of each session in a round of many sessions.
const STEPS_OF_MANY: usize = 250;
/// Timeout for a session to be placed and connected.
const WITHIN: Duration = Duration::from_secs(120);

type Failure = Box<dyn Error + Send + Sync>;

/// An exported training step.
struct Step {
    code: Bytes,
    arguments: Vec<Argument>,
    /// Number of first results that become the first arguments of the next step.
    donated: usize,
    results: usize,
}

struct Argument {
    element_type: String,
    dimensions: Vec<i64>,
    data: Bytes,
}

impl Step {
    fn read(path: &Path) -> Result<Self, Failure> {
        let facts: Value = serde_json::from_slice(&std::fs::read(path.with_extension("json"))?)?;
        let mut data = Bytes::from(std::fs::read(path.with_extension("data"))?);
        let number = |value: &Value| {
            value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .ok_or("a number is missing")
        };
        let mut arguments = Vec::new();
        for argument in facts["arguments"].as_array().ok_or("no arguments")? {
            let dimensions = argument["dimensions"].as_array().ok_or("no dimensions")?;
            arguments.push(Argument {
                element_type: argument["element_type"].as_str().ok_or("no type")?.to_owned(),
                dimensions: dimensions.iter().filter_map(Value::as_i64).collect(),
                data: data.split_to(number(&argument["bytes"])?),
            });
        }
        Ok(Self {
            code: std::fs::read(path.with_extension("stablehlo"))?.into(),
            arguments,
            donated: number(&facts["donated"])?,
            results: number(&facts["results"])?,
        })
    }
}

/// The plugin in this process.
struct Here {
    executable: Executable,
    tensors: Vec<Buffer>,
    donated: usize,
    // Last field, because it must be dropped after the objects that it created.
    _client: Client,
}

impl Here {
    fn new(step: &Step) -> Result<Self, Failure> {
        let plugin = std::env::var_os("SAHASRA_PJRT_PLUGIN").ok_or("SAHASRA_PJRT_PLUGIN names no plugin")?;
        let client = Client::create(&Plugin::load(Path::new(&plugin))?, &[])?;
        let program = sahasra_pjrt::Program {
            format: sahasra_pjrt::Format::StableHlo,
            code: step.code.to_vec(),
        };
        let executable = client.compile(&program, &CompileOptions::of_platform(&client.platform_name()?))?;
        let mut tensors = Vec::new();
        for argument in &step.arguments {
            let mut types = (1..).map_while(ElementType::of);
            let element_type = types.find(|known| known.name() == argument.element_type).ok_or("an unknown type")?;
            tensors.push(client.upload(element_type, &argument.dimensions, argument.data.clone())?);
        }
        Ok(Self {
            executable,
            tensors,
            donated: step.donated,
            _client: client,
        })
    }

    fn round(&mut self) -> Result<Duration, Failure> {
        let began = Instant::now();
        for _ in 0..STEPS {
            let arguments: Vec<&Buffer> = self.tensors.iter().collect();
            let (results, _) = self.executable.execute(&arguments, &[])?;
            for (place, result) in results.into_iter().take(self.donated).enumerate() {
                self.tensors[place] = result;
            }
        }
        for tensor in &self.tensors {
            tensor.ready()?.wait()?;
        }
        Ok(began.elapsed())
    }

    fn first(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.tensors[0].download()?.to_vec())
    }
}

/// A session on a worker.
struct There {
    gateway: Gateway,
    namespace: String,
    name: String,
    session: Session,
    program: Program,
    tensors: Vec<Tensor>,
    donated: Vec<u32>,
    results: usize,
}

impl There {
    async fn open(places: &Value, way: &str, vram: &str, step: &Step) -> Result<Self, Failure> {
        let text = |key: &str| places[key].as_str().ok_or("an incomplete list of places");
        let token = || Ok::<_, Failure>(Token::text(text("token")?));
        let gateway = Gateway::new(text("gateway")?, token()?, None)?;
        let namespace = text("namespace")?.to_owned();
        let spec = json!({"class": "cpu", "vram": vram, "engine": "xla"});
        let made = gateway.create_session(&namespace, &named(None, "bench"), &spec).await?;
        let name = made["metadata"]["name"].as_str().ok_or("a session without a name")?.to_owned();
        let placed = gateway.session_placed(&namespace, &name, WITHIN).await?;
        let target = if way == "direct" {
            let endpoint = placed["status"]["endpoint"].as_str().ok_or("a session without an endpoint")?;
            Target::direct(endpoint, token()?, None, &namespace, &name)?
        } else {
            Target::through(&gateway, &namespace, &name)?
        };
        let options = Options {
            connect: WITHIN,
            ..Options::default()
        };
        let session = Session::connect(target, options).await?;
        let program = session.compile("train_step", Format::StableHlo, step.code.clone())?;
        let mut tensors = Vec::new();
        for argument in &step.arguments {
            tensors.push(session.put(argument.data.clone(), &argument.element_type, &argument.dimensions)?);
        }
        session.synchronise().await?;
        Ok(Self {
            gateway,
            namespace,
            name,
            session,
            program,
            tensors,
            donated: (0..u32::try_from(step.donated)?).collect(),
            results: step.results,
        })
    }

    fn round(&mut self, steps: usize) -> Result<Duration, Failure> {
        let began = Instant::now();
        for _ in 0..steps {
            let arguments: Vec<&Tensor> = self.tensors.iter().collect();
            let results = self.session.execute(&self.program, &arguments, self.results, &self.donated)?;
            for (place, result) in results.into_iter().take(self.donated.len()).enumerate() {
                self.tensors[place] = result;
            }
        }
        self.session.synchronise().wait()?;
        Ok(began.elapsed())
    }

    fn first(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.tensors[0].download().wait()?.data.to_vec())
    }

    async fn close(self) -> Result<(), Failure> {
        drop(self.tensors);
        self.session.close().await?;
        Ok(self.gateway.delete_session(&self.namespace, &self.name).await?)
    }
}

fn seconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(Duration::as_secs_f64).collect()
}

async fn steps(places: &Value, path: &Path, rounds: usize) -> Result<(), Failure> {
    let step = Step::read(path)?;
    let mut here = Here::new(&step)?;
    let mut direct = There::open(places, "direct", "256Mi", &step).await?;
    let mut gateway = There::open(places, "gateway", "256Mi", &step).await?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let took = tokio::task::block_in_place(|| Ok::<_, Failure>([here.round()?, direct.round(STEPS)?, gateway.round(STEPS)?]))?;
        // The first round warms up.
        if round > 0 {
            for (times, took) in times.iter_mut().zip(took) {
                times.push(took);
            }
        }
    }
    let expected = here.first()?;
    if tokio::task::block_in_place(|| Ok::<_, Failure>(direct.first()? != expected || gateway.first()? != expected))? {
        return Err("the parameters there are not those here, bit for bit".into());
    }
    let [plugin, through_agent, through_gateway] = times.each_ref().map(|times| seconds(times));
    let seconds = json!({"plugin": plugin, "direct": through_agent, "gateway": through_gateway});
    let name = path.file_name().map(|name| name.to_string_lossy());
    println!("{}", json!({"name": name, "steps": STEPS, "seconds": seconds}));
    direct.close().await?;
    gateway.close().await
}

async fn many(places: &Value, path: &Path, rounds: usize, count: usize) -> Result<(), Failure> {
    let step = Step::read(path)?;
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(There::open(places, "direct", "64Mi", &step).await?);
    }
    let barrier = Barrier::new(count);
    let work = || {
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let threads = sessions.iter_mut().map(|session| {
                let rounds = move || {
                    let (mut times, mut outcome) = (Vec::new(), Ok(Duration::ZERO));
                    for _ in 0..=rounds {
                        barrier.wait();
                        let began = Instant::now();
                        // The other threads wait at the barrier for this one, even after a failure.
                        if outcome.is_ok() {
                            outcome = session.round(STEPS_OF_MANY);
                        }
                        barrier.wait();
                        times.push(began.elapsed());
                    }
                    outcome.map(|_| times)
                };
                scope.spawn(rounds)
            });
            let threads: Vec<_> = threads.collect();
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| Failure::from("a thread panicked"))?);
            ended.collect::<Result<Vec<_>, Failure>>()
        })
    };
    let times = tokio::task::block_in_place(work)?;
    // A round ends when the last session has ended; the first round warms up.
    let longest = (1..=rounds).map(|round| times.iter().map(|times| times[round]).max().unwrap_or_default());
    let seconds = seconds(&longest.collect::<Vec<_>>());
    let first = tokio::task::block_in_place(|| sessions.iter().map(There::first).collect::<Result<Vec<_>, _>>())?;
    if first.iter().any(|parameters| *parameters != first[0]) {
        return Err("sessions that did the same came to different parameters".into());
    }
    let agent = places["pids"]["agent"].as_u64().ok_or("no agent")?;
    let executors = children(agent)?;
    let memory = executors.iter().filter_map(|&pid| proportional_kib(pid));
    println!(
        "{}",
        json!({
            "name": "many", "sessions": count, "steps": STEPS_OF_MANY, "seconds": seconds,
            "executors": executors.len(), "agent_kib": proportional_kib(agent), "executors_kib": memory.sum::<u64>(),
        })
    );
    for session in sessions {
        session.close().await?;
    }
    Ok(())
}

/// Returns the child processes of `parent`, from `/proc`.
fn children(parent: u64) -> Result<Vec<u64>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else {
            continue;
        };
        // The process may have ended in the meantime.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let of = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u64>().ok());
        if of == Some(parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Resident memory in KiB, with shared memory divided among its processes (PSS).
fn proportional_kib(pid: u64) -> Option<u64> {
    let page = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = page.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, places, step, rounds, counts @ ..] = &arguments[..] else {
        return Err("steps|many PLACES STEP ROUNDS [COUNT...]".into());
    };
    let (places, step, rounds) = (serde_json::from_str(places)?, PathBuf::from(step), rounds.parse()?);
    match what.as_str() {
        "steps" => steps(&places, &step, rounds).await,
        "many" => {
            for count in counts {
                many(&places, &step, rounds, count.parse()?).await?;
            }
            Ok(())
        }
        other => Err(format!("{other} is nothing to measure").into()),
    }
}
