//! `forebay run --via slurm`: what is handed over, to commands that note it and to Slurm itself.

mod site;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use site::*;

/// Stands in for Slurm: `sbatch` runs the script at once and notes what it was given, the others tell
/// of it. The first try of the job `lost` loses its node.
const FAKE: &str = r#"#!/bin/bash
cd "$(dirname "$0")/state"
case $(basename "$0") in
sinfo)
    echo 'n1|127.0.0.1|4|4000|idle|forebay_n1'
    echo 'n2|10.9.9.9|4|4000|idle|(null)' ;;
sbatch)
    number=$(( $(ls | grep -c '^job-') + 100 ))
    printf '%s\n' "$@" > "job-$number"
    for arg; do
        case $arg in
        --job-name=*) name=${arg#*=} ;;
        --output=*) out=${arg#*=} ;;
        --error=*) err=${arg#*=} ;;
        --chdir=*) dir=${arg#*=} ;;
        esac
    done
    cat > "script-$number"
    if [ "$name" = lost ] && [ ! -e lost ]; then
        touch lost
        echo "JobId=$number JobState=NODE_FAIL ExitCode=1:0" > "show-$number"
    elif [ "$name" = endless ]; then
        echo "JobId=$number JobState=RUNNING ExitCode=0:0 NodeList=n1" > "show-$number"
    else
        (cd "$dir" && sh "$OLDPWD/script-$number" >> "$out" 2>> "$err"); code=$?
        state=COMPLETED; [ $code = 0 ] || state=FAILED
        echo "JobId=$number JobState=$state ExitCode=$code:0 NodeList=n1" > "show-$number"
    fi
    echo "$number" ;;
squeue)
    for show in show-*; do
        number=${show#show-}
        state=$(sed 's/.*JobState=\([A-Z_]*\).*/\1/' "$show")
        echo "$number|$state|n1|None"
    done ;;
scontrol)
    cat "show-${*: -1}" ;;
scancel)
    printf '%s\n' "$@" > cancelled
    for number; do echo "JobId=$number JobState=CANCELLED ExitCode=0:15" > "show-$number"; done ;;
esac
"#;

fn with_fake(site: &Site) -> PathBuf {
    let bin = site.path("bin");
    fs::create_dir_all(bin.join("state")).unwrap();
    for name in ["sinfo", "sbatch", "squeue", "scontrol", "scancel"] {
        let path = bin.join(name);
        fs::write(&path, FAKE).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    bin
}

fn forebay(site: &Site, bin: &Path, args: &[&str]) -> Command {
    let mut command = site.command(env!("CARGO_BIN_EXE_forebay"));
    command.args(args).current_dir(site.path("home"));
    command.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()));
    command
}

fn last_run(site: &Site) -> serde_json::Value {
    let (code, text) = site.run(&["jobs", "--json"]);
    assert_eq!(code, 0, "{text}");
    let runs: serde_json::Value = serde_json::from_str(&text).unwrap();
    runs.as_array().unwrap().last().unwrap().clone()
}

#[test]
fn jobs_when_handed_to_slurm_then_needs_files_order_and_ends_are_right() {
    let site = Site::new();
    let bin = with_fake(&site);
    let jobs = serde_json::json!([
        { "name": "second", "command": "echo second; cat one > two", "inputs": "one", "outputs": "two",
          "cores": 2, "memory": "3M", "env": { "A": "it's" } },
        { "name": "first", "command": "echo \"$FOREBAY_JOB\"; echo x > one", "outputs": "one" },
        { "name": "lost", "command": "printf 'no end of line'" },
        { "name": "bad", "command": "echo why >&2; exit 5", "retries": 1 },
        { "name": "never", "command": "true", "after": "bad" },
    ]);
    let file = site.text("b.json");
    fs::write(&file, jobs.to_string()).unwrap();
    let args = ["run", "--via", "slurm", "--batch", &file];
    let (code, text) = outcome(&mut forebay(&site, &bin, &args));
    assert_eq!(code, 1, "{text}");
    for part in [
        "first: first\n",
        "second: second\n",
        "bad: why\n",
        "lost: no end of line\n",
        "exit code 5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let run = last_run(&site);
    let states: Vec<(&str, &str, u64)> = run["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| {
            let state = job["state"].as_str().unwrap();
            (job["name"].as_str().unwrap(), state, job["tries"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("second", "done", 1),
        ("first", "done", 1),
        ("lost", "done", 2),
        ("bad", "failed", 2),
        ("never", "skipped", 0),
    ];
    assert_eq!(states, expected, "{text}");
    assert_eq!((&run["via"], &run["jobs"][0]["node"]), (&"slurm".into(), &"n1".into()));
    let handed: Vec<String> = fs::read_dir(bin.join("state"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_str().unwrap().starts_with("job-"))
        .map(|entry| fs::read_to_string(entry.path()).unwrap())
        .collect();
    assert_eq!(handed.len(), 6, "each try once");
    let second = handed.iter().find(|args| args.contains("--job-name=second")).unwrap();
    assert!(second.contains("--cpus-per-task=2\n") && second.contains("--mem=3M\n"), "{second}");
    assert!(second.contains("--requeue\n") && !second.contains("--prefer"), "{second}");
}

#[test]
fn run_when_interrupted_then_its_jobs_with_slurm_are_cancelled() {
    let site = Site::new();
    let bin = with_fake(&site);
    let args = ["run", "--via", "slurm", "--name", "endless", "--", "sleep", "1"];
    let mut command = forebay(&site, &bin, &args);
    let mut child = command.spawn().unwrap();
    assert!(wait_for(Duration::from_secs(60), || bin.join("state/show-100").exists()));
    // `timeout` hands it on.
    signal(i32::try_from(child.id()).unwrap(), rustix::process::Signal::TERM);
    let _ = child.wait();
    assert!(wait_for(Duration::from_secs(60), || {
        fs::read_to_string(bin.join("state/cancelled")).is_ok_and(|text| text == "100\n")
    }));
    assert!(wait_for(Duration::from_secs(60), || last_run(&site)["ended_ms"].is_u64()));
    assert_eq!(last_run(&site)["jobs"][0]["state"], "cancelled");
}

#[test]
fn slurm_when_it_is_not_there_then_the_message_says_so() {
    let site = Site::new();
    let none = site.path("home");
    let mut command = forebay(&site, &none, &["run", "--via", "slurm", "--", "true"]);
    command.env("PATH", "/nonexistent");
    let (code, text) = outcome(&mut command);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("sinfo") && text.contains("is Slurm installed here?"), "{text}");
}

/// Slurm on the nodes of a testbed: each `slurmd` sees the mount of its node under one path.
struct Slurm {
    root: tempfile::TempDir,
}

const CONFIG: &str = "ClusterName=fb\nSlurmctldHost=ctl(10.77.1.1)\nSlurmUser=root\n\
AuthType=auth/munge\nAuthInfo=socket=DIR/munge.sock\nCredType=cred/munge\n\
StateSaveLocation=DIR/state\nSlurmdSpoolDir=DIR/spool-%n\nSlurmctldPidFile=DIR/slurmctld.pid\n\
SlurmdPidFile=DIR/slurmd-%n.pid\nSlurmctldLogFile=DIR/slurmctld.log\nSlurmdLogFile=DIR/slurmd-%n.log\n\
ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n\
SelectTypeParameters=CR_CPU\nSchedulerType=sched/backfill\n\
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0\nMpiDefault=none\n\
ReturnToService=2\nSlurmdParameters=config_overrides\nProlog=DIR/prolog\nEpilog=DIR/epilog\n\
PrologFlags=Alloc\n\
NodeName=n1 NodeAddr=10.77.0.1 CPUs=2 RealMemory=2000 Feature=forebay_n1 Weight=1\n\
NodeName=n2 NodeAddr=10.77.0.2 CPUs=2 RealMemory=2000 Feature=forebay_n2 Weight=9\n\
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP\n";

impl Slurm {
    fn up() -> Option<Slurm> {
        let has = |tool: &str| {
            ["/usr/sbin", "/usr/bin"].iter().any(|dir| Path::new(dir).join(tool).exists())
        };
        for tool in ["slurmctld", "slurmd", "munged", "sbatch"] {
            if !has(tool) {
                eprintln!("skipped: no {tool}; install slurm-wlm and munge");
                return None;
            }
        }
        let slurm = Slurm { root: tempfile::tempdir().unwrap() };
        let (code, text) = slurm.bed(&["check"]);
        if code != 0 {
            eprintln!("skipped: {text}");
            return None;
        }
        let (code, text) = slurm.bed(&["up", "2", "--", "--writeback", "evict"]);
        if code != 0 {
            eprintln!("skipped: the testbed does not come up: {text}");
            return None;
        }
        slurm.start();
        Some(slurm)
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("bed")
    }

    fn text(&self, name: &str) -> String {
        self.root.path().join(name).to_str().unwrap().to_owned()
    }

    fn bed(&self, args: &[&str]) -> (i32, String) {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/testbed.sh")).args(args);
        command.env("TESTBED_DIR", self.dir()).env("FOREBAY", env!("CARGO_BIN_EXE_forebay"));
        outcome(&mut command)
    }

    /// A shell on a node with the node's mount at `data`.
    fn on(&self, node: &str, script: &str) -> Command {
        let net = self.dir().join("net").join(node);
        let bind = match node {
            "meta" => String::new(),
            node => {
                format!("mount --bind {}/mnt/{node} {}; ", self.dir().display(), self.text("data"))
            }
        };
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "120", "nsenter"]).arg(format!("--net={}", net.display()));
        command.args(["unshare", "-m", "-u", "--propagation", "private", "sh", "-ec"]);
        let host = if node == "meta" { "ctl".to_owned() } else { format!("n{node}") };
        command.arg(format!("hostname {host}; {bind}{script}"));
        command.env("SLURM_CONF", self.text("slurm/slurm.conf"));
        command.env("FOREBAY_RUNTIME_DIR", self.dir().join("run"));
        let bin = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
        command.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()));
        command
    }

    fn start(&self) {
        let dir = self.text("slurm");
        for made in ["slurm", "slurm/state", "slurm/spool-n1", "slurm/spool-n2", "data", "out"] {
            fs::create_dir_all(self.root.path().join(made)).unwrap();
        }
        fs::write(format!("{dir}/slurm.conf"), CONFIG.replace("DIR", &dir)).unwrap();
        fs::write(format!("{dir}/cgroup.conf"), "CgroupAutomount=no\n").unwrap();
        fs::write(format!("{dir}/munge.key"), [7; 128]).unwrap();
        fs::set_permissions(format!("{dir}/munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        let bin = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/slurm");
        for name in ["prolog", "epilog"] {
            // What a site would set in its environment.
            let text = format!(
                "#!/bin/sh\nexport FOREBAY_PATH={} FOREBAY_RUNTIME_DIR={}\necho $SLURM_JOB_COMMENT >> \
                 {dir}/{name}.seen\nexec {scripts}/{name}.sh\n",
                bin.display(),
                self.dir().join("run").display()
            );
            fs::write(format!("{dir}/{name}"), text).unwrap();
            fs::set_permissions(format!("{dir}/{name}"), fs::Permissions::from_mode(0o755))
                .unwrap();
        }
        let munged = format!(
            "munged --force --key-file={dir}/munge.key --socket={dir}/munge.sock \
             --pid-file={dir}/munged.pid --log-file={dir}/munged.log --seed-file={dir}/munge.seed"
        );
        for (node, script) in [
            ("meta", format!("{munged}; slurmctld -f {dir}/slurm.conf")),
            ("1", format!("slurmd -N n1 -f {dir}/slurm.conf")),
            ("2", format!("slurmd -N n2 -f {dir}/slurm.conf")),
        ] {
            let log = fs::File::create(format!("{dir}/start-{node}.log")).unwrap();
            let second = log.try_clone().unwrap();
            let status = self.on(node, &script).stdout(log).stderr(second).status().unwrap();
            let said = fs::read_to_string(format!("{dir}/start-{node}.log")).unwrap();
            assert!(status.success(), "{said}");
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["slurmctld.log", "slurmd-n1.log", "slurmd-n2.log"] {
                let text = fs::read_to_string(self.root.path().join("slurm").join(log));
                eprintln!("--- {log}\n{}", text.unwrap_or_default());
            }
        }
        for name in ["slurmd-n1", "slurmd-n2", "slurmctld", "munged"] {
            let pid = fs::read_to_string(self.root.path().join(format!("slurm/{name}.pid")));
            let pid = pid.ok().and_then(|pid| pid.trim().parse::<i32>().ok());
            if let Some(pid) = pid.filter(|pid| alive(*pid)) {
                signal(pid, rustix::process::Signal::TERM);
                let _ = wait_for(Duration::from_secs(10), || !alive(pid));
            }
        }
        self.bed(&["down"]);
    }
}

#[test]
fn jobs_on_a_cluster_with_slurm_then_each_runs_where_its_file_is() {
    let Some(slurm) = Slurm::up() else { return };
    let idle = || {
        let (_, text) = outcome(&mut slurm.on("1", "sinfo -h -N -o '%N %T'"));
        text.matches(" idle").count() == 2
    };
    assert!(wait_for(Duration::from_secs(60), idle), "the nodes of Slurm");
    for at in 0..2 {
        fs::write(slurm.dir().join(format!("backing/f{at}")), vec![at; 4 << 20]).unwrap();
    }
    // Slurm by itself would use n1 first; only n2 has f1, and only n1 has f0.
    let warm = |node: &str, file: &str| {
        let (code, text) =
            outcome(&mut slurm.on(node, &format!("forebay warm {}/{file}", slurm.text("data"))));
        assert_eq!(code, 0, "{text}");
    };
    warm("1", "f0");
    warm("2", "f1");
    // Nodes hear of each other by their heartbeats.
    let told = || {
        let ask = format!("forebay where --json {0}/f0 {0}/f1", slurm.text("data"));
        let (code, text) = outcome(&mut slurm.on("1", &ask));
        assert_eq!(code, 0, "{text}");
        let seen: serde_json::Value = serde_json::from_str(&text).unwrap();
        let nodes = |at: usize| seen[at]["nodes"].as_array().unwrap().clone();
        nodes(0).len() == 1 && nodes(1).len() == 1 && nodes(0) != nodes(1)
    };
    assert!(wait_for(Duration::from_secs(60), told), "which node has which file");
    let jobs: Vec<serde_json::Value> = (0..2)
        .map(|at| {
            // What the prolog has told the mount of the node is there while the job runs.
            let command = format!(
                "cat f{at} | wc -c; echo node=$SLURMD_NODENAME; echo x > made{at}; forebay status \
                 --json {} | grep -o slurm-$SLURM_JOB_ID",
                slurm.text("data")
            );
            serde_json::json!({ "name": format!("job{at}"), "command": command, "inputs": format!("f{at}"),
                "outputs": format!("made{at}"), "dir": slurm.text("data") })
        })
        .collect();
    fs::write(slurm.text("jobs.json"), serde_json::Value::from(jobs).to_string()).unwrap();
    let run = format!(
        "forebay run --via slurm --batch {} --logs {}",
        slurm.text("jobs.json"),
        slurm.text("out")
    );
    let (code, text) = outcome(&mut slurm.on("1", &run));
    assert_eq!(code, 0, "{text}");
    for at in 0..2 {
        let out = fs::read_to_string(slurm.root.path().join(format!("out/job{at}.out"))).unwrap();
        let begins = format!("{}\nnode=n{}\nslurm-", 4 << 20, at + 1);
        assert!(out.starts_with(&begins), "{out}\n{text}");
    }
    let prolog = fs::read_to_string(slurm.text("slurm/prolog.seen")).unwrap();
    assert!(prolog.contains("/job0.list") && prolog.contains("/job1.list"), "{prolog}");
    // The epilog has what was made written back; nothing else does that here.
    let written = || (0..2).all(|at| slurm.dir().join(format!("backing/made{at}")).exists());
    assert!(wait_for(Duration::from_secs(60), written));
}
