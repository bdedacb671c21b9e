//! Unmodified programs on a directory. A program that is not installed is reported, not hidden.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::os;
use crate::random::pattern;
use crate::subject::{run_checked, run_command};

/// Longer than any of the programs below takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

/// One program's test: a name and a function on an empty directory.
pub struct Program {
    /// What is run.
    pub name: &'static str,
    /// The test.
    pub run: fn(&Path) -> Outcome,
}

/// All of them.
pub const ALL: &[Program] = &[
    Program { name: "sqlite", run: sqlite },
    Program { name: "sqlite_wal", run: sqlite_wal },
    Program { name: "git", run: git },
    Program { name: "tar", run: tar },
    Program { name: "make", run: make },
    Program { name: "cargo", run: cargo },
    Program { name: "python", run: python },
    Program { name: "rsync", run: rsync },
    Program { name: "listing", run: listing },
    Program { name: "cp", run: cp },
    Program { name: "dd", run: dd },
    Program { name: "flock", run: flock },
];

/// Runs every program in a directory of its own inside `root`; returns the failures and prints a
/// line for each program, with the reason of those left out.
pub fn run(root: &Path) -> Vec<(String, String)> {
    let names: Vec<&str> = ALL.iter().map(|program| program.name).collect();
    run_some(root, &names)
}

/// As [`run`], those of these names.
pub fn run_some(root: &Path, names: &[&str]) -> Vec<(String, String)> {
    let mut failures = Vec::new();
    for program in ALL.iter().filter(|program| names.contains(&program.name)) {
        let dir = root.join(program.name);
        let outcome =
            os::mkdir(&dir, 0o755).map_err(Failure::from).and_then(|()| (program.run)(&dir));
        let removed = std::fs::remove_dir_all(&dir).map_err(Failure::from);
        match outcome.and(removed) {
            Ok(()) => println!("ok   {}", program.name),
            Err(Failure::Skipped(why)) => println!("skip {}: {why}", program.name),
            Err(Failure::Failed(why)) => {
                println!("FAIL {}: {why}", program.name);
                failures.push((program.name.to_owned(), why));
            }
        }
    }
    failures
}

fn installed(program: &str) -> Outcome {
    match Command::new(program).arg("--version").output() {
        Err(error) => Err(Failure::Skipped(format!("{program}: {error}"))),
        Ok(_) => Ok(()),
    }
}

/// Runs `line` by the shell in `dir`; it must succeed.
fn shell(dir: &Path, line: &str) -> Outcome<String> {
    let mut command = Command::new("sh");
    // No configuration of whoever runs the test.
    command.args(["-ec", line]).current_dir(dir).env("HOME", dir).env("GIT_CONFIG_NOSYSTEM", "1");
    Ok(run_checked(&mut command, LIMIT)?)
}

/// A small tree of text files, a symlink, a hard link and an empty directory.
fn tree(dir: &Path) -> Outcome<PathBuf> {
    let top = dir.join("tree");
    os::mkdir(&top, 0o755)?;
    for d in 0..6 {
        os::mkdir(top.join(format!("d{d}")), 0o755)?;
        for f in 0..20 {
            let content = pattern(d * 100 + f, (d * 3000 + f * 77) as usize);
            os::write_file(top.join(format!("d{d}/f{f}")), &content)?;
        }
    }
    rustix::fs::symlink("d1/f1", top.join("link"))?;
    rustix::fs::link(top.join("d2/f2"), top.join("hard"))?;
    os::mkdir(top.join("empty"), 0o700)?;
    Ok(top)
}

fn database(dir: &Path, journal: &str) -> Outcome {
    installed("sqlite3")?;
    let script = format!(
        "sqlite3 db 'pragma journal_mode={journal}; create table t(a integer primary key, b blob);'
         for i in 1 2 3 4 5; do sqlite3 db 'begin; with recursive n(i) as (select 1 union all select
           i+1 from n where i<400) insert into t(b) select randomblob(300) from n; commit;'; done
         sqlite3 db 'delete from t where a % 3 = 0; update t set b = randomblob(900) where a % 7 = 0;
           vacuum;'
         sqlite3 db 'pragma integrity_check; select count(*) from t;'"
    );
    let text = shell(dir, &script)?;
    let lines: Vec<&str> = text.lines().rev().take(2).collect();
    equal!(lines, ["1334", "ok"]);
    Ok(())
}

fn sqlite(dir: &Path) -> Outcome {
    database(dir, "delete")
}

fn sqlite_wal(dir: &Path) -> Outcome {
    database(dir, "wal")?;
    // Two writers at once wait for each other by record locks and shared memory.
    let line = "pids=
        for w in 1 2; do (for i in $(seq 20); do sqlite3 -cmd '.timeout 20000' db \
        'insert into t(b) values(1);'; done) & pids=\"$pids $!\"; done
        for pid in $pids; do wait $pid; done
        sqlite3 db 'pragma integrity_check; select count(*) from t;'";
    equal!(shell(dir, line)?, "ok\n1374\n");
    Ok(())
}

fn git(dir: &Path) -> Outcome {
    installed("git")?;
    tree(dir)?;
    let line = "cd tree
        git init -q . && git config user.name n && git config user.email n@example.org
        git config gc.auto 0
        git add -A && git commit -q -m first
        echo more >> d1/f1 && git commit -q -a -m second
        git clone -q . ../clone
        cd ../clone && git fsck --strict && git status --porcelain
        git gc -q && git fsck && git log --oneline | wc -l
        git checkout -q HEAD~1 && git status --porcelain && git diff --stat HEAD";
    equal!(shell(dir, line)?.trim(), "2");
    Ok(())
}

fn tar(dir: &Path) -> Outcome {
    tree(dir)?;
    shell(dir, "tar cf a.tar tree && mkdir out && tar xf a.tar -C out && diff -r tree out/tree")?;
    let listed = "find . -printf '%P %y %m %s %n %l %T@\\n' | grep -v ' d ' | sort";
    equal!(
        shell(&dir.join("out/tree"), &format!("{listed} | sed 's/\\..*//'"))?,
        shell(&dir.join("tree"), &format!("{listed} | sed 's/\\..*//'"))?
    );
    Ok(())
}

fn make(dir: &Path) -> Outcome {
    installed("gcc")?;
    installed("make")?;
    os::write_file(dir.join("main.c"), b"int f(int); int main(void) { return f(41) - 42; }\n")?;
    os::write_file(dir.join("f.c"), b"int f(int x) { return x + 1; }\n")?;
    let makefile =
        b"main: main.o libf.a\n\tgcc -o $@ main.o -L. -lf\nlibf.a: f.o\n\tar rcs $@ $^\n";
    os::write_file(dir.join("Makefile"), makefile)?;
    shell(dir, "make -s -j4 && ./main")?;
    equal!(shell(dir, "make")?.contains("up to date"), true);
    shell(dir, "sleep 0.05; echo 'int f(int x) { return x + 2; }' > f.c && make -s && ! ./main")?;
    Ok(())
}

fn cargo(dir: &Path) -> Outcome {
    installed("cargo")?;
    os::mkdir(dir.join("src"), 0o755)?;
    let manifest =
        b"[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n";
    os::write_file(dir.join("Cargo.toml"), manifest)?;
    os::write_file(dir.join("src/main.rs"), b"fn main() { println!(\"built\"); }\n")?;
    let mut command = Command::new("cargo");
    command
        .args(["run", "-q", "--offline"])
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", dir.join("t"));
    equal!(run_checked(&mut command, LIMIT)?, "built\n");
    Ok(())
}

fn python(dir: &Path) -> Outcome {
    installed("python3")?;
    let script = b"
import mmap, os, shutil, sqlite3, tempfile, zipfile
with open('z.txt', 'w') as f: f.write('line\\n' * 5000)
with zipfile.ZipFile('z.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.write('z.txt')
with zipfile.ZipFile('z.zip') as z: assert z.read('z.txt') == b'line\\n' * 5000
with open('m.bin', 'w+b') as f:
    f.truncate(100000)
    m = mmap.mmap(f.fileno(), 100000)
    m[50000:50005] = b'abcde'; m.flush(); m.close()
    f.seek(50000); assert f.read(5) == b'abcde'
with tempfile.NamedTemporaryFile(dir='.') as t: t.write(b'x'); t.flush(); assert os.path.getsize(t.name) == 1
with tempfile.TemporaryFile(dir='.') as t: t.write(b'x'); t.seek(0); assert t.read() == b'x'
os.makedirs('a/b/c'); shutil.copytree('a', 'copy'); os.replace('z.txt', 'a/b/c/z.txt')
shutil.move('a', 'moved'); assert sorted(os.listdir('moved/b')) == ['c']
db = sqlite3.connect('p.db'); db.execute('create table t(x)'); db.executemany('insert into t values(?)', [(i,) for i in range(1000)]); db.commit()
assert db.execute('select sum(x) from t').fetchone() == (499500,)
shutil.rmtree('moved'); shutil.rmtree('copy')
print('done')
";
    os::write_file(dir.join("s.py"), script)?;
    equal!(shell(dir, "python3 -B s.py")?, "done\n");
    Ok(())
}

fn rsync(dir: &Path) -> Outcome {
    installed("rsync")?;
    tree(dir)?;
    shell(dir, "rsync -aHX tree/ copy/ && diff -r tree copy")?;
    shell(dir, "echo changed >> tree/d1/f3; rm tree/d2/f4; rsync -aHX --delete tree/ copy/")?;
    shell(dir, "diff -r tree copy")?;
    equal!(shell(dir, "rsync -aHXni --delete tree/ copy/")?, "");
    Ok(())
}

fn listing(dir: &Path) -> Outcome {
    tree(dir)?;
    equal!(shell(dir, "find tree -type f | wc -l")?.trim(), "121");
    equal!(shell(dir, "ls -lR tree | grep -c '^-'")?.trim(), "121");
    equal!(shell(dir, "find tree -links 2 -type f | sort")?, "tree/d2/f2\ntree/hard\n");
    let apparent: u64 =
        shell(dir, "du -sb --exclude=x tree | cut -f1")?.trim().parse().unwrap_or(0);
    ensure!(apparent > 900_000, "du counts {apparent} bytes");
    equal!(shell(dir, "cd tree && find . -newer d0/f0 -name f0 | wc -l")?.lines().count(), 1);
    Ok(())
}

fn cp(dir: &Path) -> Outcome {
    tree(dir)?;
    shell(dir, "cp -a tree copy && diff -r tree copy")?;
    equal!(shell(dir, "stat -c %h copy/hard")?.trim(), "2");
    equal!(
        shell(dir, "cd copy && find . -type f -printf '%P %T@ %m\\n' | sort")?,
        shell(dir, "cd tree && find . -type f -printf '%P %T@ %m\\n' | sort")?
    );
    shell(dir, "rm -r tree && mv copy tree && find tree -type f | xargs cat > /dev/null")?;
    Ok(())
}

fn dd(dir: &Path) -> Outcome {
    let path = dir.join("f");
    os::write_file(&path, &[b'a'; 10_000])?;
    shell(dir, "printf XYZ | dd of=f bs=1 seek=5000 conv=notrunc status=none")?;
    let content = os::read_all(&path)?;
    equal!((content.len(), &content[4999..5004]), (10_000, &b"aXYZa"[..]));
    shell(dir, "dd if=/dev/zero of=f bs=4096 count=4 oflag=direct conv=notrunc,fsync status=none")?;
    equal!(os::size(&path)?, 16_384);
    shell(dir, "dd if=f of=g bs=64k iflag=direct status=none && cmp f g")?;
    shell(dir, "printf end | dd of=f oflag=append conv=notrunc status=none")?;
    equal!(os::size(&path)?, 16_387);
    Ok(())
}

fn flock(dir: &Path) -> Outcome {
    installed("flock")?;
    // Two processes count together; without the lock they would lose counts.
    let line = "echo 0 > n; pids=
        for w in 1 2 3; do (for i in $(seq 30); do flock lock sh -c 'echo $(($(cat n)+1)) > n'; done) &
        pids=\"$pids $!\"; done; for pid in $pids; do wait $pid; done; cat n";
    equal!(shell(dir, line)?.trim(), "90");
    let mut refused = Command::new("sh");
    refused.args(["-c", "flock lock sh -c 'flock -n lock true'"]).current_dir(dir);
    equal!(run_command(&mut refused, LIMIT)?.status.code(), Some(1));
    Ok(())
}
