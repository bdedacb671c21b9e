//! The better of two for tiny caches. Where only two or three files fit, packing decides, and now
//! the heuristic, now MIN for whole files is ahead; with chunks there is nothing to choose.
//!
//! Both are replayed beside the tier as shadows with residencies of their own; the one whose shadow
//! has missed fewer bytes lately decides for the tier. Meant for tiers of a few dozen files: an
//! access costs four policies.

use super::replay::Cache;
use super::{
    Access, Admission, Candidate, Demand, Hint, Policy, PolicyConfig, Room, Snapshot, Victim,
};
use super::{Heuristic, Ordered, min_whole};

/// Missed bytes count half after so many accesses.
const HALF_LIFE: u64 = 256;

/// The heuristic or MIN-whole, whichever does better on what is asked for.
#[derive(Debug)]
pub struct Portfolio {
    members: [Box<dyn Policy>; 2],
    shadows: [Cache; 2],
    missed: [u64; 2],
    accesses: u64,
}

impl Portfolio {
    /// An empty one for a tier of `config.capacity` bytes.
    #[must_use]
    pub fn new(config: &PolicyConfig) -> Self {
        let members = || -> [Box<dyn Policy>; 2] {
            [Box::new(Ordered::new(Heuristic::corrected())), min_whole(config)]
        };
        let shadows = members().map(|policy| Cache::with(policy, config.capacity));
        Self { members: members(), shadows, missed: [0; 2], accesses: 0 }
    }

    /// The member that decides now; the others watch the tier.
    fn leader(&mut self) -> (&mut dyn Policy, &mut dyn Policy) {
        let [heuristic, min] = &mut self.members;
        if self.missed[0] < self.missed[1] {
            (&mut **heuristic, &mut **min)
        } else {
            (&mut **min, &mut **heuristic)
        }
    }

    /// Tells the watcher who left by the leader's decision.
    fn pass_on(watcher: &mut dyn Policy, gone: &[Victim]) {
        for victim in gone {
            watcher.removed(victim.object);
        }
    }
}

impl Policy for Portfolio {
    fn name(&self) -> &'static str {
        "portfolio"
    }

    fn observe(&mut self, accesses: &[Access]) {
        for access in accesses {
            for (shadow, missed) in self.shadows.iter_mut().zip(&mut self.missed) {
                *missed += shadow.request(access.object, access.size).miss_bytes;
            }
            self.accesses += 1;
            if self.accesses.is_multiple_of(HALF_LIFE) {
                self.missed = self.missed.map(|missed| missed / 2);
            }
        }
        for member in &mut self.members {
            member.observe(accesses);
        }
    }

    fn looks_ahead(&self) -> bool {
        true
    }

    fn hint(&mut self, hint: &Hint<'_>) {
        for member in &mut self.members {
            member.hint(hint);
        }
        for shadow in &mut self.shadows {
            shadow.policy().hint(hint);
        }
    }

    fn inserted(&mut self, object: u64, bytes: u64) {
        for member in &mut self.members {
            member.inserted(object, bytes);
        }
    }

    fn resized(&mut self, object: u64, bytes: u64) {
        for member in &mut self.members {
            member.resized(object, bytes);
        }
    }

    fn removed(&mut self, object: u64) {
        for member in &mut self.members {
            member.removed(object);
        }
    }

    fn admit(
        &mut self,
        candidate: &Candidate,
        room: &Room<'_>,
        out: &mut Vec<Victim>,
    ) -> Admission {
        let first = out.len();
        let (leader, watcher) = self.leader();
        let admission = leader.admit(candidate, room, out);
        Self::pass_on(watcher, &out[first..]);
        admission
    }

    fn victims(&mut self, demand: &Demand<'_>, out: &mut Vec<Victim>) -> u64 {
        let first = out.len();
        let (leader, watcher) = self.leader();
        let freed = leader.victims(demand, out);
        Self::pass_on(watcher, &out[first..]);
        freed
    }

    fn snapshot(&self) -> Snapshot {
        let leader = usize::from(self.missed[0] >= self.missed[1]);
        let other = self.members[1 - leader].snapshot();
        let own = self.members[leader].snapshot();
        Snapshot {
            admitted: own.admitted + other.admitted,
            bypassed: own.bypassed + other.bypassed,
            victims: own.victims + other.victims,
            ..own
        }
    }
}
