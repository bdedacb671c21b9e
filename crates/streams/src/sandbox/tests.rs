use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("input"), "the input").unwrap();
        std::fs::write(dir.path().join("secret"), "a secret").unwrap();
        Self { dir }
    }

    fn program(&self, text: &str) -> PathBuf {
        let path = self.dir.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn run(&self, text: &str) -> Result<String, Ended> {
        let input = File::open(self.dir.path().join("input")).unwrap();
        let secret = self.dir.path().join("secret");
        let args = [secret.to_str().unwrap()];
        run(&self.program(text), &args, input, Duration::from_secs(3))
    }
}

#[test]
fn program_in_the_sandbox_when_it_reads_its_input_then_its_answer() {
    let lab = Lab::new();
    assert_eq!(lab.run("exec cat /dev/stdin").unwrap(), "the input");
    // Also what only its owner may read.
    let input = lab.dir.path().join("input");
    std::fs::set_permissions(&input, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(lab.run("exec cat /dev/stdin").unwrap(), "the input");
}

#[test]
fn program_in_the_sandbox_when_it_hangs_or_computes_for_ever_then_ended_in_its_time() {
    let lab = Lab::new();
    for text in ["exec sleep 1000", "while :; do :; done"] {
        let begun = Instant::now();
        let ended = lab.run(text);
        assert!(matches!(ended, Err(Ended::TimedOut(_))), "{text}: {ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
    }
}

#[test]
fn program_in_the_sandbox_when_it_crashes_or_fills_the_pipe_then_no_answer() {
    let lab = Lab::new();
    assert!(matches!(lab.run("exit 3"), Err(Ended::Failed(_))));
    assert!(lab.run("exec /nothing/here").is_err());
    let python = |text: &str| lab.run(&format!("exec python3 -c '{text}'"));
    if python("print(len(bytearray(1 << 20)))").is_ok() {
        assert!(python("print(len(bytearray(2 << 30)))").is_err(), "more memory than it may have");
    }
    assert!(matches!(lab.run("while :; do echo 0123456789; done"), Err(Ended::TimedOut(_))));
}

#[test]
fn program_in_the_sandbox_when_it_writes_then_nothing_is_there() {
    let lab = Lab::new();
    let out = lab.dir.path().join("out");
    std::fs::write(&out, "").unwrap();
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o666)).unwrap();
    let _ = lab.run(&format!("echo written > {}", out.display()));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "");
}

#[test]
fn program_in_the_sandbox_when_it_opens_other_files_then_refused() {
    if landlock::abi() == 0 {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let lab = Lab::new();
    assert!(lab.run("exec cat \"$1\"").is_err(), "the secret may be read by everybody");
    assert!(lab.run("exec cat /etc/passwd").is_err());
}

#[test]
fn program_in_the_sandbox_when_it_starts_a_process_or_a_socket_then_refused() {
    if !seccomp::available() {
        eprintln!("skipped: this kernel has no seccomp");
        return;
    }
    let lab = Lab::new();
    assert!(lab.run("/bin/true; echo done").is_err(), "no second process");
    let python = "exec python3 -c 'import socket; socket.socket(); print(1)'";
    let computes = "exec python3 -c 'print(1)'";
    if lab.run(computes).is_ok_and(|text| text.trim() == "1") {
        assert!(lab.run(python).is_err(), "no socket");
    }
}

#[test]
fn program_in_the_sandbox_when_the_server_is_root_then_it_is_not() {
    let lab = Lab::new();
    let status = lab.run("while read line; do echo \"$line\"; done < /proc/self/status");
    // Where Landlock hides it there is nothing to see, which is as good.
    if let Ok(text) = status {
        let of = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(of("NoNewPrivs").ends_with('1'), "{text}");
        assert!(of("CapEff").ends_with("0000000000000000"), "{text}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(lab.run("exec id -u").unwrap().trim(), "65534");
    }
}
