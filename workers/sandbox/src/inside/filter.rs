//! seccomp: which calls of the kernel may be made. A list of what programs need; anything else, new
//! calls among them, does not exist for them (`ENOSYS`, at which libraries fall back to what does).

use std::collections::BTreeMap;

use anyhow::Context;
use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Flags by which `clone` would make new namespaces.
const NAMESPACES: c_long = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | 0x80) as c_long;

/// Files, folders and pipes. `ptrace`, `mount`, `socket`, `bpf`, `keyctl`, `io_uring_setup`,
/// `memfd_create` and hundreds of others are on no list.
const FILES: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_ioctl,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_sendfile,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close_range,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_utimensat,
    libc::SYS_umask,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_getdents64,
    libc::SYS_copy_file_range,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
];

/// Memory, processes, threads, signals and time.
const PROCESSES: &[c_long] = &[
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_madvise,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_setpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_execve,
    libc::SYS_uname,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_getuid,
    libc::SYS_getgid,
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_prctl,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_getcpu,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
];

/// What programs of a long-lived sandbox need besides: servers and clients on its own loopback, the
/// owners and attributes of files, which only what is theirs has. Sockets are limited by
/// [`SOCKETS`].
const LONG: &[c_long] = &[
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_memfd_create,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_mknodat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_readahead,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_capget,
    libc::SYS_sched_setscheduler,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
];
/// Kinds of sockets: of one machine, and of IP. No packets, no protocols of the kernel.
const SOCKETS: [c_int; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// What older programs of this architecture call for that.
#[cfg(target_arch = "x86_64")]
const LONG_OLDER: &[c_long] = &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_mknod, libc::SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
const LONG_OLDER: &[c_long] = &[];

/// What older programs of this architecture still call.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_access,
    libc::SYS_pipe,
    libc::SYS_select,
    libc::SYS_dup2,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_readlink,
    libc::SYS_chmod,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_time,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_getpgrp,
    libc::SYS_arch_prctl,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Puts it up.
///
/// # Errors
/// The kernel has none.
pub(crate) fn put_up() -> anyhow::Result<()> {
    seccompiler::apply_filter(&program(rules()?)?).context("failed to put up seccomp")
}

/// Puts it up for a long-lived sandbox.
///
/// # Errors
/// The kernel has none.
pub(crate) fn put_up_for_long() -> anyhow::Result<()> {
    let mut rules = rules()?;
    rules.extend([LONG, LONG_OLDER].concat().into_iter().map(|call| (call, Vec::new())));
    let mut sockets = Vec::new();
    for family in SOCKETS {
        sockets.extend(where_argument_0(SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::try_from(family)?)?);
    }
    rules.insert(libc::SYS_socket, sockets);
    seccompiler::apply_filter(&program(rules)?).context("failed to put up seccomp")
}

fn rules() -> anyhow::Result<BTreeMap<c_long, Vec<SeccompRule>>> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend([FILES, PROCESSES, OLDER].concat().into_iter().map(|call| (call, Vec::new())));
    let flags = SeccompCmpOp::MaskedEq(NAMESPACES as u64);
    rules.insert(libc::SYS_clone, where_argument_0(SeccompCmpArgLen::Qword, flags, 0)?);
    // Of oneself alone: another process here may be the sandbox's own.
    rules.insert(libc::SYS_prlimit64, where_argument_0(SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?);
    // Two ends within one process, by which programs wake themselves.
    let local = libc::AF_UNIX as u64;
    rules.insert(libc::SYS_socketpair, where_argument_0(SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, local)?);
    Ok(rules)
}

fn program(rules: BTreeMap<c_long, Vec<SeccompRule>>) -> anyhow::Result<BpfProgram> {
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let here = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, unknown, SeccompAction::Allow, here)?.try_into()?)
}

fn where_argument_0(
    length: SeccompCmpArgLen,
    is: SeccompCmpOp,
    value: u64,
) -> anyhow::Result<Vec<SeccompRule>> {
    Ok(vec![SeccompRule::new(vec![SeccompCondition::new(0, length, is, value)?])?])
}
