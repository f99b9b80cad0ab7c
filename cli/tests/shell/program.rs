//! The program under test as a child process.

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Timeout for operations that take milliseconds, for a machine under load.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);
/// Maximum duration of one call of the program.
const LONGEST: Duration = Duration::from_secs(300);

/// A call of the program, in the repository's root.
pub(crate) struct Sahasra(Command);

impl Sahasra {
    pub(crate) fn new<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        // Tests that were started by nohup, or in the background of a script, pass ignored signals on.
        let mut command = Command::new("env");
        command
            .args(["--default-signal=HUP,INT", env!("CARGO_BIN_EXE_sahasra")])
            .args(arguments)
            .current_dir(root())
            .env_remove("SAHASRA_LOG_LEVEL")
            .env_remove("SAHASRA_NVRTC_LIBRARY")
            .stdin(Stdio::null());
        Self(command)
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    pub(crate) fn command(self) -> Command {
        self.0
    }

    pub(crate) fn output(self) -> Output {
        self.output_with_input("")
    }

    pub(crate) fn output_with_input(mut self, input: &str) -> Output {
        self.0.stdout(Stdio::piped()).stderr(Stdio::piped());
        if !input.is_empty() {
            self.0.stdin(Stdio::piped());
        }
        let mut child = self.0.spawn().expect("sahasra runs");
        let _limit = Limit::of(&child);
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).expect("it reads");
        }
        child.wait_with_output().expect("it ends")
    }
}

/// Kills a process that runs for too long, so that a thread that reads its output or waits for its end does not block forever.
pub(crate) struct Limit {
    over: Option<mpsc::Sender<()>>,
    watching: Option<JoinHandle<()>>,
}

impl Limit {
    pub(crate) fn of(child: &Child) -> Self {
        let process = child.id();
        let (over, is_over) = mpsc::channel();
        let watching = std::thread::spawn(move || {
            if is_over.recv_timeout(LONGEST) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("killed: it had not ended after {LONGEST:?}");
                signal(process, "KILL");
            }
        });
        Self {
            over: Some(over),
            watching: Some(watching),
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // Stopped before the process id can belong to another process.
        drop(self.over.take());
        if let Some(watching) = self.watching.take() {
            let _ = watching.join();
        }
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Polls `look` until it returns `Some`.
pub(crate) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < WITHIN, "{what}: not within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends the signal called `name` (without SIG).
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status()
        .expect("kill runs");
    assert!(sent.success());
}

/// Returns all descendants of a process.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| {
            let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            let parent = status.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some((id, parent))
        })
        .collect();
    let mut found = vec![process];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

/// Whether the process exists and is not a zombie.
pub(crate) fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
