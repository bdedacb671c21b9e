//! Which file is damaged in which way, and what is done first then.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use super::case::{Case, Scene};
use super::ways::{ALL, Damage};

/// What is done first with what was damaged.
pub const FIRST: [&str; 5] = ["mount", "fsck", "--repair", "--rebuild", "--accept-loss"];

/// The kind of small files of the state, of which each says something else.
const NOTE: &str = "note";

/// Which kind of file it is: one of each kind is damaged in every way.
pub fn kind(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    let parts: Vec<&str> = text.split('/').collect();
    let is_map = |name: &str| name.ends_with(".map");
    match parts.as_slice() {
        ["tier", "objects", _, name] => format!("object {}", is_map(name)),
        ["slow", "objects", _, name] => format!("slow object {}", is_map(name)),
        ["tier", "state", rest @ ..] | ["state", rest @ ..] => kind_of_state(rest),
        [_, "lost", name] => format!("lost {}", is_map(name)),
        ["backing", ".forebay", area, name] => match name.split('.').next() {
            Some(first @ ("t" | "x" | "y")) => format!("{area} {first}"),
            _ => format!("{area} {}", is_map(name)),
        },
        _ => text,
    }
}

fn kind_of_state(parts: &[&str]) -> String {
    match parts {
        ["meta", first, ..] => format!("meta {first}"),
        ["clean-end" | "running" | "removed" | "meta.ballast"] => NOTE.into(),
        [dir @ ("left-behind" | "unseen"), _] => (*dir).into(),
        [former, ..] if former.starts_with("meta.before") => "former index".into(),
        _ => format!("state {}", parts.join("/")),
    }
}

/// Whether files of a kind have the bytes of others, or say which of them are there.
fn holds_bytes(kind: &str) -> bool {
    ["object", "spill", NOTE].iter().any(|part| kind.starts_with(part))
}

/// Whether a scene has files of a kind that the first one does not have.
fn is_new(kind: &str, scene: Scene) -> bool {
    let new: &[&str] = match scene {
        Scene::Ended | Scene::Killed => return false,
        Scene::HalfRebuilt => &["state rebuilding", "former index"],
        Scene::TwoTiers => &[
            "slow",
            "limbo",
            "lost",
            "tmp",
            "spill y",
            "state conflicts",
            "state failed-syncs",
            "left-behind",
            "unseen",
            "index",
        ],
    };
    new.iter().any(|part| kind.starts_with(part))
}

/// A damage, and what is done first with it.
#[derive(Hash)]
pub struct Trial {
    /// Which kind of file, and which of them.
    pub kind: String,
    pub nth: usize,
    pub how: Damage,
    pub first: &'static str,
}

impl Trial {
    /// What it is called, of a file.
    pub fn name(&self, path: &Path) -> String {
        format!("{} {:?} {}", path.display(), self.how, self.first)
    }

    /// Whether it is one of a share. Each is in one of them, in every run: scenes differ a little.
    fn is_in(&self, (share, of): (u64, u64)) -> bool {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish() % of == share % of
    }
}

/// Which trials are wanted.
pub enum Wanted {
    /// One file of each kind, and one of the commands with each; each of the notes, and what only later
    /// scenes have, in one way.
    Some,
    All,
    Share(u64, u64),
    Named(String),
}

impl Wanted {
    pub fn from_environment() -> Self {
        let Ok(text) = std::env::var("FOREBAY_DAMAGE") else { return Self::Some };
        let share = text.split_once('/').and_then(|(share, of)| {
            let (share, of) = (share.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&share).then_some(Self::Share(share, of))
        });
        match share {
            Some(share) => share,
            None if text == "all" => Self::All,
            None => Self::Named(text),
        }
    }

    /// The trials of a run, with the files of this scene.
    pub fn trials(&self, case: &Case) -> Vec<Trial> {
        let (files, mut trials, mut turn) = (case.kept(), Vec::new(), 0);
        let (scene, mut kinds) = (case.scene, 0);
        for (at, path) in files.iter().enumerate() {
            let kind = kind(path);
            let nth = files[..at].iter().filter(|path| self::kind(path) == kind).count();
            let ways: Vec<Damage> =
                ALL.into_iter().filter(|how| case.can_damage(path, *how)).collect();
            let is_new = is_new(&kind, scene) && nth == 0;
            kinds += usize::from(is_new);
            let one_way = match is_new {
                true => kinds,
                false => nth + usize::from(scene == Scene::Killed),
            };
            let one_way = ways.get(one_way % ways.len().max(1)).copied();
            for how in ways {
                let one_of_these = match scene {
                    // Also of files of which a sync had failed.
                    Scene::TwoTiers if how == Damage::Unreadable && kind == "slow object false" => {
                        is_new
                    }
                    Scene::TwoTiers | Scene::HalfRebuilt => is_new && one_way == Some(how),
                    _ if kind == NOTE => one_way == Some(how),
                    Scene::Ended => nth == 0,
                    // The end of the daemon makes no difference to others.
                    Scene::Killed => nth == 0 && holds_bytes(&kind),
                };
                turn += usize::from(one_of_these);
                for (place, first) in FIRST.into_iter().enumerate() {
                    let trial = Trial { kind: kind.clone(), nth, how, first };
                    let wanted = match self {
                        Self::Some => one_of_these && turn % FIRST.len() == place,
                        Self::All => true,
                        Self::Share(share, of) => trial.is_in((*share, *of)),
                        Self::Named(part) => trial.name(path).contains(part),
                    };
                    trials.extend(wanted.then_some(trial));
                }
            }
        }
        trials
    }
}
