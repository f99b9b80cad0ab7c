//! `sahasra serve` and `sahasra connect`: CUDA programs of one machine on the devices of another, without Kubernetes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use sahasra_client::{Error, Gateway, Token, Trust};
use sahasra_e2e::{Signal, eventually, signal, tools};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);

async fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    let read = timeout(WITHIN, output.read_line(&mut line)).await;
    read.expect("it prints").expect("a line");
    line.trim_end().to_owned()
}

/// Runs a command to its end.
async fn ended(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that needs no input may have ended.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = timeout(WITHIN, child.wait_with_output()).await;
    output.expect("it ends").expect("output")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// A running `sahasra serve`.
struct Server {
    process: Child,
    output: BufReader<ChildStdout>,
    /// Address that it prints for clients.
    address: String,
}

impl Server {
    /// Starts a server whose credentials are in the folder `state`.
    async fn start(state: &Path, listen: &str) -> Self {
        let mut process = Command::new(binaries().await.join("sahasra"))
            .args(["serve", "-l", listen, "--vram", "2Gi"])
            .env("XDG_STATE_HOME", state)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        let welcome = line(&mut output).await;
        let address = welcome.strip_prefix("Sahasra serves ").and_then(|rest| rest.split_once(" on "));
        let address = address.expect(&welcome).0.to_owned();
        Self { process, output, address }
    }

    async fn end(mut self) -> String {
        signal(self.process.id().expect("it runs"), Signal::INT).expect("sent");
        let mut rest = String::new();
        let read = timeout(WITHIN, self.output.read_to_string(&mut rest)).await;
        read.expect("it ends").expect("text");
        assert!(self.process.wait().await.expect("a status").success(), "{rest}");
        rest
    }
}

async fn binaries() -> PathBuf {
    tools::binaries().await.expect("binaries")
}

/// A server on loopback, and a user of another machine: one with a home folder and the drop-in libraries alone.
struct Fixture {
    server: Server,
    state: TempDir,
    home: TempDir,
    binaries: PathBuf,
}

impl Fixture {
    async fn start() -> Self {
        let (state, home) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let binaries = binaries().await;
        let libraries = home.path().join("lib");
        std::fs::create_dir(&libraries).expect("a folder");
        for (library, name) in [("cuda_driver", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")] {
            let library = binaries.join("deps").join(format!("libsahasra_{library}.so"));
            std::os::unix::fs::symlink(library, libraries.join(name)).expect("a link");
        }
        Self {
            server: Server::start(state.path(), "127.0.0.1:0").await,
            state,
            home,
            binaries,
        }
    }

    fn token(&self) -> String {
        let token = std::fs::read_to_string(self.state.path().join("sahasra/serve/token"));
        token.expect("a token").trim_end().to_owned()
    }

    /// A program of the user, with nothing in its environment that names a device.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("LD_LIBRARY_PATH", self.home.path().join("lib"))
            // A driver of this machine must not answer.
            .env("SAHASRA_CUDA_DRIVER", "/nonexistent");
        command
    }

    async fn sahasra(&self, arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
        let mut command = self.command(&self.binaries.join("sahasra"));
        command.args(arguments);
        let output = ended(command, input).await;
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    async fn connect(&self) {
        let (code, printed, told) = self.sahasra(&["connect", &self.server.address], &self.token()).await;
        assert_eq!(code, Some(0), "{printed}{told}");
        assert!(printed.starts_with(&format!("Connected to {}.", self.server.address)), "{printed}");
    }

    fn program(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.binaries.join("examples/cuda_program"));
        command.args(arguments);
        command
    }

    async fn prints(&self, arguments: &[&str]) -> String {
        let output = ended(self.program(arguments), "").await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// A program that keeps running, and its output.
    fn running(&self, arguments: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut command = self.program(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        (child, output)
    }

    /// Folder with the files of a connection.
    fn connection(&self) -> PathBuf {
        self.home.path().join(".config/sahasra")
    }

    fn gateway(&self, token: &str) -> Gateway {
        let certificate = std::fs::read_to_string(self.state.path().join("sahasra/serve/certificate.pem")).expect("a certificate");
        let url = format!("https://{}", self.server.address);
        Gateway::trusting(&url, Token::text(token), &Trust::Server(certificate)).expect("a gateway")
    }
}

#[tokio::test]
async fn programs_of_a_connected_user_run_on_the_server_with_the_search_path_alone() {
    let fixture = Fixture::start().await;
    fixture.connect().await;
    assert_eq!(fixture.prints(&["steps", "200"]).await, "200 steps are right");
    let printed = fixture.prints(&["exhaust"]).await;
    assert_eq!(printed, "total 1024 MiB, got 1024 MiB, then CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(fixture.prints(&["look"]).await, "total 1024 MiB, used 0 MiB");
    let gateway = fixture.gateway(&fixture.token());
    let none_left = eventually(WITHIN, async || {
        let sessions = gateway.sessions("default").await.expect("a list");
        sessions["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    none_left.await.expect("their sessions end with them");

    let program = fixture.binaries.join("examples/cuda_program").display().to_string();
    let libraries = fixture.home.path().join("lib").display().to_string();
    let exec = ["exec", "--libraries", &libraries, "--vram", "64Mi", "--", &program, "exhaust"];
    let (code, printed, told) = fixture.sahasra(&exec, "").await;
    assert_eq!(
        (code, printed.as_str()),
        (Some(0), "total 64 MiB, got 64 MiB, then CUDA_ERROR_OUT_OF_MEMORY"),
        "{told}"
    );

    for file in std::fs::read_dir(fixture.connection()).expect("a folder").flatten() {
        let mode = file.metadata().expect("data").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.path().display());
    }
    assert_eq!(fixture.sahasra(&["disconnect"], "").await.0, Some(0));
    let output = ended(fixture.program(&["steps"]), "").await;
    let told = text(&output.stderr);
    assert!(!output.status.success() && told.contains("sahasra connect"), "{told}");
    assert!(fixture.server.end().await.contains("All slices are released"));
}

#[tokio::test]
async fn nothing_is_served_without_the_token() {
    let fixture = Fixture::start().await;
    fixture.connect().await;
    let before = std::fs::read_to_string(fixture.connection().join("host")).expect("a file");
    let token = fixture.token();
    let (fingerprint, secret) = token.split_once('.').expect("two parts");
    let other = "0".repeat(64);
    let address = fixture.server.address.as_str();
    for (token, code, reason) in [
        (format!("{fingerprint}.{other}"), 1, "does not accept the token"),
        (format!("{other}.{secret}"), 1, "not the server of the token"),
        ("wrong".to_owned(), 1, "copy all of the file"),
        (token[1..].to_owned(), 1, "copy all of the file"),
        (String::new(), 2, "no token"),
    ] {
        let (got, printed, told) = fixture.sahasra(&["connect", address], &token).await;
        assert!(got == Some(code) && told.contains(reason), "{got:?} {printed}{told}");
    }
    // A token without a fingerprint is sent to no server that is not on this machine.
    let (code, _, told) = fixture.sahasra(&["connect", "192.0.2.1:9"], secret).await;
    assert!(code == Some(2) && told.contains("not one of sahasra serve"), "{told}");
    assert_eq!(std::fs::read_to_string(fixture.connection().join("host")).expect("a file"), before);
    assert_eq!(fixture.prints(&["steps", "2"]).await, "2 steps are right");

    for token in ["wrong", secret] {
        let gateway = fixture.gateway(token);
        for answer in [gateway.sessions("default").await, gateway.workers().await] {
            assert!(matches!(answer, Err(Error::Http { status: 401, .. })), "{answer:?}");
        }
    }
    // A client that has none does not ask.
    assert!(matches!(fixture.gateway("").workers().await, Err(Error::Configuration(_))));
    let workers = fixture.gateway(&token).workers().await.expect("with the token");
    assert_eq!(workers.as_array().map(Vec::len), Some(1), "{workers}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_with_what_to_check() {
    let mut fixture = Fixture::start().await;
    let token = fixture.home.path().join("token");
    std::fs::write(&token, fixture.token()).expect("written");
    let token = token.display().to_string();
    let address = fixture.server.address.clone();
    fixture.server.process.kill().await.expect("killed");
    let (code, _, told) = fixture.sahasra(&["connect", &address, "--token-file", &token], "").await;
    assert!(code == Some(1) && told.contains("check that sahasra serve runs there"), "{told}");

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        // Until the client has read it.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
    let (code, _, told) = fixture.sahasra(&["connect", &address, "--token-file", &token], "").await;
    assert!(code == Some(1) && told.contains("does not use TLS"), "{told}");
    answering.await.expect("it has answered");
    assert!(!fixture.connection().exists(), "nothing was written");
}

#[tokio::test]
async fn a_server_that_was_killed_is_an_error_and_serves_the_same_clients_when_it_starts_again() {
    let mut fixture = Fixture::start().await;
    fixture.connect().await;
    let (mut program, mut output) = fixture.running(&["lose"]);
    assert_eq!(line(&mut output).await, "running");
    fixture.server.process.kill().await.expect("killed");
    let told = line(&mut output).await;
    assert!(told.starts_with("CUDA_ERROR_DEVICE_UNAVAILABLE after "), "{told}");
    assert!(told.ends_with("then CUDA_ERROR_DEVICE_UNAVAILABLE"), "{told}");
    timeout(WITHIN, program.wait()).await.expect("it ends").expect("a status");

    let address = fixture.server.address.clone();
    fixture.server = Server::start(fixture.state.path(), &address).await;
    assert_eq!(fixture.prints(&["steps", "3"]).await, "3 steps are right");
}

#[tokio::test]
async fn the_session_of_a_program_that_was_killed_ends_soon() {
    let fixture = Fixture::start().await;
    fixture.connect().await;
    let (mut program, mut output) = fixture.running(&["hold", "1"]);
    assert!(line(&mut output).await.starts_with("holding"));
    let gateway = fixture.gateway(&fixture.token());
    let listed = gateway.sessions("default").await.expect("a list");
    let name = listed["items"][0]["metadata"]["name"].as_str().expect("a session").to_owned();
    assert_eq!(listed["items"][0]["spec"]["disconnectTimeoutSeconds"], 60);
    program.kill().await.expect("killed");
    let session = gateway.session_failed("default", &name, WITHIN).await.expect("an answer");
    let failed = sahasra_client::condition(&session, "Failed").expect("it has failed");
    assert_eq!(failed["reason"], "Disconnected", "{failed}");
    assert!(fixture.server.end().await.contains("All slices are released"));
}

/// A program that prints who interrupts it: the number of a process, or 0 for the terminal.
const COUNTS_INTERRUPTS: &str = r#"#!/usr/bin/env python3
import os, signal
awaited = [signal.SIGINT, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("started", os.getppid(), flush=True)
count = 0
while (sent := signal.sigwaitinfo(awaited)).si_signo == signal.SIGINT:
    count += 1
    print("interrupted by", sent.si_pid, flush=True)
print("interrupted", count, "times", flush=True)
"#;

/// Whether a signal waits for a process to take it.
fn is_pending(process: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = u64::from_str_radix(pending.expect("Linux says it").trim(), 16).expect("a number");
    pending >> (signal.as_raw() - 1) & 1 == 1
}

/// Ctrl-C in a terminal reaches the program itself, whatever its standard input is.
#[tokio::test]
async fn an_interrupt_reaches_the_program_of_exec_once() {
    let fixture = Fixture::start().await;
    fixture.connect().await;
    let file = fixture.home.path().join("program");
    std::fs::write(&file, COUNTS_INTERRUPTS).expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o700)).expect("a program");
    let (sahasra, libraries) = (fixture.binaries.join("sahasra"), fixture.home.path().join("lib"));
    let exec = format!(
        "env --default-signal=INT {} exec --libraries {} --vram 64Mi -- {} </dev/null",
        sahasra.display(),
        libraries.display(),
        file.display()
    );
    // util-linux runs the command in a terminal of its own.
    let mut command = fixture.command(Path::new("script"));
    command.args(["--quiet", "--return", "--command", &exec, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut terminal = command.spawn().expect("util-linux is installed");
    let mut output = BufReader::new(terminal.stdout.take().expect("a pipe"));
    let started = line(&mut output).await;
    let process: u32 = started.strip_prefix("started ").and_then(|id| id.parse().ok()).expect(&started);
    let mut keys = terminal.stdin.take().expect("a pipe");
    keys.write_all(b"\x03").await.expect("typed");
    // The terminal shows the key.
    assert_eq!(line(&mut output).await.trim_start_matches("^C"), "interrupted by 0");
    // A signal that is still pending would swallow the next one.
    let taken = eventually(WITHIN, async || (!is_pending(process, Signal::INT)).then_some(()));
    taken.await.expect("exec takes the signal");
    signal(process, Signal::INT).expect("sent");
    assert_eq!(line(&mut output).await, format!("interrupted by {process}"));
    signal(process, Signal::TERM).expect("sent");
    assert_eq!(line(&mut output).await, "interrupted 2 times");
    timeout(WITHIN, terminal.wait()).await.expect("it ends").expect("a status");
}

#[tokio::test]
async fn the_token_of_a_connection_is_sent_to_its_server_only() {
    let fixture = Fixture::start().await;
    fixture.connect().await;
    // The library sends the token to the server of the connection only: another gateway gets none.
    let other = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut command = fixture.program(&["steps"]);
    command.env("SAHASRA_CUDA", format!("http://{}", other.local_addr().expect("an address")));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let _program = command.spawn().expect("it starts");
    let (mut stream, _) = timeout(WITHIN, other.accept()).await.expect("it connects").expect("a connection");
    let mut request = Vec::new();
    let head = async {
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut request).await.expect("read") > 0);
        }
    };
    timeout(WITHIN, head).await.expect("a request");
    let request = text(&request).to_ascii_lowercase();
    assert!(request.starts_with("post ") && !request.contains("authorization"), "{request}");
}
