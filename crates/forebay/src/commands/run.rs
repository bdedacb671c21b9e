//! `run`: jobs in an order that follows from where their files are.

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use super::{print, print_json, warn};
use crate::cli::run::{RunArgs, Via};
use crate::control::Client;
use crate::error::{Error, Exit};
use crate::migrate::criu::Criu;
use crate::migrate::images;
use crate::run::files::{self, Known, Names};
use crate::run::job::{self, Job, Machine};
use crate::run::local::{Event, Local, MigratableRun, Plan, RunSettings};
use crate::run::output::Output;
use crate::run::plan::{self, ComputeNode};
use crate::run::record::{JobRecord, Keeper, RunRecord, State, line_of, now_ms};
use crate::run::reference::Reference;
use crate::run::{batch, parsl, snakemake};
use crate::signals;
use crate::units::format_bytes;

/// The jobs of a run, with what is known of them before they begin.
pub(super) struct Work {
    pub jobs: Vec<Job>,
    pub before: Vec<Vec<usize>>,
    pub inputs: Vec<PathBuf>,
    pub known: Vec<Known>,
    pub client: Option<Client>,
    /// The mount of the files, whether or not its daemon answers.
    pub mountpoint: Option<PathBuf>,
}

/// Carries the command out.
pub fn run(args: &RunArgs) -> Result<u8, Error> {
    let is_migratable = args.migratable || args.cooperative;
    if is_migratable {
        migratable(args)?;
    }
    let machine = machine(args);
    let work = work(args, machine)?;
    if args.via == Via::Slurm {
        return super::slurm::run(args, work);
    }
    let compute_nodes = [ComputeNode { number: None, host: String::new(), machine }];
    let queue = plan::queue(&work.jobs, &work.before, &work.inputs, &work.known, &compute_nodes)?;
    if args.dry_run {
        let order: Vec<usize> = queue.line(0).map(|job| job as usize).collect();
        return show_plan(args, &work, &order, None);
    }
    if let Some(dir) = &args.logs {
        std::fs::create_dir_all(dir).map_err(Error::io(dir.display().to_string()))?;
    }
    // Before any thread is started: signals are for the one that waits for them.
    signals::block_ends()?;
    let keeper = Keeper::new(record(&work, "local"))?;
    let settings = RunSettings {
        output: output(args),
        fail_fast: args.fail_fast,
        grace: args.grace,
        quiet: args.quiet || work.jobs.len() == 1 && !is_batch(args),
        migratable: is_migratable.then(|| MigratableRun { mount: work.mountpoint.clone() }),
    };
    let job = format!("run-{}", keeper.record.run);
    let hinted = !args.no_hints && !work.inputs.is_empty();
    let reference = work.client.filter(|_| hinted).map(|client| Reference::new(client, job));
    let (events, heard) = mpsc::channel();
    hear_signals(events.clone())?;
    let plan = Plan { jobs: &work.jobs, before: &work.before, queue };
    let mut local = Local::new(plan, keeper, reference, settings, events)?;
    let ended = local.run(&heard);
    let Local { keeper, reference, .. } = local;
    if is_migratable {
        images::remove_left_behind();
    }
    if let Some(reference) = reference {
        reference.withdraw();
    }
    let record = keeper.end();
    let ended = ended?;
    if args.json {
        print_json(&record)?;
    }
    Ok(exit_code(&record, ended.last_code, ended.signal, is_batch(args)))
}

/// What does not work is said before any job has begun.
fn migratable(args: &RunArgs) -> Result<(), Error> {
    if args.via == Via::Slurm {
        return Err(Error::Usage(
            "--migratable and --cooperative are for jobs of this machine, and have no meaning with --via \
             slurm"
                .into(),
        ));
    }
    if args.dry_run || args.cooperative {
        Ok(())
    } else {
        Criu::find().and_then(|criu| criu.check())
    }
}

fn hear_signals(events: mpsc::Sender<Event>) -> Result<(), Error> {
    let hear = move || {
        while let Ok(signal) = signals::wait_for_end() {
            if events.send(Event::End(signal)).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".into()).spawn(hear);
    thread.map(drop).map_err(Error::io("starting a thread"))
}

/// One job alone ends as it does; of several the code says whether all have ended well.
pub(super) fn exit_code(record: &RunRecord, last: i32, signal: Option<i32>, batch: bool) -> u8 {
    if let Some(signal) = signal {
        return u8::try_from(128 + signal).unwrap_or(Exit::Failed.code());
    }
    let well = record.jobs.iter().all(|job| job.state == State::Done);
    match record.jobs.first() {
        _ if well => Exit::Ok.code(),
        Some(job) if !batch => {
            let code = job.exit.unwrap_or(last);
            u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(Exit::Failed.code())
        }
        _ => Exit::Failed.code(),
    }
}

pub(super) fn is_batch(args: &RunArgs) -> bool {
    args.batch.is_some() || args.snakemake.is_some() || args.parsl.is_some()
}

fn machine(args: &RunArgs) -> Machine {
    let whole = Machine::this();
    Machine {
        cores: args.use_cores.unwrap_or(whole.cores),
        memory_bytes: args.use_memory.unwrap_or(whole.memory_bytes),
    }
}

fn output(args: &RunArgs) -> Output {
    match &args.logs {
        Some(dir) => Output::Files(dir.clone()),
        None if is_batch(args) || args.json => Output::Lines { all_to_stderr: args.json },
        None => Output::Inherit,
    }
}

/// The jobs that the arguments name, and what is known of their files.
fn work(args: &RunArgs, machine: Machine) -> Result<Work, Error> {
    let here = std::env::current_dir().map_err(Error::io("the current directory"))?;
    let given = args.mount.as_deref().map(mount_at).transpose()?;
    let names = Names::new(given.clone());
    let (mut jobs, names) = match given {
        Some(_) => (jobs(args, &here, &names)?, names),
        None => {
            // Which mount it is about follows from the files; then names may be as seen from it.
            let probed = if args.trace.is_some() { vec![] } else { jobs(args, &here, &names)? };
            let files = probed.iter().flat_map(|job| job.inputs.iter().chain(&job.outputs));
            let paths = files.map(PathBuf::as_path).chain([here.as_path()]);
            let found = files::mount_of(paths);
            let from_stdin = [&args.batch, &args.snakemake, &args.parsl]
                .iter()
                .any(|file| file.as_deref() == Some(Path::new("-")));
            let reads_stdin = from_stdin || args.input.iter().any(|input| input == "@-");
            let names = Names::new(found.clone());
            match found {
                // Standard input is read once.
                Some(_) if !reads_stdin => (jobs(args, &here, &names)?, names),
                _ if args.trace.is_some() => (jobs(args, &here, &names)?, names),
                _ => (probed, names),
            }
        }
    };
    if let Some(trace) = &args.trace {
        let traced = names.traced(trace)?;
        jobs.iter_mut().for_each(|job| job.inputs.extend(traced.clone()));
    }
    // What there is, is for Slurm to say then.
    let anywhere = Machine { cores: u32::MAX, memory_bytes: u64::MAX };
    let limit = if args.via == Via::Slurm { anywhere } else { machine };
    let before = job::dependencies(&jobs, limit)?;
    let inputs = plan::inputs_of(&jobs);
    let mut client = names.mountpoint().and_then(connect);
    let known = match files::whereabouts(client.as_mut(), &inputs) {
        Ok(known) => known,
        Err(error) => {
            warn(&format!("jobs run in an order that knows nothing of the mount: {error}"));
            client = None;
            files::whereabouts(None, &inputs)?
        }
    };
    let mountpoint = names.mountpoint().map(Path::to_owned);
    Ok(Work { jobs, before, inputs, known, client, mountpoint })
}

fn mount_at(path: &Path) -> Result<PathBuf, Error> {
    Ok(Client::for_path(path)?.mountpoint().to_owned())
}

/// Jobs run without a daemon that answers, too.
fn connect(mountpoint: &Path) -> Option<Client> {
    let client = Client::for_path(mountpoint);
    client.map_err(|error| warn(&format!("jobs run without hints: {error}"))).ok()
}

fn jobs(args: &RunArgs, here: &Path, names: &Names) -> Result<Vec<Job>, Error> {
    let like = Job {
        name: args.name.clone().unwrap_or_else(|| name_of(&args.command)),
        command: args.command.clone(),
        dir: here.to_owned(),
        cores: args.cores,
        memory_bytes: args.memory.unwrap_or(0),
        seconds: args.seconds.unwrap_or(0.0),
        retries: args.retries,
        ..Job::default()
    };
    let alone = |file: &Path| match args.command.is_empty() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{} has the commands; leave out what stands after --",
            file.display()
        ))),
    };
    match (&args.batch, &args.snakemake, &args.parsl) {
        (Some(file), _, _) => alone(file).and_then(|()| batch::read(file, &like, names)),
        (_, Some(file), _) => alone(file).and_then(|()| snakemake::read(file, &like, names)),
        (_, _, Some(file)) => parsl::read(file, &like, names),
        _ if args.command.is_empty() => Err(Error::Usage(
            "give a command after --, or jobs by --batch, --snakemake or --parsl; see `forebay run \
             --help`"
                .into(),
        )),
        _ => {
            let inputs = names.inputs(args.input.iter().map(AsRef::as_ref), here)?;
            let outputs = args.output.iter().map(|path| names.path(path, here)).collect();
            Ok(vec![Job { inputs, outputs, ..like }])
        }
    }
}

fn name_of(command: &[std::ffi::OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let name = program.map(|name| name.to_string_lossy().replace(char::is_control, "?"));
    name.filter(|name| !name.starts_with('.')).unwrap_or_else(|| "job".into())
}

pub(super) fn record(work: &Work, via: &str) -> RunRecord {
    let job = |job: &Job| JobRecord {
        name: job.name.clone(),
        command: line_of(&job.command),
        ..JobRecord::default()
    };
    RunRecord {
        via: via.to_owned(),
        mountpoint: work.client.as_ref().map(|client| client.mountpoint().into()),
        began_ms: now_ms(),
        jobs: work.jobs.iter().map(job).collect(),
        ..RunRecord::default()
    }
}

/// Prints the order of jobs, and their nodes if there are several.
pub(super) fn show_plan(
    args: &RunArgs,
    work: &Work,
    order: &[usize],
    nodes: Option<&[String]>,
) -> Result<u8, Error> {
    let of: std::collections::HashMap<&PathBuf, &Known> =
        work.inputs.iter().zip(&work.known).collect();
    let line = |job: &usize| {
        let spec = &work.jobs[*job];
        let known = || spec.inputs.iter().filter_map(|path| of.get(path));
        let bytes: u64 = known().map(|file| file.size).sum();
        let here: u64 = known().map(|file| file.resident).sum();
        (spec, bytes, here, nodes.map(|nodes| nodes[*job].clone()))
    };
    if args.json {
        let one = |job: &usize| {
            let (spec, bytes, here, node) = line(job);
            let before: Vec<&str> =
                work.before[*job].iter().map(|other| work.jobs[*other].name.as_str()).collect();
            serde_json::json!({ "name": spec.name, "node": node, "cores": spec.cores,
                "memory_bytes": spec.memory_bytes, "after": before, "input_bytes": bytes,
                "resident_bytes": here })
        };
        print_json(&order.iter().map(one).collect::<Vec<_>>())?;
        return Ok(Exit::Ok.code());
    }
    let mut text = String::new();
    for (at, job) in order.iter().enumerate() {
        let (spec, bytes, here, node) = line(job);
        let node = node.map_or(String::new(), |node| format!(" on {node}"));
        text.push_str(&format!(
            "{:4}  {}{node}  reads {}, of which {} are resident\n",
            at + 1,
            spec.name,
            format_bytes(bytes),
            format_bytes(here)
        ));
    }
    print(&text)?;
    Ok(Exit::Ok.code())
}
