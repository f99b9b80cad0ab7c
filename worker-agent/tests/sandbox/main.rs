//! Tests of what a compromised executor can reach: probes run the same attempts outside the sandbox and inside.
//!
//! Each probe is this program in a separate process. Outside the sandbox every attempt succeeds (or fails because its arguments are
//! invalid), so a rejection inside comes from the sandbox. If the tests run as root, all attempts run as root and as an unprivileged user,
//! which is what agents are in a cluster: there no file owner and no capability separates an executor from its agent.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod agent;
mod attempts;
mod probe;
mod scene;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use attempts::Kind;
use probe::Around;
use scene::Scene;

/// Uid of an unprivileged user without an entry in the user database.
const NOBODY: u32 = 65_532;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("probe") {
        let (what, how) = (arguments.next().expect("what"), arguments.next().expect("how"));
        return match what.as_str() {
            "old-kernel" => agent::on_an_old_kernel(&how),
            _ => probe::main(&what, &how),
        };
    }
    let users: &[(&str, Option<u32>)] = if rustix::process::geteuid().is_root() {
        &[("root", None), ("nobody", Some(NOBODY))]
    } else {
        &[("self", None)]
    };
    // A folder in which every user may execute the program.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sandbox-test");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let agent = folder.path().join("sahasra-worker");
    for (from, to) in [
        (std::env::current_exe().unwrap(), &program),
        (env!("CARGO_BIN_EXE_sahasra-worker").into(), &agent),
    ] {
        std::fs::copy(from, to).unwrap();
        std::fs::set_permissions(to, Permissions::from_mode(0o755)).unwrap();
    }
    let mut trials = Vec::new();
    for (name, user) in users {
        let trial = |what: &str, run: fn(&Scene) -> Result<(), Failed>| {
            let (program, user) = (program.clone(), *user);
            Trial::test(format!("{what}_as_{name}"), move || run(&Scene::new(program, user)))
        };
        trials.extend([
            trial("access_beyond_the_work_of_an_executor_is_refused_in_the_sandbox", sandbox),
            trial("landlock_alone_keeps_files_and_other_processes_shut", landlock_alone),
            trial("seccomp_alone_keeps_sockets_programs_and_signals_in", seccomp_alone),
            trial("the_executor_of_a_gpu_has_sockets_that_lead_nowhere_else", of_a_gpu),
            trial("a_gpus_plugin_starts_its_vendors_compilers_and_nothing_else", compilers),
            trial("engines_work_in_the_sandbox", engines_go_on),
        ]);
    }
    let (without, with, opening) = ((program.clone(), agent.clone()), (program, agent.clone()), agent);
    trials.extend([
        Trial::test("a_plugin_opens_in_the_sandbox_from_any_folder", move || {
            agent::plugin_opens(&opening)
        }),
        Trial::test(
            "an_agent_says_what_its_machine_lacks_and_does_not_start_where_that_is_required",
            move || agent::without_sandbox(&without.0, &without.1),
        ),
        Trial::test("an_agent_that_requires_the_sandbox_starts_and_closes_its_memory", move || {
            if has(&Scene::new(with.0, None), 3, true) {
                agent::with_sandbox(&with.1)
            } else {
                Ok(())
            }
        }),
    ]);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Returns whether this machine supports the tested parts of the sandbox, and prints a message otherwise.
fn has(scene: &Scene, landlock: u32, seccomp: bool) -> bool {
    let features = scene.features();
    let has = features.landlock >= landlock && (features.seccomp || !seccomp);
    if !has {
        eprintln!("SKIPPED: this kernel has {features:?}, and Landlock {landlock} and seccomp are to be tested");
    }
    has
}

/// Checks that the rejected attempts succeed outside the sandbox and fail inside.
fn compare(scene: &Scene, around: Around, refused: impl Fn(&attempts::Attempt) -> bool) -> Result<(), Failed> {
    let (outside, within) = (scene.outcomes(Around::Nothing), scene.outcomes(around));
    let mut wrong = Vec::new();
    for attempt in attempts::all().iter().filter(|attempt| refused(attempt)) {
        let (outside, within) = (outside[attempt.name], within[attempt.name]);
        if !attempt.outside.allows(outside) {
            wrong.push(format!("{} outside the sandbox: errno {outside}", attempt.name));
        }
        if !attempt.is_refusal(within) {
            wrong.push(format!("{} in the sandbox: errno {within}", attempt.name));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn sandbox(scene: &Scene) -> Result<(), Failed> {
    if !has(scene, 3, true) {
        return Ok(());
    }
    compare(scene, Around::Sandbox, |_| true)?;
    scene.is_unharmed(Around::Sandbox)
}

fn landlock_alone(scene: &Scene) -> Result<(), Failed> {
    if !has(scene, 6, false) {
        return Ok(());
    }
    let kinds = [Kind::File, Kind::Memory, Kind::Tcp, Kind::Abstract, Kind::Signal];
    compare(scene, Around::Landlock, |attempt| {
        // Landlock does not restrict modes, times and watches of files.
        kinds.contains(&attempt.kind) && !(attempt.kind == Kind::File && attempt.name.contains("call"))
    })?;
    scene.is_unharmed(Around::Landlock)
}

fn seccomp_alone(scene: &Scene) -> Result<(), Failed> {
    if !has(scene, 0, true) {
        return Ok(());
    }
    compare(scene, Around::Seccomp, |attempt| {
        !matches!(attempt.kind, Kind::File | Kind::Memory) || attempt.name.contains("call")
    })?;
    scene.is_unharmed(Around::Seccomp)
}

fn of_a_gpu(scene: &Scene) -> Result<(), Failed> {
    if !has(scene, 6, true) {
        return Ok(());
    }
    compare(scene, Around::GpuSandbox, |attempt| attempt.kind != Kind::Local)?;
    // The sandboxes differ in this attempt: without it, this test would test the wrong one.
    let outcome = scene.outcomes(Around::GpuSandbox)["make a socket of this machine"];
    if outcome != 0 {
        return Err(format!("a GPU's executor may make no local socket: errno {outcome}").into());
    }
    scene.is_unharmed(Around::GpuSandbox)
}

fn compilers(scene: &Scene) -> Result<(), Failed> {
    if !has(scene, 6, true) {
        return Ok(());
    }
    let may = [Kind::Local, Kind::Program];
    compare(scene, Around::GpuPluginSandbox, |attempt| !may.contains(&attempt.kind))?;
    let outcomes = scene.outcomes(Around::GpuPluginSandbox);
    let is = |name: &str, allowed: bool| match outcomes[name] {
        0 if allowed => Ok(()),
        libc::EPERM | libc::EACCES if !allowed => Ok(()),
        errno => Err(format!("{name}: errno {errno}")),
    };
    is("start a program", false)?;
    is("start a program that lies beside compilers", false)?;
    is("start a compiler", true)?;
    is("have a compiler read the agent's token", false)?;
    scene.is_unharmed(Around::GpuPluginSandbox)
}

fn engines_go_on(scene: &Scene) -> Result<(), Failed> {
    for around in [Around::Sandbox, Around::GpuSandbox, Around::GpuPluginSandbox] {
        let outcomes = scene.outcomes(around);
        for (name, _) in attempts::ordinary() {
            if outcomes[name] != 0 {
                return Err(format!("{name}, {around:?}: errno {}", outcomes[name]).into());
            }
        }
    }
    Ok(())
}
