//! System calls that an executor may not make, enforced by seccomp.
//!
//! The filter lists the rejected calls instead of the allowed ones: the calls of the vendors' drivers and plugins are documented nowhere
//! and change with each version, and a call missing from a list of allowed ones would fail in the middle of a tenant's work. The list
//! cannot become outdated, because call numbers that it does not know are rejected too: calls of a newer kernel stay unavailable until
//! somebody has reviewed them.
//!
//! A rejected call fails with `EPERM`, which its caller can report. A call with an unknown number fails with `ENOSYS`, and so does
//! `clone3`, whose flags a filter cannot see: C libraries then fall back to older calls.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

use super::reach::Reach;

/// First call number that Linux 6.18 does not use on any of the architectures. Review the calls in between before raising it.
const UNKNOWN: u32 = 470;

/// Calls that the binding of the C library does not name. Their numbers are the same on all architectures.
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const OPEN_TREE_ATTR: c_long = 467;
const FILE_SETATTR: c_long = 469;

/// Reason why system calls are not restricted.
#[derive(Debug, thiserror::Error)]
pub enum CallsError {
    #[error("failed to build the seccomp filter")]
    Filter(#[from] seccompiler::BackendError),
    #[error("failed to install the seccomp filter")]
    Apply(#[from] seccompiler::Error),
}

/// Calls that are always rejected, whatever their arguments.
const REJECTED: &[c_long] = &[
    libc::SYS_execveat,
    // Leaving the process group: the agent ends the whole group, including everything that the executor started.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_tkill,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    STATMOUNT,
    LISTMOUNT,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    // Operations that Landlock does not control: owners, modes, attributes, and watching files.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_open_by_handle_at,
    // Truncation, which Landlock controls only since its third ABI version.
    libc::SYS_truncate,
    // Memory and queues that processes of one user share by name.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // The kernel itself: keys, programs in the kernel, clock, log, modules.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_personality,
];

/// Rejected calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const REJECTED_HERE: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
    libc::SYS_uselib,
    libc::SYS_modify_ldt,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const REJECTED_HERE: &[c_long] = &[];

/// Calls that start other programs: only a GPU's plugin needs them, for its compilers. Landlock restricts which programs.
const PROGRAMS: &[c_long] = &[
    libc::SYS_execve,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Calls that create and name sockets. A GPU's driver needs Unix sockets.
const SOCKETS: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
];

/// Restricts this thread and all threads and processes that it starts. Returns whether system calls are filtered.
///
/// # Errors
/// [`CallsError`]. A kernel without filters is no error, nor is a parent process that forbids them.
pub fn restrict(reach: &Reach) -> Result<bool, CallsError> {
    let Ok(architecture) = TargetArch::try_from(std::env::consts::ARCH) else {
        return Ok(false);
    };
    match seccompiler::apply_filter(&unknown_calls()) {
        Ok(()) => {}
        Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error)) if is_missing(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    seccompiler::apply_filter(&rejected_calls(reach, architecture)?)?;
    Ok(true)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM | libc::EACCES))
}

/// Filter for unknown call numbers. Hand-written, because the library compares call numbers for equality only. Calls of another
/// architecture are left to the other filter, which kills the process.
fn unknown_calls() -> BpfProgram {
    let statement = |code: u32, jt, jf, k| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let answer = |answer: u32| statement(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    vec![
        // The call number is the first field of `struct seccomp_data`: see seccomp(2).
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, 0, UNKNOWN),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_clone3 as u32),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

fn rejected_calls(reach: &Reach, architecture: TargetArch) -> Result<BpfProgram, seccompiler::BackendError> {
    let always = REJECTED.iter().chain(REJECTED_HERE).map(|call| (*call, Vec::new()));
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = always.collect();
    let of_some = [(SOCKETS, reach.gpu), (PROGRAMS, reach.has_compilers())];
    for (calls, _) in of_some.into_iter().filter(|(_, allowed)| !allowed) {
        rules.extend(calls.iter().map(|call| (*call, Vec::new())));
    }
    conditions(reach, &mut rules)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32), architecture)?;
    filter.try_into()
}

/// Adds calls that are rejected only for some arguments.
fn conditions(reach: &Reach, rules: &mut BTreeMap<c_long, Vec<SeccompRule>>) -> Result<(), seccompiler::BackendError> {
    let itself = u64::from(std::process::id());
    let is = |place, value| SeccompCondition::new(place, Dword, SeccompCmpOp::Eq, value);
    let is_not = |place, value| SeccompCondition::new(place, Dword, SeccompCmpOp::Ne, value);
    let has = |place, bits: i32| SeccompCondition::new(place, Dword, SeccompCmpOp::MaskedEq(bits as u64), bits as u64);
    let mut reject = |call: c_long, conditions: Vec<SeccompCondition>| {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok::<_, seccompiler::BackendError>(())
    };
    // Threads are allowed; processes are not, because they could outlive the executor.
    let no_thread = SeccompCondition::new(0, Qword, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)?;
    if !reach.has_compilers() {
        reject(libc::SYS_clone, vec![no_thread])?;
    }
    // Signals only to itself, which is how the executor ends.
    for call in [
        libc::SYS_kill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
    ] {
        reject(call, vec![is_not(0, itself)?])?;
    }
    for command in [libc::F_SETOWN, F_SETOWN_EX] {
        reject(libc::SYS_fcntl, vec![is(1, command as u64)?])?;
    }
    for request in [FIOSETOWN, SIOCSPGRP] {
        reject(libc::SYS_ioctl, vec![is(1, request)?])?;
    }
    // Limits, priorities and CPU and memory placement: only its own.
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_move_pages,
        libc::SYS_migrate_pages,
    ] {
        reject(call, vec![is_not(0, 0)?, is_not(0, itself)?])?;
    }
    reject(libc::SYS_setpriority, vec![is_not(0, libc::PRIO_PROCESS as u64)?])?;
    reject(libc::SYS_setpriority, vec![is_not(1, 0)?])?;
    reject(libc::SYS_ioprio_set, vec![is_not(0, IOPRIO_WHO_PROCESS)?])?;
    reject(libc::SYS_ioprio_set, vec![is_not(1, 0)?])?;
    // The executor must die with the agent.
    reject(libc::SYS_prctl, vec![is(0, libc::PR_SET_PDEATHSIG as u64)?])?;
    // Times of open files may be set, those of paths may not: the program cache depends on them.
    reject(libc::SYS_utimensat, vec![SeccompCondition::new(1, Qword, SeccompCmpOp::Ne, 0)?])?;
    // A TCP connection that was passed to the executor must not be turned into another one.
    reject(libc::SYS_sendto, vec![has(3, libc::MSG_FASTOPEN)?])?;
    reject(libc::SYS_sendmsg, vec![has(2, libc::MSG_FASTOPEN)?])?;
    reject(libc::SYS_sendmmsg, vec![has(3, libc::MSG_FASTOPEN)?])?;
    reject(libc::SYS_socketpair, vec![is_not(0, libc::AF_UNIX as u64)?])?;
    if reach.gpu {
        reject(libc::SYS_socket, vec![is_not(0, libc::AF_UNIX as u64)?])?;
    }
    Ok(())
}

/// Commands of `fcntl` and `ioctl` that set the process that is signalled when a descriptor is ready: asm-generic/fcntl.h,
/// asm-generic/sockios.h.
const F_SETOWN_EX: i32 = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
/// Scope of `ioprio_set` for a single process: linux/ioprio.h.
const IOPRIO_WHO_PROCESS: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_fit_into_the_kernel() {
        let architecture = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        for gpu in [false, true] {
            let reach = Reach { gpu, ..Reach::default() };
            let filter = rejected_calls(&reach, architecture).unwrap();
            // BPF_MAXINSNS
            assert!(filter.len() < 4096, "{}", filter.len());
        }
    }

    #[test]
    fn every_rejected_call_is_known() {
        for call in REJECTED.iter().chain(REJECTED_HERE).chain(PROGRAMS).chain(SOCKETS) {
            assert!((0..c_long::from(UNKNOWN)).contains(call), "{call}");
        }
    }
}
