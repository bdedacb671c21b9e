//! Starts a task in PID, IPC and mount namespaces of its own.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::init;
use super::mounts::Instead;

/// What a task begins with.
pub struct Beginning<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Where it runs.
    pub dir: &'a Path,
    /// Its standard output and standard error.
    pub outputs: &'a [OwnedFd; 2],
    /// Its environment.
    pub env: &'a [(OsString, OsString)],
    /// The mount as it sees it, and the one that is there for it.
    pub mount: Option<(&'a Path, &'a Path)>,
    /// The command does not begin before a byte comes by this pipe.
    pub hold: &'a OwnedFd,
}

/// This program, under a name by which it can be found in other mount namespaces, too.
pub fn program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    match path.exists() {
        true => Ok(path),
        false => Err(io::Error::other(
            "the program `forebay` was replaced while it ran: start the task again",
        )),
    }
}

/// All that the new process needs, made before it is there: it may not allocate.
struct Prepared {
    program: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    dir: CString,
    outputs: [i32; 2],
    failure: i32,
    instead: Instead,
    hold: i32,
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Starts it and returns the first process of its PID namespace, a child of the calling thread: it is
/// killed when that thread ends.
pub fn launch(beginning: &Beginning<'_>) -> io::Result<i32> {
    let program = c_string(program()?.as_os_str().as_bytes())?;
    let mut args = vec![c"forebay".to_owned(), c_string(init::NAME.as_bytes())?, c"--".to_owned()];
    for word in beginning.command {
        args.push(c_string(word.as_bytes())?);
    }
    let mut env = Vec::new();
    for (name, value) in beginning.env {
        env.push(c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat())?);
    }
    let (failed, failure) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let prepared = Prepared {
        program,
        args,
        env,
        dir: c_string(beginning.dir.as_os_str().as_bytes())?,
        outputs: [beginning.outputs[0].as_raw_fd(), beginning.outputs[1].as_raw_fd()],
        failure: failure.as_raw_fd(),
        instead: Instead::of(beginning.mount)?,
        hold: beginning.hold.as_raw_fd(),
    };
    let args: Vec<*const libc::c_char> = pointers(&prepared.args);
    let env: Vec<*const libc::c_char> = pointers(&prepared.env);
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWNS | libc::SIGCHLD;
    // SAFETY: as fork: without a stack the child goes on with a copy of this one, and it makes only
    // system calls until it is another program or has ended.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: the pointers end with a null pointer, and what they point to is in `prepared`.
        unsafe { become_init(&prepared, &args, &env) };
    }
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    drop(failure);
    let mut number = [0; 4];
    let read = rustix::io::read(&failed, &mut number)?;
    if read == number.len() {
        // SAFETY: the pointer may be null.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)));
    }
    Ok(pid)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The child's part.
///
/// # Safety
/// To be called after a fork; `args` and `env` end with null pointers.
unsafe fn become_init(
    prepared: &Prepared,
    args: &[*const libc::c_char],
    env: &[*const libc::c_char],
) -> ! {
    // SAFETY: system calls on descriptors and strings that are there. What CRIU meets later must have
    // been opened in this mount namespace: standard input is opened anew, and the program by its path.
    unsafe {
        let slave = libc::MS_REC | libc::MS_SLAVE;
        let null = std::ptr::null();
        let mut well = libc::mount(null, c"/".as_ptr(), null, slave, null.cast()) == 0;
        well = well && prepared.instead.put();
        well = well && libc::setsid() >= 0;
        well = well && libc::chdir(prepared.dir.as_ptr()) == 0;
        well = well && libc::dup2(prepared.outputs[0], 1) >= 0;
        well = well && libc::dup2(prepared.outputs[1], 2) >= 0;
        let nothing = if well { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } else { -1 };
        well = nothing >= 0 && libc::dup2(nothing, 0) >= 0;
        well = well && libc::dup3(prepared.failure, 3, libc::O_CLOEXEC) >= 0;
        let report = if well { 3 } else { prepared.failure };
        // Nothing that is needed is there: the three standard ones and the report come before it.
        let held = prepared.hold;
        well = well && (held == init::HOLD || libc::dup2(held, init::HOLD) >= 0);
        well = well && libc::fcntl(init::HOLD, libc::F_SETFD, 0) == 0;
        if well {
            libc::syscall(libc::SYS_close_range, init::HOLD + 1, u32::MAX, 0);
            well = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0;
            let mut none = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        }
        if well {
            libc::execve(prepared.program.as_ptr(), args.as_ptr(), env.as_ptr());
        }
        let number = (*libc::__errno_location()).to_ne_bytes();
        libc::write(report, number.as_ptr().cast(), number.len());
        libc::_exit(127)
    }
}
