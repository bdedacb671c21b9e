//! Drives the steward: tells it what happened, and has its decisions carried out. It holds no bytes and
//! waits for nothing: what takes long is done by threads that may wait.

use std::time::{Duration, Instant};

use forebay_core::steward::{Action, Event, Placement};
use forebay_core::unit::Tick;
use forebay_types::Ino;

use crate::defects::BackgroundKind;
use crate::error::Result;
use crate::pool::Urgency;
use crate::residency::Residency;

/// A thread of the pool waits this long for a file that somebody has in hand, who may wait for a slow device.
const PATIENCE: Duration = Duration::from_secs(2);

impl Residency {
    /// The time by which the steward judges: since the start of this daemon.
    pub(crate) fn tick(&self) -> Tick {
        Tick(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Tells the steward what happened and has its decisions carried out by others. The answer to a
    /// `Wanted` is returned.
    pub(crate) fn decide(&self, event: Event) -> Option<Placement> {
        let mut actions = Vec::new();
        self.step(event, &mut actions);
        let mut placement = None;
        for action in actions {
            match action {
                Action::Place { tier, bytes, .. } => {
                    placement = Some(Placement::Tier(tier, bytes));
                }
                Action::Bypass { .. } => placement = Some(Placement::Bypass),
                Action::Cancel { object } => self.fetches.cancel(object.0),
                Action::Fetch { object, .. } => {
                    self.fetches.expect(object.0);
                    self.perform_later(action);
                }
                other => self.perform_later(other),
            }
        }
        placement
    }

    /// Tells the steward what happened; what it decides is carried out after the next tick.
    pub(crate) fn decide_later(&self, event: Event) {
        let mut actions = Vec::new();
        self.step(event, &mut actions);
        self.put_off.lock().append(&mut actions);
    }

    pub(super) fn step(&self, event: Event, actions: &mut Vec<Action>) {
        let now = self.tick();
        let before = actions.len();
        let mut steward = self.steward.lock();
        steward.step(now, &event, actions);
        // Under the steward's lock: the log has the order of its decisions.
        if let Some(log) = &self.event_log {
            log.record(now, &event, &actions[before..]);
        }
    }

    /// Has a decision carried out by a thread that may wait. The steward waits for an answer to
    /// each, so that none may be lost: what finds no place in the pool waits for the next tick. At
    /// most one waits for each object.
    pub(super) fn perform_later(&self, action: Action) {
        if !self.later(move |node| {
            node.perform(action);
        }) {
            self.put_off.lock().push(action);
        }
    }

    /// Offers the decisions that were put off to the pool again.
    pub(crate) fn perform_put_off(&self) {
        for action in std::mem::take(&mut *self.put_off.lock()) {
            self.perform_later(action);
        }
    }

    /// Runs `job` on a thread that may wait; false if the pool is full or closed.
    pub(crate) fn later(&self, job: impl FnOnce(&Residency) + Send + 'static) -> bool {
        let Some(this) = self.this.upgrade() else { return true };
        self.slow.run(Urgency::Background, move || job(&this)).is_ok()
    }

    /// Carries out a decision and reports what came of it; says whether it is done, or under way.
    pub(crate) fn perform(&self, action: Action) -> bool {
        self.perform_until(action, Instant::now() + PATIENCE)
    }

    /// The same. A file that somebody has in hand until then is left to him.
    pub(super) fn perform_until(&self, action: Action, until: Instant) -> bool {
        // What is set aside is refused.
        let tiering = |object: Ino, work: &dyn Fn() -> Result<bool>| {
            let done = self.defects.attempt(BackgroundKind::Tiering, object.0, work);
            (object, done.unwrap_or(Ok(false)))
        };
        let (object, done) = match action {
            Action::Evict { object, tier } => {
                tiering(object, &|| self.evict(Ino(object.0), tier.0, until))
            }
            Action::Truncate { object, tier, keep } => {
                tiering(object, &|| self.evict_tail(Ino(object.0), tier.0, keep.0, until))
            }
            Action::Demote { object, from, to } | Action::Promote { object, from, to } => {
                tiering(object, &|| self.move_object(Ino(object.0), from.0, to.0, until))
            }
            Action::Flush { object } => {
                let begun = self.above.flush_soon(Ino(object.0));
                if !begun {
                    self.flush_failed(Ino(object.0));
                }
                return begun;
            }
            Action::Fetch { object, tier, bytes } => {
                self.fetch_ahead(Ino(object.0), tier.0, bytes.0);
                return true;
            }
            Action::Place { .. } | Action::Bypass { .. } | Action::Cancel { .. } => return true,
        };
        match done {
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => tracing::warn!(
                object = object.0,
                %error,
                "an eviction or a move failed: the steward decides anew"
            ),
        }
        self.decide(Event::Refused { object });
        false
    }

    /// A file that was to be written back to make room could not be: others make it.
    pub(crate) fn flush_failed(&self, ino: Ino) {
        self.decide(Event::Unflushed { object: ino });
        self.tiers.iter().for_each(|slot| slot.room.disappoint());
    }

    /// The backing store has all of a file, and its record says so: from here on a copy may go that is clean.
    pub(crate) fn say_clean(&self, ino: Ino) {
        match self.residents.get(ino.0) {
            None => return,
            // Written anew: who asked for its flush has to hear that others make room.
            Some(found) if found.dirty => return self.flush_failed(ino),
            Some(_) => {}
        }
        let file = self.files.get(ino);
        let location = file.location.read();
        match &location.place {
            None => self.say_clean_if_known_so(ino),
            Some(place) => {
                let _growing = place.charge.growing.lock();
                match place.is_dirty() {
                    true => self.flush_failed(ino),
                    false => self.say_clean_if_known_so(ino),
                }
            }
        }
    }

    /// The same, of a file that nobody can write meanwhile. Not before the record says it, too: what is dirty
    /// by that does not go, and would be left alone for a while.
    pub(super) fn say_clean_if_known_so(&self, ino: Ino) {
        if !self.meta.get(ino).is_ok_and(|record| record.is_dirty()) {
            self.decide(Event::Clean { object: ino });
        }
    }
}
