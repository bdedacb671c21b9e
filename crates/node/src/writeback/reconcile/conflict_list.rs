//! The conflicts that nobody has resolved or forgotten yet.
//!
//! They are kept in `conflicts` of the state directory, so that a restart does not forget where the
//! version of this mount is: a line for each, appended as it is noticed. The file is written anew when
//! some are forgotten, and when it has twice as many lines as are remembered.
//!
//! Owns: the list and its file. It must never know what is under the paths.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_types::Timestamp;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use super::conflict::Conflict;
use super::conflict_places::Seen;

/// Conflicts that are remembered; of more the oldest are forgotten.
const MAX_LISTED: usize = 1000;
/// Bytes of the file that are read at a start; a line has two names and a path.
const MAX_BYTES: u64 = 64 << 20;
/// Name of the file, in the state directory.
const FILE: &str = "conflicts";
/// What names may not have in a line.
const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The conflicts of a mount.
#[derive(Default)]
pub(super) struct Conflicts {
    /// Noticed since the start.
    count: u64,
    latest: VecDeque<Conflict>,
    file: Option<PathBuf>,
    lines: usize,
    /// The file has some that are resolved.
    behind: bool,
}

impl Conflicts {
    /// Those that earlier daemons have noticed, and a place for more. What can't be read is left out.
    pub(super) fn load(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE);
        let text = match read(&file) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(file = %file.display(), %error, "earlier conflicts can't be read");
                }
                String::new()
            }
        };
        let mut latest: VecDeque<Conflict> = text.lines().filter_map(of_line).collect();
        let excess = latest.len().saturating_sub(MAX_LISTED);
        latest.drain(..excess);
        // What is appended to a line that was cut short is lost with it: then all is written anew first.
        let is_whole = text.is_empty() || text.ends_with('\n');
        let lines = if is_whole { text.lines().count() } else { 2 * MAX_LISTED };
        Conflicts { count: 0, latest, file: Some(file), lines, behind: false }
    }

    /// Adds one, unless it tells of a version of others that is listed already: of several removed files of
    /// one name each finds what others put there. Says whether it is new.
    pub(super) fn add(&mut self, conflict: Conflict) -> bool {
        if self.latest.iter().any(|known| is_same(known, &conflict)) {
            return false;
        }
        self.count += 1;
        let line = line_of(&conflict);
        if self.latest.len() >= MAX_LISTED {
            self.latest.pop_front();
        }
        self.latest.push_back(conflict);
        let written = match self.lines < 2 * MAX_LISTED {
            true => self.append(&line),
            false => self.write_all(),
        };
        self.complain(written);
        true
    }

    /// Forgets those that are done with. Says how many they were.
    pub(super) fn forget(&mut self, is_done: &mut dyn FnMut(&Conflict) -> bool) -> usize {
        let before = self.latest.len();
        self.latest.retain(|conflict| !is_done(conflict));
        let forgotten = before - self.latest.len();
        if forgotten > 0 {
            let written = self.write_all();
            self.complain(written);
        }
        forgotten
    }

    /// As [`Conflicts::forget`]; the file follows by [`Conflicts::write_if_behind`], for there may be many
    /// calls in a row.
    pub(super) fn settle(&mut self, is_done: &mut dyn FnMut(&Conflict) -> bool) {
        let before = self.latest.len();
        self.latest.retain(|conflict| !is_done(conflict));
        self.behind |= self.latest.len() < before;
    }

    pub(super) fn write_if_behind(&mut self) {
        if self.behind {
            let written = self.write_all();
            self.complain(written);
        }
    }

    /// Puts one in place of another, in which its names are as they are now.
    pub(super) fn replace(&mut self, before: &Conflict, now: Conflict) {
        if let Some(known) = self.latest.iter_mut().find(|known| *known == before) {
            *known = now;
            let written = self.write_all();
            self.complain(written);
        }
    }

    /// Their number since the start, and those that are remembered, oldest first.
    pub(super) fn snapshot(&self) -> (u64, Vec<Conflict>) {
        (self.count, self.latest.iter().cloned().collect())
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(file)?.write_all(line.as_bytes())?;
        self.lines += 1;
        Ok(())
    }

    /// Puts a new file in place of the old one.
    fn write_all(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let new = file.with_extension("new");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true);
        let text: String = self.latest.iter().map(line_of).collect();
        let mut written = options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&new)?;
        written.write_all(text.as_bytes())?;
        std::fs::rename(&new, file)?;
        (self.lines, self.behind) = (self.latest.len(), false);
        Ok(())
    }

    /// A list that can't be kept is no reason to stop: the log has each conflict as well.
    fn complain(&self, written: io::Result<()>) {
        if let (Err(error), Some(file)) = (written, &self.file) {
            let file = file.display();
            tracing::warn!(%file, %error, "the list of conflicts can't be kept over a restart");
        }
    }
}

/// Whether two conflicts tell of one version of others, perhaps not at the same moment. Where none is known,
/// each is of its own: something else may have been lost under that path.
fn is_same(one: &Conflict, other: &Conflict) -> bool {
    one.theirs.zip(other.theirs).is_some_and(|(one, other)| one.same_content(&other))
        && (&one.path, &one.ours, &one.why, &one.seen)
            == (&other.path, &other.ours, &other.why, &other.seen)
}

fn read(file: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NOFOLLOW).open(file)?;
    let mut bytes = Vec::new();
    opened.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `SECONDS,DIR,NUMBER,NUMBER... PATH OURS WHY`, names with percent signs for what they may not have; `-` for
/// none. The numbers are those of [`Seen`]; older programs wrote none, or the first two.
fn line_of(conflict: &Conflict) -> String {
    let encoded = |bytes: &[u8]| percent_encode(bytes, RESERVED).to_string();
    let ours = conflict.ours.as_ref().map_or("-".to_owned(), |ours| format!("={}", encoded(ours)));
    let numbers: String = conflict.seen.below.iter().map(|number| format!(",{number}")).collect();
    let (sec, dir, path) = (conflict.when.sec, conflict.seen.dir, encoded(&conflict.path));
    format!("{sec},{dir}{numbers} ={path} {ours} {}\n", conflict.why)
}

fn of_line(line: &str) -> Option<Conflict> {
    let mut fields = line.splitn(4, ' ');
    let mut first = fields.next()?.split(',');
    let sec = first.next()?.parse().ok()?;
    let dir = first.next().map_or(Ok(0), str::parse).ok()?;
    let seen = Seen { dir, below: first.map(str::parse).collect::<Result<_, _>>().ok()? };
    let name = |field: &str| -> Option<Vec<u8>> {
        Some(percent_decode_str(field.strip_prefix('=')?).collect())
    };
    let path = name(fields.next()?)?;
    let ours = match fields.next()? {
        "-" => None,
        field => Some(name(field)?),
    };
    let why = Cow::Owned(fields.next()?.to_owned());
    Some(Conflict { path, ours, when: Timestamp::new(sec, 0), why, seen, theirs: None })
}

#[cfg(test)]
mod tests {
    use forebay_types::Fingerprint;

    use super::*;

    fn conflict(path: &[u8], ours: Option<&[u8]>) -> Conflict {
        let when = Timestamp::new(1_700_000_000, 0);
        let ours = ours.map(<[u8]>::to_vec);
        let (why, seen) = ("changed here and by others".into(), Seen::default());
        Conflict { path: path.to_vec(), ours, when, why, seen, theirs: None }
    }

    #[test]
    fn conflict_when_its_directory_was_moved_then_a_restart_knows_its_place_and_older_lines() {
        let dir = tempfile::tempdir().unwrap();
        let seen = Seen { dir: 5, below: vec![u64::MAX, 0, 7] };
        let moved =
            |path: &[u8]| Conflict { seen: seen.clone(), ..conflict(path, Some(b"our name")) };
        let all = [moved(b"here and/there/its name"), moved(b"its name")];
        assert_eq!(all[0].kept_as(), b"here and/there/our name");
        let mut list = Conflicts::load(dir.path());
        list.add(conflict(b"was", None));
        list.add(all[0].clone());
        list.replace(&conflict(b"was", None), all[1].clone());
        let [first, second] = all;
        assert_eq!(Conflicts::load(dir.path()).snapshot().1, [second, first]);
        std::fs::write(dir.path().join(FILE), "1700000000 =d/a =b changed here and by others\n")
            .unwrap();
        let older = Conflicts::load(dir.path()).snapshot().1;
        assert_eq!(older, [conflict(b"d/a", Some(b"b"))]);
        assert_eq!(older[0].kept_as(), b"d/b");
        std::fs::write(
            dir.path().join(FILE),
            "1700000000,5,6 =d/a =b changed here and by others\n",
        )
        .unwrap();
        let older = Conflicts::load(dir.path()).snapshot().1;
        assert_eq!(older[0].seen, Seen { dir: 5, below: vec![6] });
    }

    #[test]
    fn conflicts_when_restarted_then_all_are_known_with_odd_names() {
        let dir = tempfile::tempdir().unwrap();
        let all = [
            conflict(b"a b/%41\n\xff", Some(b"\x1b[2J =- x")),
            conflict(b"-", Some(b"-")),
            conflict("d\u{e9}j\u{e0}".as_bytes(), None),
        ];
        let mut list = Conflicts::load(dir.path());
        for conflict in &all {
            list.add(conflict.clone());
        }
        assert_eq!(list.snapshot(), (3, all.to_vec()));
        assert_eq!(Conflicts::load(dir.path()).snapshot(), (0, all.to_vec()));
    }

    #[test]
    fn conflicts_when_forgotten_then_the_next_start_has_them_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = Conflicts::load(dir.path());
        list.add(conflict(b"one", None));
        list.add(conflict(b"two", None));
        assert_eq!(list.forget(&mut |conflict| conflict.path == b"one"), 1);
        list.add(conflict(b"three", None));
        let left = vec![conflict(b"two", None), conflict(b"three", None)];
        assert_eq!(Conflicts::load(dir.path()).snapshot().1, left);
    }

    #[test]
    fn version_of_others_when_found_again_then_it_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = Conflicts::load(dir.path());
        let later = |ours, size| {
            let (when, born) = (Timestamp::new(1_800_000_000, 0), Timestamp::default());
            let print = Fingerprint { size, born, ..Fingerprint::default() };
            Conflict { when, theirs: Some(print), ..conflict(b"one", ours) }
        };
        assert!(list.add(later(None, 1)) && !list.add(later(None, 1)));
        assert!(list.add(later(None, 2)), "another version of theirs");
        assert!(list.add(later(Some(b"kept"), 2)));
        assert_eq!(list.snapshot().0, 3);
        list.forget(&mut |conflict| conflict.path == b"one");
        assert!(list.add(later(None, 2)), "what was forgotten is told again");
    }

    #[test]
    fn conflict_when_another_has_the_same_path_and_reason_then_each_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = Conflicts::load(dir.path());
        assert!(list.add(conflict(b"one", None)) && list.add(conflict(b"one", None)));
        assert_eq!(list.snapshot().0, 2);
        let mut list = Conflicts::load(dir.path());
        assert!(list.add(conflict(b"one", None)));
        assert_eq!(list.snapshot().1.len(), 3);
    }

    #[test]
    fn conflicts_when_there_are_very_many_then_list_and_file_stay_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = Conflicts::load(dir.path());
        for n in 0..5 * MAX_LISTED {
            list.add(conflict(n.to_string().as_bytes(), None));
        }
        let lines = read(&dir.path().join(FILE)).unwrap().lines().count();
        assert!(lines <= 2 * MAX_LISTED, "{lines}");
        let after = Conflicts::load(dir.path()).snapshot().1;
        assert_eq!((after.len(), after), (MAX_LISTED, list.snapshot().1));
    }

    #[test]
    fn file_of_conflicts_when_damaged_then_what_can_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = Conflicts::load(dir.path());
        list.add(conflict(b"one", None));
        let file = dir.path().join(FILE);
        let good = std::fs::read(&file).unwrap();
        std::fs::write(&file, [b"\xff\n5 x\n\n", &good[..], &good[..9]].concat()).unwrap();
        assert_eq!(Conflicts::load(dir.path()).snapshot().1, [conflict(b"one", None)]);
    }

    #[test]
    fn conflict_when_the_last_line_was_cut_short_then_it_is_known_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        Conflicts::load(dir.path()).add(conflict(b"one", None));
        let file = dir.path().join(FILE);
        let good = std::fs::read(&file).unwrap();
        std::fs::write(&file, [&good[..], b"5 =ha"].concat()).unwrap();
        Conflicts::load(dir.path()).add(conflict(b"two", Some(b"ours")));
        let known = vec![conflict(b"one", None), conflict(b"two", Some(b"ours"))];
        assert_eq!(Conflicts::load(dir.path()).snapshot().1, known);
    }
}
