//! Seccomp: the system calls that a program makes which reads a file and computes. All others fail
//! with `EPERM`, threads are allowed and processes are not.

use std::io;

use libc::sock_filter;

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const KILL: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;
/// Where `struct seccomp_data` has the number, the architecture, and the lower half of the first
/// argument (both architectures below are little-endian).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST: u32 = 16;

#[cfg(target_arch = "x86_64")]
const NATIVE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const NATIVE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const NATIVE: Option<u32> = None;

/// What every architecture has.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_prlimit64,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_write,
    libc::SYS_writev,
];

#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Whether the kernel filters system calls on this architecture.
pub(super) fn available() -> bool {
    // SAFETY: numbers only.
    NATIVE.is_some() && unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) } >= 0
}

/// The filter.
pub(super) struct Filter(Vec<sock_filter>);

fn step(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

impl Filter {
    /// `None` where there is no seccomp.
    pub fn new() -> Option<Self> {
        let native = NATIVE.filter(|_| available())?;
        let fail = |errno: i32| step(RETURN, FAIL | errno.unsigned_abs(), 0, 0);
        let allow = || step(RETURN, ALLOW, 0, 0);
        let call = |number: libc::c_long| u32::try_from(number).expect("calls have small numbers");
        let mut steps = vec![
            step(LOAD, ARCHITECTURE, 0, 0),
            step(JUMP_EQUAL, native, 1, 0),
            step(RETURN, KILL, 0, 0),
            step(LOAD, NUMBER, 0, 0),
            // Its arguments can't be looked at; the C library then uses the other one.
            step(JUMP_EQUAL, call(libc::SYS_clone3), 0, 1),
            fail(libc::ENOSYS),
            step(JUMP_EQUAL, call(libc::SYS_clone), 0, 4),
            step(LOAD, FIRST, 0, 0),
            step(JUMP_SET, libc::CLONE_THREAD.unsigned_abs(), 0, 1),
            allow(),
            fail(libc::EPERM),
        ];
        for number in ALLOWED.iter().chain(ALLOWED_HERE) {
            steps.extend([step(JUMP_EQUAL, call(*number), 0, 1), allow()]);
        }
        // Among these are the calls of the third, older interface of x86-64.
        steps.push(fail(libc::EPERM));
        Some(Self(steps))
    }

    /// This process makes only these calls from now on. One system call.
    pub fn enter(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: u16::try_from(self.0.len()).unwrap_or(u16::MAX),
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel copies the program, which outlives the call.
        let done = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
