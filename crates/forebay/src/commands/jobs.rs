//! `jobs`: the runs of this user, and how their jobs are.

use super::{print, print_json};
use crate::cli::run::JobsArgs;
use crate::error::{Error, Exit};
use crate::migrate::protocol;
use crate::mountinfo;
use crate::run::record::{self, JobRecord, RunRecord, State};
use crate::units::format_seconds;

/// Jobs that are listed of one run unless all are asked for.
const ROWS_MAX: usize = 20;

/// Carries the command out.
pub fn run(args: &JobsArgs) -> Result<u8, Error> {
    let mut runs = record::all()?;
    show_places(&mut runs);
    if let Some(path) = &args.mountpoint {
        let real = mountinfo::resolve(path).map_err(Error::io(path.display().to_string()))?;
        runs.retain(|run| run.mountpoint.as_ref().is_some_and(|mount| mount.as_path() == real));
    }
    if let Some(name) = &args.run {
        runs.retain(|run| run.run == *name);
        if runs.is_empty() {
            return Err(Error::Failed(format!("no run {name}; `forebay jobs --all` lists them")));
        }
    }
    if args.json {
        print_json(&runs)?;
        return Ok(Exit::Ok.code());
    }
    if !args.all && args.run.is_none() {
        runs.retain(|run| run.alive);
    }
    let now = record::now_ms();
    let all = args.all || args.run.is_some();
    let text: String = runs.iter().map(|run| of_run(run, now, all)).collect();
    print(if text.is_empty() {
        "no jobs run; --all shows those that have ended\n"
    } else {
        &text
    })?;
    Ok(Exit::Ok.code())
}

/// Tasks that were migrated are elsewhere.
fn show_places(runs: &mut [RunRecord]) {
    for (task, _) in protocol::all() {
        let run = runs.iter_mut().find(|run| run.run == task.run);
        let job = run.and_then(|run| run.jobs.iter_mut().find(|job| job.name == task.job));
        if let (Some(job), Some(place)) = (job, task.place) {
            job.node = Some(place);
        }
    }
}

fn seconds(from: Option<u64>, to: u64) -> String {
    from.map_or(String::new(), |from| format_seconds(to.saturating_sub(from) / 1000))
}

fn of_run(run: &RunRecord, now: u64, all: bool) -> String {
    let how = match (run.alive, run.ended_ms) {
        (true, _) => format!("runs for {}", seconds(Some(run.began_ms), now)),
        (_, Some(ended)) => format!("ended {} ago", seconds(Some(ended), now)),
        _ => "was killed".into(),
    };
    let on = run.mountpoint.as_ref().map_or(String::new(), |mount| format!(", files on {mount}"));
    let states = [
        State::Running,
        State::Waiting,
        State::Done,
        State::Failed,
        State::Skipped,
        State::Cancelled,
        State::Lost,
    ];
    let count = |state: &State| match run.count(*state) {
        0 => None,
        count => Some(format!("{count} {}", state.name())),
    };
    let counts: Vec<String> = states.iter().filter_map(count).collect();
    let mut text =
        format!("run {}  pid {}, {how}{on}\n  {}\n", run.run, run.pid, counts.join(", "));
    // What a reader looks for first.
    let mut jobs: Vec<&JobRecord> = Vec::new();
    let order = [
        State::Running,
        State::Failed,
        State::Lost,
        State::Waiting,
        State::Skipped,
        State::Cancelled,
        State::Done,
    ];
    for state in order {
        jobs.extend(run.jobs.iter().filter(|job| job.state == state));
    }
    let rows = if all { jobs.len() } else { ROWS_MAX };
    for job in jobs.iter().take(rows) {
        text.push_str(&of_job(job, now));
    }
    if jobs.len() > rows {
        text.push_str(&format!("  and {} more; --all shows all\n", jobs.len() - rows));
    }
    text
}

fn of_job(job: &JobRecord, now: u64) -> String {
    let mut said = Vec::new();
    match job.state {
        State::Running => {
            said.push(format!("for {}", seconds(job.began_ms, now)));
            said.extend(job.pid.map(|pid| format!("pid {pid}")));
        }
        State::Done | State::Failed => {
            said.push(format!("after {}", seconds(job.began_ms, job.ended_ms.unwrap_or(now))));
        }
        _ => {}
    }
    said.extend(job.node.as_ref().map(|node| format!("on {node}")));
    if job.tries > 1 {
        said.push(format!("try {}", job.tries));
    }
    said.extend(job.reason.clone());
    format!("    {:10} {:20} {}  {}\n", job.state.name(), job.name, said.join(", "), job.command)
}
