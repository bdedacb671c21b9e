//! Jobs to nodes: instances that are given, and what the policies do on made-up ones.

mod figures;
mod instance;

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use forebay_schedule::{Effort, Plan, Policy, Problem, plan};
use serde_json::{Value, json};

use crate::SimError;
use crate::cluster::figures::short;
use crate::table::Table;

/// A policy as it is named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named(pub Policy);

impl ValueEnum for Named {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Named; 5] = [
            Named(Policy::Algorithm1Printed),
            Named(Policy::Algorithm1),
            Named(Policy::Flow),
            Named(Policy::Ect),
            Named(Policy::EctLs),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            Policy::Algorithm1Printed => "HyCache+'s algorithm 1 as printed: all to the first node",
            Policy::Algorithm1 => "Corrected: fewest missing bytes for each job",
            Policy::Flow => "Min-cost flow: fewest missing bytes of all, so many jobs a node",
            Policy::Ect => "Earliest completion time",
            Policy::EctLs => "Earliest completion time, then local search",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

/// A result to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// All jobs read one file that one node has
    HotFile,
    /// Makespan and bytes, by how many of the files are on one node
    Skew,
    /// Makespan and bytes, by nodes
    Nodes,
}

/// What to place.
#[derive(Debug, Clone, clap::Args)]
pub struct ScheduleArgs {
    /// Instance to place, as JSON; without one, made-up ones
    #[arg(long, value_name = "FILE")]
    pub instance: Option<PathBuf>,
    /// Which instance of a file with several
    #[arg(long, requires = "instance")]
    pub name: Option<String>,
    /// Policies, separated by commas [default: ect-ls for an instance, otherwise all]
    #[arg(long, value_delimiter = ',', value_enum)]
    pub policy: Vec<Named>,
    /// Files that the search may look at; more find better plans, and take longer
    #[arg(long, value_name = "FILES", default_value_t = Effort::default().touches)]
    pub effort: u64,
    /// Result to show
    #[arg(long, value_enum, default_value = "skew", conflicts_with = "instance")]
    pub figure: Figure,
    /// Numbers of nodes for --figure nodes, separated by commas (2 to 4,096)
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NODES",
        default_value = "8,32,128,512",
        value_parser = clap::value_parser!(u32).range(2..=4096)
    )]
    pub nodes: Vec<u32>,
    /// Instances of each kind to take the mean of
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write the rows to a file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also draw a chart, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

impl ScheduleArgs {
    fn effort(&self) -> Effort {
        Effort { touches: self.effort }
    }
}

/// What the arguments ask for, done and printed.
///
/// # Errors
/// [`SimError`]; its text tells the user what to do.
pub fn run_cli(args: &ScheduleArgs, out: &mut dyn Write) -> Result<(), SimError> {
    if let Some(path) = &args.instance {
        return given(args, path, out);
    }
    let table = match args.figure {
        Figure::HotFile => figures::hot_file(args)?,
        Figure::Skew => figures::skew(args)?,
        Figure::Nodes => figures::nodes(args)?,
    };
    table.show(args.json, args.csv.as_deref(), args.plot.as_deref(), out)
}

fn to_json(plan: &Plan) -> Value {
    json!({
        "assign": plan.assign,
        "makespan": plan.makespan_s,
        "bytes": plan.bytes,
        "max_jobs": plan.max_jobs,
    })
}

fn given(args: &ScheduleArgs, path: &std::path::Path, out: &mut dyn Write) -> Result<(), SimError> {
    let wrong = |what: String| SimError::Instance { path: path.to_owned(), what };
    let text = std::fs::read_to_string(path).map_err(SimError::file(path))?;
    let mut instances = instance::read(&text).map_err(wrong)?;
    if let Some(name) = &args.name {
        instances.retain(|(other, _)| other.as_ref() == Some(name));
        if instances.is_empty() {
            return Err(wrong(format!("there is no instance `{name}`")));
        }
    }
    let policies = if args.policy.is_empty() { &[Named(Policy::EctLs)][..] } else { &args.policy };
    // What is one stands alone; what are many are a list, and each says what it is.
    let one = instances.len() == 1 && policies.len() == 1;
    let mut list = Vec::new();
    let mut rows = Vec::new();
    for (at, (name, instance)) in instances.into_iter().enumerate() {
        let name = name.unwrap_or_else(|| at.to_string());
        let of = |error: &dyn std::fmt::Display| wrong(format!("{name}: {error}"));
        let problem = Problem::new(instance).map_err(|error| of(&error))?;
        for Named(policy) in policies {
            let plan = plan(&problem, *policy, args.effort()).map_err(|error| of(&error))?;
            let mut entry = to_json(&plan);
            if !one {
                entry["name"] = name.clone().into();
                entry["policy"] = policy.name().into();
            }
            list.push(entry);
            let bytes = plan.bytes.to_string();
            let (makespan, jobs) = (plan.makespan_s.to_string(), plan.max_jobs.to_string());
            let assign: Vec<String> = plan.assign.iter().map(ToString::to_string).collect();
            let name = name.replace(',', ";");
            rows.push(vec![name, policy.name().into(), makespan, bytes, jobs, assign.join(" ")]);
        }
    }
    let columns = vec!["instance", "policy", "makespan_s", "bytes", "max_jobs", "assign"];
    let table = Table { columns, rows, notes: vec![], chart: None };
    if args.json {
        let value = if one { list.swap_remove(0) } else { Value::Array(list) };
        writeln!(out, "{value}")?;
        let mut nowhere = std::io::sink();
        return table.show(false, args.csv.as_deref(), args.plot.as_deref(), &mut nowhere);
    }
    table.show(false, args.csv.as_deref(), args.plot.as_deref(), out)
}

fn fields(numbers: &[f64]) -> Vec<String> {
    numbers.iter().map(|number| short(*number)).collect()
}
