//! What popular titles on a tier take off the device, when films are asked for by Zipf's law and what
//! is popular changes: by opens that fade (`forebay_core::streams::popular`, as a mount keeps whole
//! titles), beside least recently used and the best choice in hindsight.
//!
//!     cargo test -p forebay-sim --test stream_titles -- --nocapture

use std::collections::VecDeque;

use forebay_core::streams::popular::{Opening, Popular};
use forebay_core::unit::Tick;

const TITLES: usize = 1000;
const OPENS: usize = 60_000;
/// One open in 20 s: a service of 270 films of 90 minutes at a time.
const APART: u64 = 20 * Tick::SECOND;
/// After so many opens (two days) a tenth of the popular titles change.
const CHANGE: usize = 8_640;
const HALF_LIFE: u64 = 3_600 * Tick::SECOND;
/// A film of an average size.
const SIZE: u64 = 1_000;

struct Random(u64);

impl Random {
    /// Between 0 and 1 (SplitMix64).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Titles in the order in which they are opened.
fn opens(exponent: f64) -> Vec<usize> {
    let mut random = Random(7);
    let mut sums = Vec::new();
    let mut all = 0.0;
    for rank in 1..=TITLES {
        all += (rank as f64).powf(-exponent);
        sums.push(all);
    }
    let mut titles: Vec<usize> = (0..TITLES).collect();
    let mut opens = Vec::new();
    for at in 0..OPENS {
        if at % CHANGE == CHANGE - 1 {
            for rank in (0..TITLES / 10).step_by(10) {
                titles.swap(rank, TITLES / 2 + (random.next() * TITLES as f64 / 2.0) as usize);
            }
        }
        let point = random.next() * all;
        opens.push(titles[sums.partition_point(|sum| *sum < point).min(TITLES - 1)]);
    }
    opens
}

/// Bytes of a title: from half to three halves of the average, by its number.
fn size(title: usize) -> u64 {
    SIZE / 2 + (title as u64 * 7_919) % SIZE
}

/// The share of bytes that come from the tier, if a title that is kept is there from the next open on.
fn by_opens(opens: &[usize], budget: u64) -> f64 {
    let mut popular = Popular::new(budget, 1, HALF_LIFE);
    let (mut tier, mut all) = (0, 0);
    for (at, title) in opens.iter().enumerate() {
        let size = size(*title);
        all += size;
        tier += if popular.kept(*title) >= size { size } else { 0 };
        // As a mount says it.
        let opening = Opening { title: *title, size, rate: Tick::SECOND, startup: size };
        popular.opened(Tick(at as u64 * APART), opening, &mut Vec::new());
    }
    tier as f64 / all as f64
}

fn least_recently_used(opens: &[usize], budget: u64) -> f64 {
    let mut kept: VecDeque<usize> = VecDeque::new();
    let (mut tier, mut all, mut used) = (0, 0, 0);
    for title in opens {
        all += size(*title);
        match kept.iter().position(|other| other == title) {
            Some(at) => {
                tier += size(*title);
                kept.remove(at);
            }
            None => used += size(*title),
        }
        kept.push_back(*title);
        while used > budget {
            used -= size(kept.pop_front().expect("it has just been filled"));
        }
    }
    tier as f64 / all as f64
}

/// The titles that are opened most all in all, there from the beginning.
fn in_hindsight(opens: &[usize], budget: u64) -> f64 {
    let mut counts = vec![0u64; TITLES];
    opens.iter().for_each(|title| counts[*title] += 1);
    let mut order: Vec<usize> = (0..TITLES).collect();
    order.sort_by_key(|title| std::cmp::Reverse(counts[*title]));
    let (mut used, mut tier) = (0, 0);
    for title in order {
        if used + size(title) <= budget {
            used += size(title);
            tier += counts[title] * size(title);
        }
    }
    let all: u64 = opens.iter().map(|title| size(*title)).sum();
    tier as f64 / all as f64
}

#[test]
fn popular_titles_when_whole_on_a_tier_then_the_device_carries_more_streams_than_with_lru() {
    println!("zipf  tier  by opens  lru    hindsight  streams, of those without a tier");
    for exponent in [0.7, 0.9] {
        let opens = opens(exponent);
        for percent in [2, 5, 10, 20] {
            let budget = TITLES as u64 * SIZE * percent / 100;
            let ours = by_opens(&opens, budget);
            let (lru, best) = (least_recently_used(&opens, budget), in_hindsight(&opens, budget));
            println!(
                "{exponent:.1}   {percent:>3} %  {ours:.3}     {lru:.3}  {best:.3}      {:.2} ({:.2})",
                1.0 / (1.0 - ours),
                1.0 / (1.0 - lru)
            );
            assert!(ours >= lru, "zipf {exponent}, {percent} %: {ours:.3}, LRU {lru:.3}");
        }
    }
}
