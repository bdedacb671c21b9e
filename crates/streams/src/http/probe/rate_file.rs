//! What was found out about media, kept in a file over restarts: a line of JSON for each version of a
//! file. It is only ever added to, and written anew when most of it is old.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::REMEMBERED;
use crate::media::Version;
use crate::mp4::pace::Pace;

/// Bytes of the file that are looked at: several times what is remembered takes.
const LONGEST: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    version: Version,
    rate: Option<u64>,
    /// Of a rate that is not the same all the time; see [`Pace::steps`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<(u32, u64)>,
}

/// The file that keeps the rates of media over restarts.
#[derive(Debug)]
pub(super) struct RateFile {
    path: PathBuf,
    file: File,
}

impl RateFile {
    /// Opens or makes the file, and returns what it has. A line that is damaged does not count.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<(Self, HashMap<Version, Option<Pace>>)> {
        let mut text = Vec::new();
        let mut file = Self::file(path)?;
        Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut text)?;
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        let mut known = HashMap::new();
        // The last that was written of a version counts.
        for line in lines.iter().rev() {
            if let Ok(Line { version, rate, steps }) = serde_json::from_slice(line)
                && known.len() < REMEMBERED
            {
                let pace = rate.map(|rate| Pace { rate, steps });
                known.entry(version).or_insert(pace);
            }
        }
        let mut rates = Self { path: path.to_path_buf(), file };
        if lines.len() > 2 * known.len() + 64 || text.last().is_some_and(|last| *last != b'\n') {
            rates.write_anew(&known)?;
        }
        Ok((rates, known))
    }

    fn file(path: &Path) -> io::Result<File> {
        // A link that somebody has put there is not followed.
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let mut options = File::options();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(path)
    }

    fn write_anew(&mut self, known: &HashMap<Version, Option<Pace>>) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let mut file = Self::file(&fresh)?;
        let mut text = Vec::new();
        for (version, pace) in known {
            text.extend(line(*version, pace.as_ref()));
        }
        file.write_all(&text)?;
        fs::rename(&fresh, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Adds what was found out about one version.
    pub fn add(&mut self, version: Version, pace: Option<&Pace>) {
        if let Err(error) = self.file.write_all(&line(version, pace)) {
            tracing::warn!(path = %self.path.display(), %error, "rates of media are not kept");
        }
    }
}

fn line(version: Version, pace: Option<&Pace>) -> Vec<u8> {
    let rate = pace.map(|pace| pace.rate);
    let steps = pace.map(|pace| pace.steps.clone()).unwrap_or_default();
    let mut text = serde_json::to_vec(&Line { version, rate, steps }).unwrap_or_default();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(inode: u64) -> Version {
        Version { inode, size: 7, modified_ns: -1 }
    }

    #[test]
    fn rates_when_kept_then_there_again_whatever_is_damaged_besides() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates");
        let (mut rates, known) = RateFile::open(&path).unwrap();
        assert!(known.is_empty());
        rates.add(version(1), Some(&Pace::constant(100)));
        rates.add(version(2), None);
        let course = Pace { rate: 200, steps: vec![(1000, 200), (500, 100)] };
        rates.add(version(1), Some(&course));
        drop(rates);
        // A line of a machine that went down, and what is no line at all.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"\xff\xfe\n{\"inode\":3,\"si").unwrap();
        let (mut rates, known) = RateFile::open(&path).unwrap();
        assert_eq!(known.get(&version(2)), Some(&None));
        assert_eq!((known.len(), known[&version(1)].as_ref()), (2, Some(&course)));
        rates.add(version(4), Some(&Pace::constant(1)));
        let (_, known) = RateFile::open(&path).unwrap();
        assert_eq!(
            known.get(&version(4)),
            Some(&Some(Pace::constant(1))),
            "what follows a torn line counts"
        );
    }

    #[test]
    fn file_of_rates_when_most_is_old_then_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rates");
        let (mut rates, _) = RateFile::open(&path).unwrap();
        for rate in 0..200 {
            rates.add(version(1), Some(&Pace::constant(rate + 1)));
        }
        let long = fs::metadata(&path).unwrap().len();
        let (_, known) = RateFile::open(&path).unwrap();
        assert_eq!(known[&version(1)], Some(Pace::constant(200)), "the last counts");
        assert!(fs::metadata(&path).unwrap().len() < long / 100);
    }
}
