//! What goes into a process and what comes out of it.

use std::collections::BTreeSet;

/// A process of the group, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

/// A file that the group has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File(pub u32);

/// A call of a program, by a number that the driver chooses: below 2^63, and never twice in a
/// process. Numbers above are the machine's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Memory for a page in the pool of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// An access to the file that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Io(pub u64);

/// A page of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page {
    /// The file.
    pub file: File,
    /// Its number in the file.
    pub index: u64,
}

/// Who holds a lock or waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The process.
    pub rank: Rank,
    /// Its call.
    pub call: CallId,
}

/// Bytes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first.
    pub at: u32,
    /// How many.
    pub len: u32,
}

impl Span {
    pub(crate) fn end(self) -> u32 {
        self.at + self.len
    }

    /// The smallest span that has both.
    pub(crate) fn with(self, other: Self) -> Self {
        let at = self.at.min(other.at);
        Self { at, len: self.end().max(other.end()) - at }
    }
}

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteLocation {
    /// In a slot of the pool.
    Slot {
        /// The slot.
        slot: Slot,
        /// The first byte.
        at: u32,
    },
    /// In a slot of another process's pool, see [`crate::Options::shared_pools`]. To read only.
    Other {
        /// The process.
        rank: Rank,
        /// The slot.
        slot: Slot,
        /// The first byte.
        at: u32,
    },
    /// In the buffer of a call: the program's, or one that [`Action::Buffer`] made.
    Call {
        /// The call.
        call: CallId,
        /// The first byte.
        at: u64,
    },
    /// Among the bytes that came with the message in hand.
    Message {
        /// The first byte.
        at: u64,
    },
}

/// Bytes in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where they lie.
    pub location: ByteLocation,
    /// How many.
    pub len: u64,
}

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Fills the buffer.
    Read,
    /// Takes from the buffer.
    Write,
}

/// What a program asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Reads or writes, all extents as one atomic call, unless it is collective.
    Access {
        /// The file.
        file: File,
        /// What is done.
        access: Access,
        /// Whether all processes of the group make this call.
        collective: bool,
        /// Where, ascending and apart; the buffer has them one after the other.
        extents: Vec<Extent>,
    },
    /// Writes back what this process has. To sync a file, the driver has all processes finish their
    /// calls, gives each this, waits until each is done, and tells each [`Event::Synced`].
    Sync {
        /// The file.
        file: File,
    },
    /// The same, and forgets the file. The driver has all processes sync it first.
    Close {
        /// The file.
        file: File,
    },
}

/// What happens to a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A file was opened by the whole group; no page of it is cached.
    Open {
        /// The file.
        file: File,
        /// How long it is.
        length: u64,
    },
    /// A program makes a call.
    Start {
        /// Its number.
        call: CallId,
        /// What it asks for.
        request: Request,
    },
    /// A message came. Those of one sender come in the order in which they were sent.
    Message {
        /// The sender.
        from: Rank,
        /// What it says.
        message: Message,
    },
    /// An access to the file has ended.
    Finished {
        /// Which.
        io: Io,
        /// Whether it succeeded.
        ok: bool,
    },
    /// All processes have done a sync of a file that they began together.
    Synced {
        /// The file.
        file: File,
    },
    /// A process is gone, and its accesses to files have ended.
    Died {
        /// Which.
        rank: Rank,
    },
}

/// What a driver does, in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends a message, with bytes.
    Send {
        /// To whom.
        to: Rank,
        /// What it says.
        message: Message,
        /// The bytes that go with it.
        bytes: Vec<Piece>,
    },
    /// Copies bytes at once.
    Copy {
        /// From here.
        from: ByteLocation,
        /// To there.
        to: ByteLocation,
        /// How many.
        len: u64,
    },
    /// Makes a page of zeros.
    Zero {
        /// Where.
        slot: Slot,
    },
    /// Reads from the file; what is beyond its end reads as zeros. Ends with [`Event::Finished`].
    Read {
        /// Its number.
        io: Io,
        /// The file.
        file: File,
        /// The first byte.
        offset: u64,
        /// Where the bytes go, one after the other.
        pieces: Vec<Piece>,
        /// Whether a byte-range lock is held around it.
        range_lock: bool,
    },
    /// Writes to the file. Ends with [`Event::Finished`].
    Write {
        /// Its number.
        io: Io,
        /// The file.
        file: File,
        /// The first byte.
        offset: u64,
        /// Where the bytes are, one after the other.
        pieces: Vec<Piece>,
        /// Whether a byte-range lock is held around it.
        range_lock: bool,
    },
    /// Makes what was written to the file durable. Ends with [`Event::Finished`].
    Sync {
        /// Its number.
        io: Io,
        /// The file.
        file: File,
    },
    /// Makes a buffer for a call of the machine's own.
    Buffer {
        /// The call.
        call: CallId,
        /// Its size.
        len: u64,
    },
    /// Frees such a buffer.
    Free {
        /// The call.
        call: CallId,
    },
    /// A call is done.
    Done {
        /// Which.
        call: CallId,
        /// How it went.
        outcome: Outcome,
    },
    /// What was written to a page, and not synced, is lost with the process that had it.
    Lost {
        /// The page.
        page: Page,
    },
}

/// How a call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// As asked for.
    Done,
    /// As asked for, but something that was written before and not synced was lost with a process
    /// that died, and the call went on with what the file has. Said once; the program must get an
    /// error.
    Lost,
    /// The file could not be read or written.
    Failed,
}

/// How a page is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// With others that read.
    Read,
    /// Alone; others keep their copies, as the bytes stay what they are.
    Alone,
    /// Alone; copies of others have been dropped.
    Write,
}

/// What a home says with a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// How the page is locked: as asked for, or stronger.
    pub mode: Mode,
    /// Who has the page.
    pub owner: Option<Rank>,
    /// In which slot, if pools are shared and the home knows.
    pub slot: Option<Slot>,
    /// How often it was written.
    pub version: u64,
    /// Whether the owner has what the file does not have, as far as the home knows.
    pub dirty: bool,
    /// Whether something written before was lost.
    pub lost: bool,
    /// Whether the file never had the page.
    pub absent: bool,
    /// Whether the page should move to whom the lock is granted.
    pub take: bool,
    /// Whether it may be kept to read it without asking.
    pub copy: bool,
}

/// Where a page is when it is unlocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// Where it was.
    Same,
    /// With whom unlocks it.
    Mine,
    /// With nobody.
    Nobody,
}

/// What happened to a page under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Note {
    /// Where it is.
    pub holder: Holder,
    /// In which slot of who unlocks it, if it is there and pools are shared.
    pub slot: Option<Slot>,
    /// Its new version, if it was written.
    pub version: Option<u64>,
    /// Whether it was written to the file and not to a cached page.
    pub direct: bool,
    /// Whether the process keeps it to read it without asking.
    pub reader: bool,
    /// Whether the process has passed on that something was lost.
    pub heard: bool,
}

/// A lock as its holder reports it to a new home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// The page.
    pub page: Page,
    /// Who holds it.
    pub ticket: Ticket,
    /// How, and what was granted.
    pub grant: Grant,
}

/// A page as who caches it reports it to a new home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cached {
    /// The page.
    pub page: Page,
    /// Whether it is the page itself; else a copy.
    pub owner: bool,
    /// Whether the process reads it without asking.
    pub reader: bool,
    /// Its version.
    pub version: u64,
    /// Whether it is dirty.
    pub dirty: bool,
}

/// Bytes of a page that are accessed for another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// The page's number in the file.
    pub index: u64,
    /// Which bytes of it.
    pub span: Span,
    /// Where they are in the buffer.
    pub buffer: u64,
}

/// What processes say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// To the home: lock a page.
    Lock {
        /// For whom.
        ticket: Ticket,
        /// The page.
        page: Page,
        /// How.
        mode: Mode,
    },
    /// From the home: it is locked.
    Granted {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// What is known about it.
        grant: Grant,
    },
    /// To the home: it is not needed any more.
    Unlock {
        /// Whose lock.
        ticket: Ticket,
        /// The page.
        page: Page,
        /// What happened.
        note: Note,
    },
    /// To the owner: send bytes of a page.
    Get {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// Which bytes.
        spans: Vec<Span>,
    },
    /// From the owner, with bytes.
    Got {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
    },
    /// To the owner, with bytes: store them in a page.
    Put {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// Which bytes.
        spans: Vec<Span>,
        /// The page's version before, as the home knows it.
        version: u64,
    },
    /// From the owner: they are stored.
    Stored {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// The page's version now.
        version: u64,
    },
    /// To the owner: send a copy of the page.
    Fetch {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
    },
    /// From the owner, with the page.
    Fetched {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// Its version.
        version: u64,
    },
    /// To the owner: give the page away.
    Take {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
    },
    /// From the owner, with the page, which it has no more.
    Taken {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
        /// Its version.
        version: u64,
        /// What of it is dirty.
        dirty: Option<Span>,
    },
    /// From who was taken for the owner.
    Absent {
        /// For which call.
        call: CallId,
        /// The page.
        page: Page,
    },
    /// From the home: drop a copy, ask before the page is read again.
    Invalidate {
        /// The page.
        page: Page,
    },
    /// To the home: it is done.
    Invalidated {
        /// The page.
        page: Page,
    },
    /// To the home: these pages are in the file up to these versions.
    Cleaned {
        /// The pages.
        pages: Vec<(Page, u64)>,
    },
    /// To homes, with bytes if it writes: access your pages for a collective call.
    Ship {
        /// Which call.
        call: CallId,
        /// The process whose pages these were from the beginning.
        segment: Rank,
        /// The file.
        file: File,
        /// What is done.
        access: Access,
        /// Where, ascending; the bytes that go with it lie one after the other.
        parts: Vec<Part>,
    },
    /// From the home, with bytes if it read.
    Shipped {
        /// For which call.
        call: CallId,
        /// The process whose pages these were from the beginning.
        segment: Rank,
        /// How it went.
        outcome: Outcome,
    },
    /// To the new home of the pages that a dead process was the home of.
    Report {
        /// The process whose pages these were from the beginning.
        segment: Rank,
        /// Who is known to be dead.
        dead: BTreeSet<Rank>,
        /// Locks held.
        held: Vec<Held>,
        /// Pages cached.
        cached: Vec<Cached>,
    },
    /// To who may still hear a process that is dead: hear it no more.
    Fence {
        /// The dead process.
        dead: Rank,
    },
    /// It is not heard any more.
    Fenced {
        /// The dead process.
        dead: Rank,
    },
}
