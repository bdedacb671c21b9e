//! Jobs of a file in TOML or JSON.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::Names;
use super::job::Job;
use crate::error::Error;
use crate::units::parse_bytes;

/// Bytes of a file of jobs.
const MAX_BYTES: u64 = 256 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Batch {
    defaults: Needs,
    jobs: Vec<JobSpec>,
}

/// What a job needs; what is left out comes from the defaults of the batch, then of the command line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Needs {
    cores: Option<u32>,
    memory: Option<Size>,
    seconds: Option<f64>,
    retries: Option<u32>,
    dir: Option<PathBuf>,
    env: BTreeMap<String, String>,
}

/// A job as it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobSpec {
    name: Option<String>,
    command: Command,
    #[serde(default)]
    inputs: Many,
    #[serde(default)]
    outputs: Many,
    #[serde(default)]
    after: Many,
    cores: Option<u32>,
    memory: Option<Size>,
    seconds: Option<f64>,
    retries: Option<u32>,
    dir: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a list of words, or a text for sh -c")]
enum Command {
    Shell(String),
    Words(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, or a list of texts")]
enum Many {
    One(String),
    List(Vec<String>),
}

impl Default for Many {
    fn default() -> Self {
        Self::List(vec![])
    }
}

impl Many {
    fn list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::List(list) => list,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "bytes, or a text such as \"2G\"")]
enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes(&self) -> Result<u64, String> {
        match self {
            Self::Bytes(bytes) => Ok(*bytes),
            Self::Text(text) => parse_bytes(text),
        }
    }
}

/// The text of a file of jobs; `-` is standard input.
pub fn text_of(path: &Path) -> Result<String, Error> {
    let wrong = |source| Error::File { path: path.to_owned(), source };
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(wrong)?)
    };
    let mut text = String::new();
    source.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(wrong)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::Usage(format!("{}: longer than 256 MiB", path.display())));
    }
    Ok(text)
}

/// The jobs of a file: TOML if its name ends with `.toml`, else JSON, in which the list of jobs may
/// stand alone. `like` has what nobody says of a job.
pub fn read(path: &Path, like: &Job, names: &Names) -> Result<Vec<Job>, Error> {
    let text = text_of(path)?;
    let wrong = |why: &dyn std::fmt::Display| {
        Error::Usage(format!("{}: {why}; see `forebay run --help`", path.display()))
    };
    let toml = path.extension().is_some_and(|extension| extension == "toml");
    let batch: Batch = if toml {
        toml::from_str(&text).map_err(|error| wrong(&error))?
    } else if text.trim_start().starts_with('[') {
        let jobs = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
        Batch { jobs, ..Batch::default() }
    } else {
        serde_json::from_str(&text).map_err(|error| wrong(&error))?
    };
    if batch.jobs.is_empty() {
        return Err(wrong(&"has no jobs"));
    }
    let defaults = batch.defaults;
    let jobs = batch.jobs.into_iter().enumerate();
    jobs.map(|(at, spec)| {
        let name = spec.name.clone().unwrap_or_else(|| format!("job-{}", at + 1));
        to_job(spec, &name, &defaults, like, names).map_err(|error| match error {
            Error::Usage(why) => wrong(&format!("job {name:?}: {why}")),
            other => other,
        })
    })
    .collect()
}

fn to_job(
    spec: JobSpec,
    name: &str,
    defaults: &Needs,
    like: &Job,
    names: &Names,
) -> Result<Job, Error> {
    let dir = spec.dir.or_else(|| defaults.dir.clone());
    let dir = dir.map_or_else(|| like.dir.clone(), |dir| like.dir.join(dir));
    let memory = spec.memory.or_else(|| defaults.memory.clone());
    let memory = memory.map_or(Ok(like.memory_bytes), |size| size.bytes());
    let mut env = like.env.clone();
    env.extend(defaults.env.clone());
    env.extend(spec.env);
    let inputs = spec.inputs.list();
    Ok(Job {
        name: name.to_owned(),
        command: match spec.command {
            Command::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.into()],
            Command::Words(words) => words.into_iter().map(Into::into).collect(),
        },
        inputs: names.inputs(inputs.iter().map(AsRef::as_ref), &dir)?,
        outputs: spec.outputs.list().iter().map(|path| names.path(path.as_ref(), &dir)).collect(),
        after: spec.after.list(),
        cores: spec.cores.or(defaults.cores).unwrap_or(like.cores),
        memory_bytes: memory.map_err(|why| Error::Usage(format!("memory: {why}")))?,
        seconds: spec.seconds.or(defaults.seconds).unwrap_or(like.seconds),
        retries: spec.retries.or(defaults.retries).unwrap_or(like.retries),
        dir,
        env,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs_of(name: &str, text: &str) -> Result<Vec<Job>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        let like = Job { cores: 1, dir: "/none".into(), retries: 1, ..Job::default() };
        read(&path, &like, &Names::default())
    }

    #[test]
    fn batch_when_in_toml_or_json_then_the_same_jobs() {
        let toml = "\
[defaults]\nmemory = \"1G\"\n\
[[jobs]]\nname = \"a\"\ncommand = \"sort in > out\"\ninputs = \"in\"\noutputs = [\"out\"]\n\
[[jobs]]\ncommand = [\"cat\", \"out\"]\nafter = \"a\"\ncores = 2\nmemory = 4096\nseconds = 1.5\n";
        let json = r#"{"defaults": {"memory": "1G"}, "jobs": [
            {"name": "a", "command": "sort in > out", "inputs": "in", "outputs": ["out"]},
            {"command": ["cat", "out"], "after": ["a"], "cores": 2, "memory": "4K", "seconds": 1.5}]}"#;
        let jobs = jobs_of("b.toml", toml).unwrap();
        assert_eq!(jobs, jobs_of("b.json", json).unwrap());
        assert_eq!(jobs[0].command, ["/bin/sh", "-c", "sort in > out"]);
        assert_eq!((jobs[0].memory_bytes, jobs[0].retries, jobs[0].cores), (1 << 30, 1, 1));
        assert_eq!(jobs[0].inputs, [Path::new("/none/in")]);
        assert_eq!((jobs[1].name.as_str(), jobs[1].memory_bytes), ("job-2", 4096));
        assert_eq!((jobs[1].cores, jobs[1].seconds), (2, 1.5));
        assert_eq!(jobs_of("list", r#"[{"command": "true"}]"#).unwrap().len(), 1);
    }

    #[test]
    fn batch_when_wrong_then_the_message_says_where() {
        for (name, text, part) in [
            ("b.json", "{\"jobs\": []}", "has no jobs"),
            ("b.json", "[{\"command\": \"x\", \"core\": 2}]", "unknown field `core`"),
            ("b.json", "[{\"command\": 3}]", "a list of words"),
            ("b.json", "[{\"command\": \"x\", \"memory\": \"2 apples\"}]", "job \"job-1\": memory"),
            ("b.toml", "[[job]]\ncommand = \"x\"\n", "unknown field `job`"),
            ("b.toml", "[[jobs]]\n", "missing field `command`"),
        ] {
            let error = jobs_of(name, text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
