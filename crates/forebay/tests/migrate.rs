//! `forebay migrate`: tasks that go on at another mount, by the real CRIU.

mod ring;
mod site;
mod tasks;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use site::*;
use tasks::*;

#[test]
fn task_when_migrated_ten_times_then_its_output_equals_that_of_a_run_that_stayed() {
    const STEPS: usize = 11;
    let Some(bed) = Bed::new() else { return };
    let task = bed.start_steps(STEPS);
    bed.wait_for_begin();
    bed.go(0);
    let (home, other) = (bed.mount(0), bed.mount(1));
    for round in 1..STEPS {
        let target = if round % 2 == 1 { &other } else { &home };
        let (code, text) = bed.migrate(target);
        assert_eq!(code, 0, "round {round}: {text}");
        let moved: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(moved["downtime_ms"].as_f64().unwrap() > 0.0, "{moved}");
        let jobs = outcome(&mut bed.command(&["jobs", "--json"])).1;
        let jobs: serde_json::Value = serde_json::from_str(&jobs).unwrap();
        let place = (round % 2 == 1).then_some(other.as_str());
        assert_eq!(jobs[0]["jobs"][0]["node"].as_str(), place, "{jobs}");
        assert!(moved["bytes"].as_u64().unwrap() > 0 && moved["files"] == 1, "{moved}");
        bed.go(round);
    }
    bed.ends_as_unmigrated(task, STEPS, 2);
}

#[test]
fn task_when_it_cannot_be_dumped_or_restored_then_it_goes_on_where_it_was() {
    let Some(mut bed) = Bed::new() else { return };
    let real = bed.criu.clone();
    let dir = bed.ring.site.path("home");
    // The keeper has the variable that it was started with: what this names is changed.
    let named = dir.join("criu");
    let put = |program: &Path| {
        let _ = fs::remove_file(&named);
        std::os::unix::fs::symlink(program, &named).unwrap();
    };
    put(&real);
    bed.criu = named.clone();
    let task = bed.start_steps(4);
    bed.wait_for_begin();
    let other = bed.mount(1);
    let half = format!("{} \"$@\"; exit 1", real.display());
    for (step, (command, instead)) in
        [("dump", "exit 1"), ("restore", "exit 1"), ("restore", half.as_str())].iter().enumerate()
    {
        put(&failing(&dir, &real, command, instead));
        let (code, text) = bed.migrate(&other);
        assert_eq!(code, 1, "{command}: {text}");
        assert!(text.contains("the task goes on where it was"), "{command}: {text}");
        bed.go(step);
        let enough = || bed.lines(0) > (step + 1) * LINES;
        assert!(wait_for(Duration::from_secs(60), enough), "after {command} it stands still");
    }
    put(&real);
    let (code, text) = bed.migrate(&other);
    assert_eq!(code, 0, "{text}");
    bed.go(3);
    let (code, out, err) = end_of(task);
    let (file, expected_out, expected_err) = unmigrated(4);
    assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
    assert!(fs::read(bed.ring.at(1, "dir/out")).unwrap() == file);
}

#[test]
fn task_when_started_in_a_directory_where_another_is_written_down_then_waits_for_that() {
    let Some(bed) = Bed::new() else { return };
    let within = bed.ring.site.path("start");
    // So it is called that CRIU makes there for a moment.
    let in_its_way = within.join("proc.crtools");
    fs::create_dir_all(&in_its_way).unwrap();
    let task = bed.start_steps_in(&within, 1);
    bed.wait_for_begin();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        fs::remove_dir(in_its_way).unwrap();
    });
    let (code, text) = bed.migrate(&bed.mount(1));
    assert_eq!(code, 0, "{text}");
    other.join().unwrap();
    bed.go(0);
    assert_eq!(end_of(task).0, Some(7));
    assert_eq!(fs::read_dir(&within).unwrap().count(), 0);
}

#[test]
fn task_when_its_run_is_killed_after_a_migration_then_it_is_gone() {
    let Some(bed) = Bed::new() else { return };
    let task = bed.start_steps(2);
    bed.wait_for_begin();
    let (code, text) = bed.migrate(&bed.mount(1));
    assert_eq!(code, 0, "{text}");
    let word = bed.mount(0);
    let left = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let of_task = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let has = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
            has(word.as_bytes()) && has(b"steps")
        };
        pids.filter(of_task).collect::<Vec<i32>>()
    };
    let run = left();
    assert!(!run.is_empty());
    // Whoever started it: `forebay run`, which is below `timeout`.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", task.0.id())).unwrap();
    let forebay: i32 = children.trim().parse().unwrap();
    signal(forebay, rustix::process::Signal::KILL);
    assert!(wait_for(Duration::from_secs(60), || left().is_empty()), "left: {:?}", left());
    end_of(task);
}

#[test]
fn mount_when_unmounted_while_a_task_runs_that_does_not_use_it_then_its_daemon_ends() {
    let Some(bed) = Bed::new() else { return };
    let task = bed.start_steps(1);
    bed.wait_for_begin();
    // `umount` waits for the daemon, which serves a mount for as long as any namespace has it.
    bed.ring.umount(1);
    bed.ring.mount(1, &["--writeback", "evict"]);
    let (code, text) = bed.migrate(&bed.mount(1));
    assert_eq!(code, 0, "{text}");
    // The mount that it has left is the one that it was started with.
    bed.ring.umount(0);
    let (code, text) = bed.migrate("home");
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("not on a Forebay mount"), "{text}");
    fs::write(bed.ring.at(1, "dir/go.0"), b"").unwrap();
    let (code, out, err) = end_of(task);
    let (file, expected_out, expected_err) = unmigrated(1);
    assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
    bed.ring.umount(1);
    assert!(fs::read(bed.ring.backing("dir/out")).unwrap() == file);
}

#[test]
fn restore_when_it_fails_half_way_then_nothing_of_it_is_left() {
    let Some(mut bed) = Bed::new() else { return };
    let held = bed.ring.at(0, "dir/held");
    fs::write(&held, b"before").unwrap();
    // CRIU refuses a file of another size, when it has begun with processes.
    let grow = format!("echo more >> {}", held.display());
    bed.criu = failing(&bed.ring.site.path("home"), &bed.criu, "restore", &grow);
    let holds = "cd \"$1\"; exec 4<held 3>>out; until [ -e go.0 ]; do sleep 0.05; done; exit 7";
    let dir = format!("{}/dir", bed.mount(0));
    let task = bed.start(&["sh", "-c", holds, "holds", &dir]);
    bed.wait_for_begin();
    let before = keeper(&task);
    assert_eq!(before.1.len(), 1, "{before:?}");
    for _ in 0..2 {
        let (code, text) = bed.migrate(&bed.mount(1));
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("goes on where it was, it can't be restored"), "{text}");
        assert_eq!(keeper(&task), before);
    }
    bed.go(0);
    assert_eq!(end_of(task).0, Some(7));
}

#[test]
fn target_when_not_of_the_same_cluster_then_refused_though_its_files_are_the_same() {
    let Some(bed) = Bed::new() else { return };
    let task = bed.start_steps(1);
    bed.wait_for_begin();
    let (alone, tier) = (bed.ring.site.path("alone"), bed.ring.site.text("tier-alone"));
    fs::create_dir(&alone).unwrap();
    let at = alone.to_str().unwrap();
    let (code, text) = bed.ring.site.run(&[
        "mount",
        &bed.ring.site.text("backing"),
        at,
        "--tier",
        &format!("{tier}=64M"),
        "--no-supervisor",
    ]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = bed.migrate(at);
    let ended = bed.ring.site.run(&["umount", at]);
    assert_eq!((code, ended.0), (2, 0), "{text}{}", ended.1);
    assert!(text.contains("not nodes of one cluster"), "{text}");
    bed.go(0);
    assert_eq!(end_of(task).0, Some(7));
}

#[test]
fn task_when_it_has_what_cannot_move_then_refused_with_the_reason_and_goes_on() {
    let Some(bed) = Bed::new() else { return };
    let other = bed.mount(1);
    let locks = "cd \"$1\"; exec 9>>out; flock 9; : > locked; until [ -e go.0 ]; do sleep 0.05; done; exit 7";
    let dir = format!("{}/dir", bed.mount(0));
    let task = bed.start(&["sh", "-c", locks, "locks", &dir]);
    bed.wait_for_begin();
    let locked = || bed.ring.at(0, "dir/locked").exists();
    assert!(wait_for(Duration::from_secs(60), locked), "it takes no lock");
    let (code, text) = bed.migrate(&other);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("goes on where it was") && text.contains("locks on files can't be moved"),
        "{text}"
    );
    for (target, part) in [
        ("home", "is at home already"),
        ("/no/such/place", "No such file"),
        ("/tmp", "not on a Forebay mount"),
    ] {
        let (code, text) = bed.migrate(target);
        assert_ne!(code, 0, "{text}");
        assert!(text.contains(part), "{text}");
    }
    bed.go(0);
    assert_eq!(end_of(task).0, Some(7));
    let (code, text) = bed.migrate(&other);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("no task t"), "{text}");
}

#[test]
fn criu_when_missing_or_old_then_a_message_says_what_to_install() {
    let site = Site::new();
    let old = site.path("old");
    fs::write(&old, "#!/bin/sh\necho 'Version: 3.17.1'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    for (program, part) in
        [(old, "is CRIU 3.17.1, and 4.1 is needed"), (site.path("none"), "No such file")]
    {
        let mut command = site.command(env!("CARGO_BIN_EXE_forebay"));
        command.args(["run", "--migratable", "--", "true"]).env("FOREBAY_CRIU", program);
        let (code, text) = outcome(&mut command);
        assert_eq!(code, 5, "{text}");
        assert!(text.contains(part) && text.contains("Debian 13 (trixie)"), "{text}");
    }
}
