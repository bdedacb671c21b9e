//! The event log of a steward as text: its configuration, every event with its moment, and the
//! actions it gave, so that another steward can be shown to decide the same.
//!
//! ```text
//! forebay-steward 1
//! policy lru chunk 4096 request-cost 0 admit-large 1 batch 64 refusal-pause 1000000000 prefetch 0
//! tier 1048576 996148 943719
//! 17 access 12 4096 0
//! > evict 9 0
//! ```
//! Lines of digits first are events (`TICK VERB ...`), lines with `>` the actions of the event
//! above them.

use std::fmt::Write as _;

use super::{
    Action, ConfigError, Event, HintChange, Reference, Steward, StewardConfig, TierConfig,
};
use crate::policy::PolicyConfig;
use crate::unit::{Bytes, Ino, Tick, Tier};

const MAGIC: &str = "forebay-steward 1";

/// A log that cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// A line is not what the format has at that place.
    #[error("line {line}: expected {expected}, found {found:?}; is this a steward's event log?")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What should be there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// Its configuration makes no steward.
    #[error("the log's configuration cannot be used: {0}")]
    Config(#[from] ConfigError),
}

/// Writes the head of a log.
pub fn write_head(config: &StewardConfig, out: &mut String) {
    let options = &config.options;
    writeln!(
        out,
        "{MAGIC}\npolicy {} chunk {} request-cost {} admit-large {} batch {} refusal-pause {} \
         prefetch {}",
        config.policy,
        options.chunk,
        options.request_cost,
        u8::from(options.admit_large),
        config.batch,
        config.refusal_pause,
        config.prefetch,
    )
    .expect("a String takes everything");
    for tier in &config.tiers {
        writeln!(out, "tier {} {} {}", tier.capacity, tier.high, tier.low)
            .expect("a String takes everything");
    }
}

/// Writes one step: the event, then its actions.
pub fn write_step(now: Tick, event: &Event, actions: &[Action], out: &mut String) {
    write_event(now, event, out).expect("a String takes everything");
    for action in actions {
        write_action(action, out).expect("a String takes everything");
    }
}

fn write_event(now: Tick, event: &Event, out: &mut String) -> std::fmt::Result {
    write!(out, "{} ", now.0)?;
    match event {
        Event::Access { object, size, write } => {
            writeln!(out, "access {object} {size} {}", u8::from(*write))
        }
        Event::Wanted { object, size, prefetch } => {
            writeln!(out, "wanted {object} {size} {}", u8::from(*prefetch))
        }
        Event::Resident { object, tier, bytes } => {
            writeln!(out, "resident {object} {tier} {bytes}")
        }
        Event::Removed { object } => writeln!(out, "removed {object}"),
        Event::Dirty { object } => writeln!(out, "dirty {object}"),
        Event::Clean { object } => writeln!(out, "clean {object}"),
        Event::Busy { object } => writeln!(out, "busy {object}"),
        Event::Idle { object } => writeln!(out, "idle {object}"),
        Event::Pinned { object } => writeln!(out, "pinned {object}"),
        Event::Unpinned { object } => writeln!(out, "unpinned {object}"),
        Event::Pressure { tier, need } => writeln!(out, "pressure {tier} {need}"),
        Event::Refused { object } => writeln!(out, "refused {object}"),
        Event::Unflushed { object } => writeln!(out, "unflushed {object}"),
        Event::Hint { job, change } => match change {
            HintChange::Append(references) => {
                write!(out, "append {job}")?;
                for Reference { object, size } in references {
                    write!(out, " {object} {size}")?;
                }
                writeln!(out)
            }
            HintChange::Close => writeln!(out, "close {job}"),
            HintChange::Advance(by) => writeln!(out, "advance {job} {by}"),
            HintChange::Withdraw => writeln!(out, "withdraw {job}"),
        },
        Event::Fetched { object } => writeln!(out, "fetched {object}"),
        Event::Tick => writeln!(out, "tick"),
    }
}

fn write_action(action: &Action, out: &mut String) -> std::fmt::Result {
    match action {
        Action::Evict { object, tier } => writeln!(out, "> evict {object} {tier}"),
        Action::Truncate { object, tier, keep } => {
            writeln!(out, "> truncate {object} {tier} {keep}")
        }
        Action::Demote { object, from, to } => writeln!(out, "> demote {object} {from} {to}"),
        Action::Promote { object, from, to } => writeln!(out, "> promote {object} {from} {to}"),
        Action::Flush { object } => writeln!(out, "> flush {object}"),
        Action::Place { object, tier, bytes } => writeln!(out, "> place {object} {tier} {bytes}"),
        Action::Fetch { object, tier, bytes } => writeln!(out, "> fetch {object} {tier} {bytes}"),
        Action::Cancel { object } => writeln!(out, "> cancel {object}"),
        Action::Bypass { object } => writeln!(out, "> bypass {object}"),
    }
}

/// The words of one line, taken one by one.
struct Words<'a> {
    line: usize,
    text: &'a str,
    rest: std::str::SplitAsciiWhitespace<'a>,
}

impl<'a> Words<'a> {
    fn new(line: usize, text: &'a str) -> Self {
        Self { line, text, rest: text.split_ascii_whitespace() }
    }

    fn wrong(&self, expected: &'static str) -> LogError {
        LogError::Syntax { line: self.line, expected, found: self.text.chars().take(80).collect() }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, LogError> {
        self.rest.next().ok_or_else(|| self.wrong(expected))
    }

    fn label(&mut self, expected: &'static str) -> Result<(), LogError> {
        if self.word(expected)? == expected { Ok(()) } else { Err(self.wrong(expected)) }
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, LogError> {
        self.word(expected)?.parse().map_err(|_| self.wrong(expected))
    }

    fn flag(&mut self, expected: &'static str) -> Result<bool, LogError> {
        Ok(self.number(expected)? != 0)
    }

    fn object(&mut self) -> Result<Ino, LogError> {
        self.number("an inode number").map(Ino)
    }

    fn bytes(&mut self) -> Result<Bytes, LogError> {
        self.number("a number of bytes").map(Bytes)
    }

    fn tier(&mut self) -> Result<Tier, LogError> {
        let rank = self.number("the rank of a tier")?;
        u8::try_from(rank).map(Tier).map_err(|_| self.wrong("the rank of a tier"))
    }
}

/// Reads an event line.
fn read_event(line: usize, text: &str) -> Result<(Tick, Event), LogError> {
    let mut words = Words::new(line, text);
    let now = Tick(words.number("a tick or '>'")?);
    let verb = words.word("an event")?;
    let w = &mut words;
    let event = match verb {
        "access" => {
            Event::Access { object: w.object()?, size: w.bytes()?, write: w.flag("0 or 1")? }
        }
        "wanted" => {
            Event::Wanted { object: w.object()?, size: w.bytes()?, prefetch: w.flag("0 or 1")? }
        }
        "resident" => Event::Resident { object: w.object()?, tier: w.tier()?, bytes: w.bytes()? },
        "removed" => Event::Removed { object: w.object()? },
        "dirty" => Event::Dirty { object: w.object()? },
        "clean" => Event::Clean { object: w.object()? },
        "busy" => Event::Busy { object: w.object()? },
        "idle" => Event::Idle { object: w.object()? },
        "pinned" => Event::Pinned { object: w.object()? },
        "unpinned" => Event::Unpinned { object: w.object()? },
        "pressure" => Event::Pressure { tier: w.tier()?, need: w.bytes()? },
        "refused" => Event::Refused { object: w.object()? },
        "unflushed" => Event::Unflushed { object: w.object()? },
        "append" => {
            let job = w.number("a job")?;
            let mut references = Vec::new();
            while let Some(object) = w.rest.next() {
                let object = object.parse().map(Ino).map_err(|_| w.wrong("an inode number"))?;
                references.push(Reference { object, size: w.bytes()? });
            }
            Event::Hint { job, change: HintChange::Append(references) }
        }
        "close" => Event::Hint { job: w.number("a job")?, change: HintChange::Close },
        "advance" => Event::Hint {
            job: w.number("a job")?,
            change: HintChange::Advance(w.number("a number of references")?),
        },
        "withdraw" => Event::Hint { job: w.number("a job")?, change: HintChange::Withdraw },
        "fetched" => Event::Fetched { object: w.object()? },
        "tick" => Event::Tick,
        _ => return Err(w.wrong("an event")),
    };
    Ok((now, event))
}

/// Reads the head and leaves the lines after it.
fn read_head<'a>(
    lines: &mut std::iter::Peekable<impl Iterator<Item = (usize, &'a str)>>,
) -> Result<StewardConfig, LogError> {
    let (line, first) = lines.next().unwrap_or((1, ""));
    if first != MAGIC {
        return Err(Words::new(line, first).wrong("the first line \"forebay-steward 1\""));
    }
    let (line, text) = lines.next().unwrap_or((2, ""));
    let mut w = Words::new(line, text);
    w.label("policy")?;
    let policy = w.word("the name of a policy")?.to_owned();
    w.label("chunk")?;
    let chunk = w.number("a number of bytes")?;
    w.label("request-cost")?;
    let request_cost = w.number("a number of bytes")?;
    w.label("admit-large")?;
    let admit_large = w.flag("0 or 1")?;
    w.label("batch")?;
    let batch = usize::try_from(w.number("a count")?).unwrap_or(usize::MAX);
    w.label("refusal-pause")?;
    let refusal_pause = w.number("nanoseconds")?;
    w.label("prefetch")?;
    let prefetch = w.bytes()?;
    let mut tiers = Vec::new();
    while let Some((line, text)) = lines.next_if(|(_, text)| text.starts_with("tier ")) {
        let mut w = Words::new(line, text);
        w.label("tier")?;
        tiers.push(TierConfig { capacity: w.bytes()?, high: w.bytes()?, low: w.bytes()? });
    }
    let options = PolicyConfig { capacity: 0, chunk, request_cost, admit_large };
    Ok(StewardConfig { tiers, policy, options, batch, refusal_pause, prefetch })
}

/// A line where a replay decided otherwise than the recorded steward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The line of the event, from 1.
    pub line: usize,
    /// The actions in the log.
    pub recorded: String,
    /// The actions of the replay.
    pub replayed: String,
}

/// What came of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replay {
    /// Events replayed.
    pub events: u64,
    /// Actions given.
    pub actions: u64,
    /// The first step that differs, if any does.
    pub divergence: Option<Divergence>,
}

/// Feeds a log's events to a new steward of the same configuration and compares the actions byte
/// for byte. Stops at the first difference.
///
/// # Errors
/// [`LogError`] when the text is not a log, or names what this version does not have.
pub fn replay(text: &str) -> Result<Replay, LogError> {
    let mut lines = text.lines().enumerate().map(|(at, text)| (at + 1, text)).peekable();
    let config = read_head(&mut lines)?;
    let mut steward = Steward::new(&config)?;
    let mut outcome = Replay::default();
    let mut actions = Vec::new();
    while let Some((line, text)) = lines.next() {
        let (now, event) = read_event(line, text)?;
        actions.clear();
        steward.step(now, &event, &mut actions);
        outcome.events += 1;
        outcome.actions += actions.len() as u64;
        let mut replayed = String::new();
        for action in &actions {
            write_action(action, &mut replayed).expect("a String takes everything");
        }
        let mut recorded = String::new();
        while let Some((_, action)) = lines.next_if(|(_, text)| text.starts_with('>')) {
            recorded.push_str(action);
            recorded.push('\n');
        }
        if recorded != replayed {
            outcome.divergence = Some(Divergence { line, recorded, replayed });
            break;
        }
    }
    Ok(outcome)
}
