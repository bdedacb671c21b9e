//! MPI programs in C and Fortran, each run by each MPI that is installed, with and without the
//! library: what they print and the files that they write must be the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where the programs are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");
/// No program takes longer, with several processes on each processor of a very busy machine. On an
/// idle one it is a second or two.
const LIMIT_S: &str = "120";

/// Settings that make pages leave, and calls go past the pool.
const TIGHT: &[(&str, &str)] =
    &[("FOREBAY_MPIIO_PAGE_SIZE", "512"), ("FOREBAY_MPIIO_POOL_SIZE", "8192")];
const PAPER: &[(&str, &str)] = &[
    ("FOREBAY_MPIIO_SCHEME", "paper"),
    ("FOREBAY_MPIIO_PAGE_SIZE", "4k"),
    ("FOREBAY_MPIIO_POOL_SIZE", "64k"),
];
const ALL: &[Settings] = &[&[], TIGHT, PAPER];
/// Variables and their values.
type Settings = &'static [(&'static str, &'static str)];

/// An MPI, with the library for it.
struct Mpi {
    name: &'static str,
    library: PathBuf,
    work: tempfile::TempDir,
}

fn command(program: &str, mpi: &str) -> String {
    format!("{program}.{mpi}")
}

fn is_there(program: &str) -> bool {
    let quiet = |it: &mut Command| it.stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet(Command::new("sh").args(["-c", "command -v \"$0\"", program]))
        .is_ok_and(|it| it.success())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The static library that cargo built beside this test.
fn archive() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let beside = std::fs::read_dir(exe.parent().unwrap()).unwrap().flatten();
    let ours = beside.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libforebay_mpiio") && name.ends_with(".a")
    });
    let newest = ours.max_by_key(|entry| entry.metadata().and_then(|it| it.modified()).ok());
    newest.expect("cargo builds the static library with the tests").path()
}

impl Mpi {
    fn new(name: &'static str) -> Option<Self> {
        let (compiler, runner) = (command("mpicc", name), command("mpirun", name));
        // The compiler may be there without the headers.
        let compiles = Command::new("sh")
            .args(["-c", "echo '#include <mpi.h>' | \"$0\" -E -x c -", &compiler])
            .output()
            .is_ok_and(|output| output.status.success());
        if !compiles || !is_there(&runner) {
            eprintln!("skipped for {name}: no {runner}, or no {compiler} that finds mpi.h");
            return None;
        }
        let work = tempfile::tempdir().unwrap();
        let library = work.path().join("libforebay_mpiio.so");
        run(Command::new(Path::new(SHIM).join("build.sh")).args([
            Path::new(&compiler),
            &archive(),
            &library,
        ]));
        let yields = work.path().join("yield.so");
        run(Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([yields, Path::new(SOURCES).join("yield.c")])
            .arg("-ldl"));
        Some(Self { name, library, work })
    }

    /// Compiles a program. `None` if there is no compiler for it.
    fn compile(&self, program: &str) -> Option<PathBuf> {
        let source = Path::new(SOURCES).join(program);
        let fortran = program.ends_with(".f90");
        let compiler = command(if fortran { "mpifort" } else { "mpicc" }, self.name);
        if fortran && !(is_there(&compiler) && is_there("gfortran")) {
            eprintln!("skipped for {}: no Fortran", self.name);
            return None;
        }
        let out = self.work.path().join(program.replace('.', "-"));
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-o"]).arg(&out).arg(source);
        command.current_dir(self.work.path());
        if !fortran {
            command.args(["-Wextra", "-Werror"]);
        }
        run(&mut command);
        Some(out)
    }

    /// Runs a program. Gives what it printed, what it said to stderr, and the file.
    fn run(
        &self,
        program: &Path,
        ranks: u32,
        library: bool,
        settings: &[(&str, &str)],
    ) -> (String, String, Vec<u8>) {
        let file = self.work.path().join("file");
        let _ = std::fs::remove_file(&file);
        // MPICH polls without end; its job needs a shim of its own to be quick.
        let yields = self.work.path().join("yield.so").display().to_string();
        let mut preload = if self.name == "mpich" { yields } else { String::new() };
        if library {
            preload = format!("{preload} {}", self.library.display());
        }
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT_S]).arg(self::command("mpirun", self.name));
        if self.name == "openmpi" {
            command.arg("--oversubscribe");
        }
        let output = command
            .args(["-n", &ranks.to_string(), "env"])
            .arg(format!("LD_PRELOAD={preload}"))
            .args([program, &file])
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .env("FOREBAY_MPIIO_STATS", "1")
            .envs(library.then_some(("FOREBAY_TEST_LIBRARY", "1")))
            .envs(settings.iter().copied())
            .current_dir(self.work.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        let who = format!("{} {program:?} library {library} {settings:?}", self.name);
        assert!(output.status.success(), "{who}: {}\n{printed}\n{said}", output.status);
        (printed, said, std::fs::read(&file).unwrap_or_default())
    }
}

fn mpis() -> &'static [Mpi] {
    static MPIS: OnceLock<Vec<Mpi>> = OnceLock::new();
    MPIS.get_or_init(|| ["mpich", "openmpi"].into_iter().filter_map(Mpi::new).collect())
}

/// One job at a time: each has more processes than there are processors.
fn alone<T>(body: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    body()
}

/// Runs a program with and without the library, with each of the settings.
fn same_as_plain(program: &str, ranks: u32, settings: &[Settings]) {
    alone(|| {
        for mpi in mpis() {
            let Some(program) = mpi.compile(program) else { continue };
            let (wanted, _, file) = mpi.run(&program, ranks, false, &[]);
            compare(mpi, &program, ranks, settings, &(wanted, file));
        }
    });
}

/// Runs a program with the library only, as an MPI by itself does not pass it: Open MPI 4.1 has no
/// atomic mode, MPICH 4.0 confuses nonblocking collective calls. The program verifies what it reads,
/// and the file must be the same with all settings.
fn same_with_all_settings(program: &str, ranks: u32) {
    alone(|| {
        for mpi in mpis() {
            let Some(program) = mpi.compile(program) else { continue };
            let (wanted, _, file) = mpi.run(&program, ranks, true, ALL[0]);
            assert!(!file.is_empty());
            compare(mpi, &program, ranks, &ALL[1..], &(wanted, file));
        }
    });
}

/// Runs a program with the library, and compares what comes of it.
fn compare(mpi: &Mpi, program: &Path, ranks: u32, all: &[Settings], wanted: &(String, Vec<u8>)) {
    for settings in all {
        let (printed, said, other) = mpi.run(program, ranks, true, settings);
        let who = format!("{} {program:?} {settings:?}", mpi.name);
        assert_eq!(printed, wanted.0, "{who}");
        assert_eq!(other.len(), wanted.1.len(), "{who}");
        let differs = other.iter().zip(&wanted.1).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{who}: the files differ");
        // Else nothing was tested.
        let reported = said.lines().find(|line| line.starts_with("forebay: MPI-IO:"));
        let used = reported.is_some_and(|line| !line.contains(" 0 writes of 0 bytes"));
        assert!(used, "{who}: not through the cache: {said}");
    }
}

#[test]
fn records_of_all_processes_when_synced_then_read_by_others() {
    same_as_plain("thin.c", 4, ALL);
}

#[test]
fn pointers_of_all_kinds_then_as_plain() {
    same_as_plain("pointers.c", 4, &ALL[..2]);
}

#[test]
fn files_and_communicators_at_once_then_as_plain() {
    same_as_plain("several.c", 4, &ALL[..2]);
}

#[test]
fn calls_that_are_begun_and_split_then_whole() {
    same_with_all_settings("nonblocking.c", 4);
}

#[test]
fn overlapping_calls_in_atomic_mode_then_each_is_whole() {
    same_with_all_settings("atomic.c", 4);
}

#[test]
fn views_and_memory_of_many_datatypes_then_as_plain() {
    same_as_plain("views.c", 4, &ALL[..2]);
}

#[test]
fn length_when_cut_extended_and_beyond_4_gib_then_as_plain() {
    same_as_plain("sizes.c", 4, &ALL[..2]);
}

#[test]
fn what_mpi_refuses_and_what_passes_through_then_as_plain() {
    same_as_plain("edges.c", 4, &ALL[..2]);
}

#[test]
fn large_counts_and_large_calls_then_as_plain() {
    same_as_plain("large.c", 4, &ALL[..2]);
}

#[test]
fn bindings_of_fortran_then_as_plain() {
    same_as_plain("bindings.f90", 4, &ALL[..2]);
}
