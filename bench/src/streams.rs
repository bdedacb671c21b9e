//! Players: each takes a title at its rate, from a server or straight from files, and counts each time
//! that it runs dry. As real players do it gathers a little before it begins, and reads ahead a little.
//! All are threads of this process, and ask the server by
//! themselves: on a machine of few processors a program for each would be part of what is measured.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;

/// Bytes of one read of a player.
const READ: usize = 64 * 1024;
/// How long a player waits for bytes beyond twice the time that it plays.
const SILENCE: Duration = Duration::from_secs(60);
/// Media that a player holds at most, as those in browsers do.
const AHEAD: Duration = Duration::from_secs(4);

/// What is played, and how.
#[derive(Clone, Debug)]
pub struct Load {
    /// The address of a server, such as `http://127.0.0.1:8480`; files of `dir` itself if none.
    pub url: Option<String>,
    /// The directory of the titles.
    pub dir: PathBuf,
    /// What is added to each address, such as `?rate=8M`.
    pub query: String,
    /// Bytes a second of each player.
    pub rate: u64,
    /// Players, each with a title of its own as long as there are some.
    pub players: usize,
    /// Time between the starts of two players.
    pub apart: Duration,
    /// How long each plays.
    pub length: Duration,
    /// Media that a player gathers before it begins.
    pub buffer: Duration,
}

/// What one player saw.
#[derive(Debug)]
enum Played {
    Refused,
    Failed(String),
    Through { startup: Duration, glitches: u64, late: Duration },
}

/// What all players saw.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Players that were started.
    pub players: usize,
    /// Players that the server turned away.
    pub refused: usize,
    /// Players that broke off.
    pub failed: usize,
    /// Players that ran dry at least once.
    pub disturbed: usize,
    /// Times that players ran dry.
    pub glitches: u64,
    /// For how long altogether, in seconds.
    pub late_s: f64,
    /// Time from the wish to the start, in seconds.
    pub startup_p50_s: f64,
    /// 99 % did not take longer.
    pub startup_p99_s: f64,
}

/// Lets all players play.
pub fn run(load: &Load) -> Result<Outcome, Error> {
    let mut titles: Vec<PathBuf> = std::fs::read_dir(&load.dir)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(Error::io(load.dir.display().to_string()))?;
    titles.retain(|path| path.is_file());
    titles.sort();
    if titles.is_empty() {
        return Err(Error::Usage(format!("{}: no titles", load.dir.display())));
    }
    let begun = Instant::now();
    let played: Vec<Played> = std::thread::scope(|scope| {
        let players: Vec<_> = (0..load.players)
            .map(|at| {
                let title = &titles[at % titles.len()];
                let start = begun + load.apart * at as u32;
                scope.spawn(move || {
                    std::thread::sleep(start.saturating_duration_since(Instant::now()));
                    play(load, title)
                })
            })
            .collect();
        let ended = players.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.map(|p| p.unwrap_or_else(|_| Played::Failed("a player panicked".into()))).collect()
    });
    Ok(summary(&played))
}

fn summary(played: &[Played]) -> Outcome {
    let mut startups = Vec::new();
    let mut outcome = Outcome {
        players: played.len(),
        refused: 0,
        failed: 0,
        disturbed: 0,
        glitches: 0,
        late_s: 0.0,
        startup_p50_s: 0.0,
        startup_p99_s: 0.0,
    };
    for played in played {
        match played {
            Played::Refused => outcome.refused += 1,
            Played::Failed(why) => {
                eprintln!("a player broke off: {why}");
                outcome.failed += 1;
            }
            Played::Through { startup, glitches, late } => {
                startups.push(startup.as_secs_f64());
                outcome.glitches += glitches;
                outcome.disturbed += usize::from(*glitches > 0);
                outcome.late_s += late.as_secs_f64();
            }
        }
    }
    startups.sort_by(f64::total_cmp);
    let at =
        |share: f64| startups.get((startups.len() as f64 * share) as usize).or(startups.last());
    outcome.startup_p50_s = at(0.5).copied().unwrap_or(0.0);
    outcome.startup_p99_s = at(0.99).copied().unwrap_or(0.0);
    outcome
}

fn play(load: &Load, title: &Path) -> Played {
    let asked = Instant::now();
    let Some(url) = &load.url else {
        return match File::open(title) {
            Ok(mut file) => {
                // SAFETY: the descriptor is open for the length of the call.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
                watch(load, asked, &mut file).unwrap_or_else(Played::Failed)
            }
            Err(error) => Played::Failed(error.to_string()),
        };
    };
    match ask(load, url, title) {
        Ok(Some(mut body)) => watch(load, asked, &mut body).unwrap_or_else(Played::Failed),
        Ok(None) => Played::Refused,
        Err(why) => Played::Failed(why),
    }
}

/// Asks a server for a title; its bytes follow. None if it says that it has no room.
fn ask(load: &Load, url: &str, title: &Path) -> Result<Option<impl Read + use<>>, String> {
    let host = url.strip_prefix("http://").ok_or("an address begins with http://")?;
    let name = title.file_name().unwrap_or_default().to_string_lossy();
    let mut stream = TcpStream::connect(host).map_err(|error| format!("{host}: {error}"))?;
    let failed = |error: std::io::Error| error.to_string();
    // Whoever hears nothing for so long gives up; he has been counted as late by then.
    stream.set_read_timeout(Some(load.length * 2 + SILENCE)).map_err(failed)?;
    let query = &load.query;
    write!(stream, "GET /{name}{query} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        .map_err(failed)?;
    let mut answer = BufReader::with_capacity(READ, stream);
    let mut line = String::new();
    answer.read_line(&mut line).map_err(failed)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    match status {
        200 => {}
        503 => return Ok(None),
        _ => return Err(format!("{name}: the server answered {}", line.trim())),
    }
    while line != "\r\n" {
        line.clear();
        if answer.read_line(&mut line).map_err(failed)? == 0 {
            return Err("the answer ended in its head".into());
        }
    }
    Ok(Some(answer))
}

/// Plays: gathers the first bytes, then takes at the rate and notes when it runs dry.
fn watch(load: &Load, asked: Instant, source: &mut dyn Read) -> Result<Played, String> {
    let rate = load.rate as f64;
    let wanted = rate * load.length.as_secs_f64();
    let gathered = (rate * load.buffer.as_secs_f64()).min(wanted);
    let (mut got, mut glitches, mut late) = (0.0, 0, Duration::ZERO);
    let mut clock: Option<(Instant, Duration)> = None;
    let mut buffer = vec![0; READ];
    // Who has waited for as long as he wanted to play has seen enough.
    while got < wanted && late <= load.length {
        if clock.is_none() && asked.elapsed() > load.length * 2 {
            let startup = asked.elapsed();
            return Ok(Played::Through { startup, glitches: 1, late: load.length });
        }
        if let Some((begun, _)) = clock {
            let ahead = Duration::from_secs_f64(got / rate).saturating_sub(begun.elapsed());
            std::thread::sleep(ahead.saturating_sub(AHEAD));
        }
        let count = source.read(&mut buffer).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("the title ended too soon".into());
        }
        let now = Instant::now();
        if let Some((begun, _)) = &mut clock {
            // Dry since all before these bytes was played.
            let dry = *begun + Duration::from_secs_f64(got / rate);
            if now > dry {
                glitches += 1;
                late += now - dry;
                *begun += now - dry;
            }
        }
        got += count as f64;
        if clock.is_none() && got >= gathered {
            clock = Some((now, now - asked));
        }
    }
    let startup = clock.map_or(asked.elapsed(), |(_, startup)| startup);
    Ok(Played::Through { startup, glitches, late })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives bytes at a rate, but nothing for a while in the middle.
    struct Slow {
        begun: Instant,
        given: usize,
        pause: Duration,
    }

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.given == 50_000 {
                std::thread::sleep(self.pause);
            }
            let count = 10_000.min(buffer.len());
            self.given += count;
            let due = Duration::from_secs_f64(self.given as f64 / 400_000.0);
            std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
            Ok(count)
        }
    }

    fn glitches(pause: Duration) -> u64 {
        let load = Load {
            url: None,
            dir: PathBuf::new(),
            query: String::new(),
            rate: 100_000,
            players: 1,
            apart: Duration::ZERO,
            length: Duration::from_secs(1),
            buffer: Duration::from_millis(300),
        };
        let mut source = Slow { begun: Instant::now(), given: 0, pause };
        match watch(&load, Instant::now(), &mut source) {
            Ok(Played::Through { glitches, .. }) => glitches,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn player_when_its_source_pauses_longer_than_its_buffer_then_one_glitch() {
        assert_eq!(glitches(Duration::ZERO), 0);
        assert_eq!(glitches(Duration::from_millis(1500)), 1);
    }
}
