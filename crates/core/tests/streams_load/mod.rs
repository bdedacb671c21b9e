//! Streams of equal rate on a fast device in virtual time, for what a visit costs.

use forebay_core::streams::admission::AdmissionConfig;
use forebay_core::streams::layout::Layout;
use forebay_core::streams::machine::{Action, Actions, Config, Event, Machine, StreamId, Title};
use forebay_core::streams::profile::DeviceProfile;
use forebay_core::streams::rate::Rate;
use forebay_core::unit::Tick;

const CHUNK: u64 = 65_536;
const RATE: u64 = 65_536;
/// Long enough never to end.
const FILE: u64 = 1 << 40;
const APART: u64 = 1 << 28;

/// The machine and its clients, who report what they took just before each visit.
pub struct Load {
    pub machine: Machine,
    streams: u64,
    actions: Actions,
    now: Tick,
    /// When each stream began to play.
    since: Vec<Option<u64>>,
    taken: Vec<u64>,
    filled: Vec<u64>,
    cursor: u64,
    read: Option<(forebay_core::streams::machine::Read, u64)>,
}

impl Load {
    /// So many streams, all admitted, none started.
    pub fn new(streams: u64) -> Self {
        let mut profile = DeviceProfile::built_in("ssd").expect("built in");
        profile.parallel = 1;
        for access in &mut profile.access {
            (access.mean, access.least, access.worst) = (50e-6, 50e-6, 60e-6);
            access.variance = 0.0;
        }
        for zone in &mut profile.zones {
            zone.rate = 8e9;
        }
        let cycles = vec![4 * Tick::SECOND];
        let memory = 16 << 30;
        let admission = AdmissionConfig { memory, chunk: CHUNK, cycles, ..Default::default() };
        let starters = u32::try_from(streams).expect("few");
        let config = Config { admission, starters, interval: 0, ..Default::default() };
        let count = streams as usize;
        let mut load = Self {
            machine: Machine::new(profile, config).expect("a configuration"),
            streams,
            actions: Actions::default(),
            now: Tick(0),
            since: vec![None; count],
            taken: vec![0; count],
            filled: vec![0; count],
            cursor: 0,
            read: None,
        };
        let rate = Rate::constant(RATE).expect("a rate");
        for at in 0..streams {
            let layout = Layout::contiguous(at * APART, FILE).expect("a layout");
            let (stream, title, rate) = (StreamId(at), Title(at), rate.clone());
            let max_startup = Some(u64::MAX);
            load.step(Event::Join { stream, title, rate, layout, offset: 0, max_startup });
        }
        assert_eq!(load.machine.population(), (streams, streams), "all are admitted");
        load
    }

    fn step(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        self.machine.step(self.now, event, &mut actions);
        for action in &actions.list {
            match action {
                Action::Read(read) => {
                    let service = 55_000 + read.bytes / 8;
                    self.read = Some((*read, service));
                }
                Action::Playing(stream) => self.since[stream.0 as usize] = Some(self.now.0),
                Action::Filled { stream, up_to } => self.filled[stream.0 as usize] = *up_to,
                _ => {}
            }
        }
        self.actions = actions;
    }

    fn report(&mut self, stream: u64) {
        let at = stream as usize;
        let Some(since) = self.since[at] else { return };
        let played = u128::from(self.now.0 - since) * u128::from(RATE) / u128::from(Tick::SECOND);
        let may = u64::try_from(played).expect("small").min(self.filled[at]) / CHUNK * CHUNK;
        let bytes = may.saturating_sub(self.taken[at]);
        if bytes > 0 {
            self.taken[at] = may;
            self.step(Event::Consumed { stream: StreamId(stream), bytes });
        }
    }

    /// Lets so many visits pass.
    pub fn visits(&mut self, count: u64) {
        let end = self.machine.counters().visits + count;
        while self.machine.counters().visits < end {
            if let Some((read, service)) = self.read.take() {
                self.now = self.now.after(service);
                // The next in order is about to be visited: it reports what it took.
                self.report((read.title.0 + 1) % self.streams);
                self.step(Event::ReadDone { read: read.read, service });
            } else {
                let wake = self.machine.next_deadline().expect("something is due");
                self.now = self.now.max(wake);
                // Whoever the order has passed over.
                self.cursor = (self.cursor + 1) % self.streams;
                self.report(self.cursor);
                if self.read.is_none() {
                    self.step(Event::Tick);
                }
            }
        }
    }

    /// Until all play and have been visited a few times.
    pub fn warm_up(&mut self) {
        while self.since.iter().any(Option::is_none) {
            self.visits(1);
        }
        self.visits(4 * self.streams);
    }
}
