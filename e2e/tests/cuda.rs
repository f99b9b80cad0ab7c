//! CUDA programs, each a process of its own, on sessions of a pool with a real control plane.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::api::DynamicObject;
use sahasra_e2e::{PoolOptions, Server, SharedPool, Signal, Turn, condition, eventually, signal, tools, true_condition};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

#[path = "session_faults/proxy.rs"]
mod proxy;

use proxy::{Faults, Proxy};

static POOL: SharedPool = SharedPool::new(PoolOptions::watchful);
/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);

/// A pool with a gateway, and a folder with the driver library.
struct Fixture {
    pool: Turn,
    gateway: Server,
    token: String,
    libraries: tempfile::TempDir,
    binaries: PathBuf,
}

impl Fixture {
    async fn start() -> Self {
        let binaries = tools::binaries().await.expect("binaries");
        let pool = POOL.borrow().await.expect("Sahasra starts");
        let operator = pool.operator.url();
        let gateway = Server::gateway(&pool.control_plane, &["--operator-url", &operator]).await;
        let token = pool.control_plane.editor("default").await.expect("an account");
        let libraries = tempfile::tempdir().expect("a folder");
        for (library, name) in [
            ("libsahasra_cuda_driver.so", "libcuda.so.1"),
            ("libsahasra_cuda_driver.so", "libcuda.so"),
            ("libsahasra_nvml.so", "libnvidia-ml.so.1"),
        ] {
            let library = binaries.join("deps").join(library);
            std::os::unix::fs::symlink(library, libraries.path().join(name)).expect("a link");
        }
        Self {
            pool,
            gateway: gateway.expect("the gateway starts"),
            token,
            libraries,
            binaries,
        }
    }

    /// The test's CUDA program with these arguments, on a session that exists, reached at `url`.
    fn program(&self, url: &str, session: &str, arguments: &[&str]) -> Program {
        Program::start(self.command(&format!("{url}/default/{session}"), arguments), &self.token)
    }

    /// Command of the test's CUDA program with these arguments, on this device.
    fn command(&self, device: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.join("examples/cuda_program"));
        command
            .args(arguments)
            .env("SAHASRA_CUDA", device)
            .env("LD_LIBRARY_PATH", self.libraries.path());
        command
    }

    /// `sahasra exec` of the test's CUDA program.
    fn exec(&self, options: &[&str], arguments: &[&str]) -> Program {
        let mut command = Command::new(self.binaries.join("sahasra"));
        command
            .arg("exec")
            .args(["--gateway", &self.gateway.url(), "--libraries"])
            .arg(self.libraries.path())
            .args(options)
            .arg("--")
            .arg(self.binaries.join("examples/cuda_program"))
            .args(arguments);
        Program::start(command, &self.token)
    }

    /// Creates a session and waits until it is ready.
    async fn session(&self, name: &str, vram: &str) -> DynamicObject {
        let session = json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession",
            "metadata": {"namespace": "default", "name": name}, "spec": {"vram": vram, "engine": "cuda"},
        });
        self.pool.control_plane.apply(&session.to_string()).await.expect("applied");
        self.until(name, |session| {
            session.is_some_and(|session| true_condition(session, "Ready").is_some())
        })
        .await
        .expect("it is there")
    }

    async fn until(&self, name: &str, wanted: impl Fn(Option<&DynamicObject>) -> bool) -> Option<DynamicObject> {
        let waited = self.pool.control_plane.wait_until("GpuSession", "default", name, WITHIN, wanted);
        waited.await.expect("it comes to that")
    }

    /// Deletes sessions and checks that nothing is left of them.
    async fn leaves_nothing(&mut self, sessions: &[&str]) {
        for name in sessions {
            let deleted = self.pool.control_plane.delete("GpuSession", "default", name).await;
            deleted.expect("deleted");
            self.until(name, |session| session.is_none()).await;
        }
        self.pool.nothing_held(WITHIN).await.expect("everything is given back");
    }

    async fn kubectl(&self, arguments: &str) -> String {
        let output = self.pool.control_plane.kubectl(arguments.split(' ')).await.expect("kubectl runs");
        output.success().expect("kubectl succeeds")
    }
}

struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command, token: &str) -> Self {
        command
            .env("SAHASRA_TOKEN", token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    /// The next line that the program prints.
    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(WITHIN, self.output.read_line(&mut line)).await;
        read.expect("it prints").expect("a line");
        line.trim_end().to_owned()
    }

    /// Ends the program's input, and returns its exit code, the rest of its output, and its errors.
    async fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.child.stdin.take());
        let mut errors = self.child.stderr.take().expect("a pipe");
        let (mut printed, mut told) = (String::new(), String::new());
        let ended = async {
            let reading = tokio::join!(self.output.read_to_string(&mut printed), errors.read_to_string(&mut told));
            (reading.0.expect("text"), reading.1.expect("text"), self.child.wait().await)
        };
        let (_, _, status) = timeout(WITHIN, ended).await.expect("it ends");
        (status.expect("a status").code(), printed.trim_end().to_owned(), told)
    }

    async fn succeeds(self) -> String {
        let (code, printed, told) = self.end().await;
        assert_eq!(code, Some(0), "{printed}\n{told}");
        printed
    }
}

fn stored_bytes(session: &DynamicObject) -> i64 {
    session.data["status"]["storedTensorBytes"].as_i64().unwrap_or_default()
}

#[tokio::test]
async fn exec_runs_a_program_on_the_pool_and_shows_who_uses_what() {
    let mut fixture = Fixture::start().await;
    assert_eq!(fixture.exec(&[], &["steps", "200"]).succeeds().await, "200 steps are right");
    fixture.pool.nothing_held(WITHIN).await.expect("everything is given back");

    let mut holding = fixture.exec(&["--vram", "64Mi", "--class", "cpu"], &["hold", "7"]);
    assert!(holding.line().await.starts_with("holding 0x"));
    let shown = eventually(WITHIN, async || {
        let table = fixture.kubectl("get gpusessions -o wide").await;
        let row = table.lines().find(|line| line.contains("cuda_program hold"))?;
        row.contains(&(16 << 20).to_string()).then(|| table.clone())
    });
    let table = shown.await.expect("kubectl shows program and bytes");
    let heads: Vec<&str> = table.lines().next().expect("a head").split_whitespace().collect();
    assert!(heads.contains(&"PROGRAM") && heads.contains(&"HOST"), "{table}");
    let row = table.lines().find(|line| line.contains("cuda_program hold")).expect("a row");
    let session = row.split_whitespace().next().expect("a name");
    // Another process sees the lease and its use, though it could not use the session.
    let looking = fixture.program(&fixture.gateway.url(), session, &["look"]);
    assert_eq!(looking.succeeds().await, "total 64 MiB, used 16 MiB");
    let (code, _, told) = fixture.program(&fixture.gateway.url(), session, &["steps"]).end().await;
    assert!(code != Some(0) && told.contains("another program uses the session"), "{told}");
    assert_eq!(holding.succeeds().await, "unchanged");
    fixture.leaves_nothing(&[]).await;
}

#[tokio::test]
async fn exec_passes_exit_codes_and_signals_on_and_says_why_it_waits() {
    let mut fixture = Fixture::start().await;
    let (code, _, told) = fixture.exec(&[], &["dance"]).end().await;
    assert_eq!(code, Some(101), "{told}");
    let (code, _, told) = fixture.exec(&["--class", "h100", "--wait", "1s"], &["steps"]).end().await;
    assert_eq!(code, Some(3));
    assert!(told.contains("class is cpu, wanted h100"), "{told}");
    let mut holding = fixture.exec(&[], &["hold", "1"]);
    assert!(holding.line().await.starts_with("holding"));
    let pid = holding.child.id().expect("it runs");
    signal(pid, Signal::TERM).expect("sent");
    let (code, ..) = holding.end().await;
    assert_eq!(code, Some(143));
    fixture.leaves_nothing(&[]).await;
}

#[tokio::test]
async fn a_program_gets_its_lease_and_no_more_and_shares_no_memory() {
    let mut fixture = Fixture::start().await;
    let printed = fixture.exec(&["--vram", "64Mi"], &["exhaust"]).succeeds().await;
    assert_eq!(printed, "total 64 MiB, got 64 MiB, then CUDA_ERROR_OUT_OF_MEMORY");
    let mut programs = Vec::new();
    for pattern in ["1", "2", "3"] {
        let mut program = fixture.exec(&["--vram", "32Mi"], &["hold", pattern]);
        programs.push((program.line().await, program));
    }
    // The same address, in three processes.
    assert_eq!(programs[0].0, programs[1].0);
    for (_, program) in programs {
        assert_eq!(program.succeeds().await, "unchanged");
    }
    fixture.leaves_nothing(&[]).await;
}

#[tokio::test]
async fn a_program_that_knows_the_gateway_creates_a_session_and_deletes_it() {
    let mut fixture = Fixture::start().await;
    // As a host file has it.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("sahasra")).expect("a folder");
    std::fs::write(folder.path().join("sahasra/host"), fixture.gateway.address()).expect("written");
    let mut command = Command::new(fixture.binaries.join("examples/cuda_program"));
    command
        .args(["hold", "9"])
        .env("XDG_CONFIG_HOME", folder.path())
        .env("SAHASRA_CUDA_MEMORY", "32Mi")
        .env("LD_LIBRARY_PATH", fixture.libraries.path());
    let mut holding = Program::start(command, &fixture.token);
    assert!(holding.line().await.starts_with("holding"));
    let table = fixture.kubectl("get gpusessions -o wide").await;
    let row = table.lines().find(|line| line.starts_with("cuda-")).expect("a session");
    assert!(row.contains("32Mi") && row.contains("cuda_program"), "{table}");
    assert_eq!(holding.succeeds().await, "unchanged");
    assert!(!fixture.kubectl("get gpusessions -o wide").await.contains("cuda-"));
    fixture.leaves_nothing(&[]).await;
}

#[tokio::test]
async fn copies_survive_connections_that_break_in_the_middle() {
    let mut fixture = Fixture::start().await;
    fixture.session("cut", "64Mi").await;
    let proxy = Proxy::start(&fixture.gateway.address()).await;
    // Through shared memory, only the frames without their bytes go over the connection.
    for (shares, within, expected, program) in [
        ("0", 24 << 20, "no shared memory", "copies"),
        ("1", 24 << 10, "bytes copied through shared memory", "copies"),
        ("0", 24 << 20, "no shared memory", "pinned"),
        ("1", 6 << 10, "bytes copied through shared memory", "pinned"),
    ] {
        proxy.set(Some(Faults::new(11, within)));
        let url = format!("{}/default/cut", proxy.url);
        let mut copies = fixture.command(&url, &[program, "12"]);
        copies.env("SAHASRA_CUDA_SHARED_MEMORY", shares).env("SAHASRA_CUDA_SUMMARY", "1");
        let mut copies = Program::start(copies, &fixture.token);
        assert_eq!(copies.line().await, "copying");
        proxy.cut();
        let (code, printed, told) = copies.end().await;
        assert_eq!((code, printed.as_str()), (Some(0), "12 copies are right"), "{told}");
        assert!(told.contains(expected), "{told}");
        // 12 copies of 8 MiB in each direction.
        let shared = told.contains(&format!("{} bytes copied", 12 * 2 * (8 << 20)));
        assert_eq!(shared, shares == "1", "{told}");
    }
    fixture.leaves_nothing(&["cut"]).await;
}

#[tokio::test]
async fn memory_of_a_killed_program_is_free_within_the_grace_and_the_session_stays() {
    let mut fixture = Fixture::start().await;
    fixture.session("killed", "64Mi").await;
    let url = fixture.gateway.url();
    let mut holding = fixture.program(&url, "killed", &["hold", "1"]);
    assert!(holding.line().await.starts_with("holding"));
    fixture
        .until("killed", |session| session.is_some_and(|session| stored_bytes(session) >= 16 << 20))
        .await;
    holding.child.kill().await.expect("killed");
    fixture
        .until("killed", |session| session.is_some_and(|session| stored_bytes(session) == 0))
        .await;
    assert_eq!(
        fixture.program(&url, "killed", &["steps", "3"]).succeeds().await,
        "3 steps are right"
    );
    fixture.leaves_nothing(&["killed"]).await;
}

/// A loop of a training program: a round trip for its start, one for its module, and one for each number that it reads.
#[tokio::test]
async fn a_program_waits_for_the_network_once_for_each_answer_that_it_needs() {
    let mut fixture = Fixture::start().await;
    fixture.session("trips", "64Mi").await;
    let mut command = Command::new(fixture.binaries.join("examples/cuda_program"));
    command
        .args(["train", "100"])
        .env("SAHASRA_CUDA", format!("{}/default/trips", fixture.gateway.url()))
        .env("SAHASRA_CUDA_SHARED_MEMORY", "0")
        .env("SAHASRA_CUDA_SUMMARY", "1")
        .env("LD_LIBRARY_PATH", fixture.libraries.path());
    let (code, printed, told) = Program::start(command, &fixture.token).end().await;
    assert_eq!((code, printed.as_str()), (Some(0), "trained for 100 steps"), "{told}");
    let summary = told.lines().find(|line| line.contains("round trips")).expect("a summary");
    let words: Vec<&str> = summary.split(' ').collect();
    let trips = words
        .windows(2)
        .find(|pair| pair[1] == "round")
        .and_then(|pair| pair[0].parse::<u32>().ok());
    assert!(trips.is_some_and(|trips| (1..=101).contains(&trips)), "{summary}");
    // Three allocations, three hundred writes less the first one of the array, two thousand launches.
    let operations = words
        .windows(2)
        .find(|pair| pair[1] == "operations")
        .and_then(|pair| pair[0].parse::<u32>().ok());
    assert!(operations.is_some_and(|operations| operations >= 2_200), "{summary}");
    fixture.leaves_nothing(&["trips"]).await;
}

#[tokio::test]
async fn a_kernel_that_does_not_end_holds_its_session_until_the_program_or_the_session_ends() {
    let mut fixture = Fixture::start().await;
    fixture.session("hung", "64Mi").await;
    let url = fixture.gateway.url();
    let mut hanging = fixture.program(&url, "hung", &["hang"]);
    assert_eq!(hanging.line().await, "hanging");
    hanging.child.kill().await.expect("killed");
    // The next program takes the session when the first one's time to come back is over.
    let taken = eventually(WITHIN, async || {
        let (code, printed, told) = fixture.program(&url, "hung", &["steps", "3"]).end().await;
        assert!(code == Some(0) || told.contains("another client"), "{code:?} {printed} {told}");
        (code == Some(0)).then_some(printed)
    });
    assert_eq!(taken.await.expect("the session is taken"), "3 steps are right");

    let mut hanging = fixture.program(&url, "hung", &["hang"]);
    assert_eq!(hanging.line().await, "hanging");
    fixture.leaves_nothing(&["hung"]).await;
    assert_eq!(hanging.line().await, "CUDA_ERROR_DEVICE_UNAVAILABLE");
}

#[tokio::test]
async fn a_lost_worker_is_an_error_that_stays_and_the_session_fails() {
    let mut fixture = Fixture::start().await;
    let session = fixture.session("lost", "64Mi").await;
    let mut running = fixture.program(&fixture.gateway.url(), "lost", &["lose"]);
    assert_eq!(running.line().await, "running");
    let worker = session.data["status"]["worker"].as_str().expect("a worker");
    let agent = usize::from(worker != "node-0");
    fixture.pool.agents[agent].process.kill().await.expect("killed");
    let told = running.line().await;
    println!("{told}");
    assert!(told.starts_with("CUDA_ERROR_DEVICE_UNAVAILABLE after "), "{told}");
    assert!(told.ends_with("then CUDA_ERROR_DEVICE_UNAVAILABLE"), "{told}");
    let (_, _, errors) = running.end().await;
    assert!(errors.contains("lost"), "{errors}");
    let failed = fixture
        .until("lost", |session| {
            session.is_some_and(|session| true_condition(session, "Failed").is_some())
        })
        .await;
    let failed: DynamicObject = failed.expect("it is there");
    let reason: &Value = &condition(&failed, "Failed").expect("a condition")["reason"];
    assert_eq!(reason, "WorkerLost");
    fixture.pool.agents[agent].process.start().await.expect("it starts again");
    fixture.leaves_nothing(&["lost"]).await;
}

/// The tests of the driver library, on a session instead of the CPU of their own process.
#[tokio::test]
async fn the_library_does_on_a_session_what_it_does_in_process() {
    let mut fixture = Fixture::start().await;
    fixture.session("library", "64Mi").await;
    let test = library_tests(&fixture.binaries.join("deps")).expect("the tests of the driver library are built");
    let mut command = Command::new(test);
    command
        .args(["--test-threads=1"])
        .env("SAHASRA_TEST_SESSION", format!("{}/default/library", fixture.gateway.url()));
    Program::start(command, &fixture.token).succeeds().await;
    fixture.leaves_nothing(&["library"]).await;
}

/// The newest program in a folder that has the tests of the driver library.
fn library_tests(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let programs = entries.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("library-") && !name.contains('.')
    });
    let has_tests = |path: &PathBuf| {
        let listed = std::process::Command::new(path).arg("--list").output();
        listed.is_ok_and(|listed| String::from_utf8_lossy(&listed.stdout).contains("programs::sixty_four_threads"))
    };
    let mut programs: Vec<_> = programs.collect();
    programs.sort_by_key(|entry| std::cmp::Reverse(entry.metadata().and_then(|data| data.modified()).ok()));
    programs.into_iter().map(|entry| entry.path()).find(has_tests)
}
