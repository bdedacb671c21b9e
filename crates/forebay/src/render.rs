//! Answers for people. Machines get the same records as JSON.

use std::fmt::Write;

use crate::control::{
    ClusterStatus, Conflict, Coverage, Forgotten, HintState, Location, NodeState, Outcome,
    Progress, Safety, Status, TierStatus, WirePath,
};
use crate::engine::FsckReport;
use crate::printable::one_line;
use crate::units::{format_bytes, format_count, format_seconds};

/// Rows printed of lists that may be long.
const ROWS_MAX: usize = 10;

/// A bar of the given width, filled to `part` of `whole`.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let ratio = if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
    let full = (ratio * width as f64).round() as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(width - full))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The status of one mount: how fast it is, what is not yet safe, how full the tiers are, and what is
/// wrong. How it works is told if `verbose`.
pub fn status(status: &Status, verbose: bool) -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    line(format_args!("{}  over  {}", status.mountpoint, status.backing));
    let opens = match status.hit_percent() {
        None => "no opens yet".into(),
        Some(hit) => format!("{hit:.1} % of {}", count_of_opens(status.hits + status.misses)),
    };
    line(format_args!("  hits         {opens}"));
    passthrough(status, verbose, &mut line);
    if status.is_drained() {
        line(format_args!("  dirty        nothing; the backing store has everything"));
    } else {
        dirty(status, &mut line);
    }
    for tier in &status.tiers {
        line(format_args!("{}", tier_line(tier)));
    }
    works(status, &mut line);
    hints(status, &mut line);
    streams(status, &mut line);
    for peer in &status.peers {
        line(format_args!("  peer         {}: {}", peer.name, peer.state));
    }
    if verbose {
        mechanics(status, &mut line);
    }
    let before = out.len();
    troubles(status, &mut |text| {
        let _ = writeln!(out, "{text}");
    });
    if out.len() == before {
        out.push_str("  trouble      none\n");
    }
    out
}

/// What commands do now.
fn works(status: &Status, line: Line<'_>) {
    for work in status.works.iter().take(ROWS_MAX) {
        line(format_args!(
            "  at work      {}, for {}: {}",
            work.what,
            format_seconds(work.age_s),
            done_of(&work.progress)
        ));
    }
}

/// How the mount works.
fn mechanics(status: &Status, line: Line<'_>) {
    line(format_args!(
        "  daemon       pid {}, version {}, up {}, memory {}, transport {}",
        status.pid,
        status.version,
        format_seconds(status.uptime_s),
        format_bytes(status.rss_bytes),
        status.transport
    ));
    line(format_args!(
        "  policy       {}  ({} hits, {} misses)",
        status.policy.name,
        format_count(status.hits),
        format_count(status.misses)
    ));
    for (name, value) in &status.policy.figures {
        line(format_args!("               {name}: {value}"));
    }
}

type Line<'a> = &'a mut dyn FnMut(std::fmt::Arguments<'_>);

fn tier_line(tier: &TierStatus) -> String {
    let mut text = format!(
        "  tier         {}  [{}] {:.0} %  {} of {}, {} files, dirty {}",
        tier.dir,
        bar(tier.used_bytes, tier.size_bytes, 20),
        percent(tier.used_bytes, tier.size_bytes),
        format_bytes(tier.used_bytes),
        format_bytes(tier.size_bytes),
        format_count(tier.objects),
        format_bytes(tier.dirty_bytes)
    );
    for (what, bytes) in [("reserved", tier.reserved_bytes), ("pinned", tier.pinned_bytes)] {
        if bytes > 0 {
            let _ = write!(text, ", {what} {}", format_bytes(bytes));
        }
    }
    if let Some(error) = &tier.failed {
        let _ = write!(
            text,
            "\n               FAILED: its file system says: {}. Nothing goes there any more; files that \
             the backing store has are served from there. Repair it, `forebay umount --no-drain`, and \
             mount again",
            one_line(error)
        );
    }
    if tier.failed.is_none() && tier.fs_free_bytes < tier.size_bytes.saturating_sub(tier.used_bytes)
    {
        let free = format_bytes(tier.fs_free_bytes);
        let _ = write!(text, "\n               others use its file system: only {free} are free");
    }
    text
}

fn hints(status: &Status, line: Line<'_>) {
    for hint in status.hints.iter().take(ROWS_MAX) {
        let state = match hint.state {
            HintState::Waiting => "has not begun",
            HintState::Following => "under way",
            HintState::Done => "done",
            HintState::Silent => "does not follow its hints: nothing is fetched ahead for it",
        };
        let past = hint.references - hint.ahead.min(hint.references);
        line(format_args!(
            "  hint         {}  [{}] {:.0} %  {} of {} files, {state}",
            hint.job,
            bar(past, hint.references, 20),
            percent(past, hint.references),
            format_count(past),
            format_count(hint.references)
        ));
        line(format_args!(
            "               fetched ahead {}, {}; {} used, {} for nothing; {} waiting",
            format_count(hint.fetched),
            format_bytes(hint.fetched_bytes),
            format_count(hint.used),
            format_count(hint.wasted),
            format_bytes(hint.outstanding_bytes)
        ));
        if hint.skipped + hint.refused > 0 {
            line(format_args!(
                "               left out {}; {} paths were not taken",
                format_count(hint.skipped),
                format_count(hint.refused)
            ));
        }
    }
    let more = status.hints.len().saturating_sub(ROWS_MAX);
    if more > 0 {
        line(format_args!("               and {more} more jobs"));
    }
}

fn streams(status: &Status, line: Line<'_>) {
    let Some(streams) = &status.streams else { return };
    let service = &streams.service;
    line(format_args!(
        "  streams      {} at {}/s, memory {} of {}; opened {}",
        service.guaranteed,
        format_bytes(service.guaranteed_rate),
        format_bytes(service.memory_used),
        format_bytes(service.memory_limit),
        format_count(service.opened)
    ));
    for stream in service.streams.iter().take(ROWS_MAX) {
        line(format_args!(
            "               {}  {}/s, {}, {} glitches",
            WirePath::from(&stream.path),
            format_bytes(stream.rate),
            stream.state,
            stream.glitches
        ));
    }
    for (cause, count) in &service.glitches {
        line(format_args!("               glitches: {} {cause}", format_count(*count)));
    }
    for refused in streams.refused.iter().rev().take(ROWS_MAX) {
        line(format_args!(
            "               refused {} at {}/s: {}",
            refused.path,
            format_bytes(refused.rate),
            refused.why
        ));
    }
}

fn passthrough(status: &Status, verbose: bool, line: Line<'_>) {
    let state = &status.passthrough;
    let opens = count_of_opens(state.opens);
    line(format_args!("  passthrough  {}, {opens} served by the kernel", state.mode));
    if let Some(reason) = &state.reason {
        line(format_args!("               {reason}"));
    }
    for refusal in state.refusals.iter().filter(|_| verbose) {
        line(format_args!(
            "               {} served by the daemon: {}",
            count_of_opens(refusal.opens),
            refusal.reason
        ));
    }
}

fn dirty(status: &Status, line: Line<'_>) {
    let dirty = &status.dirty;
    line(format_args!(
        "  dirty        {} files, {}, oldest {}",
        format_count(dirty.files),
        format_bytes(dirty.bytes),
        format_seconds(dirty.oldest_s)
    ));
    for file in dirty.list.iter().take(ROWS_MAX) {
        let open = if file.open { ", open" } else { "" };
        let error = why(file.last_error.as_deref());
        // What was removed has no path any more, and is given up when it is closed, or at once.
        let path = match file.path.as_path().as_os_str().is_empty() {
            true => "(removed)".to_owned(),
            false => file.path.to_string(),
        };
        line(format_args!(
            "               {path}  ({}, {}{open}){error}",
            format_bytes(file.bytes),
            format_seconds(file.age_s)
        ));
    }
    let shown = dirty.list.len().min(ROWS_MAX) as u64;
    if dirty.files > shown && shown > 0 {
        line(format_args!("               and {} more", format_count(dirty.files - shown)));
    }
    let backlog = &status.backlog;
    line(format_args!(
        "  backlog      {} names to bring in line, oldest {}",
        format_count(backlog.entries),
        format_seconds(backlog.oldest_s)
    ));
    for path in backlog.list.iter().take(ROWS_MAX) {
        line(format_args!("               {path}  (name or attributes)"));
    }
}

/// The end of a line about a file: why the last attempt failed. Errors have names of files in them.
fn why(error: Option<&str>) -> String {
    error.map(|error| format!(": {}", one_line(error))).unwrap_or_default()
}

/// The first of some paths, a line each.
fn rows(paths: &[WirePath], line: Line<'_>) {
    for path in paths.iter().take(ROWS_MAX) {
        line(format_args!("               {path}"));
    }
}

/// Files of which nothing is left, and those that could not be looked at.
fn gone_or_unseen(status: &Status, line: Line<'_>) {
    if status.lost.files > 0 {
        line(format_args!(
            "  lost         {} files were written and nothing is left of them; `forebay fsck` says more",
            format_count(status.lost.files)
        ));
        rows(&status.lost.list, line);
    }
    if status.unseen.files > 0 {
        line(format_args!(
            "  unseen       {} files could not be looked at, for want of a right or of an answer of their \
             device; see to that, then unmount with --no-drain and mount again. Nothing says that they \
             are lost",
            format_count(status.unseen.files)
        ));
        rows(&status.unseen.list, line);
    }
}

fn troubles(status: &Status, line: Line<'_>) {
    if status.errors > 0 {
        let errors = format_count(status.errors);
        line(format_args!("  errors       {errors} given to programs; see the log"));
    }
    if let Some(what) = &status.displaced {
        line(format_args!(
            "  displaced    {}: {what}, not the backing store that was there at the mount: what is \
             written goes on to that. Put it back, or unmount and mount again",
            status.backing
        ));
    }
    gone_or_unseen(status, line);
    let lost = &status.lost_changes;
    if lost.changes > 0 {
        line(format_args!(
            "  lost         {} changes of names and attributes, as other nodes took this one for \
             dead; they are kept in {} until you remove it",
            format_count(lost.changes),
            lost.kept
        ));
        rows(&lost.paths, line);
    }
    if status.set_aside.files > 0 {
        line(format_args!(
            "  set aside    {} damaged or unknown files, for you to look at",
            format_count(status.set_aside.files)
        ));
        rows(&status.set_aside.list, line);
    }
    if !status.conflicts.is_empty() {
        let count = status.conflict_count.max(status.conflicts.len() as u64);
        let files = match count {
            1 => "1 file was".to_owned(),
            many => format!("{} files were", format_count(many)),
        };
        line(format_args!(
            "  conflicts    {files} changed here and by others; `forebay conflicts --help` says what to do"
        ));
        let latest = status.conflicts.iter().rev().take(ROWS_MAX);
        for conflict in latest {
            line(format_args!("               {}", conflict_line(conflict)));
        }
        let shown = status.conflicts.len().min(ROWS_MAX) as u64;
        if count > shown {
            line(format_args!("               and {} more", format_count(count - shown)));
        }
    }
    kept_here(status, line);
    for stuck in status.stuck.iter().take(ROWS_MAX) {
        line(format_args!(
            "  stuck        {} of {} has waited {}",
            stuck.what,
            stuck.path,
            format_seconds(stuck.waiting_s)
        ));
    }
}

fn conflict_line(conflict: &Conflict) -> String {
    match conflict.has_copy() {
        true => format!("{}: your version is {}", conflict.path, conflict.kept_as),
        false => format!("{}: what the backing store has counts", conflict.path),
    }
}

/// A list of conflicts.
pub fn conflicts(conflicts: &[Conflict]) -> String {
    if conflicts.is_empty() {
        return "no conflicts\n".to_owned();
    }
    let mut out = String::new();
    for conflict in conflicts {
        let _ = writeln!(
            out,
            "{}\n  {} ago, {}",
            conflict_line(conflict),
            format_seconds(conflict.age_s),
            one_line(&conflict.why)
        );
    }
    out
}

/// What does not reach the backing store, by its fault or by ours.
fn kept_here(status: &Status, line: Line<'_>) {
    if let Some(error) = &status.backlog.last_error {
        line(format_args!("  write-back   the last attempt failed: {}", one_line(error)));
    }
    for refused in status.refused.iter().take(ROWS_MAX) {
        let who = match refused.by_tier {
            true => "its tier does not give",
            false => "the backing store does not take",
        };
        line(format_args!(
            "  refused      {}: {who} {}: {}",
            refused.path,
            one_line(&refused.what),
            one_line(&refused.error)
        ));
    }
    for defect in status.defects.iter().take(ROWS_MAX) {
        line(format_args!(
            "  defect       {}: {} has ended a daemon by a defect of Forebay: not tried again before \
             the next mount or `forebay upgrade`; the log tells more, please report it",
            defect.path, defect.what
        ));
    }
}

/// A table of where paths are.
pub fn locations(locations: &[Location]) -> String {
    let mut out = String::new();
    for location in locations {
        let residency = match location.residency {
            Coverage::Absent => "absent".to_owned(),
            Coverage::Whole => "resident".to_owned(),
            Coverage::Partial => {
                format!("{:.0} % resident", percent(location.resident_bytes, location.size_bytes))
            }
        };
        let _ = write!(out, "{}: {}, {residency}", location.path, location.kind);
        if let Some(tier) = &location.tier {
            let _ = write!(out, " on {tier}");
        }
        out.push_str(if location.dirty { ", dirty" } else { ", clean" });
        if location.pinned {
            out.push_str(", pinned");
        }
        if let Some(backing) = &location.backing {
            let _ = write!(out, ", backing store: {backing}");
        }
        if !location.copies.is_empty() {
            let _ = write!(out, ", copies on {}", location.copies.join(" "));
        }
        out.push('\n');
    }
    out
}

fn count_of_files(count: u64) -> String {
    format!("{} {}", format_count(count), if count == 1 { "file" } else { "files" })
}

fn count_of_opens(count: u64) -> String {
    format!("{} {}", format_count(count), if count == 1 { "open" } else { "opens" })
}

fn outcome_in_short(verb: &str, outcome: &Outcome) -> String {
    let (files, bytes) = (count_of_files(outcome.files), format_bytes(outcome.bytes));
    let complete = outcome.complete && outcome.elsewhere == 0;
    if verb == "refreshed" {
        let directories = if outcome.skipped == 1 { "directory" } else { "directories" };
        let count = format_count(outcome.skipped);
        return format!("refreshed: compared {files} and {count} {directories}");
    }
    if verb == "synced" {
        return match (outcome.files, complete) {
            (0, true) => "synced: all of it was in the backing store".to_owned(),
            (_, true) => {
                format!("synced: wrote {files}, {bytes}; all of it is in the backing store now")
            }
            (_, false) => format!("not all synced: wrote {files}, {bytes}, to the backing store"),
        };
    }
    // What those have in common that were left as they are.
    let (to_do, left) = match verb {
        "warmed" => ("warm", "on a tier already"),
        "evicted" => ("evict", "on no tier"),
        "pinned" => ("pin", "pinned already"),
        "unpinned" => ("unpin", "not pinned"),
        _ => ("do", "as wanted already"),
    };
    // What is pinned or unpinned may have been there before: no bytes move then.
    let moved = match (verb, outcome.bytes) {
        ("unpinned", _) | ("pinned", 0) => String::new(),
        ("pinned", _) => format!(", fetched {bytes}"),
        _ => format!(", {bytes}"),
    };
    let skipped = count_of_files(outcome.skipped);
    let (is, was) = if outcome.skipped == 1 { ("is", "was") } else { ("are", "were") };
    match (outcome.files, outcome.skipped) {
        (0, 1..) if outcome.failed == 0 => format!("nothing to {to_do}: {skipped} {is} {left}"),
        (_, 0) => format!("{verb} {files}{moved}"),
        _ => format!("{verb} {files}{moved}; {skipped} {was} {left}"),
    }
}

/// The end of an operation, with `verb` in the past: `warmed`.
pub fn outcome(verb: &str, outcome: &Outcome) -> String {
    let mut out = outcome_in_short(verb, outcome);
    out.push('\n');
    if outcome.elsewhere > 0 {
        let (was, it) = match outcome.elsewhere {
            1 => ("1 file was".to_owned(), "it"),
            many => (format!("{} files were", format_count(many)), "them"),
        };
        let _ = writeln!(
            out,
            "  {was} written on other nodes and not written back yet: the backing store has an older \
             version, or none; `forebay sync` on those nodes brings {it} there"
        );
    }
    if outcome.written_in_use > 0 {
        let files = match outcome.written_in_use {
            1 => "1 file is".to_owned(),
            many => format!("{} files are", format_count(many)),
        };
        let _ = writeln!(
            out,
            "  {files} open for writing or mapped: what was there when the command began is written, \
             what comes later follows"
        );
    }
    for (path, reason) in outcome.failures.iter().take(ROWS_MAX) {
        let _ = writeln!(out, "  {path}: {}", one_line(reason));
    }
    if outcome.cut_short {
        let _ = writeln!(
            out,
            "  ended before everything had its turn: the time limit passed (--drain-timeout of the \
             mount), or it was interrupted; the rest follows in the background, `forebay status` \
             shows it, and another `forebay sync` waits for it"
        );
    }
    let shown = outcome.failures.len().min(ROWS_MAX) as u64;
    if outcome.failed > shown {
        let _ = writeln!(out, "  and {} more failures", format_count(outcome.failed - shown));
    }
    out
}

/// What a drain did not reach.
pub fn remaining(outcome: &Outcome) -> String {
    let mut out = format!(
        "not yet in the backing store: data of {} files, {}; {} names to bring in line\n",
        format_count(outcome.remaining_files),
        format_bytes(outcome.remaining_bytes),
        format_count(outcome.remaining_backlog)
    );
    for file in outcome.remaining.iter().take(ROWS_MAX) {
        let error = why(file.last_error.as_deref());
        let _ = writeln!(out, "  {}  ({}){error}", file.path, format_bytes(file.bytes));
    }
    let shown = outcome.remaining.len().min(ROWS_MAX) as u64;
    if outcome.remaining_files > shown {
        let _ = writeln!(out, "  and {} more", format_count(outcome.remaining_files - shown));
    }
    out
}

/// How much of something is done.
fn done_of(progress: &Progress) -> String {
    if progress.files_total == 0 && progress.backlog_left > 0 {
        return format!(
            "{} files and {} left",
            format_count(progress.backlog_left),
            format_bytes(progress.bytes_total.saturating_sub(progress.bytes_done))
        );
    }
    if progress.files_total == 0 {
        return count_of_files(progress.files_done);
    }
    format!(
        "{} of {}, {} of {}",
        format_count(progress.files_done),
        count_of_files(progress.files_total),
        format_bytes(progress.bytes_done),
        format_bytes(progress.bytes_total)
    )
}

/// One line that shows how far an operation is that has done so many bytes each second.
pub fn progress(progress: &Progress, rate: f64) -> String {
    let left_bytes = progress.bytes_total.saturating_sub(progress.bytes_done);
    let (done, total) = match progress.bytes_total {
        0 => (progress.files_done, progress.files_total),
        total => (progress.bytes_done, total),
    };
    let mut out = match total {
        0 => String::new(),
        _ => format!("[{}] ", bar(done, total, 24)),
    };
    let _ = write!(out, "{}", done_of(progress));
    if progress.bytes_done > 0 {
        let _ = write!(out, ", {}/s", format_bytes(rate as u64));
        if rate > 0.0 && left_bytes > 0 {
            let _ = write!(out, ", {} left", format_seconds((left_bytes as f64 / rate) as u64));
        }
    }
    if progress.backlog_left > 0 && progress.files_total > 0 {
        let _ = write!(out, ", backlog {}", format_count(progress.backlog_left));
    }
    out
}

/// The nodes of a cluster.
pub fn cluster(status: &ClusterStatus) -> String {
    let mut out = String::from("node  state    last seen   dirty               backlog  host\n");
    for node in &status.nodes {
        let (state, seen) = match node.state {
            NodeState::Left => ("left", "-".into()),
            NodeState::Up if node.node == status.this => ("up", "this one".into()),
            NodeState::Up => ("up", format_seconds(node.silent_s)),
            NodeState::Leaving => ("leaving", format_seconds(node.silent_s)),
            NodeState::Dead => ("dead", format_seconds(node.silent_s)),
            NodeState::Silent => ("silent", format!("> {}", format_seconds(node.silent_s))),
        };
        let dirty = match node.dirty_files {
            0 => "nothing".into(),
            files => format!("{} files, {}", format_count(files), format_bytes(node.dirty_bytes)),
        };
        let backlog = format_count(node.backlog);
        let _ = writeln!(
            out,
            "{:<4}  {state:<7}  {seen:<10}  {dirty:<18}  {backlog:<7}  {}",
            node.node, node.host
        );
        if node.lost_changes > 0 {
            let lost = format_count(node.lost_changes);
            let _ = writeln!(out, "      lost {lost} changes; `forebay status` there names them");
        }
        if let Some(refusal) = &node.refusal {
            let _ = writeln!(out, "      did not leave: {refusal}");
        }
    }
    if let Some(safety) = &status.safety {
        copies(&mut out, safety);
    }
    out
}

/// What the node that was asked says of copies.
fn copies(out: &mut String, safety: &Safety) {
    let files =
        |files: u64, bytes: u64| format!("{} files, {}", format_count(files), format_bytes(bytes));
    if safety.copied_files > 0 {
        let _ =
            writeln!(out, "copies of this node's files: of {}", format_count(safety.copied_files));
    }
    if safety.lacking_files > 0 {
        let lacking = files(safety.lacking_files, safety.missing_bytes);
        let _ = writeln!(out, "copies to be made again: {lacking}");
    }
    if safety.wanted_nodes > safety.able_nodes {
        let (wanted, able) = (safety.wanted_nodes, safety.able_nodes);
        let _ = writeln!(
            out,
            "too few nodes: --redundancy takes {wanted} others, {able} can be had: files are written \
             back at fsync and close instead"
        );
    }
    if safety.moving_files > 0 {
        let moving = files(safety.moving_files, safety.moving_bytes);
        let _ = writeln!(out, "copies on their way to nodes with more room: {moving}");
    }
    if safety.waiting_files > 0 {
        let lag = format_seconds(safety.lag_ms / 1000);
        let waiting = format_count(safety.waiting_files);
        let _ = writeln!(out, "copies that are behind: of {waiting} files, by up to {lag}");
    }
    if safety.held_files > 0 {
        let held = files(safety.held_files, safety.held_bytes);
        let _ = writeln!(out, "kept for other nodes: {held}");
    }
    if safety.aside_files > 0 {
        let aside = files(safety.aside_files, safety.aside_bytes);
        let _ = writeln!(out, "taken over by others, and kept aside in TIER/aside: {aside}");
    }
}

/// What goes with a dead node.
pub fn forgotten(forgotten: &Forgotten) -> String {
    let (lost, older) = match forgotten.done {
        true => ("is lost", "is as in the backing store"),
        false => ("would be lost", "would be as in the backing store"),
    };
    let mut out = match forgotten.files_total {
        0 => "no bytes of any file are lost\n".to_owned(),
        files => format!("what only that node had {lost}, of {} files:\n", format_count(files)),
    };
    for file in &forgotten.files {
        let becomes = if file.has_older { older } else { lost };
        let _ = writeln!(out, "  {}  ({}) {becomes}", file.path, format_bytes(file.size_bytes));
    }
    let shown = forgotten.files.len() as u64;
    if forgotten.files_total > shown {
        let _ = writeln!(out, "  and {} more", format_count(forgotten.files_total - shown));
    }
    if forgotten.uncertain > 0 {
        let _ = writeln!(
            out,
            "{} more files could be written there: what was written and not closed {lost}",
            format_count(forgotten.uncertain)
        );
    }
    out
}

/// The report of a check.
pub fn fsck(report: &FsckReport) -> String {
    let mut out = match report.inodes {
        0 => format!(
            "checked {} objects, {}; {} not yet in the backing store\n",
            format_count(report.objects),
            format_bytes(report.bytes),
            format_count(report.dirty)
        ),
        inodes => {
            let (inodes, names) = (format_count(inodes), format_count(report.names));
            format!("checked {inodes} inodes, {names} names\n")
        }
    };
    if report.leftovers > 0 {
        let leftovers = format_count(report.leftovers);
        let _ = writeln!(
            out,
            "{leftovers} that nobody needs any more, such as copies of older versions or unfinished \
             ones: the next mount removes them"
        );
    }
    for detail in &report.details {
        let _ = writeln!(out, "  {}", one_line(detail));
    }
    for kept in report.set_aside.iter().take(ROWS_MAX) {
        let _ = writeln!(out, "  set aside, for you to look at: {kept}");
    }
    let more = report.set_aside.len().saturating_sub(ROWS_MAX) as u64;
    if more > 0 {
        let _ = writeln!(out, "  and {} more", format_count(more));
    }
    let _ = match (report.problems, report.repaired) {
        (0, _) => writeln!(out, "no problems"),
        (problems, repaired) => writeln!(
            out,
            "{} problems, {} repaired",
            format_count(problems),
            format_count(repaired)
        ),
    };
    out
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
