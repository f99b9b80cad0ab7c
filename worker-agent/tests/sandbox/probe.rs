//! Probe: a process that enters a sandbox and runs the attempts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use sahasra_executor::sandbox::{self, calls, files, reach::Reach};
use sahasra_executor_protocol::probe::SandboxFeatures;
use serde::{Deserialize, Serialize};

use crate::attempts::{self, Place};
use crate::scene::Setup;

/// Sandbox of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Around {
    Nothing,
    /// Sandbox of an executor.
    Sandbox,
    GpuSandbox,
    /// Sandbox of a session that runs XLA programs on a GPU.
    GpuPluginSandbox,
    Landlock,
    Seccomp,
}

/// Output of a probe.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub features: SandboxFeatures,
    pub outcomes: BTreeMap<String, i32>,
}

/// Secret that other processes must not read.
static SECRET: [u8; 8] = *b"s3cr3t!\n";

pub(crate) fn main(what: &str, how: &str) -> ExitCode {
    let (around, setup): (Around, Setup) = serde_json::from_str(how).unwrap();
    let reach = Reach {
        gpu: matches!(around, Around::GpuSandbox | Around::GpuPluginSandbox),
        plugin: (around == Around::GpuPluginSandbox).then(|| setup.folder.join("site-packages/plugin/plugin.so")),
        program_cache: Some(setup.folder.join("programs/mine")),
        scratch: (around == Around::GpuPluginSandbox).then(|| setup.folder.join("scratch")),
    };
    let mut features = SandboxFeatures::default();
    let (mut socket, output): (OwnedFd, OwnedFd) = match around {
        Around::Sandbox | Around::GpuSandbox | Around::GpuPluginSandbox => {
            // The function by which executors enter the sandbox. It does not report which parts of the sandbox are active: `standing` finds
            // that out.
            let inherited = sandbox::enter(setup.parent, Some(1 << 30), &reach).unwrap();
            (inherited.socket.into(), inherited.status_page)
        }
        _ => {
            let copy = |descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 3).unwrap();
            (copy(rustix::stdio::stdin()), copy(rustix::stdio::stdout()))
        }
    };
    match around {
        Around::Landlock => {
            features.landlock = files::restrict(&reach).unwrap();
        }
        Around::Seccomp => {
            rustix::thread::set_no_new_privs(true).unwrap();
            features.seccomp = calls::restrict(&reach).unwrap();
        }
        Around::Sandbox | Around::GpuSandbox | Around::GpuPluginSandbox => features = standing(),
        Around::Nothing => {}
    }
    let mut output = File::from(output);
    if what == "wait" {
        attempts::let_everybody_trace();
        writeln!(output, "{}", SECRET.as_ptr() as usize).unwrap();
        let _ = File::from(socket).read(&mut [0]);
        return ExitCode::SUCCESS;
    }
    let place = Place {
        setup,
        socket: socket.as_raw_fd(),
        secret: SECRET,
    };
    let mut outcomes = BTreeMap::new();
    for (name, attempt) in attempts::ordinary() {
        outcomes.insert(name.to_owned(), attempts::errno(attempt(&place)));
    }
    for attempt in attempts::all() {
        outcomes.insert(attempt.name.to_owned(), attempts::errno((attempt.run)(&place)));
    }
    serde_json::to_writer(&mut output, &Report { features, outcomes }).unwrap();
    // The descriptors stay open until here.
    socket = OwnedFd::from(output);
    drop(socket);
    ExitCode::SUCCESS
}

/// Returns which parts of the sandbox are active for this process, according to the kernel.
fn standing() -> SandboxFeatures {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    SandboxFeatures {
        landlock: attempts::landlock_version(),
        seccomp: status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2')),
    }
}
