//! What processes say to each other, as bytes. All of a job run the same build on machines of one
//! kind, so that there are no versions; what can't be read is refused.

use std::collections::BTreeSet;

use forebay_coop::Message;
use forebay_coop::message::{
    Access, Cached, CallId, File, Grant, Held, Holder, Mode, Note, Outcome, Page, Part, Rank, Slot,
    Span, Ticket,
};

/// Something with a form as bytes.
pub trait Wire: Sized {
    /// Appends it.
    fn put(&self, bytes: &mut Vec<u8>);
    /// Takes it from the front. `None` if it is not there.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*first))
            }
        }
    )*};
}

macro_rules! structs {
    ($($name:ident { $($field:tt),* })*) => {$(
        impl Wire for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Wire::take(bytes)?),* })
            }
        }
    )*};
}

macro_rules! enums {
    ($($name:ident { $($number:literal $case:ident { $($field:ident),* })* })*) => {$(
        impl Wire for $name {
            fn put(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$case { $($field),* } => {
                        bytes.push($number);
                        $($field.put(bytes);)*
                    })*
                }
            }
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                match u8::take(bytes)? {
                    $($number => Some(Self::$case { $($field: Wire::take(bytes)?),* }),)*
                    _ => None,
                }
            }
        }
    )*};
}

numbers!(u8, u32, u64, i64);

impl Wire for bool {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match u8::take(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.is_some().put(bytes);
        if let Some(it) = self {
            it.put(bytes);
        }
    }
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(if bool::take(bytes)? { Some(T::take(bytes)?) } else { None })
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        (self.len() as u64).put(bytes);
        self.iter().for_each(|it| it.put(bytes));
    }
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let count = u64::take(bytes)?;
        // Each takes at least one byte: no length that was made up makes a large vector.
        if count > bytes.len() as u64 {
            return None;
        }
        (0..count).map(|_| T::take(bytes)).collect()
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn put(&self, bytes: &mut Vec<u8>) {
        (self.len() as u64).put(bytes);
        self.iter().for_each(|it| it.put(bytes));
    }
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Vec::take(bytes)?.into_iter().collect())
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, bytes: &mut Vec<u8>) {
        self.0.put(bytes);
        self.1.put(bytes);
    }
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::take(bytes)?, B::take(bytes)?))
    }
}

structs! {
    Rank { 0 }
    File { 0 }
    CallId { 0 }
    Slot { 0 }
    Page { file, index }
    Ticket { rank, call }
    Span { at, len }
    Part { index, span, buffer }
    Grant { mode, owner, slot, version, dirty, lost, absent, take, copy }
    Note { holder, slot, version, direct, reader, heard }
    Held { page, ticket, grant }
    Cached { page, owner, reader, version, dirty }
}

/// A request to the keeper of a file's length and shared pointer, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The file reaches at least to here. Answer: its length.
    Grow {
        /// The end of what was written.
        end: u64,
    },
    /// Move the shared pointer. Answer: where it was.
    Advance {
        /// By how many elementary types.
        by: i64,
    },
    /// Set the shared pointer. Answer: the same.
    Point {
        /// To where.
        at: i64,
    },
}

/// All that goes from one process to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Envelope {
    /// From one machine to another; bytes follow.
    Machine {
        /// What it says.
        message: Message,
    },
    /// To the keeper.
    Question {
        /// The asker's number.
        number: u64,
        /// What is asked.
        ask: Ask,
    },
    /// From the keeper.
    Answer {
        /// The asker's number.
        number: u64,
        /// What is answered.
        value: i64,
    },
}

enums! {
    Access { 0 Read {} 1 Write {} }
    Mode { 0 Read {} 1 Alone {} 2 Write {} }
    Holder { 0 Same {} 1 Mine {} 2 Nobody {} }
    Outcome { 0 Done {} 1 Lost {} 2 Failed {} }
    Ask { 0 Grow { end } 1 Advance { by } 2 Point { at } }
    Envelope { 0 Machine { message } 1 Question { number, ask } 2 Answer { number, value } }
    Message {
        0 Lock { ticket, page, mode }
        1 Granted { call, page, grant }
        2 Unlock { ticket, page, note }
        3 Get { call, page, spans }
        4 Got { call, page }
        5 Put { call, page, spans, version }
        6 Stored { call, page, version }
        7 Fetch { call, page }
        8 Fetched { call, page, version }
        9 Take { call, page }
        10 Taken { call, page, version, dirty }
        11 Absent { call, page }
        12 Invalidate { page }
        13 Invalidated { page }
        14 Cleaned { pages }
        15 Ship { call, segment, file, access, parts }
        16 Shipped { call, segment, outcome }
        17 Report { segment, dead, held, cached }
        18 Fence { dead }
        19 Fenced { dead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> impl Strategy<Value = Page> {
        (any::<u32>(), any::<u64>()).prop_map(|(file, index)| Page { file: File(file), index })
    }

    fn grant() -> impl Strategy<Value = Grant> {
        let owner = proptest::option::of(any::<u32>().prop_map(Rank));
        (owner, any::<u64>(), any::<[bool; 5]>()).prop_map(|(owner, version, flags)| Grant {
            mode: if flags[0] { Mode::Write } else { Mode::Alone },
            owner,
            slot: owner.map(|rank| Slot(rank.0 / 3)),
            version,
            dirty: flags[1],
            lost: flags[2],
            absent: flags[3],
            take: flags[4],
            copy: !flags[4],
        })
    }

    fn spans() -> impl Strategy<Value = Vec<Span>> {
        let span = (any::<u32>(), any::<u32>()).prop_map(|(at, len)| Span { at, len });
        proptest::collection::vec(span, 0..5)
    }

    fn message() -> impl Strategy<Value = Message> {
        let call = || any::<u64>().prop_map(CallId);
        let ticket =
            || (any::<u32>(), call()).prop_map(|(rank, call)| Ticket { rank: Rank(rank), call });
        let part = (any::<u64>(), any::<u32>(), any::<u64>())
            .prop_map(|(index, at, buffer)| Part { index, span: Span { at, len: at / 2 }, buffer });
        let parts = proptest::collection::vec(part, 0..5);
        prop_oneof![
            (ticket(), page()).prop_map(|(ticket, page)| Message::Lock {
                ticket,
                page,
                mode: Mode::Read
            }),
            (call(), page(), grant()).prop_map(|(call, page, grant)| Message::Granted {
                call,
                page,
                grant
            }),
            (ticket(), page(), proptest::option::of(any::<u64>())).prop_map(
                |(ticket, page, version)| {
                    let holder = if version.is_some() { Holder::Mine } else { Holder::Nobody };
                    let note = Note {
                        holder,
                        slot: version.map(|version| Slot(version as u32)),
                        version,
                        direct: true,
                        reader: false,
                        heard: true,
                    };
                    Message::Unlock { ticket, page, note }
                }
            ),
            (call(), page(), spans(), any::<u64>()).prop_map(|(call, page, spans, version)| {
                Message::Put { call, page, spans, version }
            }),
            (call(), page(), spans()).prop_map(|(call, page, spans)| Message::Taken {
                call,
                page,
                version: 7,
                dirty: spans.first().copied()
            }),
            (call(), any::<u32>(), parts).prop_map(|(call, segment, parts)| Message::Ship {
                call,
                segment: Rank(segment),
                file: File(3),
                access: Access::Write,
                parts
            }),
            (page(), ticket(), grant(), any::<bool>()).prop_map(|(page, ticket, grant, dirty)| {
                Message::Report {
                    segment: Rank(1),
                    dead: [Rank(2), Rank(5)].into(),
                    held: vec![Held { page, ticket, grant }],
                    cached: vec![Cached { page, owner: true, reader: false, version: 9, dirty }],
                }
            }),
        ]
    }

    proptest! {
        #[test]
        fn message_when_written_then_read_back_with_what_follows(
            message in message(),
            tail in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let envelope = Envelope::Machine { message };
            let mut bytes = Vec::new();
            envelope.put(&mut bytes);
            bytes.extend(&tail);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(Envelope::take(&mut rest), Some(envelope));
            prop_assert_eq!(rest, tail.as_slice());
        }

        #[test]
        fn message_when_bytes_are_arbitrary_then_no_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut rest = bytes.as_slice();
            // What is understood is written as it was read.
            if let Some(envelope) = Envelope::take(&mut rest) {
                let mut again = Vec::new();
                envelope.put(&mut again);
                let read = &bytes[..bytes.len() - rest.len()];
                prop_assert_eq!(Envelope::take(&mut again.as_slice()), Some(envelope));
                prop_assert_eq!(again.len(), read.len());
            }
        }
    }
}
