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
}

impl Redundancy {
    /// The most copies that can be asked for.
    pub const MOST: u8 = 8;
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::None => f.write_str("none"),
            Redundancy::Replicas { copies, wait: true } => write!(f, "replicas={copies}"),
            Redundancy::Replicas { copies, wait: false } => write!(f, "replicas={copies},async"),
        }
    }
}

/// What was given is no redundancy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither none nor replicas=N nor replicas=N,async, with N from 1 to {most}", most = Redundancy::MOST)]
pub struct NotRedundancy(String);

impl FromStr for Redundancy {
    type Err = NotRedundancy;

    fn from_str(text: &str) -> Result<Self, NotRedundancy> {
        let wrong = || NotRedundancy(text.to_owned());
        if text == "none" {
            return Ok(Redundancy::None);
        }
        let rest = text.strip_prefix("replicas=").ok_or_else(wrong)?;
        let (number, wait) = match rest.split_once(',') {
            None => (rest, true),
            Some((number, "async")) => (number, false),
            Some((number, "sync")) => (number, true),
            Some(_) => return Err(wrong()),
        };
        match number.parse() {
            Ok(copies @ 1..=Redundancy::MOST) => Ok(Redundancy::Replicas { copies, wait }),
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
        fn redundancy_when_shown_and_read_then_the_same(copies in 1..=Redundancy::MOST, wait: bool) {
            let one = Redundancy::Replicas { copies, wait };
            prop_assert_eq!(one.to_string().parse(), Ok(one));
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
        for text in ["", "replicas", "replicas=0", "replicas=9", "replicas=1,fast", "ec=4+2", "two"]
        {
            assert!(text.parse::<Redundancy>().is_err(), "{text}");
        }
        assert_eq!("none".parse(), Ok(Redundancy::None));
        assert_eq!("replicas=2,sync".parse(), Ok(Redundancy::Replicas { copies: 2, wait: true }));
    }
}
