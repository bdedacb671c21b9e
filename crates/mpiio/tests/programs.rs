//! MPI programs in C and Fortran, each run by each MPI that is installed, with and without the
//! library: what they print and the files that they write must be the same.

mod mpi;

use std::path::Path;

use mpi::{Mpi, alone, mpis};

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
        let [reads, read, writes, written] = reported.map(numbers).unwrap_or_default();
        // Of what it reads, nothing is there.
        let edges = who.contains("/edges-");
        assert!(reads > 0 && (read > 0 || edges), "{who}: not through the cache: {said}");
        assert!(writes > 0 && written > 0, "{who}: not through the cache: {said}");
        // No daemon is here that could make memory in common.
        assert!(said.contains("forebay: MPI-IO pages go by messages: "), "{who}: {said}");
    }
}

/// The first numbers of a report: reads and their bytes, writes and theirs.
fn numbers(report: &str) -> [u64; 4] {
    let mut words = report.split_whitespace().filter_map(|word| word.parse().ok());
    std::array::from_fn(|_| words.next().unwrap_or_default())
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

#[test]
fn pages_of_another_process_when_read_then_as_plain() {
    same_as_plain("hit.c", 3, ALL);
}

#[test]
fn datasets_of_hdf5_then_as_plain() {
    same_as_plain("hdf5.c", 4, ALL);
}

#[test]
fn variables_of_pnetcdf_then_as_plain() {
    same_as_plain("pnetcdf.c", 3, ALL);
}

#[test]
fn file_of_a_python_program_then_as_plain() {
    same_as_plain("python.py", 4, ALL);
}
