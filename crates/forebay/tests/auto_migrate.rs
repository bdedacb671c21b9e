//! `--auto-migrate`: tasks that move by themselves to where what they read is written, and tasks that stay.

mod ring;
mod site;
mod tasks;

use std::fs;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use site::*;
use tasks::*;

/// Far more than anything here takes, also on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(400);
/// Between two scans.
const SCAN: &str = "2s";

const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/python");
const PYTHON: &str = "/usr/bin/python3";

/// Writes files of 8 MiB one after the other, four names in a round, until `stop` is there: large, so that
/// what their names cost between nodes hardly counts, also where that takes its time.
const WRITER: &str = r#"
import os, sys, time
os.chdir(sys.argv[1])
piece, turn = os.urandom(1 << 20), 0
while not os.path.exists("stop"):
    name = f"{sys.argv[2]}.{turn % 4}"
    with open("new." + name, "wb") as file:
        for _ in range(8):
            file.write(piece)
    os.rename("new." + name, name)
    turn += 1
    time.sleep(0.2)
"#;

/// Reads each file that is new, until `stop` is there; ends with how many bytes were not as they were written.
/// Saves where it is when it is asked to.
const READER: &str = r#"
import os, sys, time
import forebay_checkpoint
os.chdir(sys.argv[1])
seen, again = {}, len(sys.argv) > 3
checkpoint = forebay_checkpoint.Checkpoint(lambda: "nothing")
with open(f"begun.{sys.argv[2]}.{forebay_checkpoint.restarts()}", "w") as begun:
    begun.write(forebay_checkpoint.state() or "")
while not os.path.exists("stop"):
    for turn in range(4):
        name = f"{sys.argv[2]}.{turn}"
        try:
            found = os.stat(name)
            if seen.get(name) == found.st_ino and not again:
                continue
            seen[name] = found.st_ino
            with open(name, "rb") as file:
                while file.read(1 << 20):
                    pass
        except FileNotFoundError:
            pass
        if checkpoint.poll():
            sys.exit(forebay_checkpoint.EXIT)
    time.sleep(0.02)
    if checkpoint.poll():
        sys.exit(forebay_checkpoint.EXIT)
"#;

/// One test after the other: what a move saves depends on how fast tasks are.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Three nodes that have tasks move by themselves, without CRIU.
fn bed() -> Option<Bed> {
    if !ring::can_cluster() {
        return None;
    }
    let ring = ring::Ring::talking(3);
    let criu = ring.site.path("no-criu");
    for node in 0..3 {
        let more = ["--writeback", "evict", "--host-tasks", "on", "--auto-migrate", SCAN];
        ring.mount_knowing(node, ("FOREBAY_CRIU", &criu), &more);
    }
    fs::create_dir(ring.at(0, "dir")).unwrap();
    Some(Bed { ring, criu })
}

/// A job of a run at a node.
fn start(bed: &Bed, node: usize, name: &str, how: &[&str], job: &[&str]) -> Running {
    let mount = bed.mount(node);
    let run = ["run", "--mount", &mount, "--name", name, "--no-hints"];
    let dir = format!("{mount}/dir");
    let words: Vec<String> = job.iter().map(|word| word.replace("DIR", &dir)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = bed.command(&[&run, how, &["--", PYTHON, "-c"], &words].concat());
    command.env("PYTHONPATH", SDK).env("PYTHONDONTWRITEBYTECODE", "1");
    Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn migrations(bed: &Bed, node: usize) -> serde_json::Value {
    let mount = bed.mount(node);
    let (code, text) = bed.ring.site.run(&["cluster", "migrations", "--json", &mount]);
    assert_eq!(code, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// How often the first node has planned for all three.
fn scans(bed: &Bed) -> u64 {
    let all = migrations(bed, 0);
    match all["plans"] == true && all["nodes"] == 3 {
        true => all["scans"].as_u64().unwrap(),
        false => 0,
    }
}

fn stop(bed: &Bed, tasks: Vec<Running>) {
    fs::write(bed.ring.at(0, "dir/stop"), b"").unwrap();
    for task in tasks {
        let (code, _, err) = end_of(task);
        assert_eq!(code, Some(0), "{err}");
    }
    bed.ring.umount_all();
}

#[test]
fn reader_when_what_it_reads_is_written_at_another_node_then_it_goes_there_once_and_stays() {
    let _turn = turn();
    let Some(bed) = bed() else { return };
    // The first node plans; the reader begins at the second, and what it reads is written at the third.
    let writer = start(&bed, 2, "w", &[], &[WRITER, "DIR", "f"]);
    let reader = start(&bed, 1, "r", &["--cooperative"], &[READER, "DIR", "f"]);
    let moved = || bed.ring.at(0, "dir/begun.f.1").exists();
    assert!(wait_for(LIMIT, moved), "{} {}", migrations(&bed, 0), migrations(&bed, 1));
    let number = |node: usize| bed.number(node).parse::<u64>().unwrap();
    let told = || migrations(&bed, 1)["migrations"][0]["outcome"].is_string();
    assert!(wait_for(LIMIT, told), "{}", migrations(&bed, 1));
    let all = migrations(&bed, 1);
    let one = &all["migrations"][0];
    assert_eq!((one["from"].as_u64(), one["to"].as_u64()), (Some(number(1)), Some(number(2))));
    assert!(one["moved"] == true && one["task"].as_str().unwrap().ends_with("/r"), "{one}");
    assert!(one["with"].as_str().unwrap().starts_with("w of run "), "{one}");
    assert!(bed.ring.log(0).contains("a task is to go where its data are"));
    assert!(bed.ring.log(1).contains("a task was migrated"));
    let (code, text) = bed.ring.site.run(&["cluster", "migrations", &bed.mount(1)]);
    assert!(code == 0 && text.contains("where w of run "), "{text}");
    // It is with its data: nothing is left to be had, also when it has been left alone for long enough.
    let before = scans(&bed);
    assert!(wait_for(LIMIT, || scans(&bed) >= before + 35), "nobody plans any more");
    assert_eq!(migrations(&bed, 1)["migrations"].as_array().unwrap().len(), 1);
    if bed.hosts(2).is_empty() {
        let (code, _, err) = end_of(reader);
        panic!("the task has ended with {code:?}: {err}");
    }
    stop(&bed, vec![writer, reader]);
}

#[test]
fn tasks_when_each_is_with_its_data_or_reads_what_never_changes_then_none_moves() {
    let _turn = turn();
    let Some(bed) = bed() else { return };
    // Files that are read again and again, everywhere.
    for turn in 0..4 {
        let name = format!("dir/shared.{turn}");
        fs::write(bed.ring.at(2, &name), vec![turn; 4 << 20]).unwrap();
    }
    // What is dirty is read from where it was written, again and again.
    for (node, how) in [(2, "sync"), (1, "warm")] {
        let (code, text) = bed.ring.site.run(&[how, &bed.mount(node)]);
        assert_eq!(code, 0, "{how}: {text}");
    }
    // Each node has room for one more.
    let shared = [READER, "DIR", "shared", "again"];
    let tasks = vec![
        start(&bed, 0, "w", &[], &[WRITER, "DIR", "own"]),
        start(&bed, 0, "r", &["--cooperative"], &[READER, "DIR", "own"]),
        start(&bed, 1, "s", &["--cooperative"], &shared),
        start(&bed, 2, "s", &["--cooperative"], &shared),
    ];
    assert!(wait_for(LIMIT, || scans(&bed) >= 15), "{}", migrations(&bed, 0));
    for node in 0..3 {
        let seen = migrations(&bed, node);
        assert_eq!(seen["migrations"].as_array().unwrap().len(), 0, "{seen}");
    }
    let (code, text) = bed.ring.site.run(&["patterns", &bed.mount(1), "--json"]);
    assert_eq!(code, 0, "{text}");
    let seen: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(seen["here"].as_u64().unwrap() > 2048, "it was not read again and again: {seen}");
    stop(&bed, tasks);
}
