//! What other nodes keep of what is written and not yet in the backing store, as users say it.

use std::fmt;
use std::str::FromStr;

/// How what is written is kept from being lost with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redundancy {
    /// Not at all: it is there again when the node is.
    #[default]
    None,
    /// By copies on other nodes.
    Replicas {
        /// How many other nodes; at least one.
        copies: u8,
        /// Whether `fsync` and `close` wait for them.
        wait: bool,
    },
    /// By fragments on other nodes: the owner has the whole, and `data` of the fragments give it back.
    Code {
        /// Fragments that are needed; at least two.
        data: u8,
        /// Nodes that may be lost, the owner among them; at least one.
        parity: u8,
        /// Whether `fsync` and `close` wait for them.
        wait: bool,
    },
}

impl Redundancy {
    /// The most copies that can be asked for, and the most nodes that a code may bear the loss of.
    pub const MAX: u8 = 8;
    /// The most fragments that may be needed.
    pub const MAX_DATA: u8 = 16;

    /// How many nodes beside the owner it takes. With a code of K+M they are K+M-1: the owner has the
    /// whole file, and if it is lost with M-1 of the others, K are left.
    #[must_use]
    pub fn others(self) -> usize {
        match self {
            Redundancy::None => 0,
            Redundancy::Replicas { copies, .. } => copies.into(),
            Redundancy::Code { data, parity, .. } => {
                usize::from(data) + usize::from(parity).saturating_sub(1)
            }
        }
    }

    /// Whether `fsync` and `close` wait until it is so.
    #[must_use]
    pub fn waits(self) -> bool {
        match self {
            Redundancy::None => false,
            Redundancy::Replicas { wait, .. } | Redundancy::Code { wait, .. } => wait,
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::None => return f.write_str("none"),
            Redundancy::Replicas { copies, .. } => write!(f, "replicas={copies}")?,
            Redundancy::Code { data, parity, .. } => write!(f, "ec={data}+{parity}")?,
        }
        f.write_str(if self.waits() { "" } else { ",async" })
    }
}

/// What was given is no redundancy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither none nor replicas=N nor ec=K+M, perhaps with ,async: N and M from 1 to {most}, K from 2 to {data}", most = Redundancy::MAX, data = Redundancy::MAX_DATA)]
pub struct NotRedundancy(String);

impl FromStr for Redundancy {
    type Err = NotRedundancy;

    fn from_str(text: &str) -> Result<Self, NotRedundancy> {
        let wrong = || NotRedundancy(text.to_owned());
        if text == "none" {
            return Ok(Redundancy::None);
        }
        let (kind, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (numbers, wait) = match rest.split_once(',') {
            None => (rest, true),
            Some((numbers, "async")) => (numbers, false),
            Some((numbers, "sync")) => (numbers, true),
            Some(_) => return Err(wrong()),
        };
        let number = |text: &str, least: u8, most: u8| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| plain);
            number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
        };
        match kind {
            "replicas" => Ok(Redundancy::Replicas { copies: number(numbers, 1, Self::MAX)?, wait }),
            "ec" => {
                let (data, parity) = numbers.split_once('+').ok_or_else(wrong)?;
                let data = number(data, 2, Self::MAX_DATA)?;
                Ok(Redundancy::Code { data, parity: number(parity, 1, Self::MAX)?, wait })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn redundancy_when_shown_and_read_then_the_same(copies in 1..=Redundancy::MAX, wait: bool) {
            let one = Redundancy::Replicas { copies, wait };
            prop_assert_eq!(one.to_string().parse(), Ok(one));
        }

        #[test]
        fn code_when_shown_and_read_then_the_same_and_any_loss_that_it_bears_leaves_enough(
            data in 2..=Redundancy::MAX_DATA,
            parity in 1..=Redundancy::MAX,
            wait: bool,
        ) {
            let one = Redundancy::Code { data, parity, wait };
            prop_assert_eq!(one.to_string().parse(), Ok(one));
            // The owner and as many others as may be lost with it.
            prop_assert_eq!(one.others() - usize::from(parity - 1), usize::from(data));
        }

        #[test]
        fn text_when_it_is_no_redundancy_then_refused(text in "[a-z=,0-9]{0,12}") {
            if let Ok(one) = text.parse::<Redundancy>() {
                prop_assert_eq!(one.to_string().parse(), Ok(one));
            }
        }
    }

    #[test]
    fn redundancy_when_of_no_sense_then_refused() {
        for text in [
            "",
            "replicas",
            "replicas=0",
            "replicas=9",
            "replicas=1,fast",
            "replicas=+1",
            "two",
            "ec",
            "ec=4",
            "ec=1+1",
            "ec=17+1",
            "ec=4+0",
            "ec=4+9",
            "ec=4+2,fast",
            "ec=4++2",
        ] {
            assert!(text.parse::<Redundancy>().is_err(), "{text}");
        }
        assert_eq!("none".parse(), Ok(Redundancy::None));
        let code = Redundancy::Code { data: 4, parity: 2, wait: false };
        assert_eq!("ec=4+2,async".parse(), Ok(code));
        assert_eq!("replicas=2,sync".parse(), Ok(Redundancy::Replicas { copies: 2, wait: true }));
    }
}
