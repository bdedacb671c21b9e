//! The tasks of a run of Parsl, from its monitoring database.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::batch::text_of;
use super::files::Names;
use super::job::Job;
use crate::error::Error;

/// A row of the table `task`, of which other columns are passed over.
#[derive(Debug, Deserialize)]
struct Row {
    task_id: u64,
    #[serde(default)]
    run_id: String,
    task_func_name: String,
    #[serde(default)]
    task_depends: Option<String>,
    #[serde(default)]
    task_inputs: Option<String>,
    #[serde(default)]
    task_outputs: Option<String>,
}

/// The tasks of `sqlite3 -json monitoring.db 'select * from task'`; `-` is standard input. Parsl notes
/// which function a task was, not how to call it: `like` has the command, in which `{name}`, `{function}`,
/// `{id}`, `{inputs}` and `{outputs}` stand for what the task has.
pub fn read(path: &Path, like: &Job, names: &Names) -> Result<Vec<Job>, Error> {
    let wrong = |why: &dyn std::fmt::Display| Error::Usage(format!("{}: {why}", path.display()));
    if like.command.is_empty() {
        return Err(wrong(
            &"Parsl does not note commands: give one after --, such as -- ./task.sh {function} {inputs}",
        ));
    }
    let rows: Vec<Row> = serde_json::from_str(&text_of(path)?).map_err(|error| {
        let how = "write it by `sqlite3 -json monitoring.db 'select * from task'`";
        wrong(&format!("{error}; {how}"))
    })?;
    let Some(first) = rows.first() else { return Err(wrong(&"has no tasks")) };
    if let Some(other) = rows.iter().find(|row| row.run_id != first.run_id) {
        let runs = format!("has several runs, {} and {}: choose one", first.run_id, other.run_id);
        return Err(wrong(&format!("{runs} (select * from task where run_id = '...')")));
    }
    let name = |row: &Row| format!("{}-{}", row.task_func_name, row.task_id);
    let by_id: HashMap<u64, String> = rows.iter().map(|row| (row.task_id, name(row))).collect();
    let jobs = rows.iter().map(|row| {
        let after = row.task_depends.as_deref().unwrap_or_default();
        let after = after.split(',').filter_map(|id| by_id.get(&id.trim().parse().ok()?).cloned());
        let inputs = files_of(row.task_inputs.as_deref());
        let outputs = files_of(row.task_outputs.as_deref());
        let values = Values { row, name: name(row), inputs: &inputs, outputs: &outputs };
        let paths =
            |list: &[PathBuf]| list.iter().map(|path| names.path(path, &like.dir)).collect();
        Job {
            name: name(row),
            command: like.command.iter().flat_map(|word| values.fill(word)).collect(),
            inputs: paths(&inputs),
            outputs: paths(&outputs),
            after: after.collect(),
            ..like.clone()
        }
    });
    Ok(jobs.collect())
}

struct Values<'a> {
    row: &'a Row,
    name: String,
    inputs: &'a [PathBuf],
    outputs: &'a [PathBuf],
}

impl Values<'_> {
    /// A word of the command; one that is a list becomes as many.
    fn fill(&self, word: &OsStr) -> Vec<OsString> {
        let words = |paths: &[PathBuf]| paths.iter().map(|path| path.clone().into()).collect();
        match word.as_bytes() {
            b"{inputs}" => words(self.inputs),
            b"{outputs}" => words(self.outputs),
            bytes => match std::str::from_utf8(bytes) {
                Ok(text) => {
                    let text = text
                        .replace("{name}", &self.name)
                        .replace("{function}", &self.row.task_func_name)
                        .replace("{id}", &self.row.task_id.to_string());
                    vec![text.into()]
                }
                Err(_) => vec![OsString::from_vec(bytes.to_vec())],
            },
        }
    }
}

/// The local files of a column, as in `[<File at 0x7f url=/a scheme=file netloc= path=/a filename=a>]`.
fn files_of(column: Option<&str>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut rest = column.unwrap_or_default();
    while let Some((_, after)) = rest.split_once("<File at ") {
        let (file, next) = after.split_once(">").unwrap_or((after, ""));
        let local = file.contains(" scheme=file ");
        let path = file.split_once(" path=").and_then(|(_, path)| path.rsplit_once(" filename="));
        files.extend(path.filter(|_| local).map(|(path, _)| PathBuf::from(path)));
        rest = next;
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(text: &str, command: &[&str]) -> Result<Vec<Job>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.json");
        std::fs::write(&path, text).unwrap();
        let command = command.iter().map(Into::into).collect();
        read(&path, &Job { command, cores: 1, ..Job::default() }, &Names::default())
    }

    /// Three tasks as Parsl 2026 has noted them.
    const ROWS: &str = r#"[
        {"task_id":0,"run_id":"b7","task_depends":"","task_func_name":"index","task_hashsum":null,
         "task_inputs":"[<File at 0x7fcd05cf53d0 url=/d/ref.fa scheme=file netloc= path=/d/ref.fa filename=ref.fa>]",
         "task_outputs":"[<File at 0x7fcd05cf7610 url=/d/ref.idx scheme=file netloc= path=/d/ref.idx filename=ref.idx>]"},
        {"task_id":1,"run_id":"b7","task_depends":"0","task_func_name":"align",
         "task_inputs":"[<File at 0x1 url=/d/ref.idx scheme=file netloc= path=/d/ref.idx filename=ref.idx>, <File at 0x2 url=/d/1.fq scheme=file netloc= path=/d/1.fq filename=1.fq>]",
         "task_outputs":"[]"},
        {"task_id":2,"run_id":"b7","task_depends":"0,1","task_func_name":"fetch",
         "task_inputs":"[<File at 0x3 url=https://x/y scheme=https netloc=x path=/y filename=y>]","task_outputs":null}]"#;

    #[test]
    fn tasks_of_parsl_when_read_then_files_order_and_commands() {
        let jobs = tasks(ROWS, &["run", "{function}", "--id={id}", "{inputs}"]).unwrap();
        assert_eq!(jobs[1].command, ["run", "align", "--id=1", "/d/ref.idx", "/d/1.fq"]);
        assert_eq!(jobs[1].after, ["index-0"]);
        assert_eq!(jobs[0].outputs, [Path::new("/d/ref.idx")]);
        assert_eq!(jobs[2].inputs, [] as [&Path; 0], "not a file of this machine");
        assert_eq!(jobs[2].after, ["index-0", "align-1"]);
    }

    #[test]
    fn tasks_of_parsl_when_they_can_not_be_run_then_the_message_says_why() {
        let two = ROWS.replacen("\"b7\"", "\"c8\"", 1);
        for (text, command, part) in [
            (ROWS, &[][..], "give one after --"),
            ("{}", &["x"], "select * from task"),
            ("[]", &["x"], "has no tasks"),
            (&two, &["x"], "several runs, c8 and b7"),
        ] {
            let error = tasks(text, command).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
