//! The jobs of a dry run of Snakemake (`snakemake -n -p`, versions 7 to 9).

use std::path::{Path, PathBuf};

use super::batch::text_of;
use super::files::Names;
use super::job::Job;
use crate::error::Error;

/// One job as the dry run prints it.
#[derive(Debug, Default)]
struct Block {
    rule: String,
    id: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    threads: Option<u32>,
    memory_mb: Option<u64>,
    command: String,
}

/// The jobs of what `snakemake -n -p` has printed; `-` is standard input. Rules that only name what is
/// wanted have no command, and are left out.
pub fn read(path: &Path, like: &Job, names: &Names) -> Result<Vec<Job>, Error> {
    let text = text_of(path)?;
    let wrong = |why: &str| Error::Usage(format!("{}: {why}", path.display()));
    let blocks = blocks(&text);
    if blocks.is_empty() {
        return Err(wrong("no jobs of Snakemake; write it by `snakemake -n -p > FILE`"));
    }
    let dir = text.lines().find_map(|line| line.trim().strip_prefix("Working directory: "));
    let dir = dir.map_or_else(|| like.dir.clone(), PathBuf::from);
    let with_command = blocks.into_iter().filter(|block| !block.command.is_empty());
    let jobs: Vec<Job> = with_command.map(|block| to_job(block, &dir, like, names)).collect();
    if jobs.is_empty() {
        return Err(wrong("no job has a command; give snakemake the flag -p, and rules a `shell`"));
    }
    Ok(jobs)
}

fn to_job(block: Block, dir: &Path, like: &Job, names: &Names) -> Job {
    let paths = |list: &[String]| list.iter().map(|path| names.path(path.as_ref(), dir)).collect();
    // As Snakemake does it: a command of which a part fails has failed.
    let script = format!("set -euo pipefail; {}", block.command);
    Job {
        name: format!("{}-{}", block.rule, block.id),
        command: vec!["/bin/bash".into(), "-c".into(), script.into()],
        dir: dir.to_owned(),
        inputs: paths(&block.inputs),
        outputs: paths(&block.outputs),
        cores: block.threads.unwrap_or(like.cores),
        memory_bytes: block.memory_mb.map_or(like.memory_bytes, |mb| mb.saturating_mul(1_000_000)),
        ..like.clone()
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut in_block = false;
    let mut in_command = false;
    for line in text.lines() {
        if let Some(rule) = head(line) {
            blocks.push(Block { rule: rule.to_owned(), ..Block::default() });
            (in_block, in_command) = (true, false);
            continue;
        }
        // The next job begins with its time, the end is a table.
        if is_time(line) || line.starts_with("Job stats:") || line.starts_with("This was a dry-run")
        {
            (in_block, in_command) = (false, false);
        }
        let Some(block) = blocks.last_mut().filter(|_| in_block) else { continue };
        if let Some(first) = line.strip_prefix("Shell command:") {
            in_command = true;
            block.command.push_str(first.trim());
        } else if in_command {
            block.command.push('\n');
            block.command.push_str(line);
        } else if line.trim().is_empty() {
            // Until version 8 the command stands below an empty line, without a heading.
            in_command = true;
        } else if let Some((key, value)) = line.trim().split_once(": ") {
            take(block, key, value);
        }
    }
    for block in &mut blocks {
        let command = block.command.trim();
        block.command = if command == "None" { String::new() } else { command.to_owned() };
    }
    blocks
}

/// The rule of a line that begins a job.
fn head(line: &str) -> Option<&str> {
    let rule = ["rule ", "localrule ", "checkpoint ", "localcheckpoint "]
        .iter()
        .find_map(|word| line.strip_prefix(word))?;
    rule.strip_suffix(':').filter(|name| !name.is_empty() && !name.contains(char::is_whitespace))
}

/// Whether a line is a time, as `[Wed Nov 25 23:25:05 2026]`.
fn is_time(line: &str) -> bool {
    let inside = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inside.is_some_and(|time| time.matches(':').count() == 2 && time.split(' ').count() >= 5)
}

fn take(block: &mut Block, key: &str, value: &str) {
    let list = || value.split(", ").map(plain).filter(|path| !path.is_empty()).collect();
    match key {
        "input" => block.inputs = list(),
        "output" => block.outputs = list(),
        "jobid" => block.id = value.trim().to_owned(),
        "threads" => block.threads = value.trim().parse().ok(),
        "resources" => {
            let memory = value.split(", ").find_map(|one| one.strip_prefix("mem_mb="));
            block.memory_mb = memory.and_then(|mb| mb.parse().ok());
        }
        _ => {}
    }
}

/// A path without what Snakemake says of it, as in `x.tmp (temporary)`.
fn plain(path: &str) -> String {
    let path = path.trim();
    let said = [" (temporary)", " (protected)", " (pipe)", " (service)", " (update)"];
    let plain = said.iter().find_map(|said| path.strip_suffix(said));
    plain.unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Snakemake 9.27.1 printed of a workflow of four rules.
    const DRY_RUN: &str = include_str!("snakemake_dry_run.txt");

    #[test]
    fn dry_run_of_snakemake_when_read_then_its_jobs_with_commands_and_files() {
        let blocks = blocks(DRY_RUN);
        let names: Vec<String> =
            blocks.iter().map(|block| format!("{}-{}", block.rule, block.id)).collect();
        assert_eq!(names, ["index-3", "align-4", "align-2", "merge-1", "all-0"]);
        assert_eq!((blocks[0].threads, blocks[0].memory_mb), (Some(2), Some(64)));
        assert_eq!(blocks[0].command, "sort ref.fa > ref.idx");
        assert_eq!(blocks[1].inputs, ["ref.idx", "reads/2.fq"]);
        assert_eq!(blocks[1].outputs, ["out/2.bam", "out/2.log"]);
        assert!(blocks[1].command.ends_with("echo 'a \"b\"' > out/2.log"));
        assert_eq!(blocks[3].command, "cat out/1.bam out/2.bam \\\n            > merged.txt");
        assert_eq!(blocks[4].command, "", "a rule that only names files");
    }

    #[test]
    fn dry_run_of_older_versions_when_read_then_the_command_is_found() {
        let text = "[Tue Jan  2 10:00:00 2024]\nrule a:\n    input: in\n    output: out (temporary)\n    \
                    jobid: 1\n    reason: Missing output files: out\n    resources: tmpdir=/tmp\n\n\
                    \x20       cat in > out\n        \n[Tue Jan  2 10:00:00 2024]\nlocalrule all:\n    \
                    input: out\n    jobid: 0\n\nJob stats:\njob      count\n";
        let blocks = blocks(text);
        assert_eq!(blocks[0].command, "cat in > out");
        assert_eq!(blocks[0].outputs, ["out"]);
        assert_eq!((blocks.len(), blocks[1].command.as_str()), (2, ""));
    }
}
