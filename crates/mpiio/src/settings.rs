//! What the environment and the hints of a program say.

use forebay_coop::Options;

/// Without a word from anybody.
const PAGE_SIZE: u64 = 256 << 10;
const POOL_SIZE: u64 = 64 << 20;
/// Pages are neither smaller nor larger than this, and a pool has at least so many.
const PAGES: std::ops::RangeInclusive<u64> = 512..=64 << 20;
const LEAST_SLOTS: u64 = 4;

/// How a file is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether it is.
    pub cache: bool,
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of a process.
    pub slots: u32,
    /// Whether by the paper's scheme.
    pub paper: bool,
    /// Whether through the memory of the node's daemon, where there is one.
    pub memory: bool,
}

impl Settings {
    /// By hints and variables; those stand above these. What can't be understood is as if it were
    /// not there.
    pub fn of(
        hint: impl Fn(&str) -> Option<String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let either = |name: &str| {
            let upper = name.to_ascii_uppercase().replace("FOREBAY_", "FOREBAY_MPIIO_");
            variable(&upper).or_else(|| hint(name))
        };
        let size = |name| either(name).and_then(|text| bytes(&text));
        let page_size = size("forebay_page_size").unwrap_or(PAGE_SIZE);
        let page_size = page_size.clamp(*PAGES.start(), *PAGES.end());
        let pool_size = size("forebay_pool_size").unwrap_or(POOL_SIZE);
        let slots = (pool_size / page_size).clamp(LEAST_SLOTS, u64::from(u32::MAX / 2));
        Self {
            cache: either("forebay_cache").and_then(|text| yes(&text)).unwrap_or(true),
            page_size: page_size as u32,
            slots: slots as u32,
            paper: variable("FOREBAY_MPIIO_SCHEME").as_deref() == Some("paper"),
            memory: variable("FOREBAY_MPIIO_TRANSPORT").as_deref() != Some("mpi"),
        }
    }

    /// The scheme. Pages do not migrate: which of their bytes were written would have to move along.
    pub fn options(&self, shared_pools: bool) -> Options {
        if self.paper {
            return Options::paper(self.page_size, self.slots);
        }
        Options { migrate: None, shared_pools, ..Options::full(self.page_size, self.slots) }
    }

    /// Bytes of the pool.
    pub fn pool_size(&self) -> u64 {
        u64::from(self.page_size) * u64::from(self.slots)
    }
}

/// A number of bytes: `65536`, `64K`, `1M`, `2G`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|envelope: char| envelope.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Yes or no.
pub fn yes(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" | "enable" => Some(true),
        "0" | "false" | "no" | "off" | "disable" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(hints: &[(&str, &str)], variables: &[(&str, &str)]) -> Settings {
        let of = |list: &[(&str, &str)], name: &str| {
            list.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::of(|name| of(hints, name), |name| of(variables, name))
    }

    #[test]
    fn settings_of_hints_and_variables_then_variables_win() {
        let hints = [("forebay_page_size", "64k"), ("forebay_pool_size", "1M")];
        let hinted = settings(&hints, &[]);
        assert_eq!((hinted.page_size, hinted.slots, hinted.cache), (65536, 16, true));
        let both = settings(&hints, &[("FOREBAY_MPIIO_PAGE_SIZE", "4096")]);
        assert_eq!((both.page_size, both.slots), (4096, 256));
        assert!(both.memory && !settings(&[], &[("FOREBAY_MPIIO_TRANSPORT", "mpi")]).memory);
        assert!(!settings(&[("forebay_cache", "disable")], &[]).cache);
        assert!(settings(&[("forebay_cache", "no")], &[("FOREBAY_MPIIO_CACHE", "1")]).cache);
    }

    #[test]
    fn settings_that_make_no_sense_then_bounded() {
        let odd = settings(&[("forebay_page_size", "1"), ("forebay_pool_size", "0")], &[]);
        assert_eq!((odd.page_size, odd.slots), (512, 4));
        let none = settings(&[("forebay_page_size", "many"), ("forebay_cache", "?")], &[]);
        assert_eq!(none, settings(&[], &[]));
    }
}
