//! The machine: residency by object, one policy for each tier, and what is in flight.

mod ahead;

use std::collections::BTreeSet;

use super::{
    Action, ConfigError, Event, HintChange, Placement, StewardConfig, TierConfig, TierSnapshot,
};
use crate::policy::{
    Access, AccessKind, Admission, Candidate, Demand, Hint, Map, Policy, PolicyConfig, Room,
    Victim, by_name,
};
use crate::prefetch::Prefetcher;
use crate::unit::{Bytes, Ino, Tick, Tier};

/// Accesses that an object on a slower tier must have had there before it moves up.
const PROMOTE_AFTER: u8 = 2;

/// What could not be written back is left alone for so many pauses, unless it is before: whoever writes it
/// back tries again by himself.
const FLUSH_PAUSES: u64 = 60;

/// What is under way with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    /// Nothing.
    Settled,
    /// It is being removed, or cut to its first `keep` bytes.
    Leaving { keep: Bytes },
    /// It is being written back and leaves afterwards, but for its first `keep` bytes.
    Flushing { keep: Bytes },
    /// It moves to another tier, where this many bytes are promised to it.
    Moving { to: Tier, promised: Bytes },
    /// It is being fetched to a tier, where so many more bytes are promised to it.
    Arriving { on: Tier, promised: Bytes },
}

/// An object that is on a tier, about to be, or held by somebody meanwhile.
#[derive(Debug, Clone, Copy)]
struct ObjectState {
    /// The tier that has it.
    home: Option<Tier>,
    bytes: Bytes,
    transfer: Transfer,
    /// Left alone until then, because it could not leave.
    paused: Tick,
    dirty: bool,
    busy: bool,
    pinned: bool,
    /// Accesses since it came to its tier.
    hits: u8,
}

impl ObjectState {
    const NEW: Self = Self {
        home: None,
        bytes: Bytes::ZERO,
        transfer: Transfer::Settled,
        paused: Tick(0),
        dirty: false,
        busy: false,
        pinned: false,
        hits: 0,
    };

    /// Whether there is any reason to remember it.
    fn matters(&self) -> bool {
        let held = self.busy || self.pinned || self.dirty;
        held || self.home.is_some() || self.transfer != Transfer::Settled
    }

    fn may_leave(&self, now: Tick) -> bool {
        !self.busy && !self.pinned && self.transfer == Transfer::Settled && self.paused <= now
    }

    /// Bytes of it that are on their way out of its tier.
    fn leaving(&self) -> Bytes {
        match self.transfer {
            Transfer::Leaving { keep } | Transfer::Flushing { keep } => self.bytes - keep,
            Transfer::Moving { .. } => self.bytes,
            Transfer::Settled | Transfer::Arriving { .. } => Bytes::ZERO,
        }
    }
}

/// One tier with its policy.
#[derive(Debug)]
struct TierState {
    config: TierConfig,
    policy: Box<dyn Policy>,
    used: Bytes,
    leaving: Bytes,
    incoming: Bytes,
    /// Room is being made down to the low mark.
    relieving: bool,
    /// Bytes that have to go still for a writer who waits. What is on its way out may have to stay after all.
    pressure: Bytes,
    /// The most that an object was found to take beyond what it asked for: its header and the rest of
    /// its last block. Without room for that every newcomer to a full tier would pass the high mark,
    /// and room would be made down to the low one.
    surcharge: Bytes,
}

impl TierState {
    /// Bytes that it will hold when everything in flight has landed.
    fn level(&self) -> Bytes {
        self.used - self.leaving + self.incoming
    }

    /// Bytes that must be set moving now.
    fn lacking(&self) -> Bytes {
        let pressed = self.pressure - self.leaving;
        let marked = if self.relieving { self.level() - self.config.low } else { Bytes::ZERO };
        pressed.max(marked)
    }

    /// What counts as used when a newcomer asks for room.
    fn used_before(&self, candidate: &Candidate) -> Bytes {
        let whole = Bytes(candidate.size) + self.surcharge;
        let apart = candidate.resident == 0 && whole <= self.config.high;
        self.level() + if apart { self.surcharge } else { Bytes::ZERO }
    }

    /// A newcomer takes so many bytes more than were promised to it. What one writes meanwhile is not
    /// what the next one will take, so that only a small part of the tier is believed.
    fn surcharged(&mut self, extra: Bytes) {
        let believed = Bytes(self.config.high.0 / 256);
        self.surcharge = self.surcharge.max(extra.min(believed));
    }

    /// Whether so many more bytes fit beside everything that is still there.
    fn fits(&self, bytes: Bytes) -> bool {
        self.used + self.incoming + bytes <= self.config.capacity
    }
}

/// Decides what stays on which tier, what moves and what must be flushed. See the module's text
/// for the contract.
#[derive(Debug)]
pub struct Steward {
    tier_states: Vec<TierState>,
    objects: Map<ObjectState>,
    /// Objects left alone, in the order in which their pauses end.
    pauses: BTreeSet<(Tick, u64)>,
    batch: usize,
    refusal_pause: u64,
    deadline: Option<Tick>,
    victims: Vec<Victim>,
    prefetch: Prefetcher,
    last_access: Option<Ino>,
}

impl Steward {
    /// A steward of empty tiers.
    ///
    /// # Errors
    /// [`ConfigError`] when the tiers, their marks or the policy's name make no sense.
    pub fn new(config: &StewardConfig) -> Result<Self, ConfigError> {
        if config.tiers.is_empty() || config.tiers.len() > 255 {
            return Err(ConfigError::Tiers);
        }
        let mut tier_states = Vec::with_capacity(config.tiers.len());
        for (rank, tier) in config.tiers.iter().enumerate() {
            let ordered = tier.low <= tier.high && tier.high <= tier.capacity;
            if !ordered || tier.capacity == Bytes::ZERO {
                return Err(ConfigError::Marks(Tier(rank as u8)));
            }
            let options = PolicyConfig { capacity: tier.high.0, ..config.options };
            tier_states.push(TierState {
                config: tier.clone(),
                policy: by_name(&config.policy, &options)?,
                used: Bytes::ZERO,
                leaving: Bytes::ZERO,
                incoming: Bytes::ZERO,
                relieving: false,
                pressure: Bytes::ZERO,
                surcharge: Bytes::ZERO,
            });
        }
        Ok(Self {
            tier_states,
            objects: Map::default(),
            pauses: BTreeSet::new(),
            batch: config.batch.max(1),
            refusal_pause: config.refusal_pause.max(1),
            deadline: None,
            victims: Vec::new(),
            prefetch: Prefetcher::new(config.prefetch),
            last_access: None,
        })
    }

    /// Takes one event in and appends what should be done to `actions`. Bounded work: what does not
    /// fit into one step is due at [`Self::next_deadline`]. Events about unknown objects and tiers
    /// are ignored.
    pub fn step(&mut self, now: Tick, event: &Event, actions: &mut Vec<Action>) {
        self.wake(now);
        match event {
            Event::Access { object, size, write } => {
                self.access(now, *object, *size, *write, actions);
            }
            Event::Wanted { object, size, prefetch } => {
                let placement = self.place(now, *object, *size, *prefetch, actions);
                actions.push(match placement {
                    Placement::Tier(tier, bytes) => Action::Place { object: *object, tier, bytes },
                    Placement::Bypass => Action::Bypass { object: *object },
                });
            }
            Event::Resident { object, tier, bytes } => self.resident(*object, *tier, *bytes),
            Event::Removed { object } => self.removed(*object),
            Event::Dirty { object } => self.change(*object, |state| state.dirty = true),
            Event::Clean { object } => self.clean(now, *object, actions),
            Event::Busy { object } => self.change(*object, |state| state.busy = true),
            Event::Idle { object } => {
                self.prefetch.stir();
                self.change(*object, |state| state.busy = false);
                self.reconsider(now, *object);
                self.promote(now, *object, actions);
            }
            Event::Pinned { object } => self.change(*object, |state| state.pinned = true),
            Event::Unpinned { object } => {
                self.change(*object, |state| state.pinned = false);
                self.reconsider(now, *object);
            }
            Event::Pressure { tier, need } => {
                if let Some(tier_state) = self.tier_states.get_mut(tier.index()) {
                    let pressed = tier_state.pressure.max(*need);
                    tier_state.pressure = if *need > Bytes::ZERO { pressed } else { Bytes::ZERO };
                }
            }
            Event::Refused { object } => self.refused(now, *object),
            Event::Unflushed { object } => self.unflushed(now, *object),
            Event::Hint { job, change } => self.hint(*job, change),
            Event::Fetched { object } => self.fetched(*object),
            Event::Tick => {}
        }
        // What is being opened is not held yet, and who waits for room comes first.
        let waits =
            matches!(event, Event::Access { .. } | Event::Wanted { .. } | Event::Pressure { .. });
        if !waits {
            self.fetch_ahead(now, actions);
        }
        self.relieve(now, actions);
    }

    /// When to call [`Self::step`] with [`Event::Tick`] if nothing else happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        let pause = self.pauses.first().map(|(until, _)| *until);
        [self.deadline, pause].into_iter().flatten().min()
    }

    /// Asks where a wanted object should go: [`Event::Wanted`] as a function. `actions` also gets
    /// the `Place` or `Bypass`, last but for the victims of background work.
    pub fn admit(
        &mut self,
        now: Tick,
        object: Ino,
        size: Bytes,
        prefetch: bool,
        actions: &mut Vec<Action>,
    ) -> Placement {
        let first = actions.len();
        self.step(now, &Event::Wanted { object, size, prefetch }, actions);
        let answer = actions[first..].iter().find_map(|action| match *action {
            Action::Place { object: of, tier, bytes } if of == object => {
                Some(Placement::Tier(tier, bytes))
            }
            _ => None,
        });
        answer.unwrap_or(Placement::Bypass)
    }

    /// How often the policies changed whom they follow, all tiers together.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.tier_states.iter().map(|tier_state| tier_state.policy.switches()).sum()
    }

    /// The tiers as status shows them, fastest first.
    #[must_use]
    pub fn snapshot(&self) -> Vec<TierSnapshot> {
        let tier = |tier_state: &TierState| TierSnapshot {
            used: tier_state.used,
            leaving: tier_state.leaving,
            incoming: tier_state.incoming,
            pinned: Bytes::ZERO,
            policy: tier_state.policy.snapshot(),
        };
        let mut tiers: Vec<_> = self.tier_states.iter().map(tier).collect();
        for state in self.objects.values().filter(|state| state.pinned) {
            if let Some(tier) = state.home.and_then(|home| tiers.get_mut(usize::from(home.0))) {
                tier.pinned += state.bytes;
            }
        }
        tiers
    }

    /// Bytes that are known to be on a tier.
    #[must_use]
    pub fn used(&self, tier: Tier) -> Bytes {
        self.tier_states.get(tier.index()).map_or(Bytes::ZERO, |state| state.used)
    }

    /// Whether anything is on its way out of a tier.
    #[must_use]
    pub fn is_leaving(&self, tier: Tier) -> bool {
        self.tier_states.get(tier.index()).is_some_and(|state| state.leaving > Bytes::ZERO)
    }

    /// Changes what is remembered of an object, which need not be resident.
    fn change(&mut self, object: Ino, change: impl FnOnce(&mut ObjectState)) {
        let state = self.objects.entry(object.0).or_insert(ObjectState::NEW);
        change(state);
        if !state.matters() {
            self.objects.remove(&object.0);
        }
    }

    /// Puts objects whose pause is over back into their policies' order.
    fn wake(&mut self, now: Tick) {
        while let Some(&(until, object)) = self.pauses.first() {
            if until > now {
                break;
            }
            self.pauses.pop_first();
            self.reconsider(now, Ino(object));
        }
    }

    /// Tells the policy that the object is there (again), if it may leave.
    fn reconsider(&mut self, now: Tick, object: Ino) {
        if let Some(state) = self.objects.get(&object.0)
            && let Some(home) = state.home
            && state.may_leave(now)
        {
            self.tier_states[home.index()].policy.inserted(object.0, state.bytes.0);
        }
    }

    fn access(
        &mut self,
        now: Tick,
        object: Ino,
        size: Bytes,
        write: bool,
        actions: &mut Vec<Action>,
    ) {
        if let Some(state) = self.objects.get_mut(&object.0) {
            state.hits = state.hits.saturating_add(1);
        }
        let kind = if write { AccessKind::Write } else { AccessKind::Read };
        let access = [Access { object: object.0, size: size.0, kind }];
        // Every policy sees every access: frequencies and sequences know no tiers, and an object
        // that is not on a policy's books costs it one look-up. A program that opens a file twice in
        // a row makes one reference (correlated references, O'Neil et al., SIGMOD 1993).
        if self.last_access != Some(object) {
            for tier_state in &mut self.tier_states {
                tier_state.policy.observe(&access);
            }
        }
        self.last_access = Some(object);
        self.prefetch.access(object, size);
        self.promote(now, object, actions);
    }

    fn hint(&mut self, job: u64, change: &HintChange) {
        self.prefetch.hint(job, change);
        let objects: Vec<u64>;
        let hint = match change {
            HintChange::Append(references) => {
                objects = references.iter().map(|reference| reference.object.0).collect();
                Hint::Append { job, objects: &objects }
            }
            HintChange::Close => Hint::Close { job },
            HintChange::Advance(by) => Hint::Advance { job, by: *by },
            HintChange::Withdraw => Hint::Withdraw { job },
        };
        for tier_state in &mut self.tier_states {
            tier_state.policy.hint(&hint);
        }
    }

    /// Asks the policy of a tier for a newcomer, and sets its victims moving. `Some(bytes)` when it
    /// takes that many more bytes and they fit beside everything that is still there. A newcomer
    /// that may do `no_harm` is turned away if any of its victims is needed sooner.
    fn ask(
        &mut self,
        now: Tick,
        tier: Tier,
        candidate: Candidate,
        no_harm: bool,
        actions: &mut Vec<Action>,
    ) -> Option<Bytes> {
        let objects = &self.objects;
        let busy = |object: u64| {
            object == candidate.object
                || objects.get(&object).is_none_or(|state| !state.may_leave(now))
        };
        let tier_state = self.tier_states.get_mut(tier.index())?;
        let room = Room {
            capacity: tier_state.config.high.0,
            used: tier_state.used_before(&candidate).0,
            limit: self.batch,
            busy: &busy,
        };
        let mut victims = std::mem::take(&mut self.victims);
        victims.clear();
        let mut admission = tier_state.policy.admit(&candidate, &room, &mut victims);
        victims.retain(|victim| victim.object != candidate.object);
        let newcomer = Ino(candidate.object);
        let harm = |victim: &Victim| self.prefetch.harms(newcomer, Ino(victim.object));
        if no_harm && (admission == Admission::Bypass || victims.iter().any(harm)) {
            for victim in victims.drain(..) {
                self.reconsider(now, Ino(victim.object));
            }
            admission = Admission::Bypass;
        }
        for victim in &victims {
            self.dispatch(now, tier, victim, actions);
        }
        self.victims = victims;
        let bytes = match admission {
            Admission::Whole => candidate.size,
            Admission::Head(bytes) => bytes.min(candidate.size),
            Admission::Bypass => 0,
        };
        let more = Bytes(bytes.saturating_sub(candidate.resident));
        let tier_state = &mut self.tier_states[tier.index()];
        let taken = (more > Bytes::ZERO || candidate.size == 0) && tier_state.fits(more);
        match candidate.resident {
            _ if taken => {}
            0 => tier_state.policy.removed(candidate.object),
            resident => tier_state.policy.inserted(candidate.object, resident),
        }
        taken.then_some(more)
    }

    fn place(
        &mut self,
        now: Tick,
        object: Ino,
        size: Bytes,
        prefetch: bool,
        actions: &mut Vec<Action>,
    ) -> Placement {
        let known = self.objects.get(&object.0).copied().unwrap_or(ObjectState::NEW);
        if let Transfer::Arriving { on, promised } = known.transfer
            && self.prefetch.is_flying(object)
            && !prefetch
        {
            // Who waits takes over what was promised to the fetch ahead.
            self.prefetch.overtaken(object);
            return Placement::Tier(on, known.bytes + promised);
        }
        if known.transfer != Transfer::Settled {
            // On its way out, or promised already to whoever asked first.
            return Placement::Bypass;
        }
        if let Some(home) = known.home
            && known.bytes >= size
        {
            return Placement::Tier(home, known.bytes);
        }
        let candidate =
            Candidate { object: object.0, size: size.0, resident: known.bytes.0, prefetch };
        // A part that is resident stays where it is; a newcomer tries the fastest tier first.
        let tiers = match known.home {
            Some(home) => home.0..=home.0,
            None => 0..=(self.tier_states.len() - 1) as u8,
        };
        for on in tiers.map(Tier) {
            let Some(promised) = self.ask(now, on, candidate, false, actions) else { continue };
            self.promise(object, on, promised);
            return Placement::Tier(on, known.bytes + promised);
        }
        Placement::Bypass
    }

    fn promise(&mut self, object: Ino, on: Tier, promised: Bytes) {
        self.tier_states[on.index()].incoming += promised;
        self.change(object, |state| state.transfer = Transfer::Arriving { on, promised });
    }

    /// Ends what is under way with an object: promises and departures are taken off the books.
    fn settle(&mut self, object: Ino) {
        let Some(state) = self.objects.get_mut(&object.0) else { return };
        if let Some(home) = state.home {
            self.tier_states[home.index()].leaving -= state.leaving();
        }
        if let Transfer::Moving { to: tier, promised } | Transfer::Arriving { on: tier, promised } =
            state.transfer
        {
            let tier_state = &mut self.tier_states[tier.index()];
            tier_state.incoming -= promised;
            if state.home != Some(tier) {
                tier_state.policy.removed(object.0);
            }
        }
        state.transfer = Transfer::Settled;
    }

    fn resident(&mut self, object: Ino, tier: Tier, bytes: Bytes) {
        if tier.index() >= self.tier_states.len() {
            return;
        }
        let before = *self.objects.entry(object.0).or_insert(ObjectState::NEW);
        if before.home == Some(tier) {
            self.update(object, tier, before, bytes);
            return;
        }
        self.settle(object);
        self.depart(object);
        self.change(object, |state| {
            state.home = Some(tier);
            state.bytes = bytes;
            state.hits = 0;
        });
        let tier_state = &mut self.tier_states[tier.index()];
        if let Transfer::Arriving { on, promised } = before.transfer
            && on == tier
        {
            tier_state.surcharged(bytes - promised);
        }
        tier_state.used += bytes;
        tier_state.policy.inserted(object.0, bytes.0);
    }

    /// A resident object has other bytes on the same tier: it grew, shrank, was cut, was completed.
    fn update(&mut self, object: Ino, tier: Tier, before: ObjectState, bytes: Bytes) {
        let landed = match before.transfer {
            Transfer::Arriving { .. } => true,
            Transfer::Leaving { keep } => keep > Bytes::ZERO && bytes <= keep,
            Transfer::Settled | Transfer::Flushing { .. } | Transfer::Moving { .. } => false,
        };
        if landed {
            self.settle(object);
        }
        let Some(state) = self.objects.get_mut(&object.0) else { return };
        if let Transfer::Moving { to, promised } = &mut state.transfer {
            // It takes along what was written meanwhile.
            let incoming = &mut self.tier_states[to.index()].incoming;
            *incoming = *incoming - *promised + bytes;
            *promised = bytes;
        }
        let tier_state = &mut self.tier_states[tier.index()];
        tier_state.pressure -= before.bytes - bytes;
        tier_state.used = tier_state.used - before.bytes + bytes;
        tier_state.leaving -= state.leaving();
        state.bytes = bytes;
        tier_state.leaving += state.leaving();
        if landed {
            tier_state.policy.inserted(object.0, bytes.0);
        } else {
            tier_state.policy.resized(object.0, bytes.0);
        }
    }

    /// Takes the object off its tier's books.
    fn depart(&mut self, object: Ino) {
        let Some(state) = self.objects.get_mut(&object.0) else { return };
        if let Some(home) = state.home.take() {
            let tier_state = &mut self.tier_states[home.index()];
            tier_state.used -= state.bytes;
            tier_state.pressure -= state.bytes;
            tier_state.policy.removed(object.0);
        }
        state.bytes = Bytes::ZERO;
    }

    fn removed(&mut self, object: Ino) {
        self.prefetch.left(object);
        self.settle(object);
        self.depart(object);
        // Who holds it open or pinned holds it still.
        self.change(object, |state| state.dirty = false);
    }

    fn clean(&mut self, now: Tick, object: Ino, actions: &mut Vec<Action>) {
        self.change(object, |state| state.dirty = false);
        self.end_pause(now, object);
        let Some(state) = self.objects.get_mut(&object.0) else { return };
        let (Transfer::Flushing { keep }, Some(home)) = (state.transfer, state.home) else {
            return;
        };
        if state.busy || state.pinned {
            // Somebody wants it after all.
            self.settle(object);
            self.reconsider(now, object);
        } else {
            state.transfer = Transfer::Leaving { keep };
            actions.push(departure(object, home, keep));
        }
    }

    /// The driver could not do it: the object is back, and left alone for a while.
    fn refused(&mut self, now: Tick, object: Ino) {
        self.settle(object);
        self.pause(object, now.after(self.refusal_pause));
    }

    /// It could not be written back: it stays, and others have their turn.
    fn unflushed(&mut self, now: Tick, object: Ino) {
        let flushing = |state: &ObjectState| matches!(state.transfer, Transfer::Flushing { .. });
        if self.objects.get(&object.0).is_some_and(flushing) {
            self.settle(object);
            self.pause(object, now.after(self.refusal_pause.saturating_mul(FLUSH_PAUSES)));
        }
    }

    fn pause(&mut self, object: Ino, until: Tick) {
        let Some(state) = self.objects.get_mut(&object.0) else { return };
        self.pauses.remove(&(state.paused, object.0));
        state.paused = until;
        self.pauses.insert((until, object.0));
        self.change(object, |_| {});
    }

    /// What it was left alone for is over: it may leave now.
    fn end_pause(&mut self, now: Tick, object: Ino) {
        if let Some(state) = self.objects.get_mut(&object.0)
            && self.pauses.remove(&(state.paused, object.0))
        {
            state.paused = now;
            self.reconsider(now, object);
        }
    }

    /// Sets a victim of a tier's policy moving.
    fn dispatch(&mut self, now: Tick, tier: Tier, victim: &Victim, actions: &mut Vec<Action>) {
        let object = Ino(victim.object);
        let Some(&state) = self.objects.get(&victim.object) else { return };
        let keep = Bytes(victim.keep);
        if keep == Bytes::ZERO && !victim.dead && self.demote(now, object, tier, state, actions) {
            return;
        }
        let (transfer, action) = if state.dirty {
            (Transfer::Flushing { keep }, Action::Flush { object })
        } else {
            (Transfer::Leaving { keep }, departure(object, tier, keep))
        };
        self.take_off(object, transfer);
        actions.push(action);
    }

    /// Moves a victim down one tier if the policy there takes it.
    fn demote(
        &mut self,
        now: Tick,
        object: Ino,
        from: Tier,
        state: ObjectState,
        actions: &mut Vec<Action>,
    ) -> bool {
        let to = Tier(from.0.saturating_add(1));
        if to.index() >= self.tier_states.len() {
            return false;
        }
        // Its own victims come through here again, one tier down: as deep as there are tiers.
        let promised = state.bytes;
        let candidate =
            Candidate { object: object.0, size: promised.0, resident: 0, prefetch: true };
        let scratch = std::mem::take(&mut self.victims);
        let taken = self.ask(now, to, candidate, false, actions);
        self.victims = scratch;
        if taken != Some(promised) {
            return false;
        }
        self.tier_states[to.index()].incoming += promised;
        self.take_off(object, Transfer::Moving { to, promised });
        actions.push(Action::Demote { object, from, to });
        true
    }

    fn take_off(&mut self, object: Ino, transfer: Transfer) {
        if let Some(state) = self.objects.get_mut(&object.0)
            && let Some(home) = state.home
        {
            state.transfer = transfer;
            self.tier_states[home.index()].leaving += state.leaving();
        }
    }

    /// Moves a busy-no-more object of a slower tier up if it has been used there and the policy
    /// above takes it.
    fn promote(&mut self, now: Tick, object: Ino, actions: &mut Vec<Action>) {
        let Some(&state) = self.objects.get(&object.0) else { return };
        let Some(from) = state.home else { return };
        let Some(rank) = from.0.checked_sub(1) else { return };
        if state.hits < PROMOTE_AFTER || !state.may_leave(now) || state.dirty {
            return;
        }
        let to = Tier(rank);
        let promised = state.bytes;
        let candidate =
            Candidate { object: object.0, size: promised.0, resident: 0, prefetch: true };
        self.change(object, |state| state.hits = 0);
        if self.ask(now, to, candidate, false, actions) != Some(promised) {
            return;
        }
        if self.objects.get(&object.0).is_none_or(|state| state.transfer != Transfer::Settled) {
            // What had to come down for it was given its own place.
            self.tier_states[to.index()].policy.removed(object.0);
            return;
        }
        self.tier_states[to.index()].incoming += promised;
        self.tier_states[from.index()].policy.removed(object.0);
        self.take_off(object, Transfer::Moving { to, promised });
        actions.push(Action::Promote { object, from, to });
    }

    /// Makes room where a mark or a writer asks for it, at most one batch for each tier.
    fn relieve(&mut self, now: Tick, actions: &mut Vec<Action>) {
        self.deadline = None;
        for rank in 0..self.tier_states.len() {
            let tier_state = &mut self.tier_states[rank];
            tier_state.relieving |= tier_state.level() > tier_state.config.high;
            let need = tier_state.lacking();
            if need > Bytes::ZERO {
                let objects = &self.objects;
                let busy =
                    |object: u64| objects.get(&object).is_none_or(|state| !state.may_leave(now));
                let demand = Demand { bytes: need.0, limit: self.batch, busy: &busy };
                let mut victims = std::mem::take(&mut self.victims);
                victims.clear();
                tier_state.policy.victims(&demand, &mut victims);
                let found = !victims.is_empty();
                for victim in &victims {
                    self.dispatch(now, Tier(rank as u8), victim, actions);
                }
                self.victims = victims;
                self.look_again(now, rank, found);
            }
            let tier_state = &mut self.tier_states[rank];
            tier_state.relieving &= tier_state.level() > tier_state.config.low;
            // No more can go than is there.
            tier_state.pressure = tier_state.pressure.min(tier_state.used);
        }
    }

    /// Sets the deadline when a tier lacks room still: at once if the batch was the limit, after a
    /// pause if nothing could leave.
    fn look_again(&mut self, now: Tick, rank: usize, found: bool) {
        if self.tier_states[rank].lacking() > Bytes::ZERO {
            let due = if found { now } else { now.after(self.refusal_pause) };
            self.deadline = Some(self.deadline.map_or(due, |earlier| earlier.min(due)));
        }
    }
}

fn departure(object: Ino, tier: Tier, keep: Bytes) -> Action {
    if keep == Bytes::ZERO {
        Action::Evict { object, tier }
    } else {
        Action::Truncate { object, tier, keep }
    }
}
