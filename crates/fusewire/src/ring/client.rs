//! Requests of our own at the mount, from a certain CPU: what the kernel has to be moved with.
//!
//! They come from a process of their own, since whoever waits for a request to be answered cannot
//! end before, and a serving process that dies must end at once.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_char, c_int, c_void};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Enough for a system call.
const STACK: usize = 16 << 10;

/// One request.
struct Client {
    point: *const c_char,
    cpu: usize,
}

/// Has a process ask `count` times at once on each of the CPUs for the state of the file system at
/// `point`. Returns when that is under way; it ends when all have been answered. CPUs that this
/// process may not use are left out.
///
/// # Errors
/// The system lacks memory or processes.
pub(super) fn ask(point: &Path, cpus: &[usize], count: usize) -> io::Result<()> {
    let path = CString::new(point.as_os_str().as_bytes())?;
    let clients: Vec<Client> = cpus
        .iter()
        .flat_map(|&cpu| std::iter::repeat_n(cpu, count))
        .map(|cpu| Client { point: path.as_ptr(), cpu })
        .collect();
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let bytes = STACK * clients.len().max(1);
    // SAFETY: new memory at an address of the kernel's choice.
    let stacks = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags)? };
    // SAFETY: the child calls nothing but what is async-signal-safe, with memory made before.
    let child = match unsafe { libc::fork() } {
        0 => be_clients(&clients, stacks.cast()),
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child),
    };
    // SAFETY: the child has its own; this one nobody uses.
    unsafe { munmap(stacks, bytes)? };
    let child = child?;
    let reap = move || {
        // SAFETY: a child of this process; its status interests nobody.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    };
    std::thread::Builder::new().name("fuse-clients".into()).spawn(reap).map(drop)
}

/// The child: a thread for each client, without the help of the C library, whose state a fork of a
/// process with threads leaves undefined.
fn be_clients(clients: &[Client], stacks: *mut u8) -> ! {
    // SAFETY: plain system calls; each thread has a stack of its own, and what it reads stays as
    // long as the process.
    unsafe {
        for (index, client) in clients.iter().enumerate() {
            let top = stacks.add((index + 1) * STACK);
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM;
            let client = std::ptr::from_ref(client).cast_mut().cast();
            libc::clone(be_client, top.cast(), flags, client);
        }
        // Above all the connection and the rings, which must not live on in here. Not before: a file of
        // this very mount may be among them, whose close is a request as well.
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        // This thread only; the process ends with the last one.
        loop {
            libc::syscall(libc::SYS_exit, 0);
        }
    }
}

extern "C" fn be_client(client: *mut c_void) -> c_int {
    // SAFETY: `be_clients` gave it; the sets and structures are local.
    unsafe {
        let Client { point, cpu } = *client.cast::<Client>();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu >= size_of_val(&set) * 8 {
            return 0;
        }
        libc::CPU_SET(cpu, &mut set);
        if libc::sched_setaffinity(0, size_of_val(&set), &set) == 0 {
            let mut state: libc::statfs = std::mem::zeroed();
            libc::statfs(point, &mut state);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ask_when_there_is_nothing_to_wait_for_then_the_process_ends() {
        let children = || {
            let list = format!("/proc/self/task/{}/children", std::process::id());
            std::fs::read_to_string(list).unwrap_or_default()
        };
        ask(Path::new("/"), &[0, 1], 3).expect("started");
        ask(Path::new("/"), &[], 3).expect("started");
        let start = std::time::Instant::now();
        while !children().is_empty() {
            assert!(start.elapsed().as_secs() < 60, "left behind: {}", children());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
