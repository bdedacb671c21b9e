//! The rate of a file that says nothing of it itself, as ffprobe finds it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;

use crate::media::FileKey;

/// How long ffprobe may look at one file.
const LIMIT: Duration = Duration::from_secs(5);
/// Output beyond this is not a few numbers.
const OUTPUT_MAX: u64 = 64 * 1024;
/// Files whose rates are remembered.
const REMEMBERED: usize = 4096;
/// What is added to an average rate, because the rates of most media vary.
const MARGIN: f64 = 1.1;

/// Finds rates by ffprobe: one file at a time, and each version of a file once.
#[derive(Debug, Default)]
pub struct Probe {
    known: Mutex<HashMap<FileKey, Option<u64>>>,
    one_at_a_time: Mutex<()>,
}

#[derive(Deserialize)]
struct Output {
    format: Format,
}

#[derive(Deserialize)]
struct Format {
    duration: Option<String>,
    bit_rate: Option<String>,
}

impl Probe {
    /// Bytes a second of a file; `None` if ffprobe is not installed, does not know the format, or
    /// takes too long. Blocks for as long as ffprobe does.
    pub fn rate(&self, file: &File, key: FileKey) -> Option<u64> {
        if let Some(rate) = self.known.lock().get(&key) {
            return *rate;
        }
        let _turn: MutexGuard<'_, ()> = self.one_at_a_time.lock();
        if let Some(rate) = self.known.lock().get(&key) {
            return *rate;
        }
        let rate = ask(file).and_then(|text| read(&text, key.size()));
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED {
            // Any of them may go: asking again costs little.
            let some: Vec<FileKey> = known.keys().take(REMEMBERED / 4).copied().collect();
            known.retain(|key, _| !some.contains(key));
        }
        known.insert(key, rate);
        rate
    }
}

/// Runs ffprobe on an open file, so that it sees the very file that will be served.
fn ask(file: &File) -> Option<String> {
    let mut input = file.try_clone().ok()?;
    input.seek(SeekFrom::Start(0)).ok()?;
    let mut child = Command::new("ffprobe")
        .args(["-v", "error", "-show_entries", "format=duration,bit_rate", "-of", "json"])
        .args(["-protocol_whitelist", "file", "file:/dev/stdin"])
        .stdin(Stdio::from(input))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .inspect_err(|error| tracing::debug!(%error, "ffprobe"))
        .ok()?;
    let deadline = Instant::now() + LIMIT;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) | Err(_) => {
                tracing::warn!("ffprobe took more than {} s; ended", LIMIT.as_secs());
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
        }
    };
    let mut text = String::new();
    let output = child.stdout.take()?;
    let read = output.take(OUTPUT_MAX).read_to_string(&mut text).is_ok();
    (ended && read).then_some(text)
}

fn read(text: &str, size: u64) -> Option<u64> {
    let format = serde_json::from_str::<Output>(text).ok()?.format;
    let number = |text: Option<String>| text?.parse::<f64>().ok().filter(|n| *n > 0.0);
    let bytes_a_second = match number(format.duration) {
        Some(seconds) => size as f64 / seconds,
        None => number(format.bit_rate)? / 8.0,
    };
    let rate = (bytes_a_second * MARGIN).round();
    (1.0..=1e12).contains(&rate).then_some(rate as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Media;

    #[test]
    fn answers_of_ffprobe_when_read_then_bytes_a_second_with_the_margin() {
        let both = r#"{"format": {"duration": "10.000000", "bit_rate": "800000"}}"#;
        assert_eq!(read(both, 1_000_000), Some(110_000));
        let rate_only = r#"{"format": {"bit_rate": "800000"}}"#;
        assert_eq!(read(rate_only, 5), Some(110_000));
        for senseless in [
            "{}",
            "",
            r#"{"format": {}}"#,
            r#"{"format": {"duration": "N/A"}}"#,
            r#"{"format": {"duration": "0"}}"#,
            r#"{"format": {"duration": "inf"}}"#,
        ] {
            assert_eq!(read(senseless, 1_000_000), None, "{senseless}");
        }
    }

    #[test]
    fn file_that_is_no_medium_when_probed_then_no_rate_and_not_asked_again() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"not a medium at all").unwrap();
        let probe = Probe::default();
        let key = Media::key_of(&file).unwrap();
        assert_eq!(probe.rate(&file, key), None);
        assert_eq!(probe.known.lock().get(&key), Some(&None));
        assert_eq!(probe.rate(&file, key), None);
    }
}
