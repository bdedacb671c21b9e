//! The MPIs of this machine, with the library for each, and how programs are run by them.
#![allow(dead_code, missing_docs, reason = "each user of this module needs a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Where the programs are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mpiio/tests/programs");
const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mpiio/shim");
/// No program takes longer, with several processes on each processor of a very busy machine. On an
/// idle one it is a second or two.
const LIMIT_S: &str = "120";

/// An MPI, with the library for it.
pub struct Mpi {
    pub name: &'static str,
    library: PathBuf,
    pub work: tempfile::TempDir,
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

/// What a program needs beside MPI.
struct Extra {
    /// The program that needs it.
    program: &'static str,
    header: &'static str,
    /// By MPI: where the header is, the library, the package of Debian that has both.
    of: &'static [(&'static str, [&'static str; 3])],
}

/// Debian has no PnetCDF for MPICH, and none of its Python packages is for it.
const EXTRAS: &[Extra] = &[
    Extra {
        program: "hdf5.c",
        header: "hdf5.h",
        of: &[
            ("mpich", ["/usr/include/hdf5/mpich", "hdf5_mpich", "libhdf5-mpich-dev"]),
            ("openmpi", ["/usr/include/hdf5/openmpi", "hdf5_openmpi", "libhdf5-openmpi-dev"]),
        ],
    },
    Extra {
        program: "pnetcdf.c",
        header: "pnetcdf.h",
        of: &[("openmpi", ["/usr/include", "pnetcdf", "libpnetcdf-dev"])],
    },
];

/// The interpreter that Debian's mpi4py is of.
const PYTHON: &str = "/usr/bin/python3";

fn compiles(compiler: &str, header: &str, include: &str) -> bool {
    Command::new("sh")
        .args([
            "-c",
            "echo \"#include <$1>\" | \"$0\" -I\"$2\" -E -x c -",
            compiler,
            header,
            include,
        ])
        .output()
        .is_ok_and(|output| output.status.success())
}

impl Mpi {
    fn new(name: &'static str) -> Option<Self> {
        let (compiler, runner) = (command("mpicc", name), command("mpirun", name));
        // The compiler may be there without the headers.
        if !compiles(&compiler, "mpi.h", ".") || !is_there(&runner) {
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

    /// Compiles a program. `None` if there is no compiler for it, or no library that it needs.
    pub fn compile(&self, program: &str) -> Option<PathBuf> {
        let source = Path::new(SOURCES).join(program);
        if program.ends_with(".py") {
            return self.python(&source);
        }
        let extra = self.extra(program)?;
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
        command.args(extra);
        run(&mut command);
        Some(out)
    }

    /// How the compiler finds what a program needs beside MPI. `None` if it is not there, or not
    /// made for this MPI.
    fn extra(&self, program: &str) -> Option<Vec<String>> {
        let Some(extra) = EXTRAS.iter().find(|it| it.program == program) else {
            return Some(Vec::new());
        };
        let (_, [include, library, package]) = extra.of.iter().find(|it| it.0 == self.name)?;
        if !compiles(&command("mpicc", self.name), extra.header, include) {
            eprintln!("skipped for {}: {package} is not installed", self.name);
            return None;
        }
        Some(vec![format!("-I{include}"), format!("-l{library}")])
    }

    /// A program in Python, which is run as it is.
    fn python(&self, source: &Path) -> Option<PathBuf> {
        if self.name != "openmpi" {
            return None;
        }
        let imports = Command::new(PYTHON).args(["-c", "import mpi4py"]).output();
        if !imports.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped for {}: python3-mpi4py is not installed", self.name);
            return None;
        }
        let text = std::fs::read_to_string(source).unwrap();
        assert!(text.starts_with(&format!("#!{PYTHON}\n")), "{source:?}");
        Some(source.into())
    }

    /// The command that runs a program, as it is given this file.
    pub fn command(
        &self,
        program: &Path,
        ranks: u32,
        library: bool,
        settings: &[(&str, &str)],
        file: &Path,
    ) -> Command {
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
        command
            .args(["-n", &ranks.to_string(), "env"])
            .arg(format!("LD_PRELOAD={preload}"))
            .args([program, file])
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .env("FOREBAY_MPIIO_STATS", "1")
            .envs(library.then_some(("FOREBAY_TEST_LIBRARY", "1")))
            .envs(settings.iter().copied())
            .current_dir(self.work.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a program. Gives what it printed, what it said to stderr, and the file.
    pub fn run(
        &self,
        program: &Path,
        ranks: u32,
        library: bool,
        settings: &[(&str, &str)],
    ) -> (String, String, Vec<u8>) {
        let file = self.work.path().join("file");
        self.run_on(&file, program, ranks, library, settings)
    }

    /// The same, with a file elsewhere.
    pub fn run_on(
        &self,
        file: &Path,
        program: &Path,
        ranks: u32,
        library: bool,
        settings: &[(&str, &str)],
    ) -> (String, String, Vec<u8>) {
        let _ = std::fs::remove_file(file);
        let output = self.command(program, ranks, library, settings, file).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        let who = format!("{} {program:?} library {library} {settings:?}", self.name);
        assert!(output.status.success(), "{who}: {}\n{printed}\n{said}", output.status);
        (printed, said, std::fs::read(file).unwrap_or_default())
    }
}

pub fn mpis() -> &'static [Mpi] {
    static MPIS: OnceLock<Vec<Mpi>> = OnceLock::new();
    MPIS.get_or_init(|| ["mpich", "openmpi"].into_iter().filter_map(Mpi::new).collect())
}

/// One job at a time: each has more processes than there are processors.
pub fn alone<T>(body: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    body()
}
