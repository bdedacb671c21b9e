//! MPI programs on a mount, whose pages lie in memory that the daemon has made: what they print and
//! the files that they write must be as without the library, and whatever ends them leaves nothing.

#[path = "../../mpiio/tests/mpi/mod.rs"]
mod mpi;
mod site;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use mpi::{Mpi, alone, mpis};
use site::{Site, can_mount, signal, wait_for};

/// What the library says when it is so.
const IN_MEMORY: &str = "forebay: MPI-IO pages lie in the memory of this node's daemon";
/// Settings that make pages leave, and calls go past the pool.
const TIGHT: &[(&str, &str)] =
    &[("FOREBAY_MPIIO_PAGE_SIZE", "4k"), ("FOREBAY_MPIIO_POOL_SIZE", "64k")];

fn site() -> Option<Site> {
    can_mount().then(|| {
        let site = Site::new();
        site.mount(&["--client-memory", "4G"]);
        site
    })
}

/// The daemon's descriptors of memory in common.
fn memories(site: &Site) -> usize {
    let entries = fs::read_dir(format!("/proc/{}/fd", site.daemon())).unwrap().flatten();
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).unwrap_or_default();
    entries.map(target).filter(|it| it.to_string_lossy().contains("forebay-group")).count()
}

fn ended(site: &Site) {
    assert!(wait_for(Duration::from_secs(10), || memories(site) == 0), "memory is left");
}

/// Runs a program on the mount, once with usual settings and once with tight ones.
fn on_mount(mpi: &Mpi, site: &Site, program: &str, ranks: u32, plain: bool) {
    let Some(compiled) = mpi.compile(program) else { return };
    let (runtime, file) = (site.text("run"), site.path("mnt/file"));
    let mut wanted = plain.then(|| {
        let (printed, _, file) = mpi.run(&compiled, ranks, false, &[]);
        (printed, file)
    });
    for more in [&[], TIGHT] {
        let settings = [&[("FOREBAY_RUNTIME_DIR", runtime.as_str())], more].concat();
        let (printed, said, bytes) = mpi.run_on(&file, &compiled, ranks, true, &settings);
        let who = format!("{} {program} {more:?}", mpi.name);
        assert!(said.contains(IN_MEMORY), "{who}: {said}");
        let (wanted, other) = wanted.get_or_insert_with(|| (printed.clone(), bytes.clone()));
        assert_eq!(&printed, wanted, "{who}");
        assert_eq!(bytes.len(), other.len(), "{who}");
        let differs = bytes.iter().zip(&*other).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{who}: the files differ");
        ended(site);
    }
}

fn all_on_mount(programs: &[(&str, u32)], plain: bool) {
    let Some(site) = site() else { return };
    alone(|| {
        for mpi in mpis() {
            for (program, ranks) in programs {
                on_mount(mpi, &site, program, *ranks, plain);
            }
        }
    });
    site.umount();
}

#[test]
fn programs_whose_pages_lie_in_the_nodes_memory_then_as_plain() {
    all_on_mount(&[("thin.c", 4), ("views.c", 4), ("pointers.c", 3), ("hit.c", 2)], true);
}

#[test]
fn files_of_hdf5_pnetcdf_and_python_in_the_nodes_memory_then_as_plain() {
    all_on_mount(&[("hdf5.c", 4), ("pnetcdf.c", 2), ("python.py", 4)], true);
}

#[test]
fn programs_that_an_mpi_by_itself_does_not_pass_then_the_same_with_all_settings() {
    all_on_mount(&[("atomic.c", 4), ("nonblocking.c", 4)], false);
}

#[test]
fn files_and_communicators_at_once_then_each_has_memory_of_its_own() {
    all_on_mount(&[("several.c", 4)], true);
}

#[test]
fn process_when_killed_then_the_job_ends_and_its_memory_is_free() {
    let Some(site) = site() else { return };
    alone(|| {
        for mpi in mpis() {
            let Some(program) = mpi.compile("stay.c") else { continue };
            let runtime = site.text("run");
            let settings = [("FOREBAY_RUNTIME_DIR", runtime.as_str())];
            let before = fs::read_dir("/dev/shm").unwrap().flatten().map(|it| it.file_name());
            let before: Vec<_> = before.collect();
            let mut job = mpi
                .command(&program, 3, true, &settings, &site.path("mnt/file"))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap();
            let lines = BufReader::new(job.stdout.take().unwrap()).lines();
            let number = |line: String| line.strip_prefix("process ")?.parse::<i32>().ok();
            let pids = lines.map_while(Result::ok).filter_map(number).take(3).collect::<Vec<_>>();
            assert_eq!(pids.len(), 3, "{}: not all processes are at work", mpi.name);
            assert_eq!(memories(&site), 1, "{}", mpi.name);
            signal(pids[1], rustix::process::Signal::KILL);
            assert!(!job.wait().unwrap().success(), "{}", mpi.name);
            ended(&site);
            let left = fs::read_dir("/dev/shm").unwrap().flatten().map(|it| it.file_name());
            let ours = |name: &std::ffi::OsString| name.to_string_lossy().contains("forebay-mpiio");
            let left: Vec<_> = left.filter(|name| ours(name) && !before.contains(name)).collect();
            assert_eq!(left, Vec::<std::ffi::OsString>::new(), "{}", mpi.name);
            assert!(wait_for(Duration::from_secs(10), || pids.iter().all(|it| !site::alive(*it))));
        }
    });
    site.umount();
}

#[test]
fn mount_without_memory_for_programs_then_by_messages_and_says_why() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&["--client-memory", "1M"]);
    alone(|| {
        for mpi in mpis() {
            let Some(program) = mpi.compile("thin.c") else { continue };
            let runtime = site.text("run");
            let settings = [("FOREBAY_RUNTIME_DIR", runtime.as_str())];
            let file = site.path("mnt/file");
            let (_, said, bytes) = mpi.run_on(&file, &program, 2, true, &settings);
            let reason = "forebay: MPI-IO pages go by messages: the daemon refused";
            assert!(said.contains(reason) && said.contains("--client-memory"), "{said}");
            assert_eq!(bytes, mpi.run(&program, 2, false, &[]).2);
        }
    });
    site.umount();
}
