//! The test programs that take long: `make test` leaves them to `make test-long`.

use anyhow::{Result, bail};

use super::program::Program;

/// Those that take more than about 25 seconds beside another one on a machine with two processors.
const SLOW: &[&str] = &[
    "crates/coop/tests/deaths.rs",
    "crates/forebay/tests/auto_migrate.rs",
    "crates/forebay/tests/cluster.rs",
    "crates/forebay/tests/cluster_admission.rs",
    "crates/forebay/tests/cluster_commands.rs",
    "crates/forebay/tests/cluster_failover.rs",
    "crates/forebay/tests/cluster_fencing.rs",
    "crates/forebay/tests/cluster_leases.rs",
    "crates/forebay/tests/cluster_names.rs",
    "crates/forebay/tests/cluster_outages.rs",
    "crates/forebay/tests/cluster_pages.rs",
    "crates/forebay/tests/cluster_restart.rs",
    "crates/forebay/tests/cooperative.rs",
    "crates/forebay/tests/daemon.rs",
    "crates/forebay/tests/damage.rs",
    "crates/forebay/tests/fragments.rs",
    "crates/forebay/tests/jobs_slurm.rs",
    "crates/forebay/tests/migrate.rs",
    "crates/forebay/tests/migrate_nodes.rs",
    "crates/forebay/tests/mpi_memory.rs",
    "crates/forebay/tests/owners.rs",
    "crates/forebay/tests/peers.rs",
    "crates/forebay/tests/real.rs",
    "crates/forebay/tests/redundancy.rs",
    "crates/forebay/tests/restart.rs",
    "crates/forebay/tests/testbed.rs",
    "crates/forebay/tests/trees_made_again.rs",
    "crates/mpiio/tests/programs.rs",
    "crates/node/tests/data.rs",
    "crates/node/tests/full_tiers_faults.rs",
    "crates/node/tests/misbehaving_store.rs",
    "crates/node/tests/open_races.rs",
    "crates/node/tests/past_the_tier_faults.rs",
    "tests/tests/mount_clean.rs",
    "tests/tests/mount_crash.rs",
    "tests/tests/mount_posix.rs",
    "tests/tests/mount_power.rs",
    "tests/tests/mount_soak.rs",
    "tests/tests/mount_space.rs",
    "tests/tests/native_posix.rs",
];

/// Tests that `make test` runs with a few random cases, and `make test-long` with many: the program, the
/// part of their names that they share, and the number of cases.
const MORE: &[More] = &[More {
    program: "crates/node/src/lib.rs",
    tests: "writeback::reconcile::tests::interleaved::",
    cases: ("FOREBAY_MODEL_CASES", "180"),
}];

/// Some tests of a program once more, with more cases.
#[derive(Debug)]
pub struct More {
    program: &'static str,
    /// What is in their names.
    pub tests: &'static str,
    /// The variable that says how many, and its value.
    pub cases: (&'static str, &'static str),
}

/// Which programs are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// All.
    All,
    /// All but those that take long.
    Quick,
    /// Those that take long.
    Long,
}

impl Set {
    /// What `FOREBAY_TEST_SET` says.
    pub fn chosen() -> Result<Self> {
        Ok(match std::env::var("FOREBAY_TEST_SET").as_deref() {
            Err(_) | Ok("all") => Set::All,
            Ok("quick") => Set::Quick,
            Ok("long") => Set::Long,
            Ok(other) => bail!("FOREBAY_TEST_SET is {other}: give quick, long or all"),
        })
    }

    /// How many programs run side by side, unless somebody says so. All wait for half of their time (three
    /// use two processors by half), and those that take long mostly, for time limits of other nodes.
    pub fn lanes(self) -> usize {
        match self {
            Set::All | Set::Quick => 3,
            Set::Long => 5,
        }
    }

    /// Whether a program belongs to it.
    pub fn has(self, program: &str) -> bool {
        match self {
            Set::All => true,
            Set::Quick => !SLOW.contains(&program),
            Set::Long => SLOW.contains(&program) || self.more_of(program).is_some(),
        }
    }

    /// Of a program that is run here for some of its tests only.
    pub fn more_of(self, program: &str) -> Option<&'static More> {
        MORE.iter().find(|more| self == Set::Long && more.program == program)
    }
}

/// Refuses a list that names a program that is no more.
pub fn check(programs: &[Program]) -> Result<()> {
    let is_there = |name: &&&str| programs.iter().any(|program| program.name == **name);
    let named = || SLOW.iter().chain(MORE.iter().map(|more| &more.program));
    match named().find(|name| !is_there(name)) {
        Some(gone) => bail!("xtask/src/test/slow.rs names {gone}, which is no test program"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_when_a_program_is_slow_or_not_then_each_is_in_one_of_two() {
        for program in SLOW.iter().copied().chain(["crates/core/src/lib.rs"]) {
            assert!(Set::All.has(program));
            assert_ne!(Set::Quick.has(program), Set::Long.has(program), "{program}");
        }
        for more in MORE {
            assert!(Set::Quick.has(more.program) && Set::Long.has(more.program));
            assert!(Set::Quick.more_of(more.program).is_none());
            assert!(Set::Long.more_of(more.program).is_some());
        }
    }
}
