//! Environment of probes: files of an agent, listeners, and two target processes, one outside any sandbox and one inside its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libtest_mimic::Failed;
use parking_lot::Mutex;
use sahasra_executor_protocol::probe::SandboxFeatures;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::probe::{Around, Report};

/// Input of a probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub folder: PathBuf,
    pub parent: i32,
    pub port: u16,
    pub abstract_name: String,
    /// Process ids of the targets, and the address of the secret in each.
    pub others: Vec<(i32, usize)>,
}

/// Target process, which waits to be probed.
struct Other {
    child: Child,
    id: i32,
    secret: usize,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Scene {
    folder: TempDir,
    program: PathBuf,
    user: Option<u32>,
    tcp: TcpListener,
    _local: UnixListener,
    _abstract: UnixListener,
    abstract_name: String,
    /// Target processes and report of each round.
    rounds: Mutex<BTreeMap<Around, (Vec<Other>, Report)>>,
}

impl Scene {
    pub(crate) fn new(program: PathBuf, user: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let tools = "site-packages/nvidia/cuda_nvcc/bin";
        for name in ["programs/mine", "programs/other", "scratch", "site-packages/plugin", tools] {
            fs::create_dir_all(at(name)).unwrap();
        }
        // A compiler is simulated by a program that reads one file and writes another.
        for name in ["ptxas", "another"] {
            fs::copy("/bin/cp", at(tools).join(name)).unwrap();
        }
        for name in ["token", "tls.key", "programs/other/program"] {
            fs::write(at(name), "secret").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        let abstract_name = folder.path().display().to_string();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let scene = Self {
            _local: UnixListener::bind(at("socket")).unwrap(),
            _abstract: UnixListener::bind_addr(&address).unwrap(),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            folder,
            program,
            user,
            abstract_name,
            rounds: Mutex::default(),
        };
        scene.give_away(scene.folder.path());
        scene
    }

    /// Makes the user the owner of a path and its contents, as an agent's files belong to the uid of its executors.
    fn give_away(&self, path: &Path) {
        let Some(user) = self.user else { return };
        std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.give_away(&entry.unwrap().path());
            }
        }
    }

    fn start(&self, around: Around, what: &str, others: &[Other]) -> Child {
        let setup = Setup {
            folder: self.folder.path().to_owned(),
            parent: std::process::id() as i32,
            port: self.tcp.local_addr().unwrap().port(),
            abstract_name: self.abstract_name.clone(),
            others: others.iter().map(|other| (other.id, other.secret)).collect(),
        };
        let how = serde_json::to_string(&(around, setup)).unwrap();
        // The probe needs any connected socket, such as a client's connection that is handed over.
        let connection = TcpStream::connect(self.tcp.local_addr().unwrap()).unwrap();
        let mut command = Command::new(&self.program);
        command
            .args(["probe", what, &how])
            .env_clear()
            .env("SECRET", "hush")
            .current_dir("/");
        command.stdin(Stdio::from(OwnedFd::from(connection))).stdout(Stdio::piped());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.spawn().unwrap()
    }

    fn other(&self, around: Around) -> Other {
        let mut child = self.start(around, "wait", &[]);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let secret = line.trim().parse().expect("it says where its secret is");
        Other {
            id: child.id() as i32,
            child,
            secret,
        }
    }

    fn report(&self, around: Around) -> Report {
        let mut rounds = self.rounds.lock();
        let (_, report) = rounds.entry(around).or_insert_with(|| {
            let removable = self.folder.path().join("removable");
            fs::write(&removable, "").unwrap();
            self.give_away(&removable);
            let others = vec![self.other(Around::Nothing), self.other(Around::Sandbox)];
            let child = self.start(around, "try", &others);
            let output = child.wait_with_output().unwrap();
            let report = serde_json::from_slice(&output.stdout);
            let report = report.unwrap_or_else(|error| panic!("{around:?}: {error}: {output:?}"));
            (others, report)
        });
        report.clone()
    }

    /// Returns the outcome of every attempt: 0, or the number of the error.
    pub(crate) fn outcomes(&self, around: Around) -> BTreeMap<String, i32> {
        self.report(around).outcomes
    }

    /// Returns the parts of the sandbox that this machine supports.
    pub(crate) fn features(&self) -> SandboxFeatures {
        self.report(Around::Sandbox).features
    }

    /// Checks that no target was killed inside the sandbox, and that both were killed outside.
    pub(crate) fn is_unharmed(&self, around: Around) -> Result<(), Failed> {
        let mut rounds = self.rounds.lock();
        for other in &mut rounds.get_mut(&Around::Nothing).unwrap().0 {
            other.child.wait().unwrap();
        }
        let others = &mut rounds.get_mut(&around).unwrap().0;
        if others.iter_mut().all(|other| other.child.try_wait().unwrap().is_none()) {
            Ok(())
        } else {
            Err("a process was killed from in the sandbox".into())
        }
    }
}
