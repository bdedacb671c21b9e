//! Where values come from: flags, the options of mount(8), the environment, a file.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::settings::{SETTINGS, Setting, Settings, ValueKind};
use super::validate::Finding;
use crate::error::Error;

/// Who gave a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag or a positional argument.
    Flag,
    /// An option after `-o`.
    MountOption,
    /// A `FOREBAY_*` variable.
    Environment,
    /// A configuration file.
    File(PathBuf),
    /// Nobody: the default.
    Default,
}

impl Origin {
    /// The place to name in a message about the value of `key`.
    pub fn describe(&self, key: &str) -> String {
        match self {
            Origin::Flag if key == "backing" || key == "mountpoint" => key.to_ascii_uppercase(),
            Origin::Flag => format!("--{key}"),
            Origin::MountOption => format!("-o {key}"),
            Origin::Environment => Setting::find(key).map_or_else(String::new, Setting::variable),
            Origin::File(path) => format!("{}: {key}", path.display()),
            Origin::Default => format!("default of --{key}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::MountOption => f.write_str("mount option"),
            Origin::Environment => f.write_str("environment"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The candidate with the least edit distance to `word`, if it is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().max(word.len()) / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Number of insertions, deletions and replacements between two words (Levenshtein 1966), by the
/// usual dynamic programme over one row.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Splits a list at commas; `\,` is a comma and `\\` a backslash within an item.
pub fn split_commas(text: &OsStr) -> Vec<OsString> {
    let mut items = Vec::new();
    let mut item = Vec::new();
    let mut bytes = text.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => items.push(std::mem::take(&mut item)),
            b'\\' => item.push(bytes.next().unwrap_or(b'\\')),
            _ => item.push(byte),
        }
    }
    items.push(item);
    items.into_iter().filter(|item| !item.is_empty()).map(OsString::from_vec).collect()
}

/// Variables that are no settings.
const OTHER_VARIABLES: &[&str] = &[
    "FOREBAY_CONFIG",
    "FOREBAY_RUNTIME_DIR",
    "FOREBAY_FAIL_POINTS",
    "FOREBAY_JOB",
    "FOREBAY_RUN",
    "FOREBAY_CRIU",
];

/// What is to be said of `FOREBAY_*` variables that nothing knows: an error for a misspelt setting. For
/// all others a warning, with the nearest setting: refusals would be wrong of variables that a newer
/// version knows, that other tools use, or that Kubernetes makes by itself of a service with the name
/// `forebay` (`FOREBAY_PORT`, `FOREBAY_SERVICE_HOST`).
pub fn check_environment(names: impl IntoIterator<Item = OsString>) -> Vec<Finding> {
    let ours = names.into_iter().filter_map(|name| name.into_string().ok());
    let unknown = ours.filter(|name| {
        name.starts_with("FOREBAY_")
            && !OTHER_VARIABLES.contains(&name.as_str())
            && SETTINGS.iter().all(|setting| setting.variable() != *name)
    });
    let said = unknown.map(|name| {
        let distance = |setting: &Setting| edit_distance(&name, &setting.variable());
        let near = SETTINGS.iter().min_by_key(|setting| distance(setting));
        // One slip for each four letters; SEED is no misspelt SUID.
        let slips = (name.len() - "FOREBAY_".len()) / 4;
        match near.filter(|setting| distance(setting) <= slips) {
            Some(near) => Finding::Error(format!(
                "{name}: unknown variable; did you mean {}? Unset it, or correct it",
                near.variable()
            )),
            None => {
                let near = near.filter(|setting| distance(setting) <= 2 * slips);
                let near = near.map(|near| format!("; the nearest setting is {}", near.variable()));
                let near = near.unwrap_or_default();
                Finding::Warning(format!("{name}: unknown variable, which says nothing here{near}"))
            }
        }
    });
    said.collect()
}

/// Offers what `FOREBAY_*` variables say. For unknown ones see [`check_environment`].
pub fn offer_environment(settings: &mut Settings, variable: impl Fn(&str) -> Option<OsString>) {
    for setting in SETTINGS {
        if let Some(text) = variable(&setting.variable()) {
            let texts = match setting.kind {
                ValueKind::Many(_) => split_commas(&text),
                _ => vec![text],
            };
            settings.offer(setting, texts, Origin::Environment);
        }
    }
}

/// Options of mount(8) and fstab(5) that say nothing to Forebay.
const FOREIGN_OPTIONS: &[&str] = &[
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "norelatime",
    "nodiratime",
    "lazytime",
    "async",
    "sync",
    "mand",
    "nomand",
    "comment",
    "default_permissions",
    "fsname",
    "subtype",
    "loud",
    "silent",
];

/// Offers what follows `-o`, as mount(8) and fstab(5) give it: `tier=DIR=SIZE,policy=lfu,ro`.
pub fn offer_mount_options(settings: &mut Settings, options: &OsStr) -> Result<(), Error> {
    let mut tiers = Vec::new();
    let mut singles = BTreeMap::new();
    for option in split_commas(options) {
        let bytes = option.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=');
        let key = String::from_utf8_lossy(&bytes[..at.unwrap_or(bytes.len())]).into_owned();
        let value = at.map(|at| OsStr::from_bytes(&bytes[at + 1..]).to_owned());
        if FOREIGN_OPTIONS.contains(&key.as_str()) || key.starts_with("x-") || key.starts_with("X-")
        {
            continue;
        }
        if key == "remount" {
            return Err(Error::Setting {
                origin: "-o remount".into(),
                message: "options of a mount can't be changed; unmount and mount again".into(),
            });
        }
        let (key, value) = match key.as_str() {
            "ro" => ("read-only", value),
            "nosuid" => ("suid", Some("false".into())),
            "nodev" => ("dev", Some("false".into())),
            "noexec" => ("exec", Some("false".into())),
            "atime" | "relatime" | "strictatime" => ("noatime", Some("false".into())),
            key => (key, value),
        };
        let setting = Setting::find(key).ok_or_else(|| unknown(Origin::MountOption, key))?;
        let text = match (setting.kind, value) {
            (ValueKind::Switch, value) => value.unwrap_or_else(|| "true".into()),
            (_, Some(value)) => value,
            (_, None) => {
                return Err(Error::Setting {
                    origin: format!("-o {key}"),
                    message: format!("needs a value: {key}=..."),
                });
            }
        };
        if matches!(setting.kind, ValueKind::Many(_)) {
            tiers.push(text);
        } else {
            // As mount(8) has it, the last word counts.
            singles.insert(setting.key, (setting, text));
        }
    }
    for (setting, text) in singles.into_values() {
        settings.offer(setting, vec![text], Origin::MountOption);
    }
    if let (false, Some(tier)) = (tiers.is_empty(), Setting::find("tier")) {
        settings.offer(tier, tiers, Origin::MountOption);
    }
    Ok(())
}

/// The error for a key that no setting has.
fn unknown(origin: Origin, key: &str) -> Error {
    let near = nearest(key, SETTINGS.iter().map(|setting| setting.key));
    Error::Setting {
        origin: match &origin {
            Origin::File(path) => path.display().to_string(),
            other => other.describe(key),
        },
        message: match near {
            Some(near) => format!("unknown setting '{key}'; did you mean '{near}'?"),
            None => format!("unknown setting '{key}'; `forebay config show` lists all settings"),
        },
    }
}

/// A configuration file in TOML: one key for each setting, named as its flag.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    table: toml::Table,
}

impl FileSource {
    /// Reads the file; its syntax is checked here, its keys and values in [`FileSource::offer`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::File { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let table = text.parse::<toml::Table>().map_err(|error| Error::Setting {
            origin: path.display().to_string(),
            message: error.to_string(),
        })?;
        Ok(Self { path: path.to_owned(), table })
    }

    /// The file that is read when none is named: the user's own, else the system's.
    pub fn find_default(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let home = variable("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")));
        home.into_iter()
            .chain([PathBuf::from("/etc")])
            .map(|dir| dir.join("forebay/forebay.toml"))
            .find(|path| path.is_file())
    }

    /// Offers the file's values.
    pub fn offer(&self, settings: &mut Settings) -> Result<(), Error> {
        for (key, value) in &self.table {
            let origin = Origin::File(self.path.clone());
            let setting = Setting::find(key).ok_or_else(|| unknown(origin.clone(), key))?;
            let texts = texts_of(value).filter(|texts| {
                matches!(setting.kind, ValueKind::Many(_)) || !value.is_array() && texts.len() == 1
            });
            let texts = texts.ok_or_else(|| Error::Setting {
                origin: origin.describe(key),
                message: match setting.kind {
                    ValueKind::Many(what) => format!("must be a list of strings \"{what}\""),
                    ValueKind::One(what) => format!("must be one value: {what}"),
                    ValueKind::Switch => "must be true or false".into(),
                },
            })?;
            settings.offer(setting, texts, origin);
        }
        Ok(())
    }
}

/// The texts of a TOML value, where it is a scalar or a list of scalars.
fn texts_of(value: &toml::Value) -> Option<Vec<OsString>> {
    match value {
        toml::Value::String(text) => Some(vec![text.into()]),
        toml::Value::Integer(number) => Some(vec![number.to_string().into()]),
        toml::Value::Boolean(switch) => Some(vec![switch.to_string().into()]),
        toml::Value::Array(items) => {
            items.iter().map(|item| texts_of(item)?.into_iter().next()).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(settings: &Settings, key: &str) -> Vec<String> {
        let value = settings.get(key).unwrap();
        value.texts.iter().map(|text| text.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn mount_options_when_as_in_fstab_then_tiers_collect_and_foreign_ones_are_ignored() {
        let mut settings = Settings::default();
        let options = "rw,noauto,user,_netdev,nofail,x-systemd.automount,tier=/dev/shm/f=4G,\
                       tier=/nv\\,me/f=8G,policy=lfu,ro,allow_other,attr_timeout=2s";
        offer_mount_options(&mut settings, OsStr::new(options)).unwrap();
        assert_eq!(texts(&settings, "tier"), ["/dev/shm/f=4G", "/nv,me/f=8G"]);
        assert_eq!(texts(&settings, "policy"), ["lfu"]);
        assert_eq!(texts(&settings, "read-only"), ["true"]);
        assert_eq!(texts(&settings, "allow-other"), ["true"]);
        assert_eq!(texts(&settings, "attr-timeout"), ["2s"]);
    }

    #[test]
    fn mount_options_when_negated_then_the_last_word_counts() {
        let mut settings = Settings::default();
        let options = "noexec,nosuid,nodev,exec,policy=lru,policy=lfu,relatime,noatime";
        offer_mount_options(&mut settings, OsStr::new(options)).unwrap();
        assert_eq!(texts(&settings, "noatime"), ["true"]);
        assert_eq!(texts(&settings, "exec"), ["true"]);
        assert_eq!(texts(&settings, "suid"), ["false"]);
        assert_eq!(texts(&settings, "dev"), ["false"]);
        assert_eq!(texts(&settings, "policy"), ["lfu"]);
    }

    #[test]
    fn mount_options_when_misspelt_then_the_nearest_is_named() {
        let error = offer_mount_options(&mut Settings::default(), OsStr::new("polcy=lru"));
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "-o polcy: unknown setting 'polcy'; did you mean 'policy'?");
        let error = offer_mount_options(&mut Settings::default(), OsStr::new("policy"));
        assert!(error.unwrap_err().to_string().contains("needs a value"));
    }

    #[test]
    fn file_when_it_has_lists_switches_and_numbers_then_all_are_taken() {
        let text = "tier = ['/a=1G', '/b=2G']\nthreads = 4\nread-only = true\nwriteback = '1s'\n";
        let mut settings = Settings::default();
        FileSource::parse(Path::new("f.toml"), text).unwrap().offer(&mut settings).unwrap();
        assert_eq!(texts(&settings, "tier"), ["/a=1G", "/b=2G"]);
        assert_eq!(texts(&settings, "threads"), ["4"]);
        assert_eq!(texts(&settings, "read-only"), ["true"]);
    }

    #[test]
    fn file_when_wrong_then_the_message_names_key_and_remedy() {
        for (text, part) in [
            ("polici = 'lru'", "did you mean 'policy'?"),
            ("qqqqqqq = 1", "`forebay config show` lists all settings"),
            ("policy = ['a', 'b']", "must be one value: NAME"),
            ("tier = { dir = '/x' }", "must be a list of strings \"DIR=SIZE\""),
            ("tier = '/a=1G", "f.toml"),
        ] {
            let result = FileSource::parse(Path::new("f.toml"), text)
                .and_then(|file| file.offer(&mut Settings::default()));
            let message = result.unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn environment_when_set_then_lists_split_at_commas() {
        let mut settings = Settings::default();
        offer_environment(&mut settings, |name| match name {
            "FOREBAY_TIER" => Some("/a=1G,/b=2G".into()),
            "FOREBAY_LOG_LEVEL" => Some("debug".into()),
            _ => None,
        });
        assert_eq!(texts(&settings, "tier"), ["/a=1G", "/b=2G"]);
        assert_eq!(settings.get("log-level").unwrap().origin, Origin::Environment);
    }

    #[test]
    fn environment_when_a_variable_is_misspelt_then_it_is_an_error_and_others_warn() {
        let said = |name: &str| check_environment([OsString::from(name)]);
        for wrong in ["FOREBAY_DURABILTY", "FOREBAY_TIERS", "FOREBAY_WRITE_BACK"] {
            assert!(matches!(&said(wrong)[..], [Finding::Error(_)]), "{wrong}");
        }
        // Those of a service called forebay are made by Kubernetes.
        let others =
            ["FOREBAY_SEED", "FOREBAY_ROUNDS", "FOREBAY_PORT_80_TCP", "FOREBAY_SERVICE_HOST"];
        for other in others.into_iter().chain(["FOREBAY_PORT", "FOREBAY_SERVICE_PORT_HTTP"]) {
            assert!(matches!(&said(other)[..], [Finding::Warning(_)]), "{other}");
        }
        let [Finding::Warning(text)] = &said("FOREBAY_BIN")[..] else { panic!("no warning") };
        assert!(text.ends_with("says nothing here"), "{text}");
        let [Finding::Warning(text)] = &said("FOREBAY_PASSTHRU")[..] else { panic!("no warning") };
        assert!(text.ends_with("the nearest setting is FOREBAY_PASSTHROUGH"), "{text}");
        for known in ["FOREBAY_TIER", "FOREBAY_CONFIG", "PATH"] {
            assert!(said(known).is_empty(), "{known}");
        }
    }

    #[test]
    fn nearest_when_nothing_is_near_then_nothing() {
        assert_eq!(nearest("s3fifo", ["lru", "s3-fifo", "sieve"]), Some("s3-fifo"));
        assert_eq!(nearest("bananas", ["lru", "s3-fifo", "sieve"]), None);
    }
}
