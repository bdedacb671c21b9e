//! Tasks that save their state themselves, by the libraries for C and Python, where there is no CRIU.

mod ring;
mod site;
mod tasks;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use site::*;
use tasks::*;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk");
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// A program that computes and writes in steps, and saves its state.
struct Program(Vec<String>);

impl Program {
    /// That in C, as the guide says that it is compiled.
    fn c(within: &Path) -> Program {
        let program = within.join("steps");
        let mut command = Command::new("cc");
        command.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(format!("{SDK}/c"));
        command.arg(format!("{PROGRAMS}/steps.c")).arg(format!("{SDK}/c/forebay_checkpoint.c"));
        let (code, text) = outcome(command.arg("-o").arg(&program));
        assert_eq!(code, 0, "{text}");
        Program(vec![program.to_str().unwrap().into()])
    }

    fn python() -> Program {
        let python = "/usr/bin/python3";
        assert!(Path::new(python).exists());
        Program(vec![python.into(), format!("{PROGRAMS}/steps.py")])
    }

    fn start(&self, bed: &Bed, steps: usize, more: &[&str]) -> Running {
        let (mount, steps) = (bed.mount(0), steps.to_string());
        let dir = format!("{mount}/dir");
        let run = ["run", "--cooperative", "--mount", &mount, "--name", "t"];
        let job: Vec<&str> = self.0.iter().map(String::as_str).chain([&*dir, &steps]).collect();
        let mut command = bed.command(&[&run, more, &["--"], &job].concat());
        command.env("PYTHONPATH", format!("{SDK}/python")).env("PYTHONDONTWRITEBYTECODE", "1");
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

fn put(bed: &Bed, name: &str) {
    fs::write(bed.ring.at(0, &format!("dir/{name}")), b"").unwrap();
}

fn take(bed: &Bed, name: &str) {
    fs::remove_file(bed.ring.at(0, &format!("dir/{name}"))).unwrap();
}

/// `forebay migrate` on its way; what it says comes line by line.
struct Migrating(Running, BufReader<std::process::ChildStderr>);

impl Migrating {
    /// Of a task that has registered to save its state, or is about to.
    fn to(bed: &Bed, target: &str) -> Migrating {
        let until = std::time::Instant::now() + LIMIT;
        loop {
            let mut migrating = Self::once(bed, target);
            let first = migrating.line();
            if first.contains(DOING[0]) {
                return migrating;
            }
            assert!(first.contains("CRIU") && std::time::Instant::now() < until, "{first}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn once(bed: &Bed, target: &str) -> Migrating {
        let mut command = bed.command(&["migrate", "t", target]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Migrating(Running(child), said)
    }

    /// The next line that it says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }

    /// Waits until it says that.
    fn comes_to(&mut self, what: &str) {
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "it never came to {what}");
            if line.contains(what) {
                return;
            }
        }
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut all = String::new();
        std::io::Read::read_to_string(&mut self.1, &mut all).unwrap();
        (self.0.0.wait().unwrap().code(), all)
    }
}

/// Waits until the program is at a place where it can save its state.
fn wait_for_begin(bed: &Bed, restarts: usize) -> String {
    let begun = bed.ring.at(0, &format!("dir/begun.{restarts}"));
    assert!(wait_for(LIMIT, || begun.exists()), "it does not begin");
    fs::read_to_string(begun).unwrap()
}

/// What `forebay migrate` says of a task that can't save its state yet: it has only just begun.
fn migrate(bed: &Bed, target: &str) -> (i32, String) {
    let found = std::cell::RefCell::new((0, String::new()));
    let registered = || {
        *found.borrow_mut() = bed.migrate(target);
        !found.borrow().1.contains("CRIU")
    };
    assert!(wait_for(LIMIT, registered), "{}", found.borrow().1);
    found.into_inner()
}

fn goes_round(program: &Program, bed: &Bed) {
    const STEPS: usize = 7;
    let task = program.start(bed, STEPS, &[]);
    assert_eq!(wait_for_begin(bed, 0), "");
    bed.go(0);
    let numbers = [bed.number(1), bed.number(2)];
    for step in 1..STEPS {
        let at = (step - 1) % 3;
        // One of them is told of all nodes.
        let list = format!("{},home,{}", numbers[0], numbers[1]);
        let target = [list.as_str(), &numbers[1], "home"][at];
        let (code, text) = migrate(bed, target);
        assert_eq!(code, 0, "step {step}: {text}");
        let moved: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(moved["by_itself"] == true && moved["files"].as_u64().unwrap() > 0, "{moved}");
        let machines = wait_for_begin(bed, step);
        let machines: Vec<&str> = machines.split(',').collect();
        assert_eq!(machines.len(), if at == 0 { 3 } else { 1 }, "{machines:?}");
        assert!(machines.iter().all(|machine| !machine.is_empty()));
        let one = || bed.hosts(1).len() + bed.hosts(2).len() <= 1;
        assert!(wait_for(LIMIT, one), "step {step}: {:?} {:?}", bed.hosts(1), bed.hosts(2));
        let jobs = outcome(&mut bed.command(&["jobs", "--json"])).1;
        let jobs: serde_json::Value = serde_json::from_str(&jobs).unwrap();
        let place = jobs[0]["jobs"][0]["node"].as_str().unwrap_or("home").to_owned();
        let named = [format!("node {} (", numbers[0]), format!("node {} (", numbers[1])];
        assert!(place.starts_with(if at == 2 { "home" } else { &named[at] }), "{jobs}");
        bed.go(step);
    }
    bed.ends_as_unmigrated(task, STEPS, 3);
}

#[test]
fn c_program_when_it_saves_its_state_and_goes_round_then_its_output_equals_one_that_stayed() {
    let Some(bed) = Bed::cooperating(3) else { return };
    goes_round(&Program::c(&bed.ring.site.path("home")), &bed);
}

#[test]
fn python_program_when_it_saves_its_state_and_goes_round_then_its_output_equals_one_that_stayed() {
    let Some(bed) = Bed::cooperating(3) else { return };
    goes_round(&Program::python(), &bed);
}

fn goes_on(program: &Program, bed: &Bed) {
    let task = program.start(bed, 4, &[]);
    wait_for_begin(bed, 0);
    let number = bed.number(1);
    let enough = |step: usize| wait_for(LIMIT, || bed.lines(0) > (step + 1) * LINES);
    let mut steps = 0..;
    let mut still_there = |what: &str| {
        let step = steps.next().unwrap();
        bed.go(step);
        assert!(enough(step), "after {what} it stands still");
        assert!(wait_for(LIMIT, || bed.hosts(1).is_empty()), "{what}: its host is still there");
    };
    put(bed, "refuse");
    let (code, text) = migrate(bed, &number);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("goes on where it was") && text.contains("it refuses: not now"),
        "{text}"
    );
    take(bed, "refuse");
    still_there("a refusal");
    put(bed, "saving");
    let late = ["migrate", "t", &number, "--save-within", "500ms"];
    let (code, text) = outcome(&mut bed.command(&late));
    assert!(code == 1 && text.contains("within 0.5 s"), "{code} {text}");
    take(bed, "saving");
    still_there("an answer that is late");
    // What is to have the task dies while the task saves its state, and when it has.
    put(bed, "saving");
    let migrating = Migrating::to(bed, &number);
    signal(bed.hosts(1)[0], Signal::KILL);
    take(bed, "saving");
    let (code, text) = migrating.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("goes on where it was, it can't be started"), "{text}");
    still_there("a target that died");
    put(bed, "ending");
    let mut migrating = Migrating::to(bed, &number);
    while !migrating.line().contains("end where it was") {}
    signal(bed.hosts(1)[0], Signal::KILL);
    std::thread::sleep(Duration::from_millis(200));
    take(bed, "ending");
    let (code, text) = migrating.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("from the state that it has saved"), "{text}");
    wait_for_begin(bed, 1);
    bed.go(3);
    bed.ends_as_unmigrated(task, 4, 2);
}

#[test]
fn c_program_when_its_state_is_not_saved_or_the_target_dies_then_it_goes_on_where_it_was() {
    let Some(bed) = Bed::cooperating(2) else { return };
    goes_on(&Program::c(&bed.ring.site.path("home")), &bed);
}

#[test]
fn python_program_when_its_state_is_not_saved_or_the_target_dies_then_it_goes_on_where_it_was() {
    let Some(bed) = Bed::cooperating(2) else { return };
    goes_on(&Program::python(), &bed);
}

#[test]
fn task_on_a_node_when_it_saves_its_state_and_cannot_go_further_then_it_goes_on_there() {
    let Some(bed) = Bed::cooperating(3) else { return };
    let task = Program::c(&bed.ring.site.path("home")).start(&bed, 3, &[]);
    wait_for_begin(&bed, 0);
    assert_eq!(migrate(&bed, &bed.number(1)).0, 0);
    wait_for_begin(&bed, 1);
    let number = bed.number(2);
    put(&bed, "refuse");
    let (code, text) = migrate(&bed, &number);
    assert!(code == 1 && text.contains("it refuses: not now"), "{code} {text}");
    take(&bed, "refuse");
    bed.go(0);
    assert!(wait_for(LIMIT, || bed.lines(0) > LINES), "after a refusal it stands still");
    put(&bed, "ending");
    let mut migrating = Migrating::to(&bed, &number);
    while !migrating.line().contains("end where it was") {}
    signal(bed.hosts(2)[0], Signal::KILL);
    std::thread::sleep(Duration::from_millis(200));
    take(&bed, "ending");
    let (code, text) = migrating.end();
    assert!(code == Some(1) && text.contains("from the state that it has saved"), "{text}");
    wait_for_begin(&bed, 2);
    assert_eq!((bed.hosts(1).len(), bed.hosts(2).len()), (1, 0));
    bed.go(1);
    bed.go(2);
    bed.ends_as_unmigrated(task, 3, 3);
}

fn dies(program: &Program, bed: &Bed) {
    let task = program.start(bed, 2, &["--retries", "1"]);
    wait_for_begin(bed, 0);
    bed.go(0);
    assert!(wait_for(LIMIT, || bed.lines(0) > LINES));
    put(bed, "die");
    let (code, text) = migrate(bed, &bed.number(1));
    assert!(code == 1 && text.contains("has ended"), "{code} {text}");
    take(bed, "die");
    bed.go(1);
    let (code, out, err) = end_of(task);
    let (file, expected_out, _) = unmigrated(2);
    assert_eq!(code, Some(7), "{err}");
    // It was begun anew, as after any other end.
    assert!(out.ends_with(&expected_out) && out.len() > expected_out.len(), "{out} {err}");
    assert!(fs::read(bed.ring.at(1, "dir/out")).unwrap() == file);
    assert!(wait_for(LIMIT, || bed.hosts(1).is_empty()), "its host is still there");
}

#[test]
fn program_when_it_dies_while_it_saves_its_state_then_its_run_hears_of_it_and_begins_it_again() {
    let Some(bed) = Bed::cooperating(2) else { return };
    dies(&Program::c(&bed.ring.site.path("home")), &bed);
    for name in ["go.0", "go.1", "out", "begun.0"] {
        take(&bed, name);
    }
    dies(&Program::python(), &bed);
}

#[test]
fn command_when_it_ends_at_once_then_as_without_namespaces_of_its_own() {
    let Some(bed) = Bed::cooperating(1) else { return };
    let mount = bed.mount(0);
    for code in (0..30).map(|turn| turn % 3) {
        let exit = format!("exit {code}");
        let run = ["run", "--cooperative", "--mount", &mount, "--", "sh", "-c", &exit];
        let (found, text) = outcome(&mut bed.command(&run));
        assert_eq!((found, text.as_str()), (code, ""));
    }
    let run = ["run", "--cooperative", "--mount", &mount, "--", "/no/such/program"];
    assert_eq!(outcome(&mut bed.command(&run)).0, 127);
}

/// What a migration says that it does, in this order.
const DOING: [&str; 3] = ["save its state", "starting it", "end where it was"];

#[test]
fn task_when_a_daemon_dies_at_any_step_then_its_output_equals_that_of_one_that_stayed() {
    const STEPS: usize = 2 * DOING.len() + 1;
    let Some(bed) = Bed::cooperating(2) else { return };
    let task = Program::c(&bed.ring.site.path("home")).start(&bed, STEPS, &[]);
    wait_for_begin(&bed, 0);
    bed.go(0);
    let mut moved = 0;
    for step in 1..STEPS {
        let target = if moved % 2 == 0 { bed.number(1) } else { "home".to_owned() };
        // Where it is, and where it goes.
        let (node, at) = ((step - 1) % 2, DOING[(step - 1) / 2]);
        let daemon = bed.ring.daemon(node);
        let mut migrating = Migrating::to(&bed, &target);
        if at != DOING[0] {
            migrating.comes_to(at);
        }
        signal(daemon, Signal::KILL);
        let (code, text) = migrating.end();
        if code == Some(0) {
            moved += 1;
        }
        assert!(code == Some(0) || text.contains("goes on where it was"), "step {step}: {text}");
        let again = || {
            let mount = bed.mount(node);
            let (code, text) = bed.ring.site.run(&["status", "--json", &mount]);
            let status: Option<serde_json::Value> = serde_json::from_str(&text).ok();
            code == 0 && status.is_some_and(|status| status["pid"] != daemon)
        };
        assert!(wait_for(LIMIT, again), "step {step}: the daemon is not started again");
        bed.go(step);
        let enough = || bed.lines(0) > step * LINES;
        assert!(wait_for(LIMIT, enough), "step {step}: {at}, node {node}: it stands still");
    }
    assert!(moved > 0, "it never went anywhere");
    let (code, out, err) = end_of(task);
    let (file, expected_out, expected_err) = unmigrated(STEPS);
    assert_eq!((code, out, err), (Some(7), expected_out, expected_err));
    assert!(fs::read(bed.ring.at(1, "dir/out")).unwrap() == file);
}

#[test]
fn run_when_killed_while_its_task_saves_its_state_or_ends_then_nothing_of_it_is_left() {
    let Some(bed) = Bed::cooperating(2) else { return };
    let program = Program::c(&bed.ring.site.path("home"));
    let name: PathBuf = program.0[0].clone().into();
    let left = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let runs = |entry: &fs::DirEntry| {
            fs::read_link(entry.path().join("exe")).is_ok_and(|path| path == name)
        };
        all.filter(runs).count()
    };
    for (at, said) in [("saving", DOING[0]), ("ending", DOING[2])] {
        let task = program.start(&bed, 2, &[]);
        wait_for_begin(&bed, 0);
        put(&bed, at);
        let mut migrating = Migrating::to(&bed, &bed.number(1));
        while said != DOING[0] && !migrating.line().contains(said) {}
        let children = format!("/proc/{0}/task/{0}/children", task.0.id());
        let run = fs::read_to_string(children).unwrap();
        signal(run.trim().parse().unwrap(), Signal::KILL);
        assert!(wait_for(LIMIT, || left() == 0 && bed.hosts(1).is_empty()), "{at}: it is left");
        end_of(task);
        assert_ne!(migrating.end().0, Some(0));
        for name in [at, "begun.0", "out"] {
            take(&bed, name);
        }
    }
}
