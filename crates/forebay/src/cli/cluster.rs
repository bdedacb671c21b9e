//! The command line of `cluster`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay_core::cluster::redundancy::Redundancy;

use super::help;

/// What to do with a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Start metadata servers for a test or a job
    #[command(long_about = help::CLUSTER_INIT, after_long_help = help::CLUSTER_EXAMPLES)]
    Init(ClusterInitArgs),
    /// End the metadata servers that `cluster init` has started
    #[command(long_about = help::CLUSTER_STOP)]
    Stop(ClusterStopArgs),
    /// Show the nodes: who lives, and what each has not written back
    #[command(long_about = help::CLUSTER_STATUS)]
    Status(ClusterStatusArgs),
    /// Have a node write everything back and leave
    #[command(long_about = help::CLUSTER_DRAIN)]
    Drain(ClusterDrainArgs),
    /// Have copies move from full nodes to emptier ones
    #[command(long_about = help::CLUSTER_REBALANCE)]
    Rebalance(ClusterRebalanceArgs),
    /// Show which tasks were migrated by themselves
    #[command(long_about = help::CLUSTER_MIGRATIONS)]
    Migrations(ClusterMigrationsArgs),
    /// Give up what a dead node had and had not written back
    #[command(long_about = help::CLUSTER_FORGET)]
    Forget(ClusterForgetArgs),
}

/// Arguments of `cluster init`.
#[derive(Debug, Args)]
pub struct ClusterInitArgs {
    /// Where the servers keep their data, logs and configuration; made if it is not there. Or the address
    /// of servers of the site's own (redis://HOST/NAME), where only the settings are stored
    #[arg(value_name = "DIR|ADDRESS")]
    pub dir: PathBuf,
    /// How many servers share the names: 1, or 3 and more [default: 1, or 3 with replicas]
    #[arg(long, value_name = "N")]
    pub servers: Option<u16>,
    /// Copies of each server's data on further servers, which take over when it dies
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub replicas: u16,
    /// The address at which the other nodes reach them
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// The first of their ports; the others follow [default: free ones]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// What all mounts have as --cluster-replicas unless they are told otherwise [default: 1 with
    /// replicas]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=5))]
    pub cluster_replicas: Option<u32>,
    /// What all mounts have as --redundancy unless they are told otherwise
    #[arg(long, value_name = "LEVEL")]
    pub redundancy: Option<Redundancy>,
    /// The file with the secret of the nodes, which mounts with another one are refused for [default: a
    /// new one, DIR/secret]
    #[arg(long, value_name = "FILE")]
    pub cluster_secret: Option<PathBuf>,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `cluster stop`.
#[derive(Debug, Args)]
pub struct ClusterStopArgs {
    /// The directory that was given to `cluster init`
    pub dir: PathBuf,
}

/// Arguments of `cluster status`.
#[derive(Debug, Args)]
pub struct ClusterStatusArgs {
    /// A mount of the cluster; may be left out if there is only one on this machine
    pub mountpoint: Option<PathBuf>,
    /// In place of a mount, ask the metadata servers: what mounts have as --cluster
    #[arg(long, value_name = "ADDRESS", conflicts_with = "mountpoint",
        value_parser = crate::config::cluster_address)]
    pub cluster: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `cluster drain`.
#[derive(Debug, Args)]
pub struct ClusterDrainArgs {
    /// The node, by its number in `cluster status`
    pub node: u16,
    /// A mount of the cluster; may be left out if there is only one on this machine
    pub mountpoint: Option<PathBuf>,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::units::parse_duration)]
    pub timeout: std::time::Duration,
}

/// Arguments of `cluster rebalance`.
#[derive(Debug, Args)]
pub struct ClusterRebalanceArgs {
    /// A mount of the cluster; may be left out if there is only one on this machine
    pub mountpoint: Option<PathBuf>,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::units::parse_duration)]
    pub timeout: std::time::Duration,
}

/// Arguments of `cluster migrations`.
#[derive(Debug, Args)]
pub struct ClusterMigrationsArgs {
    /// A mount of the cluster; may be left out if there is only one on this machine
    pub mountpoint: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `cluster forget`.
#[derive(Debug, Args)]
pub struct ClusterForgetArgs {
    /// The node, by its number in `cluster status`
    pub node: u16,
    /// A mount of the cluster; may be left out if there is only one on this machine
    pub mountpoint: Option<PathBuf>,
    /// Do it; without this, only show what would be lost
    #[arg(long)]
    pub yes: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}
