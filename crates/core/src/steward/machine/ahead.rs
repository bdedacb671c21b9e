//! Fetching ahead: what the prefetcher wants is given room where that does no harm.

use super::super::Action;
use super::{ObjectState, Steward, Transfer};
use crate::policy::Candidate;
use crate::prefetch::{Counts, FLIGHTS, FetchCandidate, JobSnapshot};
use crate::unit::{Ino, Tick, Tier};

impl Steward {
    /// The jobs that have given reference sequences.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobSnapshot> {
        self.prefetch.jobs()
    }

    /// What came of fetches ahead, over all jobs that ever were.
    #[must_use]
    pub fn fetches_ahead(&self) -> Counts {
        self.prefetch.counts()
    }

    /// References and objects of hints remembered, in each of as many places as there are tiers and
    /// one more: what memory grows with.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.prefetch.remembered()
    }

    /// Begins fetches ahead, as many as there is room for and any use in.
    pub(super) fn fetch_ahead(&mut self, now: Tick, actions: &mut Vec<Action>) {
        for _ in 0..FLIGHTS {
            let objects = &self.objects;
            // What is in use or on its way is not for this to touch.
            let missing = |object: u64, size: u64| match objects.get(&object) {
                None => size,
                Some(state) if state.dirty || state.busy || state.paused > now => 0,
                Some(state) if state.transfer != Transfer::Settled => 0,
                Some(state) => size.saturating_sub(state.bytes.0),
            };
            let Some(wanted) = self.prefetch.next(missing) else { break };
            if let Some(fetch) = self.place_ahead(now, &wanted, actions) {
                actions.push(fetch);
            }
        }
        actions.extend(self.prefetch.cancelled().map(|object| Action::Cancel { object }));
    }

    /// Finds room for a fetch ahead, if there is any without harm.
    fn place_ahead(
        &mut self,
        now: Tick,
        wanted: &FetchCandidate,
        actions: &mut Vec<Action>,
    ) -> Option<Action> {
        let object = wanted.object;
        let known = self.objects.get(&object.0).copied().unwrap_or(ObjectState::NEW);
        let candidate = Candidate {
            object: object.0,
            size: known.bytes.0 + wanted.more.0,
            resident: known.bytes.0,
            prefetch: true,
        };
        let tiers = match known.home {
            Some(home) => home.0..=home.0,
            None => 0..=(self.tier_states.len() - 1) as u8,
        };
        for tier in tiers.clone().map(Tier) {
            let Some(promised) = self.ask(now, tier, candidate, true, actions) else { continue };
            self.promise(object, tier, promised);
            self.prefetch.begun(wanted, promised);
            return Some(Action::Fetch { object, tier, bytes: known.bytes + promised });
        }
        let never = |tier: u8| candidate.size > self.tier_states[usize::from(tier)].config.high.0;
        let never = tiers.into_iter().all(never);
        self.prefetch.declined(wanted, never);
        None
    }

    /// A fetch ahead has ended.
    pub(super) fn fetched(&mut self, object: Ino) {
        let state = self.objects.get(&object.0);
        let well = state.is_some_and(|state| state.home.is_some());
        let arriving =
            state.is_some_and(|state| matches!(state.transfer, Transfer::Arriving { .. }));
        if arriving && self.prefetch.is_flying(object) && !self.prefetch.is_waited_for(object) {
            self.settle(object);
            self.change(object, |_| {});
        }
        self.prefetch.landed(object, well);
    }
}
