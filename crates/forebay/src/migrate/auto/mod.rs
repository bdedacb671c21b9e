//! Migrations that nobody asks for: what nodes tell each other of their tasks, and which of them is to move.
//!
//! Each node that was told so records accesses. The one with the lowest number hears from all others what
//! they have seen, plans at most one move a scan ([`plan`]), and tells the node where the task was started,
//! whose keeper carries it out as `forebay migrate` would have it do. [`usage`] is what tasks take up.

pub mod plan;
pub mod usage;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use crate::control::AutoMigration;

/// Migrations that are remembered.
const REMEMBERED: usize = 100;

/// What one node asks another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What has it seen?
    View,
    /// A task that it keeps is to go.
    Move(Order),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Told {
    /// To [`Question::View`].
    View(View),
    /// To [`Question::Move`]: it has begun.
    Begun,
}

/// What a node has seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct View {
    /// The node.
    pub node: u16,
    /// When, by its own clock.
    pub at_ms: u64,
    /// Its processors.
    pub cores: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
    /// Whether it takes tasks of others.
    pub hosts: bool,
    /// What was recorded there.
    pub tasks: Vec<SeenTask>,
    /// Tasks that were started there, wherever they are, and can be migrated.
    pub kept: Vec<KeptTask>,
}

/// What was recorded of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenTask {
    /// What it is, as `forebay patterns` says.
    pub label: String,
    /// Its memory.
    pub image_bytes: u64,
    /// Processors that it keeps busy.
    pub cpu: f64,
    /// Accesses that were not served from tiers of the node, since the recording began.
    pub elsewhere: u64,
    /// Its newest accesses, in their order.
    pub entries: Vec<SeenEntry>,
}

/// Accesses to a row: when, in nanoseconds of the node's clock; file; piece; reads; writes.
pub type SeenEntry = (u64, u64, u64, u32, u32);

/// A task that can be migrated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptTask {
    /// Its run.
    pub run: String,
    /// Its job.
    pub job: String,
    /// The node where it is; nothing where it was started.
    pub node: Option<u16>,
    /// How long ago it was migrated.
    pub moved_ms_ago: Option<u64>,
}

/// A task is to go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Its run.
    pub run: String,
    /// Its job.
    pub job: String,
    /// The node that keeps it.
    pub keeper: u16,
    /// From this node.
    pub from: u16,
    /// To this one.
    pub to: u16,
    /// Because of a task there.
    pub with: String,
    /// Seconds that are saved, less those that it costs.
    pub worth_s: f64,
}

impl Order {
    /// The task, as `forebay migrate` knows it.
    pub fn task(&self) -> String {
        format!("{}/{}", self.run, self.job)
    }
}

/// What was planned and carried out here.
#[derive(Debug, Default)]
pub struct History {
    /// Whether this node plans.
    pub plans: bool,
    /// Plans that it has made.
    pub scans: u64,
    /// Nodes that took part in the last one.
    pub nodes: usize,
    /// Migrations of tasks that were started here, the newest last.
    pub migrations: VecDeque<AutoMigration>,
}

impl History {
    /// A migration begins; its number.
    pub fn began(&mut self, order: &Order, now_ms: u64) {
        self.migrations.push_back(AutoMigration {
            at_ms: now_ms,
            task: order.task(),
            from: order.from,
            to: order.to,
            with: order.with.clone(),
            // Rounded, and more than nothing.
            worth_ms: (order.worth_s.max(0.0) * 1000.0) as u64,
            outcome: None,
            moved: false,
        });
        while self.migrations.len() > REMEMBERED {
            self.migrations.pop_front();
        }
    }

    /// It has ended.
    pub fn ended(&mut self, task: &str, moved: bool, outcome: String) {
        let mut all = self.migrations.iter_mut().rev();
        if let Some(one) = all.find(|one| one.task == task && one.outcome.is_none()) {
            (one.moved, one.outcome) = (moved, Some(outcome));
        }
    }

    /// Whether one is under way.
    pub fn is_busy(&self) -> bool {
        self.migrations.iter().any(|one| one.outcome.is_none())
    }
}
