//! The arguments of `mount`: one flag for each row of the table of settings.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, builder::OsStringValueParser,
};

use crate::config::{
    FileSource, Origin, SETTINGS, Setting, Settings, ValueKind, offer_environment,
    offer_mount_options,
};
use crate::error::Error;

/// The arguments of `mount` as typed.
#[derive(Clone, Debug, Default)]
pub struct MountArgs {
    flags: Vec<(&'static Setting, Vec<OsString>)>,
    config: Option<PathBuf>,
    options: Vec<OsString>,
    /// Whether to print JSON.
    pub json: bool,
}

/// The heading of what is no setting.
const MORE: &str = "More";

impl Args for MountArgs {
    fn augment_args(command: Command) -> Command {
        let command = SETTINGS.iter().fold(command, |command, setting| command.arg(flag(setting)));
        command
            .arg(
                Arg::new("config")
                    .long("config")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help_heading(MORE)
                    .help("Read settings from this TOML file")
                    .long_help("Read settings from this TOML file, whose keys are the names of the flags. [env: FOREBAY_CONFIG] [default: ~/.config/forebay/forebay.toml, else /etc/forebay/forebay.toml, if there is one]"),
            )
            .arg(
                Arg::new("options")
                    .short('o')
                    .value_name("OPTIONS")
                    .action(ArgAction::Append)
                    .value_parser(OsStringValueParser::new())
                    .help_heading(MORE)
                    .help("Settings in the form of mount(8): tier=DIR=SIZE,policy=P,ro"),
            )
            .arg(
                Arg::new("json")
                    .long("json")
                    .action(ArgAction::SetTrue)
                    .help_heading(MORE)
                    .help("Print JSON"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for MountArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let many = |name: &str| -> Vec<OsString> {
            matches.get_many::<OsString>(name).into_iter().flatten().cloned().collect()
        };
        Ok(Self {
            flags: SETTINGS
                .iter()
                .map(|setting| (setting, many(setting.key)))
                .filter(|(_, texts)| !texts.is_empty())
                .collect(),
            config: matches.get_one::<PathBuf>("config").cloned(),
            options: many("options"),
            json: matches.get_flag("json"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Below which heading the help has a setting; the ten that most mounts need have none and come first.
pub(super) fn heading(key: &str) -> Option<&'static str> {
    match key {
        "backing" | "mountpoint" | "tier" | "policy" | "writeback" | "durability" | "coherence"
        | "read-only" | "dataset" | "allow-other" | "foreground" | "create-tier" => None,
        "cluster" | "redundancy" | "repair-rate" | "host-tasks" | "auto-migrate" => Some("Cluster"),
        key if key.starts_with("cluster-") => Some("Cluster"),
        key if key.starts_with("stream-") => Some("Streams"),
        "passthrough" | "attr-timeout" | "entry-timeout" | "high-mark" | "low-mark"
        | "extent-size" | "reserve" | "prefetch" => Some("Caching"),
        "noatime" | "suid" | "dev" | "exec" => Some("Mount flags"),
        _ => Some("The daemon"),
    }
}

/// The flag of a setting; the directories are positional.
fn flag(setting: &'static Setting) -> Arg {
    let notes = match setting.default {
        Some(default) if !default.is_empty() && setting.kind != ValueKind::Switch => {
            format!(" [env: {}] [default: {default}]", setting.variable())
        }
        _ => format!(" [env: {}]", setting.variable()),
    };
    let short = setting.help.split_once(". ").map_or(setting.help, |(first, _)| first);
    let short = short.split_once(": ").map_or(short, |(first, _)| first);
    let arg = Arg::new(setting.key)
        .value_parser(OsStringValueParser::new())
        .help(short.trim_end_matches('.').to_owned())
        .long_help(format!("{}{notes}", setting.help))
        .help_heading(heading(setting.key))
        .hide(setting.hidden);
    match (setting.key, setting.kind) {
        ("backing", _) => arg.value_name("BACKING").index(1),
        ("mountpoint", _) => arg.value_name("MOUNTPOINT").index(2),
        (key, ValueKind::One(value)) => arg.long(key).value_name(value),
        (key, ValueKind::Many(value)) => arg.long(key).value_name(value).action(ArgAction::Append),
        (key, ValueKind::Switch) => arg
            .long(key)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

impl MountArgs {
    /// Arguments as mount(8) gives them to its helper.
    pub fn for_helper(source: OsString, target: OsString, options: Vec<OsString>) -> Self {
        let flags = ["backing", "mountpoint"].into_iter().zip([source, target]);
        Self {
            flags: flags
                .filter_map(|(key, text)| Some((Setting::find(key)?, vec![text])))
                .collect(),
            options,
            ..Self::default()
        }
    }

    /// Asks flags, mount options, the environment, the file and the defaults, in this order.
    pub fn settings(&self, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        for (setting, texts) in &self.flags {
            settings.offer(setting, texts.clone(), Origin::Flag);
        }
        for options in &self.options {
            offer_mount_options(&mut settings, options)?;
        }
        offer_environment(&mut settings, variable);
        let named = self.config.clone().or_else(|| variable("FOREBAY_CONFIG").map(PathBuf::from));
        if let Some(path) = named.or_else(|| FileSource::find_default(variable)) {
            FileSource::read(&path)?.offer(&mut settings)?;
        }
        settings.fill_defaults();
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Forebay};
    use clap::Parser;

    fn parse(args: &[&str]) -> MountArgs {
        let words = ["forebay", "mount"].into_iter().chain(args.iter().copied());
        match Cli::try_parse_from(words).unwrap().command {
            Forebay::Mount(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    fn value(settings: &Settings, key: &str) -> (String, Origin) {
        let value = settings.get(key).unwrap();
        (value.texts[0].to_string_lossy().into_owned(), value.origin.clone())
    }

    #[test]
    fn settings_when_all_sources_speak_then_flag_beats_environment_beats_file_beats_default() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.toml");
        std::fs::write(&file, "policy='file'\nwriteback='1s'\nthreads=3\n").unwrap();
        let args = parse(&["/b", "/m", "--policy", "flag", "--config", file.to_str().unwrap()]);
        let settings = args
            .settings(&|name| match name {
                "FOREBAY_POLICY" | "FOREBAY_WRITEBACK" => Some("environment".into()),
                _ => None,
            })
            .unwrap();
        assert_eq!(value(&settings, "policy"), ("flag".into(), Origin::Flag));
        assert_eq!(value(&settings, "writeback"), ("environment".into(), Origin::Environment));
        assert_eq!(value(&settings, "threads"), ("3".into(), Origin::File(file)));
        assert_eq!(value(&settings, "coherence"), ("open".into(), Origin::Default));
        assert_eq!(value(&settings, "mountpoint"), ("/m".into(), Origin::Flag));
    }

    #[test]
    fn help_when_shown_then_it_begins_with_what_most_mounts_need() {
        use clap::CommandFactory;
        let mut command = Cli::command();
        let mount = command.find_subcommand_mut("mount").unwrap();
        let help = mount.render_help().to_string();
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text}: {help}"));
        let options = &help[at("\nOptions:")..];
        let first = options[1..].split("\n\n").next().unwrap();
        let flags = first.lines().filter(|line| line.trim_start().starts_with('-'));
        let mut flags: Vec<_> =
            flags.filter_map(|line| line.trim_start().split([' ', '[', ',']).next()).collect();
        flags.sort_unstable();
        let common = [
            "--allow-other",
            "--coherence",
            "--create-tier",
            "--dataset",
            "--durability",
            "--foreground",
            "--policy",
            "--read-only",
            "--tier",
            "--writeback",
            "-h",
        ];
        assert_eq!(flags, common, "{help}");
        for (heading, setting) in [("Cluster", "--redundancy"), ("The daemon", "--log-level")] {
            assert!(at(&format!("\n{heading}:")) < at(setting), "{setting}: {help}");
        }
    }

    #[test]
    fn parse_when_switches_and_repeated_tiers_are_given_then_all_are_kept() {
        let args = parse(&[
            "--tier",
            "/a=1G",
            "--tier=/b=2G",
            "--foreground",
            "--read-only=false",
            "/b",
            "/m",
        ]);
        let settings = args.settings(&|_| None).unwrap();
        assert_eq!(settings.get("tier").unwrap().texts, ["/a=1G", "/b=2G"]);
        assert_eq!(value(&settings, "foreground").0, "true");
        assert_eq!(value(&settings, "read-only").0, "false");
    }

    #[test]
    fn parse_when_only_options_are_given_then_they_count_like_flags() {
        let args = parse(&["/b", "/m", "-o", "tier=/a=1G,policy=lfu", "-o", "ro"]);
        let settings = args.settings(&|_| None).unwrap();
        assert_eq!(value(&settings, "policy"), ("lfu".into(), Origin::MountOption));
        assert_eq!(value(&settings, "read-only").0, "true");
    }
}
