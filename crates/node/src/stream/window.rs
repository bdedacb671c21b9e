//! Which reads of a program go along its stream. No I/O: the answers follow from the reads alone.

/// So far ahead of its stream a read may begin: what lies between is passed over.
const SKIP_MAX: u64 = 256 << 10;

/// The way of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Along the stream, after so many bytes that are passed over.
    Along {
        /// Bytes.
        skip: u64,
    },
    /// The program goes on elsewhere: the stream shall, too.
    Seek,
    /// It stands alone: it takes another way, and the stream stays where it is.
    Aside,
}

/// Where a stream is, and where its program has read beside it.
#[derive(Debug)]
pub struct Window {
    next: u64,
    aside: Option<u64>,
}

impl Window {
    /// A stream whose next byte is `next`.
    pub fn new(next: u64) -> Self {
        Window { next, aside: None }
    }

    /// The next byte of the stream.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The way of a read of `len` bytes at `offset`. One read elsewhere is not a seek: players look
    /// at indexes at the ends of files and come back. A second one that goes on where the first has
    /// ended is.
    pub fn way(&mut self, offset: u64, len: u64) -> Way {
        if let Some(skip) = offset.checked_sub(self.next).filter(|skip| *skip <= SKIP_MAX) {
            self.aside = None;
            return Way::Along { skip };
        }
        if self.aside == Some(offset) {
            return Way::Seek;
        }
        self.aside = Some(offset + len);
        Way::Aside
    }

    /// The stream gave so many bytes.
    pub fn advance(&mut self, bytes: u64) {
        self.next += bytes;
    }

    /// The stream goes on elsewhere.
    pub fn moved(&mut self, next: u64) {
        *self = Window::new(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_when_in_sequence_or_a_little_ahead_then_along_the_stream() {
        let mut window = Window::new(0);
        assert_eq!(window.way(0, 100), Way::Along { skip: 0 });
        window.advance(100);
        assert_eq!(window.way(100, 100), Way::Along { skip: 0 });
        assert_eq!(window.way(150, 100), Way::Along { skip: 50 });
        assert_eq!(window.next(), 100);
    }

    #[test]
    fn read_elsewhere_when_alone_then_the_stream_stays_and_when_gone_on_then_it_seeks() {
        let mut window = Window::new(1 << 20);
        let end = 1 << 40;
        assert_eq!(window.way(end, 4096), Way::Aside, "an index at the end");
        assert_eq!(window.way(0, 4096), Way::Aside, "another at the beginning");
        assert_eq!(window.way(1 << 20, 4096), Way::Along { skip: 0 }, "and back");
        assert_eq!(window.way(4096, 4096), Way::Aside, "what was aside is forgotten");
        assert_eq!(window.way(8192, 4096), Way::Seek);
        // Refused: it is asked for again with each read that goes on there.
        assert_eq!(window.way(8192, 4096), Way::Seek);
        window.moved(8192);
        assert_eq!(window.way(8192, 4096), Way::Along { skip: 0 });
    }
}
