//! `forebay sim coop` as scripts see it, and what must hold whatever the machine's numbers are.

use clap::Parser;
use forebay_sim::coop::driver::{Report, Run, Scheme, run as simulate};
use forebay_sim::coop::load::Load;
use forebay_sim::coop::model::Machine;
use forebay_sim::{SimCommand, SimError, run};
use serde_json::Value;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: SimCommand,
}

fn call(words: &[&str]) -> Result<String, SimError> {
    let words = [&["sim", "coop"], words].concat();
    let line = Line::try_parse_from(words).expect("sound arguments");
    let mut out = Vec::new();
    run(&line.command, &mut out)?;
    Ok(String::from_utf8(out).expect("text"))
}

fn report(scheme: Scheme, load: Load, ranks: u32, pool: u64) -> Report {
    let hardware = Machine::Sp.hardware();
    simulate(Run { hardware, scheme, load, ranks, page: 256 << 10, pool })
}

#[test]
fn figures_of_the_paper_then_the_same_numbers_again_and_a_table_csv_and_chart() {
    let dir = tempfile::tempdir().expect("a directory");
    for figure in ["window", "btio-a", "flash-8"] {
        let (csv, plot) = (dir.path().join("c.csv"), dir.path().join("c.svg"));
        let (csv, plot) = (csv.to_str().expect("plain"), plot.to_str().expect("plain"));
        let words = ["--figure", figure, "--ranks", "4,9", "--file-mib", "16"];
        let table = call(&[&words[..], &["--csv", csv, "--plot", plot]].concat()).expect("runs");
        assert_eq!(table, call(&words).expect("runs"), "{figure}");
        let rows: Value =
            serde_json::from_str(&call(&[&words[..], &["--json"]].concat()).expect("runs"))
                .expect("JSON");
        let csv = std::fs::read_to_string(csv).expect("written");
        assert_eq!(rows.as_array().map(Vec::len), Some(csv.lines().count() - 1), "{figure}");
        let svg = std::fs::read_to_string(plot).expect("written");
        assert!(svg.contains("<polyline") && !svg.contains("NaN"), "{figure}");
    }
}

#[test]
fn caches_when_a_file_is_written_then_all_of_it_reaches_the_file_system_once() {
    let load = Load::Flash { edge: 8 };
    for scheme in [Scheme::Paper, Scheme::Ours] {
        let report = report(scheme, load, 8, 512 << 20);
        assert!(report.moved >= report.bytes, "{scheme:?}: {report:?}");
        assert!(report.moved < report.bytes * 6 / 5, "{scheme:?}: {report:?}");
    }
}

#[test]
fn sliding_window_then_caches_beat_locks_as_the_paper_says() {
    let load = Load::Window { file: 32 << 20, page: 256 << 10 };
    let rate = |scheme| report(scheme, load, 16, 512 << 20).rate();
    let (locks, paper, ours) = (rate(Scheme::Locks), rate(Scheme::Paper), rate(Scheme::Ours));
    assert!(paper > 2.0 * locks, "{paper} and {locks}");
    assert!(ours > locks, "{ours} and {locks}");
}

#[test]
fn pools_that_are_far_too_small_then_all_is_done_all_the_same() {
    for load in [Load::Window { file: 8 << 20, page: 256 << 10 }, Load::Btio { edge: 12 }] {
        let whole = report(Scheme::Native, load, 4, 0).bytes;
        for scheme in [Scheme::Paper, Scheme::Ours] {
            let report = report(scheme, load, 4, 1 << 20);
            assert!(report.seconds > 0.0 && report.bytes > 0, "{scheme:?}: {report:?}");
            assert_eq!(report.bytes, whole, "{scheme:?}");
        }
    }
}

#[test]
fn bad_arguments_then_refused_with_advice() {
    assert!(matches!(call(&["--figure", "btio-a", "--ranks", "5"]), Err(SimError::Usage(_))));
    assert!(matches!(call(&["--file-mib", "1", "--ranks", "4"]), Err(SimError::Usage(_))));
}
