//! `forebay migrate` to another node: tasks that go over the network, by the real CRIU.

mod netbed;
mod ring;
mod site;
mod tasks;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use netbed::Testbed;
use rustix::process::Signal;
use site::*;
use tasks::*;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// What has not ended of a task that runs the steps at this mount.
fn left(bed: &Bed) -> Vec<i32> {
    let word = bed.mount(0);
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_task = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
        has(word.as_bytes()) && has(b"steps")
    };
    pids.filter(of_task).collect()
}

#[test]
fn task_when_it_goes_round_over_three_nodes_then_its_output_equals_that_of_a_run_that_stayed() {
    const STEPS: usize = 7;
    let Some(bed) = Bed::hosting(3) else { return };
    let task = bed.start_steps(STEPS);
    bed.wait_for_begin();
    bed.go(0);
    let round = [bed.number(1), bed.number(2), "home".to_owned()];
    for step in 1..STEPS {
        let target = &round[(step - 1) % 3];
        let (code, text) = bed.migrate(target);
        assert_eq!(code, 0, "step {step}: {text}");
        let moved: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(moved["downtime_ms"].as_f64().unwrap() > 0.0, "{moved}");
        assert!(moved["bytes"].as_u64().unwrap() > 0 && moved["files"] == 1, "{moved}");
        let hosts = [bed.hosts(1).len(), bed.hosts(2).len()];
        let wanted = [usize::from(step % 3 == 1), usize::from(step % 3 == 2)];
        assert!(
            hosts == wanted || wait_for(LIMIT, || bed.hosts(1).len() + bed.hosts(2).len() <= 1),
            "step {step}: {hosts:?}"
        );
        let jobs = outcome(&mut bed.command(&["jobs", "--json"])).1;
        let jobs: serde_json::Value = serde_json::from_str(&jobs).unwrap();
        let place = jobs[0]["jobs"][0]["node"].as_str().unwrap_or("home").to_owned();
        let named = if step % 3 == 0 { target.clone() } else { format!("node {target} (") };
        assert!(place.starts_with(&named), "{jobs}");
        bed.go(step);
    }
    bed.ends_as_unmigrated(task, STEPS, 3);
}

#[test]
fn task_when_it_ends_on_another_node_then_its_output_and_exit_code_come_where_it_was_started() {
    let Some(bed) = Bed::hosting(2) else { return };
    // Prints more than is printed ahead of whoever reads it, and ends at once after that.
    let prints = "cd \"$1\"; exec 3>>out; until [ -e go.0 ]; do sleep 0.02; done; \
        head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2; exit 9";
    let dir = format!("{}/dir", bed.mount(0));
    let task = bed.start(&["sh", "-c", prints, "prints", &dir]);
    bed.wait_for_begin();
    let (code, text) = bed.migrate(&bed.number(1));
    assert_eq!(code, 0, "{text}");
    bed.go(0);
    let (code, out, err) = end_of(task);
    assert_eq!((code, out.len(), err.as_str()), (Some(9), 3_000_000, "end\n"));
    assert!(out.bytes().all(|byte| byte == b'x'));
    assert!(wait_for(LIMIT, || bed.hosts(1).is_empty()), "the host of the task is still there");
}

#[test]
fn task_when_the_node_refuses_or_fails_then_it_goes_on_where_it_was() {
    let Some(bed) = Bed::hosting(3) else { return };
    // One that was not told to take tasks.
    bed.ring.umount(2);
    bed.ring.mount(2, &["--writeback", "evict"]);
    let task = bed.start_steps(4);
    bed.wait_for_begin();
    let enough = |step: usize| bed.lines(0) > (step + 1) * LINES;
    // Its address is a new one, of which the others hear when they look the next time.
    let is_known = || !bed.migrate(&bed.number(2)).1.contains("Connection refused");
    assert!(wait_for(LIMIT, is_known), "nobody hears of its new address");
    let (code, text) = bed.migrate(&bed.number(2));
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("takes no tasks") && text.contains("--host-tasks on"), "{text}");
    bed.go(0);
    assert!(wait_for(LIMIT, || enough(0)), "after a refusal it stands still");
    let dir = bed.ring.site.path("home");
    let half = format!("{} \"$@\"; exit 1", bed.criu.display());
    let checks = "echo 'Error (x): no such kernel' >&2; exit 1";
    for (step, (command, instead, part)) in [
        ("check", checks, "does not suffice"),
        ("restore", "exit 1", "the task goes on where it was"),
        ("restore", half.as_str(), "the task goes on where it was"),
    ]
    .iter()
    .enumerate()
    {
        bed.put_criu(1, &failing(&dir, &bed.criu, command, instead));
        let (code, text) = bed.migrate(&bed.number(1));
        assert!(code != 0 && text.contains(part), "{command}: {code} {text}");
        assert!(wait_for(LIMIT, || bed.hosts(1).is_empty()), "{command}: its host is still there");
        if step > 0 {
            bed.go(step);
            assert!(wait_for(LIMIT, || enough(step)), "after {command} it stands still");
        }
    }
    bed.put_criu(1, &bed.criu);
    let (code, text) = bed.migrate(&bed.number(1));
    assert_eq!(code, 0, "{text}");
    bed.go(3);
    let (code, out, err) = end_of(task);
    let (file, expected_out, expected_err) = unmigrated(4);
    assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
    assert!(fs::read(bed.ring.at(1, "dir/out")).unwrap() == file);
}

#[test]
fn task_on_a_node_when_it_cannot_go_further_then_it_goes_on_there() {
    let Some(bed) = Bed::hosting(3) else { return };
    let task = bed.start_steps(3);
    bed.wait_for_begin();
    let (code, text) = bed.migrate(&bed.number(1));
    assert_eq!(code, 0, "{text}");
    let dir = bed.ring.site.path("home");
    let enough = |step: usize| bed.lines(0) > (step + 1) * LINES;
    for (step, (node, command)) in [(1, "dump"), (2, "restore")].into_iter().enumerate() {
        bed.put_criu(node, &failing(&dir, &bed.criu, command, "exit 1"));
        let (code, text) = bed.migrate(&bed.number(2));
        assert!(code != 0 && text.contains("the task goes on where it was"), "{command}: {text}");
        bed.put_criu(node, &bed.criu);
        bed.go(step);
        assert!(wait_for(LIMIT, || enough(step)), "after {command} it stands still");
        assert_eq!((bed.hosts(1).len(), bed.hosts(2).len()), (1, 0));
    }
    let (code, text) = bed.migrate("home");
    assert_eq!(code, 0, "{text}");
    bed.go(2);
    let (code, out, err) = end_of(task);
    let (file, expected_out, expected_err) = unmigrated(3);
    assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
    assert!(fs::read(bed.ring.at(0, "dir/out")).unwrap() == file);
}

#[test]
fn task_on_a_node_when_its_run_is_killed_then_it_is_gone() {
    let Some(bed) = Bed::hosting(2) else { return };
    let task = bed.start_steps(2);
    bed.wait_for_begin();
    let (code, text) = bed.migrate(&bed.number(1));
    assert_eq!(code, 0, "{text}");
    assert!(!left(&bed).is_empty());
    // Whoever started it: `forebay run`, which is below `timeout`.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", task.0.id())).unwrap();
    signal(children.trim().parse().unwrap(), Signal::KILL);
    let gone = || left(&bed).is_empty() && bed.hosts(1).is_empty();
    assert!(wait_for(LIMIT, gone), "left: {:?} {:?}", left(&bed), bed.hosts(1));
    end_of(task);
}

#[test]
fn task_on_a_node_when_what_has_it_there_is_killed_then_its_run_fails_and_says_so() {
    let Some(bed) = Bed::hosting(2) else { return };
    let task = bed.start_steps(2);
    bed.wait_for_begin();
    let number = bed.number(1);
    let (code, text) = bed.migrate(&number);
    assert_eq!(code, 0, "{text}");
    let hosts = bed.hosts(1);
    assert_eq!(hosts.len(), 1);
    signal(hosts[0], Signal::KILL);
    let (code, _, err) = end_of(task);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&format!("the task was at node {number}")), "{err}");
    assert!(wait_for(LIMIT, || left(&bed).is_empty()), "left: {:?}", left(&bed));
}

#[test]
fn task_when_it_writes_to_what_the_node_has_not_then_refused_and_goes_on() {
    let Some(bed) = Bed::hosting(2) else { return };
    let writes = "cd \"$1\"; exec 3>>out 4>>\"$2\"; until [ -e go.0 ]; do sleep 0.05; done; exit 7";
    let dir = format!("{}/dir", bed.mount(0));
    let elsewhere = bed.ring.site.text("elsewhere");
    let task = bed.start(&["sh", "-c", writes, "writes", &dir, &elsewhere]);
    bed.wait_for_begin();
    let there = || bed.ring.site.path("elsewhere").exists();
    assert!(wait_for(LIMIT, there), "it does not open its file");
    let (code, text) = bed.migrate(&bed.number(1));
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("elsewhere, which is not on the mount"), "{text}");
    for (target, part) in [("77", "no node 77"), ("nowhere", "no node nowhere")] {
        let (code, text) = bed.migrate(target);
        assert!(code == 2 && text.contains(part), "{text}");
    }
    bed.go(0);
    assert_eq!(end_of(task).0, Some(7));
}

#[test]
fn task_on_a_node_when_the_network_is_cut_then_it_ends_there_and_its_run_fails() {
    let Some(criu) = can_migrate() else { return };
    let options = ["--", "--writeback", "evict", "--host-tasks", "on"];
    let Some(mut bed) = Testbed::up(&options) else { return };
    bed.env = Some(("FOREBAY_CRIU", criu.clone()));
    bed.tell(&["mount", "1"]);
    bed.tell(&["mount", "2"]);
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let mount = |node: usize| bed.mounts()[node - 1].to_str().unwrap().to_owned();
    let (here, there) = (mount(1), mount(2));
    // So that whatever of it is left is seen.
    let ticks = "exec 3>>\"$1/out\"; while :; do echo tick >&3; sleep 0.1; done";
    let run = ["run", "--migratable", "--name", "t", "--mount", &here, "--", "sh", "-c", ticks];
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "200"]).arg(netbed::SCRIPT).args(["run", "1", forebay]).args(run);
    command.args(["ticks", &here]).env("TESTBED_DIR", bed.dir()).env("FOREBAY_CRIU", &criu);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let task = Running(command.spawn().unwrap());
    let began = || Path::new(&here).join("out").exists();
    assert!(wait_for(LIMIT, began), "the task does not begin");
    let (code, text) = bed.run(&["run", "2", forebay, "cluster", "status", "--json", &there]);
    assert_eq!(code, 0, "{text}");
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = status["this"].to_string();
    let (code, text) = bed.run(&["run", "1", forebay, "migrate", "t", &number, "--json"]);
    assert_eq!(code, 0, "{text}");
    let tasks = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let of_task = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let net = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
            line.split(|byte| *byte == 0).any(|word| word == b"ticks")
                && line.windows(here.len()).any(|part| part == here.as_bytes())
                && net(&pid.to_string()) != net("self")
                && line.starts_with(b"sh\0")
        };
        pids.filter(of_task).count()
    };
    assert_eq!(tasks(), 1);
    bed.tell(&["cut", "2"]);
    let (code, _, err) = end_of(task);
    assert_eq!(tasks(), 0, "its run has ended, and it runs");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&format!("the task was at node {number}")), "{err}");
    bed.tell(&["heal"]);
}

/// Two processes that agree on a sum again and again, until there is a file.
const MPI: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    long sum = 0, rank_sum = 0, go = 0, all = 0;
    int rank, i;
    (void)argc;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && fclose(fopen(argv[1], "w")) != 0)
        return 1;
    while (!all) {
        go = rank == 0 && access(argv[2], F_OK) == 0;
        MPI_Allreduce(&go, &all, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
        usleep(10000);
    }
    for (i = 0; i < 100; i++) {
        long mine = i * (rank + 1);
        MPI_Allreduce(&mine, &rank_sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum = (sum * 31 + rank_sum) % 1000003;
    }
    if (rank == 0)
        printf("%ld\n", sum);
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn mpi_job_on_one_node_when_it_cannot_be_moved_then_refused_with_the_reason_and_it_goes_on() {
    let Some(bed) = Bed::hosting(2) else { return };
    let home = bed.ring.site.path("home");
    fs::write(home.join("mpi.c"), MPI).unwrap();
    let sum = (0..100).fold(0, |sum: i64, i| (sum * 31 + i * 3) % 1_000_003);
    for (kind, launcher) in
        [("openmpi", &["--allow-run-as-root", "--oversubscribe"][..]), ("mpich", &[])]
    {
        let program = bed.ring.at(0, &format!("dir/{kind}"));
        let mut compile = Command::new(format!("mpicc.{kind}"));
        let compiled = compile.arg(home.join("mpi.c")).arg("-o").arg(&program).output();
        if !compiled.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: mpicc.{kind} is not installed");
            continue;
        }
        let path = |name: &str| bed.ring.at(0, name).to_str().unwrap().to_owned();
        let (begun, go) = (path(&format!("dir/begun.{kind}")), path(&format!("dir/go.{kind}")));
        let run = format!("mpirun.{kind}");
        // MPICH's way by common memory looks for processes in /proc, which has other numbers.
        let job = [&["env", "UCX_TLS=tcp,self", &run][..], launcher, &["-n", "2"]].concat();
        let program = program.to_str().unwrap();
        let task = bed.start(&[&job[..], &[program, &begun, &go]].concat());
        assert!(wait_for(LIMIT, || Path::new(&begun).exists()), "{kind} does not begin");
        let (code, text) = bed.migrate(&bed.number(1));
        let told = text.contains("can't be migrated") || text.contains("goes on where it was");
        assert!(code == 0 || told, "{kind}: {code} {text}");
        assert!(kind != "openmpi" || text.contains("not on the mount"), "{text}");
        fs::write(&go, b"").unwrap();
        let (code, out, err) = end_of(task);
        assert_eq!((code, out.trim()), (Some(0), sum.to_string().as_str()), "{kind}: {err}");
    }
}
