//! Tests of the agent's messages and behaviour on a machine that supports the sandbox, and on one that does not.
//!
//! A machine without support is simulated by a seccomp filter around the agent that fails the system calls of the sandbox as an old kernel
//! does.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use libtest_mimic::Failed;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use crate::NOBODY;

/// Returns the command of an agent without an API server.
fn agent(program: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args([
        "agent",
        "--node-name=node",
        "--no-kubernetes",
        "--no-cuda",
        "--listen=127.0.0.1:0",
        "--cpu-device-memory=64Mi",
    ]);
    command.args(more).stdin(Stdio::null());
    command
}

/// Runs `program` with the remaining arguments, under a filter that simulates an old kernel.
pub(crate) fn on_an_old_kernel(program: &str) -> ExitCode {
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_seccomp];
    let filter = SeccompFilter::new(
        calls.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        TargetArch::try_from(std::env::consts::ARCH).unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
    let arguments: Vec<String> = std::env::args().skip(4).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let error = agent(Path::new(program), &arguments).exec();
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn old_kernel(probe: &Path, agent: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(probe);
    command.args(["probe", "old-kernel"]).arg(agent).args(more);
    command
}

/// Returns the output of the agent until it serves or exits. Kills it once it serves.
fn stderr(mut command: Command, look: impl FnOnce(&Child) -> Result<(), Failed>) -> Result<String, Failed> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the other end of the pipe.
    drop(command);
    let mut stderr = String::new();
    let mut serving = false;
    for line in BufReader::new(reader).lines() {
        let line = line?;
        serving = line.contains("serving");
        stderr.push_str(&line);
        stderr.push('\n');
        if serving {
            break;
        }
    }
    let looked = if serving { look(&child) } else { Ok(()) };
    let _ = child.kill();
    child.wait()?;
    looked.map(|()| stderr)
}

fn says(stderr: &str, what: &[&str], not: &[&str]) -> Result<(), Failed> {
    let missing = what.iter().find(|what| !stderr.contains(**what));
    let wrong = not.iter().find(|what| stderr.contains(**what));
    match missing.or(wrong) {
        Some(about) => Err(format!("about {about:?}, it says:\n{stderr}").into()),
        None => Ok(()),
    }
}

pub(crate) fn without_sandbox(probe: &Path, agent: &Path) -> Result<(), Failed> {
    let log = stderr(old_kernel(probe, agent, &[]), |_| Ok(()))?;
    says(
        &log,
        &["WARN", "NOT FULLY SANDBOXED", "Landlock", "seccomp", "lsm=", "serving"],
        &[],
    )?;
    let log = stderr(old_kernel(probe, agent, &["--require-sandbox"]), |_| Ok(()))?;
    says(&log, &["is required", "Landlock", "seccomp", "lsm="], &["serving"])
}

pub(crate) fn with_sandbox(agent_program: &Path) -> Result<(), Failed> {
    let mut command = agent(agent_program, &["--require-sandbox"]);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let log = stderr(command, |agent| {
        // The files in /proc of a process that cannot be dumped belong to root, and others with the agent's uid cannot open them.
        let owner = std::fs::metadata(format!("/proc/{}/environ", agent.id()))?.uid();
        if owner == 0 {
            Ok(())
        } else {
            Err(format!("its memory is open to its uid: {owner}").into())
        }
    })?;
    says(&log, &["are sandboxed", "serving"], &["NOT FULLY SANDBOXED"])
}

/// Checks that a plugin opens in a folder that is closed to others (and owned by another user, if the test runs as root), and through a
/// symbolic link.
pub(crate) fn plugin_opens(agent: &Path) -> Result<(), Failed> {
    let Some(plugin) = std::env::var_os("SAHASRA_PJRT_PLUGIN").filter(|path| !path.is_empty()) else {
        eprintln!("SKIPPED: no PJRT plugin is named in SAHASRA_PJRT_PLUGIN (crates/pjrt/plugin installs one and prints where)");
        return Ok(());
    };
    let (home, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (copy, link) = (home.path().join("plugin.so"), elsewhere.path().join("link.so"));
    std::fs::copy(plugin, &copy)?;
    symlink(&copy, &link)?;
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o700))?;
    if rustix::process::geteuid().is_root() {
        chown(home.path(), Some(NOBODY), Some(NOBODY))?;
    }
    for path in [copy, link] {
        let output = Command::new(agent)
            .args(["executor", "probe-plugin"])
            .arg(&path)
            .env_clear()
            .output()?;
        says(&String::from_utf8_lossy(&output.stdout), &["Ok", "cpu"], &["Err"])?;
    }
    Ok(())
}
