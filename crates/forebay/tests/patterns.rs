//! `forebay patterns`: who reads and writes what, on real mounts.

mod site;

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;

use site::*;

const ROW: usize = 2 << 20;

fn patterns(site: &Site, more: &[&str]) -> serde_json::Value {
    let (code, text) = site.run(&[&["patterns", &site.text("mnt"), "--json"], more].concat());
    assert_eq!(code, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn task<'a>(patterns: &'a serde_json::Value, label: &str) -> &'a serde_json::Value {
    let tasks = patterns["tasks"].as_array().unwrap();
    let found = tasks.iter().find(|task| task["label"].as_str().unwrap().starts_with(label));
    found.unwrap_or_else(|| panic!("no task {label}: {patterns}"))
}

fn rows(task: &serde_json::Value, what: &str) -> Vec<(String, u64, u64)> {
    let count = |row: &serde_json::Value| {
        row[what].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    let rows = task["rows"].as_array().unwrap().iter();
    rows.filter(|row| count(row) > 0)
        .map(|row| {
            (row["path"].as_str().unwrap().into(), row["offset"].as_u64().unwrap(), count(row))
        })
        .collect()
}

#[test]
fn jobs_when_recorded_then_rows_and_counts_of_each_and_a_picture() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/in"), vec![1; 2 * ROW + 100_000]).unwrap();
    site.mount(&[]);
    assert_eq!(site.run(&["warm", &site.text("mnt/in")]).0, 0);
    let (code, text) = site.run(&["patterns", &site.text("mnt")]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("nothing is recorded"), "{text}");
    assert_eq!(site.run(&["patterns", &site.text("mnt"), "--start"]).0, 0);
    let (code, text) = site.run(&["patterns", &site.text("mnt"), "--start"]);
    assert_eq!(code, 1, "{text}");
    let jobs = serde_json::json!([
        { "name": "reader", "command": "dd if=in of=/dev/null bs=64k; sleep 0.5", "inputs": "in", "dir": site.text("mnt") },
        { "name": "writer", "command": "dd if=/dev/zero of=out bs=64k count=40; sleep 0.5", "outputs": "out", "dir": site.text("mnt") },
    ]);
    let file = site.text("b.json");
    fs::write(&file, jobs.to_string()).unwrap();
    let (code, text) = site.run(&["run", "--batch", &file, "--quiet"]);
    assert_eq!(code, 0, "{text}");
    let svg = site.text("p.svg");
    // Who has closed its files is seen at once, when what waits was taken.
    let seen = patterns(&site, &["--svg", &svg]);
    let reader = task(&seen, "reader of run ");
    let (row, at) = (|at: usize| (at * ROW) as u64, "in".to_owned());
    assert_eq!(
        rows(reader, "reads"),
        [(at.clone(), 0, 32), (at.clone(), row(1), 32), (at, row(2), 2)],
        "{seen}"
    );
    assert_eq!((&reader["reads"], &reader["writes"]), (&66.into(), &0.into()));
    let writer = task(&seen, "writer of run ");
    let out = "out".to_owned();
    assert_eq!(rows(writer, "writes"), [(out.clone(), 0, 32), (out, row(1), 8)], "{seen}");
    assert_eq!(seen["here"], 66 + 40, "all from the tier");
    assert_eq!((&seen["lost"], &seen["unattributed"]), (&0.into(), &0.into()));
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("reader of run"), "{picture}");
    let (code, text) = site.run(&["patterns", &site.text("mnt"), "--stop"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("66 reads") && text.contains("in +2.00 MiB"), "{text}");
    assert_eq!(site.run(&["patterns", &site.text("mnt"), "--stop"]).0, 1);
    // The kernel serves what is resident by itself again.
    let before = site.status()["passthrough"]["opens"].as_u64().unwrap();
    let mut bytes = Vec::new();
    fs::File::open(site.path("mnt/in")).unwrap().read_to_end(&mut bytes).unwrap();
    if site.status()["passthrough"]["mode"] != "off" {
        assert_eq!(site.status()["passthrough"]["opens"].as_u64().unwrap(), before + 1);
    }
    assert!(bytes.iter().all(|byte| *byte == 1));
    site.umount();
}

#[test]
fn tasks_that_read_the_same_when_recorded_then_similar_and_what_is_absent_is_elsewhere() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/shared"), vec![3; 16 * ROW]).unwrap();
    site.mount(&["--passthrough", "off"]);
    assert_eq!(site.run(&["patterns", &site.text("mnt"), "--start"]).0, 0);
    // Both read all of it twice, side by side.
    let script = "for i in 1 2; do dd if=shared of=/dev/null bs=64k; done";
    let jobs = serde_json::json!([
        { "name": "one", "command": script, "inputs": "shared", "dir": site.text("mnt") },
        { "name": "two", "command": script, "inputs": "shared", "dir": site.text("mnt") },
    ]);
    let file = site.text("b.json");
    fs::write(&file, jobs.to_string()).unwrap();
    let (code, text) =
        site.run(&["run", "--batch", &file, "--quiet", "--use-cores", "2", "--no-hints"]);
    assert_eq!(code, 0, "{text}");
    let seen = patterns(&site, &["--stop"]);
    let all = seen["here"].as_u64().unwrap() + seen["elsewhere"].as_u64().unwrap();
    assert_eq!(all + seen["lost"].as_u64().unwrap(), 2 * 2 * 16 * 32, "{seen}");
    assert!(seen["elsewhere"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!(seen["tasks_total"], 2);
    site.umount();
}

#[test]
fn mapping_of_a_file_while_recorded_then_as_ever() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/f"), vec![5; 100_000]).unwrap();
    site.mount(&[]);
    assert_eq!(site.run(&["patterns", &site.text("mnt"), "--start"]).0, 0);
    let script = "import mmap,os\nf=open('f','r+b')\nm=mmap.mmap(f.fileno(),0)\nassert m[70000]==5\n\
                  m[70000]=6\nm.flush()\nr=open('f','rb')\nassert os.pread(r.fileno(),1,70000)==b'\\x06'\n";
    let (code, text) = outcome(
        site.command("/usr/bin/python3").args(["-c", script]).current_dir(site.path("mnt")),
    );
    assert_eq!(code, 0, "{text}");
    let mut byte = [0];
    fs::File::open(site.path("mnt/f")).unwrap().read_exact_at(&mut byte, 70_000).unwrap();
    assert_eq!(byte, [6]);
    assert_eq!(site.run(&["patterns", &site.text("mnt"), "--stop"]).0, 0);
    site.umount();
    assert_eq!(fs::read(site.path("backing/f")).unwrap()[70_000], 6);
}
