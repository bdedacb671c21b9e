//! Every command of the guide, as a reader would type it, on real mounts.
//!
//! The fenced `sh` blocks of a page of docs/guide run one after the other, in a directory of their
//! own, with the program that was built. What a page shows as output (a fence `text` right after the
//! block) must come: blanks count as one, `...` stands for anything in a line, and alone on a line
//! for any lines. A page says more to this test in comments, which readers do not see:
//! - `<!-- test: node=two -->` before a block: it is typed on another machine of that name. All
//!   machines are this one; each has local directories, and thereby mounts, of its own.
//! - `<!-- test: setup` and lines until `-->`: commands that make what the page takes for granted.
//! - `<!-- test: skip, REASON -->` before a block: it is not run. How many there are is checked, so
//!   that another one is a decision.
//!
//! Directories of a site, such as `/nvme`, mean directories of the test; see [`Stage::here`].

mod site;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use site::{alive, can_mount, outcome, signal, use_own_mounts, wait_for};

/// Pages whose blocks another test runs.
const ELSEWHERE: &[(&str, &str)] =
    &[("jobs.md", "jobs.rs: guide_to_jobs_when_followed_then_every_example_works")];

/// So many blocks are not run.
const SKIPPED: usize = 10;

/// The longest that a block may take, in seconds.
const BLOCK_LIMIT: &str = "90";

/// Directories that all machines of a site see, and those that each has for itself.
const SHARED: &[&str] = &["/lustre", "/nfs", "/srv"];
const LOCAL: &[&str] = &["/nvme", "/dev/shm", "/mnt", "/data", "/etc/forebay"];

#[derive(Debug, PartialEq)]
enum Step {
    Run { line: usize, node: String, script: String, output: Option<Vec<String>> },
    Skip { line: usize, reason: String },
}

/// The steps of a page, or what is wrong with it.
fn steps(page: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = page.lines().enumerate().map(|(index, line)| (index + 1, line));
    let (mut node, mut skip): (Option<String>, Option<String>) = (None, None);
    while let Some((line, text)) = lines.next() {
        let mut until = |end: &str| -> Vec<String> {
            lines.by_ref().map(|(_, l)| l.to_owned()).take_while(|l| l != end).collect()
        };
        if text == "<!-- test: setup" {
            let script = until("-->").join("\n");
            steps.push(Step::Run { line, node: "one".into(), script, output: None });
        } else if let Some(said) = text.strip_prefix("<!-- test: ") {
            let said = said.strip_suffix(" -->").ok_or(format!("{line}: no end of the comment"))?;
            match (said.strip_prefix("node="), said.strip_prefix("skip, ")) {
                (Some(name), _) => node = Some(name.to_owned()),
                (_, Some(reason)) => skip = Some(reason.to_owned()),
                _ => return Err(format!("{line}: what is `{said}`?")),
            }
        } else if let Some(language) = text.strip_prefix("```") {
            let block = until("```");
            match (language, steps.last_mut()) {
                ("sh", _) => steps.push(match skip.take() {
                    Some(reason) => Step::Skip { line, reason },
                    None => {
                        let node = node.take().unwrap_or_else(|| "one".into());
                        Step::Run { line, node, script: block.join("\n"), output: None }
                    }
                }),
                ("text", Some(Step::Run { output, .. })) if output.is_none() => {
                    *output = Some(block);
                }
                ("", _) => return Err(format!("{line}: a fence needs a language")),
                _ => {}
            }
        } else if text.starts_with("    ") && looks_typed(text.trim()) {
            return Err(format!("{line}: put commands into a fence"));
        }
    }
    Ok(steps)
}

fn looks_typed(text: &str) -> bool {
    ["forebay ", "make ", "mpirun ", "systemctl "].iter().any(|start| text.starts_with(start))
}

/// Whether lines are as the page shows them.
fn fits(shown: &[String], found: &[String]) -> bool {
    let Some((first, rest)) = shown.split_first() else { return found.is_empty() };
    if first.trim() == "..." {
        return (0..=found.len()).any(|skipped| fits(rest, &found[skipped..]));
    }
    found.split_first().is_some_and(|(line, after)| line_fits(first, line) && fits(rest, after))
}

fn line_fits(shown: &str, found: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, found) = (squeeze(shown), squeeze(found));
    let parts: Vec<&str> = shown.split("...").collect();
    let [start, middle @ .., end] = parts.as_slice() else { return shown == found };
    let Some(mut rest) = found.strip_prefix(start) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(end)
}

/// The machines of one page.
struct Stage {
    root: tempfile::TempDir,
    port: u16,
}

impl Stage {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in SHARED {
            fs::create_dir_all(root.path().join(format!("shared{dir}"))).unwrap();
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self { port: free.local_addr().unwrap().port(), root }
    }

    fn root(&self) -> PathBuf {
        fs::canonicalize(self.root.path()).unwrap()
    }

    fn node(&self, node: &str) -> PathBuf {
        let dir = self.root().join(node);
        for part in LOCAL.iter().copied().chain(["/run", "/home"]) {
            fs::create_dir_all(dir.join(part.trim_start_matches('/'))).unwrap();
        }
        dir
    }

    /// A script as it means this machine: directories, addresses, sizes of tiers.
    fn here(&self, node: &str, script: &str) -> String {
        let mut text = script.to_owned();
        let roots = SHARED.iter().map(|dir| (dir, "shared")).chain(LOCAL.iter().map(|d| (d, node)));
        for (dir, place) in roots {
            text = moved(&text, dir, &format!("{}/{place}{dir}", self.root().display()));
        }
        let words =
            text.split_inclusive(char::is_whitespace).map(|word| match word.split_once('=') {
                Some((dir, size)) if dir.starts_with('/') && !size.trim().is_empty() => {
                    word.replacen(&format!("={}", size.trim()), "=256M", 1)
                }
                _ => word.to_owned(),
            });
        let text: String = words.collect();
        text.replace("\"$(hostname)", "\"127.0.0.1")
            .replace("10.0.0.1", "127.0.0.1")
            .replace("8480", &self.port.to_string())
            .replace("--seconds 3600", "--seconds 2")
    }

    /// What a program has printed, as the page would show it.
    fn there(&self, node: &str, text: &str) -> Vec<String> {
        let root = self.root();
        let own = [root.join(node), root.join("shared")].map(|dir| dir.display().to_string());
        let text = text.replace(&own[0], "").replace(&own[1], "");
        text.replace(&self.port.to_string(), "8480").lines().map(str::to_owned).collect()
    }

    /// The exit code, the output, and what was said beside it. A program that goes on in the
    /// background keeps the files open, and nobody waits for it.
    fn run(&self, node: &str, script: &str) -> (i32, String, String) {
        let dir = self.node(node);
        let bin = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
        let number = fs::read_dir(&dir).unwrap().count();
        let (out, err) = (dir.join(format!("out.{number}")), dir.join(format!("err.{number}")));
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", BLOCK_LIMIT, "bash", "-euo", "pipefail", "-c"])
            .arg(self.here(node, script))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()))
            .env("HOME", dir.join("home"))
            .env("FOREBAY_RUNTIME_DIR", dir.join("run"))
            .env("TMPDIR", dir.join("home"))
            .env("GUIDE_STAGE", self.root())
            .current_dir(dir.join("home"))
            .stdin(std::process::Stdio::null())
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&err).unwrap());
        let code = command.status().unwrap().code().unwrap_or(-1);
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        (code, text(out), text(err))
    }

    /// The processes that came of blocks: those with the environment that blocks get, and servers
    /// that begin with an empty one and work in a directory of the test.
    fn processes(&self) -> Vec<i32> {
        let root = self.root();
        let mark = format!("GUIDE_STAGE={}\0", root.display()).into_bytes();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| {
            let pid = entry.file_name().to_string_lossy().parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_marked = environment.windows(mark.len()).any(|part| part == mark);
            let works_here = || fs::read_link(entry.path().join("cwd")).ok();
            (is_marked || works_here().is_some_and(|dir| dir.starts_with(&root))).then_some(pid)
        });
        pids.collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let root = format!("{}/", self.root().display());
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| point.starts_with(&root)) {
            let _ = outcome(Command::new("fusermount3").args(["-uz", point]));
        }
        for pid in self.processes() {
            let _ = wait_for(Duration::from_secs(3), || !alive(pid));
            if alive(pid) {
                signal(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// `text` with the directory `from` of a site in the place `to`.
fn moved(text: &str, from: &str, to: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let in_path = |c: char| c.is_alphanumeric() || "._-/".contains(c);
        let begins = !rest[..at].ends_with(in_path);
        let after = &rest[at + from.len()..];
        let ends = !after.starts_with(|c: char| c.is_alphanumeric() || "._-".contains(c));
        result.push_str(&rest[..at]);
        result.push_str(if begins && ends { to } else { from });
        rest = after;
    }
    result + rest
}

fn guide() -> Vec<(String, String)> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut pages: Vec<_> =
        entries.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect();
    pages.sort();
    pages
}

/// Whether a program that a page uses is there; says so if not.
fn has(program: &str) -> bool {
    let able = Command::new(program).arg("--version").output().is_ok();
    if !able {
        eprintln!("skipped: {program} is not installed");
    }
    able
}

/// Runs a page of the guide to its end.
fn follow(name: &str) {
    if !can_mount() {
        return;
    }
    use_own_mounts();
    let (_, page) = guide().into_iter().find(|(page, _)| page == name).unwrap();
    let stage = Stage::new();
    let mut count = 0;
    for step in steps(&page).unwrap() {
        let Step::Run { line, node, script, output } = step else { continue };
        let (code, text, said) = stage.run(&node, &script);
        assert_eq!(code, 0, "{name}:{line}: {script}\n{text}{said}");
        if let Some(shown) = output {
            let found = stage.there(&node, &text);
            let both = format!("shown:\n{}\nfound:\n{}", shown.join("\n"), found.join("\n"));
            assert!(fits(&shown, &found), "{name}:{line}: {script}\n{both}\n{said}");
        }
        count += 1;
    }
    assert!(count > 0, "{name} has nothing to run");
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let root = format!(" {}/", stage.root().display());
    assert!(!mounts.contains(&root), "{name} leaves a mount behind: end it in the page");
    let over = || stage.processes().is_empty();
    assert!(wait_for(Duration::from_secs(60), over), "{name} leaves a process: end it in the page");
}

#[test]
fn first_mount_when_followed_then_works_as_shown() {
    follow("first-mount.md");
}

#[test]
fn training_cluster_when_followed_then_works_as_shown() {
    if has("redis-server") {
        follow("training-cluster.md");
    }
}

#[test]
fn media_server_when_followed_then_works_as_shown() {
    if has("curl") && has("setfattr") {
        follow("media-server.md");
    }
}

#[test]
fn day_of_an_administrator_when_followed_then_works_as_shown() {
    follow("administrator.md");
}

#[test]
fn operations_when_followed_then_work_as_shown() {
    follow("operations.md");
}

#[test]
fn upgrade_when_followed_then_works_as_shown() {
    follow("upgrade.md");
}

#[test]
fn disaster_when_followed_then_its_commands_work() {
    follow("disaster.md");
}

#[test]
fn guide_when_read_then_every_block_is_run_by_a_test_or_says_why_not() {
    let source =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guide.rs")).unwrap();
    let (mut run, mut skipped) = (0, 0);
    for (name, page) in guide() {
        let steps = steps(&page).unwrap_or_else(|fault| panic!("{name}:{fault}"));
        let here = source.contains(&format!("follow(\"{name}\")"));
        for step in steps {
            match step {
                Step::Skip { line, reason } => {
                    skipped += 1;
                    println!("{name}:{line}: not run: {reason}");
                }
                Step::Run { line, .. } => {
                    run += 1;
                    let elsewhere = ELSEWHERE.iter().any(|(page, _)| *page == name);
                    assert!(here || elsewhere, "{name}:{line}: no test runs this page");
                }
            }
        }
    }
    println!("{run} blocks are run, {skipped} are not");
    assert!(run >= 40, "only {run} blocks were found");
    assert_eq!(skipped, SKIPPED, "blocks that are not run: see the list above, and SKIPPED");
}

#[test]
fn steps_when_a_page_has_all_kinds_then_as_written() {
    let page = "a\n<!-- test: setup\nmake\n-->\n```sh\nx\n```\n```text\ny\n```\n\
        <!-- test: node=two -->\n```sh\nz\n```\n<!-- test: skip, no room -->\n```sh\nq\n```\n";
    let run = |line, node: &str, script: &str, output: Option<&str>| Step::Run {
        line,
        node: node.into(),
        script: script.into(),
        output: output.map(|text| vec![text.to_owned()]),
    };
    let expected = [
        run(2, "one", "make", None),
        run(5, "one", "x", Some("y")),
        run(12, "two", "z", None),
        Step::Skip { line: 16, reason: "no room".into() },
    ];
    assert_eq!(steps(page).unwrap(), expected);
    for wrong in ["```\nx\n```", "<!-- test: skip -->", "    forebay mount", "<!-- test: skip, x"] {
        assert!(steps(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn fits_when_placeholders_stand_for_anything_then_only_where_they_are() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let fits = |shown: &str, found: &str| fits(&lines(shown), &lines(found));
    assert!(fits("a  b", "a b") && fits("a ... c", "a bb c") && fits("a\n...\nd", "a\nb\nc\nd"));
    assert!(fits("...", "") && fits("a\n...", "a"));
    assert!(!fits("a", "b") && !fits("a", "a\nb") && !fits("a ... c", "a b d") && !fits("a", ""));
    assert_eq!(moved("/nfs/data /data/x file:/data", "/data", "/r"), "/nfs/data /r/x file:/r");
}
