//! `mount`, its helper for mount(8), and `config show`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{canonical, print, print_json, warn};
use crate::cli::MountArgs;
use crate::config::{
    Finding, MOUNTED_ALREADY, MountConfig, Origin, Setting, Settings, StreamDevice, SystemFacts,
    check_environment, check_parents, validate,
};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::{daemon, service_manager};

/// Mounts.
pub fn run(args: &MountArgs, engine: &dyn Engine) -> Result<(), Error> {
    mount(args, engine, false)
}

fn mount(args: &MountArgs, engine: &dyn Engine, only_check: bool) -> Result<(), Error> {
    // First of all: the mount of a service whose daemon died is there, and whoever looks at it waits.
    if !only_check && let Some(stored) = service_manager::stored() {
        return daemon::run_stored(stored, engine);
    }
    let settings = absolute(&args.settings(&|name| std::env::var_os(name))?)?;
    let mut config = MountConfig::from_settings(&settings, engine.policies())?;
    super::umount::clear_dead(&config.mountpoint)?;
    let create = settings.get("create-tier").is_some_and(|value| value.texts == ["true"]);
    let mut findings = validate(&config, &SystemFacts);
    findings.extend(check_parents(&config, create));
    findings.extend(check_environment(std::env::vars_os().map(|(name, _)| name)));
    let mut errors = Vec::new();
    for finding in findings {
        match finding {
            Finding::Error(text) => errors.push(text),
            Finding::Warning(text) => warn(&text),
        }
    }
    if !errors.is_empty() {
        return Err(refusal(errors));
    }
    if only_check {
        return Ok(());
    }
    canonical(&mut config);
    let settings = with_paths_of(&settings, &config);
    if config.foreground {
        return daemon::run_foreground(&settings, &config, engine);
    }
    daemon::launch(&settings)
}

/// The settings with paths below the directory of whoever gives them: the daemon works elsewhere.
fn absolute(settings: &Settings) -> Result<Settings, Error> {
    const PATHS: &[&str] =
        &["tier", "state-dir", "log-file", "event-log", "cluster-secret", "cluster-secret-also"];
    let here = std::env::current_dir().map_err(Error::io("the current directory"))?;
    let mut resolved = Settings::default();
    for (setting, value) in settings.iter() {
        let texts = value.texts.iter();
        let texts = match setting.key {
            "cluster" => texts.map(|text| beneath_after(&here, text, b"file:")).collect(),
            "stream-profile" | "stream-emulate" => {
                let whole = |text: &OsString| match StreamDevice::parse(text) {
                    Some(StreamDevice::File(_)) => beneath_after(&here, text, b""),
                    _ => text.clone(),
                };
                texts.map(whole).collect()
            }
            key if PATHS.contains(&key) => {
                texts.map(|text| beneath_after(&here, text, b"")).collect()
            }
            _ => value.texts.clone(),
        };
        resolved.offer(setting, texts, value.origin.clone());
    }
    Ok(resolved)
}

/// A path that follows a prefix, if the text has it and the path is relative.
fn beneath_after(here: &Path, text: &OsStr, prefix: &[u8]) -> OsString {
    let Some(path) = text.as_bytes().strip_prefix(prefix) else { return text.to_owned() };
    if path.is_empty() || path.starts_with(b"/") {
        return text.to_owned();
    }
    let whole = here.join(OsStr::from_bytes(path));
    let mut joined = OsStr::from_bytes(prefix).to_owned();
    joined.push(whole);
    joined
}

/// Errors about the machine, and that there is a mount already, have exit codes of their own, if they
/// are the only ones.
fn refusal(errors: Vec<String>) -> Error {
    let about_machine = |text: &String| {
        text.starts_with("/dev/fuse")
            || text.contains("fusermount3: install")
            || text.contains("user_allow_other")
    };
    let in_use = |text: &String| text.contains(MOUNTED_ALREADY);
    if errors.iter().all(about_machine) {
        Error::Unsupported(errors.join("\n"))
    } else if errors.iter().all(in_use) {
        Error::Locked(errors.join("\n"))
    } else {
        Error::Invalid(errors)
    }
}

/// The settings with the two directories as they were resolved.
fn with_paths_of(settings: &Settings, config: &MountConfig) -> Settings {
    let mut resolved = Settings::default();
    for (key, path) in [("backing", &config.backing), ("mountpoint", &config.mountpoint)] {
        if let Some(setting) = Setting::find(key) {
            resolved.offer(setting, vec![path.clone().into()], Origin::Flag);
        }
    }
    for (setting, value) in settings.iter() {
        resolved.offer(setting, value.texts.clone(), value.origin.clone());
    }
    resolved
}

/// `mount.forebay BACKING MOUNTPOINT [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`, as mount(8)
/// calls its helpers.
pub fn run_helper(args: &[OsString], engine: &dyn Engine) -> Result<u8, Error> {
    let call = HelperCall::parse(args)?;
    mount(&call.args, engine, call.only_check)?;
    Ok(Exit::Ok.code())
}

#[derive(Debug)]
struct HelperCall {
    args: MountArgs,
    only_check: bool,
}

impl HelperCall {
    fn parse(args: &[OsString]) -> Result<Self, Error> {
        let usage = |what: &str| {
            Error::Usage(format!(
                "{what}; usage: mount -t forebay BACKING MOUNTPOINT -o tier=DIR=SIZE"
            ))
        };
        let mut words = args.iter();
        let (mut places, mut options, mut only_check) = (Vec::new(), Vec::new(), false);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("-o") => {
                    options.push(words.next().ok_or_else(|| usage("-o needs options"))?.clone());
                }
                Some("-t" | "-N") => {
                    words.next().ok_or_else(|| usage("an option lacks its value"))?;
                }
                Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                    for flag in flags[1..].chars() {
                        match flag {
                            's' | 'n' | 'v' | 'w' => {}
                            'f' => only_check = true,
                            'r' => options.push("ro".into()),
                            _ => return Err(usage(&format!("unknown option -{flag}"))),
                        }
                    }
                }
                _ => places.push(word.clone()),
            }
        }
        let [source, target] =
            <[OsString; 2]>::try_from(places).map_err(|_| usage("needs BACKING and MOUNTPOINT"))?;
        Ok(Self { args: MountArgs::for_helper(source, target, options), only_check })
    }
}

/// Shows each setting and where its value comes from.
pub fn show(args: &MountArgs, engine: &dyn Engine) -> Result<(), Error> {
    let settings = args.settings(&|name| std::env::var_os(name))?;
    if args.json {
        print_json(&as_json(&settings))?;
    } else {
        print(&as_table(&settings))?;
    }
    // A mount without directories is no mount, but its settings can be looked at.
    let complete = ["backing", "mountpoint", "tier"].iter().all(|key| settings.get(key).is_some());
    if complete {
        MountConfig::from_settings(&settings, engine.policies()).map(drop)
    } else {
        Ok(())
    }
}

fn as_table(settings: &Settings) -> String {
    let rows: Vec<[String; 3]> = settings
        .iter()
        .map(|(setting, value)| {
            [setting.key.to_owned(), texts(&value.texts).join(","), value.origin.to_string()]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (key, value) = (width(0), width(1));
    rows.iter().map(|row| format!("{:key$}  {:value$}  {}\n", row[0], row[1], row[2])).collect()
}

fn as_json(settings: &Settings) -> BTreeMap<&'static str, serde_json::Value> {
    let entry = |value: &crate::config::Value| serde_json::json!({ "value": texts(&value.texts), "origin": value.origin.to_string() });
    settings.iter().map(|(setting, value)| (setting.key, entry(value))).collect()
}

fn texts(texts: &[OsString]) -> Vec<String> {
    texts.iter().map(|text| text.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<HelperCall, Error> {
        HelperCall::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn helper_when_called_by_mount_then_places_and_options_are_found() {
        let call =
            parse(&["/b", "/m", "-o", "rw,tier=/t=1G,noauto", "-v", "-t", "forebay"]).unwrap();
        let settings = call.args.settings(&|_| None).unwrap();
        assert_eq!(settings.get("backing").unwrap().texts, ["/b"]);
        assert_eq!(settings.get("mountpoint").unwrap().texts, ["/m"]);
        assert_eq!(settings.get("tier").unwrap().texts, ["/t=1G"]);
        assert!(!call.only_check);
        assert!(parse(&["/b", "/m", "-sfn"]).unwrap().only_check);
        let settings = parse(&["/b", "/m", "-r"]).unwrap().args.settings(&|_| None).unwrap();
        assert_eq!(settings.get("read-only").unwrap().texts, ["true"]);
    }

    #[test]
    fn paths_when_relative_then_below_the_callers_directory_and_names_stay() {
        let call = parse(&["/b", "/m", "-o", "stream-profile=p.json,log-file=l"]).unwrap();
        let settings = absolute(&call.args.settings(&|_| None).unwrap()).unwrap();
        let here = std::env::current_dir().unwrap();
        for (key, name) in [("stream-profile", "p.json"), ("log-file", "l")] {
            assert_eq!(settings.get(key).unwrap().texts, [here.join(name)], "{key}");
        }
        for name in ["disk", "measure", ""] {
            let option = format!("stream-profile={name}");
            let call = parse(&["/b", "/m", "-o", &option]).unwrap();
            let settings = absolute(&call.args.settings(&|_| None).unwrap()).unwrap();
            assert_eq!(settings.get("stream-profile").unwrap().texts, [name]);
        }
    }

    #[test]
    fn helper_when_called_wrongly_then_usage() {
        for args in [&["/b"][..], &["/b", "/m", "/x"], &["/b", "/m", "-o"], &["/b", "/m", "-q"]] {
            assert!(
                parse(args).unwrap_err().to_string().contains("usage: mount -t forebay"),
                "{args:?}"
            );
        }
    }

    #[test]
    fn refusal_when_only_the_machine_is_unfit_then_its_own_exit_code() {
        assert_eq!(refusal(vec!["/dev/fuse is missing".into()]).exit(), Exit::Unsupported);
        let mixed = vec!["/dev/fuse is missing".into(), "mount point /m: does not exist".into()];
        assert_eq!(refusal(mixed).exit(), Exit::Usage);
    }

    #[test]
    fn show_when_rendered_then_origins_stand_beside_values() {
        let settings =
            parse(&["/b", "/m", "-o", "policy=lfu"]).unwrap().args.settings(&|_| None).unwrap();
        let table = as_table(&settings);
        assert!(
            table.lines().any(|l| l.split_whitespace().eq(["policy", "lfu", "mount", "option"])),
            "{table}"
        );
        assert!(
            table.lines().any(|l| l.split_whitespace().eq(["writeback", "5s", "default"])),
            "{table}"
        );
        assert_eq!(as_json(&settings)["backing"]["origin"], "flag");
    }
}
