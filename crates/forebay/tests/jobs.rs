//! `forebay run` and `forebay jobs`: jobs as processes, on real mounts.

mod site;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use site::*;

fn batch(site: &Site, name: &str, jobs: &serde_json::Value) -> String {
    let path = site.path(name);
    fs::write(&path, jobs.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn jobs_of(site: &Site) -> serde_json::Value {
    let (code, text) = site.run(&["jobs", "--json"]);
    assert_eq!(code, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Processes that have this word in their command line.
fn with_word(word: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<i32>() else { continue };
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if line.windows(word.len()).any(|part| part == word.as_bytes()) && alive(pid) {
            found.push(pid);
        }
    }
    found
}

/// `forebay run`, itself and not below `timeout`, so that it can be killed.
fn spawn(site: &Site, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(args)
        .env("FOREBAY_RUNTIME_DIR", site.path("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end_of(mut child: Child) -> (std::process::ExitStatus, String) {
    let over = |child: &mut Child| child.try_wait().unwrap().is_some();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !over(&mut child) {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap(), text)
}

#[test]
fn one_command_when_run_then_its_output_and_its_exit_code() {
    let site = Site::new();
    let own = |args: &[&str]| site.run(&[&["run", "--"], args].concat());
    assert_eq!(own(&["printf", "a\\nb"]), (0, "a\nb".into()), "as it is");
    assert_eq!(own(&["sh", "-c", "exit 7"]).0, 7);
    assert_eq!(own(&["sh", "-c", "kill -TERM $$"]).0, 128 + 15);
    let (code, text) = own(&["/no/such/program"]);
    assert_eq!(code, 127, "{text}");
    assert!(text.is_empty() || text.contains("can't be started"), "{text}");
    let (code, text) = own(&["sh", "-c", "echo $FOREBAY_JOB"]);
    assert_eq!((code, text.as_str()), (0, "sh\n"));
    let missing = site.text("made");
    let (code, _) = site.run(&["run", "--output", &missing, "--", "true"]);
    assert_eq!(code, 1, "it did not make what it should");
    let (code, _) = site.run(&["run", "--output", &missing, "--", "touch", &missing]);
    assert_eq!(code, 0);
    let (code, text) = site.run(&["run"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("give a command after --"), "{text}");
}

#[test]
fn jobs_of_a_batch_then_in_their_order_within_cores_and_memory() {
    let site = Site::new();
    let log = site.text("log");
    // Each notes how many run while it does.
    let command = |name: &str| {
        format!(
            "mkdir {0}/on-{name}; ls -d {0}/on-* | wc -l >> {log}; sleep 0.15; rmdir {0}/on-{name}",
            site.text("home")
        )
    };
    let mut jobs: Vec<serde_json::Value> = (0..6)
        .map(|at| {
            let name = format!("j{at}");
            serde_json::json!({ "name": name, "command": command(&name), "memory": "1G" })
        })
        .collect();
    jobs.push(serde_json::json!({ "name": "last", "command": format!("echo last >> {log}"),
        "after": ["j0", "j1", "j2", "j3", "j4", "j5"] }));
    let file = batch(&site, "b.json", &jobs.into());
    let run = |more: &[&str]| {
        let _ = fs::remove_file(&log);
        let (code, text) = site.run(&[&["run", "--batch", &file, "--quiet"], more].concat());
        assert_eq!(code, 0, "{text}");
        let lines = fs::read_to_string(&log).unwrap();
        let (running, last) = lines.trim_end().rsplit_once('\n').unwrap();
        assert_eq!(last, "last");
        running.lines().map(|line| line.trim().parse::<u32>().unwrap()).max().unwrap()
    };
    assert_eq!(run(&["--use-cores", "1", "--use-memory", "64G"]), 1);
    assert!(run(&["--use-cores", "3", "--use-memory", "64G"]) <= 3);
    assert!(run(&["--use-cores", "6", "--use-memory", "2G"]) <= 2);
    let (code, text) = site.run(&["run", "--batch", &file, "--use-memory", "512M"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("needs 1.00 GiB of memory"), "{text}");
}

#[test]
fn job_that_fails_then_tried_again_and_what_waits_for_it_is_skipped() {
    let site = Site::new();
    let at_second = format!("test -e {0} || {{ touch {0}; exit 9; }}", site.text("second"));
    let jobs = serde_json::json!([
        { "name": "again", "command": at_second, "retries": 2 },
        { "name": "bad", "command": "echo no; exit 4" },
        { "name": "waits", "command": "true", "after": "bad" },
        { "name": "waits-more", "command": "true", "after": "waits" },
        { "name": "free", "command": "echo out; echo err >&2; pwd" },
    ]);
    let file = batch(&site, "b.json", &jobs);
    let (code, text) = site.run(&["run", "--batch", &file]);
    assert_eq!(code, 1, "{text}");
    for part in ["bad: no\n", "free: out\n", "free: err\n", "bad failed after", "exit code 4"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let runs = jobs_of(&site);
    let state = |name: &str| {
        let jobs = runs[0]["jobs"].as_array().unwrap();
        let job = jobs.iter().find(|job| job["name"] == name).unwrap();
        (
            job["state"].as_str().unwrap().to_owned(),
            job["tries"].as_u64().unwrap(),
            job["exit"].as_i64(),
        )
    };
    assert_eq!(state("again"), ("done".into(), 2, Some(0)));
    assert_eq!(state("bad"), ("failed".into(), 1, Some(4)));
    assert_eq!(state("waits"), ("skipped".into(), 0, None));
    assert_eq!(state("waits-more"), ("skipped".into(), 0, None));
    assert_eq!(state("free"), ("done".into(), 1, Some(0)));
    let (_, text) = site.run(&["jobs", "--all"]);
    assert!(text.contains("waited for bad, which failed"), "{text}");
    let logs = site.text("logs");
    let (code, text) = site.run(&["run", "--batch", &file, "--logs", &logs, "--quiet"]);
    assert_eq!((code, text.as_str()), (1, ""));
    assert_eq!(fs::read_to_string(site.path("logs/bad.out")).unwrap(), "no\n");
    assert_eq!(fs::read_to_string(site.path("logs/free.err")).unwrap(), "err\n");
}

#[test]
fn run_when_interrupted_then_its_jobs_end_and_leave_nothing() {
    let site = Site::new();
    let word = format!("98{}", std::process::id());
    let said = site.text("said");
    // One that would go on, one in a session of its own, one in the background, one that listens.
    let stubborn = format!("trap '' TERM INT; sleep {word} & while :; do sleep 0.1; done");
    let jobs = serde_json::json!([
        { "name": "stubborn", "command": stubborn },
        { "name": "away", "command": format!("setsid sleep {word} & sleep {word}") },
        { "name": "polite", "command": format!("trap 'echo bye > {said}; exit 130' INT; touch {said}; while :; do sleep 0.05; done") },
        { "name": "later", "command": "true", "after": "away" },
    ]);
    let file = batch(&site, "b.json", &jobs);
    let child = spawn(&site, &["run", "--batch", &file, "--grace", "500ms", "--use-cores", "4"]);
    let pid = i32::try_from(child.id()).unwrap();
    assert!(wait_for(Duration::from_secs(60), || with_word(&format!("sleep\0{word}")).len() >= 3
        && site.path("said").exists()));
    signal(pid, Signal::INT);
    let (status, text) = end_of(child);
    assert_eq!(status.code(), Some(130), "{text}");
    assert_eq!(with_word(&word), [] as [i32; 0], "{text}");
    assert_eq!(fs::read_to_string(&said).unwrap(), "bye\n", "asked first");
    let runs = jobs_of(&site);
    assert!(
        runs[0]["jobs"].as_array().unwrap().iter().all(|job| job["state"] == "cancelled"),
        "{runs}"
    );
    assert_eq!(runs[0]["alive"], false);
}

#[test]
fn run_when_killed_then_its_jobs_end_and_are_shown_as_lost() {
    let site = Site::new();
    let word = format!("97{}", std::process::id());
    let jobs = serde_json::json!([
        { "name": "a", "command": format!("setsid sleep {word} & sleep {word} & sleep {word}") },
        { "name": "b", "command": "true", "after": "a" },
    ]);
    let file = batch(&site, "b.json", &jobs);
    let mut child = spawn(&site, &["run", "--batch", &file]);
    let running = || jobs_of(&site)[0]["jobs"][0]["state"] == "running";
    assert!(wait_for(Duration::from_secs(60), || running()
        && with_word(&format!("sleep\0{word}")).len() == 3));
    let runs = jobs_of(&site);
    assert_eq!(runs[0]["alive"], true);
    assert_eq!(runs[0]["jobs"][1]["state"], "waiting");
    assert!(runs[0]["jobs"][0]["pid"].as_i64().is_some_and(|pid| alive(pid.try_into().unwrap())));
    let (_, text) = site.run(&["jobs"]);
    assert!(text.contains("1 running, 1 waiting"), "{text}");
    for (name, mode) in [("run/jobs", 0o700), ("run/jobs/.", 0o700)] {
        assert_eq!(fs::metadata(site.path(name)).unwrap().permissions().mode() & 0o777, mode);
    }
    for record in fs::read_dir(site.path("run/jobs")).unwrap() {
        assert_eq!(record.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(wait_for(Duration::from_secs(60), || with_word(&word).is_empty()), "orphans");
    let runs = jobs_of(&site);
    assert_eq!(runs[0]["alive"], false);
    assert_eq!(runs[0]["jobs"][0]["state"], "lost");
    assert_eq!(runs[0]["jobs"][1]["state"], "lost");
}

#[test]
fn jobs_with_files_on_a_mount_then_resident_ones_first_and_the_rest_is_fetched_ahead() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    for at in 0..8 {
        fs::write(site.path(&format!("backing/f{at}")), vec![at as u8; 1 << 20]).unwrap();
    }
    site.mount(&["--policy", "min"]);
    let (code, text) = site.run(&["warm", &site.text("mnt/f5"), &site.text("mnt/f6")]);
    assert_eq!(code, 0, "{text}");
    let done = site.text("order");
    let hold = site.text("hold");
    let command = |name: &str| {
        format!(
            "cat {name} > /dev/null; echo {name} >> {done}; while test -e {hold}; do sleep 0.05; done"
        )
    };
    let jobs: Vec<serde_json::Value> = (0..8)
        .map(|at| {
            let name = format!("f{at}");
            serde_json::json!({ "name": name, "command": command(&name), "inputs": name, "dir": site.text("mnt") })
        })
        .collect();
    let file = batch(&site, "b.json", &jobs.into());
    let (code, text) = site.run(&["run", "--batch", &file, "--dry-run", "--json"]);
    assert_eq!(code, 0, "{text}");
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&plan[0]["name"], &plan[1]["name"]), (&"f5".into(), &"f6".into()), "{plan}");
    assert_eq!(plan[1]["resident_bytes"], 1 << 20);
    fs::write(&hold, "").unwrap();
    let child = spawn(&site, &["run", "--batch", &file, "--use-cores", "1"]);
    // While the first job runs, all others' files come.
    let hinted = || site.status()["hints"][0].clone();
    assert!(wait_for(Duration::from_secs(60), || hinted()["fetched"] == 6), "{}", site.status());
    assert_eq!(hinted()["references"], 8);
    assert!(hinted()["job"].as_str().unwrap().starts_with("run-"));
    let (code, text) = site.run(&["jobs", &site.text("mnt")]);
    assert!(code == 0 && text.contains("f5"), "{text}");
    fs::remove_file(&hold).unwrap();
    let (status, text) = end_of(child);
    assert_eq!(status.code(), Some(0), "{text}");
    let order = fs::read_to_string(&done).unwrap();
    assert!(order.starts_with("f5\nf6\n"), "{order}");
    let status = site.status();
    assert_eq!(status["hints"].as_array().unwrap().len(), 0, "withdrawn: {status}");
    assert_eq!(status["misses"], 0, "{status}");
    site.umount();
}

#[test]
fn files_that_jobs_make_when_others_read_them_then_they_are_hinted_and_there() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    site.mount(&[]);
    let jobs = serde_json::json!({ "defaults": { "dir": site.text("mnt") }, "jobs": [
        { "name": "third", "command": "cat b > c", "inputs": "b", "outputs": "c" },
        { "name": "second", "command": "sleep 1.5; cat a a > b", "inputs": "a", "outputs": "b" },
        { "name": "first", "command": "echo x > a", "outputs": "a" },
    ]});
    let file = batch(&site, "b.json", &jobs);
    let child = spawn(&site, &["run", "--batch", &file]);
    let named = || site.status()["hints"][0]["references"] == 1;
    assert!(wait_for(Duration::from_secs(60), named), "{}", site.status());
    let (status, text) = end_of(child);
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(fs::read_to_string(site.path("mnt/c")).unwrap(), "x\nx\n");
    site.umount();
}

#[test]
fn trace_when_given_then_the_job_reads_what_was_opened() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    fs::write(site.path("backing/f"), "text").unwrap();
    site.mount(&[]);
    fs::write(site.path("t"), "id,size,ns,kind,path\n1,4,3,read,f\n2,4,5,create,new\n").unwrap();
    let args =
        ["run", "--trace", &site.text("t"), "--mount", &site.text("mnt"), "--dry-run", "--json"];
    let (code, text) = site.run(&[&args[..], &["--", "true"]].concat());
    assert_eq!(code, 0, "{text}");
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan[0]["input_bytes"], 4, "{plan}");
    let (code, text) = site.run(&[&args[..3], &["--", "true"]].concat());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("say by --mount"), "{text}");
    site.umount();
}

/// Takes a mount at another place than that of the site away, however the test ends.
struct Unmount<'a>(&'a Site, &'a str);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = outcome(self.0.command("fusermount3").args(["-uz", self.1]));
    }
}

/// Every example of the guide, as a reader would type it.
#[test]
fn guide_to_jobs_when_followed_then_every_example_works() {
    if !can_mount() {
        return;
    }
    let site = Site::new();
    let tier = format!("{}=64M", site.text("tier"));
    let data = site.text("home/data");
    fs::create_dir(&data).unwrap();
    let _unmount = Unmount(&site, &data);
    let (code, text) = site.run(&["mount", &site.text("backing"), &data, "--tier", &tier]);
    assert_eq!(code, 0, "{text}");
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/jobs.md");
    let guide = fs::read_to_string(guide).unwrap();
    let parts: Vec<&str> = guide.split("```sh\n").collect();
    // What the page says is not run here, guide.rs counts.
    let run = parts.windows(2).filter(|pair| !pair[0].ends_with(" -->\n"));
    let examples = run.map(|pair| pair[1].split("```").next().unwrap());
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
    let mut count = 0;
    for example in examples {
        let mut command = site.command("bash");
        command.args(["-euo", "pipefail", "-c", example]).current_dir(site.path("home"));
        command.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()));
        let (code, text) = outcome(&mut command);
        assert_eq!(code, 0, "{example}\n{text}");
        count += 1;
    }
    assert!(count >= 4, "{count} examples");
    let (code, text) = site.run(&["umount", &data]);
    assert_eq!(code, 0, "{text}");
}
