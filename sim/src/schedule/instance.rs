//! Instances as JSON.
//!
//! A file holds an instance, a case (`{"name": ..., "instance": {...}}`), a list of either, or an
//! object whose `cases` is such a list. Keys of an instance that are not named here are passed over.

use std::collections::BTreeMap;

use forebay_schedule::{File, Instance, Job, Node};
use serde::Deserialize;
use serde_json::Value;

/// One for all, or one each.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Each<T> {
    All(T),
    List(Vec<T>),
}

impl<T: Copy> Each<T> {
    fn get(&self, at: usize, what: &str) -> Result<T, String> {
        match self {
            Self::All(one) => Ok(*one),
            Self::List(list) => {
                list.get(at).copied().ok_or_else(|| format!("`{what}` has no entry {at}"))
            }
        }
    }
}

/// As it stands in the file. Bytes a second, bytes, seconds.
#[derive(Debug, Clone, Deserialize)]
struct Written {
    machines: usize,
    bandwidth: Each<f64>,
    compute: Vec<f64>,
    size: BTreeMap<String, u64>,
    placement: BTreeMap<String, Option<Each<usize>>>,
    files: Vec<Vec<Value>>,
    store_bandwidth: Option<Each<f64>>,
    store_total: Option<f64>,
    slots: Option<Each<u32>>,
    memory: Option<Each<u64>>,
    room: Option<Each<u64>>,
    most_jobs: Option<Each<usize>>,
    job_slots: Option<Each<u32>>,
    job_memory: Option<Each<u64>>,
    after: Option<Vec<Vec<usize>>>,
    writes: Option<Vec<Vec<Value>>>,
}

/// More machines, files or jobs than that are a mistake.
const MOST: usize = 10_000_000;

/// The instances of a file, with their names if they have any.
pub(super) fn read(text: &str) -> Result<Vec<(Option<String>, Instance)>, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let list = match &file {
        Value::Array(list) => list.clone(),
        Value::Object(object) => match object.get("cases") {
            Some(Value::Array(list)) => list.clone(),
            Some(_) => return Err("`cases` is no list".into()),
            None => vec![file.clone()],
        },
        _ => return Err("neither an object nor a list".into()),
    };
    list.into_iter().map(case).collect()
}

fn case(value: Value) -> Result<(Option<String>, Instance), String> {
    let name = value.get("name").and_then(Value::as_str).map(ToOwned::to_owned);
    let of = name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let inner = value.get("instance").cloned().unwrap_or(value);
    let written = serde_json::from_value::<Written>(inner);
    let written = written.map_err(|error| format!("{of}{error}"))?;
    let instance = instance(&written).map_err(|error| format!("{of}{error}"))?;
    Ok((name, instance))
}

fn instance(written: &Written) -> Result<Instance, String> {
    if written.machines > MOST || written.size.len() > MOST || written.files.len() > MOST {
        return Err("too large".into());
    }
    if written.compute.len() != written.files.len() {
        let (computes, reads) = (written.compute.len(), written.files.len());
        return Err(format!("`compute` is of {computes} jobs, `files` of {reads}"));
    }
    let number: BTreeMap<&str, usize> =
        written.size.keys().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    if let Some(name) = written.placement.keys().find(|name| !number.contains_key(name.as_str())) {
        return Err(format!("`placement` names file {name}, which has no `size`"));
    }
    let file = |(name, size): (&String, &u64)| File {
        size: *size,
        holders: match written.placement.get(name) {
            Some(Some(Each::All(node))) => vec![*node],
            Some(Some(Each::List(nodes))) => nodes.clone(),
            Some(None) | None => vec![],
        },
    };
    let nodes: Result<Vec<Node>, String> =
        (0..written.machines).map(|at| node(written, at)).collect();
    let jobs: Result<Vec<Job>, String> =
        (0..written.compute.len()).map(|at| job(written, at, &number)).collect();
    Ok(Instance {
        nodes: nodes?,
        files: written.size.iter().map(file).collect(),
        jobs: jobs?,
        running: vec![],
        store_total: written.store_total.unwrap_or(f64::INFINITY),
    })
}

fn or<T: Copy>(each: Option<&Each<T>>, at: usize, what: &str, none: T) -> Result<T, String> {
    each.map_or(Ok(none), |each| each.get(at, what))
}

fn node(written: &Written, at: usize) -> Result<Node, String> {
    let link = written.bandwidth.get(at, "bandwidth")?;
    Ok(Node {
        slots: or(written.slots.as_ref(), at, "slots", 1)?,
        memory_bytes: or(written.memory.as_ref(), at, "memory", u64::MAX)?,
        room_bytes: or(written.room.as_ref(), at, "room", u64::MAX)?,
        link,
        store: or(written.store_bandwidth.as_ref(), at, "store_bandwidth", link)?,
        most_jobs: or(written.most_jobs.as_ref(), at, "most_jobs", usize::MAX)?,
    })
}

fn job(written: &Written, at: usize, number: &BTreeMap<&str, usize>) -> Result<Job, String> {
    let numbers = |names: &Vec<Value>| -> Result<Vec<usize>, String> {
        let find = |name: &Value| {
            let text = name.as_str().map_or_else(|| name.to_string(), ToOwned::to_owned);
            let found = number.get(text.as_str()).copied();
            found.ok_or_else(|| format!("job {at} names file {text}, which has no `size`"))
        };
        names.iter().map(find).collect()
    };
    let writes = written.writes.as_ref().and_then(|writes| writes.get(at));
    let after = written.after.as_ref().and_then(|after| after.get(at));
    Ok(Job {
        compute_s: written.compute[at],
        reads: numbers(&written.files[at])?,
        writes: writes.map_or(Ok(vec![]), numbers)?,
        after: after.cloned().unwrap_or_default(),
        slots: or(written.job_slots.as_ref(), at, "job_slots", 1)?,
        memory_bytes: or(written.job_memory.as_ref(), at, "job_memory", 0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = r#"{"machines": 2, "bandwidth": 10.0, "compute": [1, 2.5],
        "size": {"0": 100, "7": 50}, "placement": {"0": 1, "7": 0}, "files": [[0], [7, "0"]]}"#;

    #[test]
    fn instance_when_plain_then_one_slot_and_no_limits() {
        let read = read(PLAIN).expect("sound");
        let (name, instance) = &read[0];
        assert_eq!((read.len(), name), (1, &None));
        assert_eq!(instance.nodes, vec![Node::with_rate(10.0); 2]);
        assert_eq!(instance.files[1], File { size: 50, holders: vec![0] });
        assert_eq!(instance.jobs[1], Job::reading(2.5, vec![1, 0]));
    }

    #[test]
    fn instance_when_in_cases_or_a_list_then_all_are_read_with_their_names() {
        let cases = format!(r#"{{"cases": [{{"name": "a", "instance": {PLAIN}}}, {PLAIN}]}}"#);
        let named: Vec<_> = read(&cases).expect("sound").into_iter().map(|case| case.0).collect();
        assert_eq!(named, [Some("a".to_owned()), None]);
        assert_eq!(read(&format!("[{PLAIN}]")).expect("sound").len(), 1);
    }

    #[test]
    fn instance_when_it_says_more_then_slots_limits_order_and_the_store_are_taken() {
        let text = r#"{"machines": 2, "bandwidth": [10, 20], "store_bandwidth": 5, "slots": [1, 4],
            "memory": 64, "room": 1000, "most_jobs": 3, "store_total": 7.5, "compute": [1, 2],
            "size": {"0": 100, "1": 50}, "placement": {"0": [0, 1], "1": null},
            "files": [[0], [0, 1]], "after": [[], [0]], "writes": [[1]], "job_memory": 8,
            "job_slots": [1, 2]}"#;
        let instance = read(text).expect("sound").remove(0).1;
        let node = Node {
            slots: 4,
            memory_bytes: 64,
            room_bytes: 1000,
            link: 20.0,
            store: 5.0,
            most_jobs: 3,
        };
        assert_eq!((&instance.nodes[1], instance.store_total), (&node, 7.5));
        let holders: Vec<_> = instance.files.iter().map(|file| file.holders.len()).collect();
        assert_eq!(holders, [2, 0]);
        let job =
            Job { after: vec![0], slots: 2, memory_bytes: 8, ..Job::reading(2.0, vec![0, 1]) };
        assert_eq!(instance.jobs[1], job);
        assert_eq!(instance.jobs[0].writes, [1]);
    }

    #[test]
    fn instance_when_wrong_then_the_reason() {
        for (old, new, reason) in [
            ("[7, \"0\"]", "[8]", "job 1 names file 8"),
            ("[1, 2.5]", "[1]", "`compute` is of 1 jobs, `files` of 2"),
            ("10.0", "[10.0]", "`bandwidth` has no entry 1"),
            ("\"7\": 0", "\"8\": 0", "`placement` names file 8"),
            ("\"machines\": 2,", "", "missing field `machines`"),
        ] {
            let text = PLAIN.replace(old, new);
            if text != PLAIN {
                let error = read(&text).expect_err("wrong");
                assert!(error.contains(reason), "{error}");
            }
        }
        assert!(read("3").is_err() && read("{").is_err() && read("{\"cases\": 1}").is_err());
    }
}
