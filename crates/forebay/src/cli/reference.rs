//! The reference of the command line and of the settings, made from the code, and the defaults that
//! other documents speak of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::CommandFactory;

use super::Cli;
use super::mount_args::heading;
use crate::config::{SETTINGS, Setting, ValueKind};
use crate::units::{parse_bytes, parse_duration};

const COMMANDS: &str = "reference/commands.md";
const SETTINGS_PAGE: &str = "reference/settings.md";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Every command with its help, as `forebay COMMAND --help` prints it on a wide terminal.
fn commands() -> String {
    let mut text = String::from(
        "# Command line\n\nWhat `forebay COMMAND --help` prints. This page is generated from the code. The settings of `mount` have a [page of their own](settings.md), and all commands end with the same [exit codes](exit-codes.md).\n",
    );
    let mut root = Cli::command().term_width(100);
    root.build();
    describe(&mut root, "forebay", &mut text);
    text
}

fn describe(command: &mut clap::Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    for sub in command.get_subcommands_mut() {
        if !sub.is_hide_set() && sub.get_name() != "help" {
            let full = format!("{name} {}", sub.get_name());
            describe(sub, &full, text);
        }
    }
}

/// Every setting of a mount.
fn settings() -> String {
    let mut text = String::from(
        "# Settings of a mount\n\nEach setting is a flag of `forebay mount` (`--policy lru`), a variable (`FOREBAY_POLICY`), a key of the configuration file (`policy = \"lru\"`) and an option of mount(8) (`policy=lru`). The first of these that has a value wins, in this order: flag, variable, file, default. `forebay config show` prints the values of a mount and where each comes from. This page is generated from the code.\n\nSizes are written `4096`, `512K`, `4GiB` (all units count in steps of 1024), times `200ms`, `5s`, `2min`, `1h`.\n",
    );
    let mut groups: Vec<&str> = Vec::new();
    for setting in SETTINGS {
        let group = heading(setting.key).unwrap_or("What most mounts need");
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in groups {
        let _ = write!(
            text,
            "\n## {group}\n\n| setting | value | default | meaning |\n|---|---|---|---|\n"
        );
        let of_group = |setting: &&Setting| {
            heading(setting.key).unwrap_or("What most mounts need") == group && !setting.hidden
        };
        for setting in SETTINGS.iter().filter(of_group) {
            let value = match setting.kind {
                ValueKind::One(value) | ValueKind::Many(value) => value,
                ValueKind::Switch => "true, false",
            };
            let default = match setting.default {
                None => "must be given".to_owned(),
                Some("") => "empty".to_owned(),
                Some(default) => format!("`{default}`"),
            };
            let meaning = setting.help.replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {value} | {default} | {meaning} |", setting.key);
        }
    }
    text
}

fn compare(page: &str, text: &str) {
    let path = docs().join(page);
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/{page} is old: run the tests with FOREBAY_BLESS=1");
}

#[test]
fn page_of_commands_when_compared_with_the_help_then_up_to_date() {
    compare(COMMANDS, &commands());
}

#[test]
fn page_of_settings_when_compared_with_the_table_then_up_to_date() {
    compare(SETTINGS_PAGE, &settings());
}

/// The defaults of all flags, those of settings included. A flag that several commands have may have
/// several.
fn defaults() -> BTreeMap<String, Vec<String>> {
    fn collect(command: &clap::Command, found: &mut BTreeMap<String, Vec<String>>) {
        for argument in command.get_arguments() {
            let Some(long) = argument.get_long() else { continue };
            let values = argument.get_default_values().iter();
            let texts = values.filter_map(|value| value.to_str()).map(str::to_owned);
            found.entry(long.to_owned()).or_default().extend(texts);
        }
        command.get_subcommands().for_each(|sub| collect(sub, found));
    }
    let mut found = BTreeMap::new();
    let mut root = Cli::command();
    root.build();
    collect(&root, &mut found);
    for setting in SETTINGS {
        found.entry(setting.key.to_owned()).or_default().extend(setting.default.map(Into::into));
    }
    found
}

/// `--flag` or `--flag value` at the beginning of what stands in backquotes.
fn flag_of(quoted: &str) -> Option<(&str, &str)> {
    let rest = quoted.strip_prefix("--")?;
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}

/// The defaults that a page states, with their lines:
/// - "`--flag` (5s)" and "`--flag VALUE` (5s; ...)", where what is in parentheses is a quantity;
/// - "`--flag value` (default)";
/// - a row of a table with a column `default`, whose other cells name flags.
fn stated(page: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut column: Option<usize> = None;
    for (index, line) in page.lines().enumerate() {
        if !line.starts_with('|') {
            column = None;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if line.starts_with('|') && column.is_none() {
            column = cells.iter().position(|cell| *cell == "default");
        } else if let Some(value) = column.and_then(|column| cells.get(column)) {
            let flags = cells.iter().enumerate().filter(|(at, _)| Some(*at) != column);
            let flags = flags.flat_map(|(_, cell)| cell.split('`').skip(1).step_by(2).take(2));
            let flags = flags.filter_map(|quoted| Some(flag_of(quoted)?.0.to_owned()));
            let values = value.split(',').map(|value| value.trim().trim_matches('`').to_owned());
            let pairs = flags.zip(values).filter(|(_, value)| !value.is_empty());
            found.extend(pairs.map(|(flag, value)| (index + 1, flag, value)));
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        for pair in parts.windows(2).skip(1).step_by(2) {
            let (Some((flag, given)), Some(rest)) = (flag_of(pair[0]), pair[1].strip_prefix(" ("))
            else {
                continue;
            };
            let end = rest.find([')', ';', ',']).unwrap_or(rest.len());
            let value = rest[..end].trim();
            if value == "default" {
                found.push((index + 1, flag.to_owned(), given.to_owned()));
            } else if value.starts_with(|c: char| c.is_ascii_digit()) && !value.contains(" to ") {
                let value = value.split(" of ").next().unwrap_or(value);
                found.push((index + 1, flag.to_owned(), value.to_owned()));
            }
        }
    }
    found
}

/// Whether two texts mean the same value.
fn same(stated: &str, coded: &str) -> bool {
    let stated = stated.replace(' ', "");
    stated == coded
        || matches!((parse_duration(&stated), parse_duration(coded)), (Ok(a), Ok(b)) if a == b)
        || matches!((parse_bytes(&stated), parse_bytes(coded)), (Ok(a), Ok(b)) if a == b)
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn defaults_that_documents_state_when_compared_with_the_code_then_equal() {
    let defaults = defaults();
    let mut paths = vec![docs().join("../README.md")];
    pages(&docs(), &mut paths);
    let mut compared = 0;
    let mut wrong = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        for (line, flag, value) in stated(&text) {
            // Flags of other programs have none, nor have those that stand for what is measured.
            let Some(coded) = defaults.get(&flag).filter(|coded| !coded.is_empty()) else {
                continue;
            };
            compared += 1;
            if !coded.iter().any(|coded| same(&value, coded)) {
                wrong.push(format!("{}:{line}: --{flag} {value}, not {coded:?}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        compared >= 25,
        "only {compared} defaults were found: have the documents another form?"
    );
}

#[test]
fn stated_when_a_page_has_defaults_in_each_form_then_all_are_found() {
    let page = "By `--wait` (5s; else `--stop TIME` (10 min)) or `--mode on` (default), `--n N` (1 to 8).\n\
        | what | default |\n|---|---|\n| `--high`, `--low` | `95%`, `85%` |\n| `--none` | |\n";
    let found: Vec<_> = stated(page).into_iter().map(|(_, flag, value)| (flag, value)).collect();
    let text: Vec<_> = found.iter().map(|(flag, value)| (flag.as_str(), value.as_str())).collect();
    let expected =
        [("wait", "5s"), ("stop", "10 min"), ("mode", "on"), ("high", "95%"), ("low", "85%")];
    assert_eq!(text, expected);
    assert!(same("10 min", "10min") && same("16 KiB", "16K") && !same("5s", "6s"));
}
