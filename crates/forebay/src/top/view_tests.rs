//! The whole screen, character for character, on a terminal in memory.

use std::time::Instant;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::control::{BusyFile, BytesBySource, Dirty, Passthrough, Status};

fn status(hits: u64, misses: u64) -> Status {
    Status {
        mountpoint: "/mnt/data".into(),
        backing: "/nfs/data".into(),
        uptime_s: 65,
        rss_bytes: 48 << 20,
        tiers: vec![TierStatus {
            dir: "/dev/shm/f".into(),
            size_bytes: 4 << 30,
            used_bytes: 1 << 30,
            dirty_bytes: 3 << 20,
            ..TierStatus::default()
        }],
        hits,
        misses,
        bytes: BytesBySource { tier: hits << 20, backing: misses << 20, ..Default::default() },
        dirty: Dirty { files: 2, bytes: 3 << 20, oldest_s: 4, list: Vec::new() },
        busiest: vec![BusyFile {
            path: "a/b.bin".into(),
            opens: 1234,
            bytes: 5 << 20,
            resident: true,
        }],
        passthrough: Passthrough { mode: "readwrite".into(), opens: 99, ..Passthrough::default() },
        errors: 1,
        ..Status::default()
    }
}

fn draw(width: u16, height: u16) -> Vec<String> {
    let start = Instant::now();
    let mut history = History::new(status(0, 0), start);
    history.push(status(50, 50), start + Duration::from_secs(1));
    history.push(status(150, 50), start + Duration::from_secs(2));
    let screen = Screen { history: &history, interval: Duration::from_millis(500), paused: true };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            (0..width)
                .map(|x| plain(buffer[(x, y)].symbol()))
                .collect::<String>()
                .trim_end()
                .to_owned()
        })
        .collect()
}

/// Lines and blocks as characters that every editor shows.
fn plain(symbol: &str) -> &str {
    match symbol {
        "\u{2502}" => "|",
        "\u{2500}" => "-",
        "\u{250c}" | "\u{2510}" | "\u{2514}" | "\u{2518}" => "+",
        "\u{2588}" => "#",
        "\u{2581}" | "\u{2582}" | "\u{2583}" | "\u{2584}" | "\u{2585}" | "\u{2586}"
        | "\u{2587}" => "=",
        other => other,
    }
}

#[test]
fn draw_when_there_is_a_status_then_the_screen_is_as_designed() {
    let expected = r"forebay  /mnt/data  over  /nfs/data  up 1 min 05 s  memory 48.0 MiB
+ tiers -------------------------------------------------------------------------------------------+
|/dev/shm/f                   #############25 %  1.00 GiB of 4.00 GiB, dirty 3.00 MiB              |
+--------------------------------------------------------------------------------------------------+
+ hits 100 %  opens 100/s -----------------------++ throughput (without passthrough) --------------+
| #                                              ||from and to tiers                 100 MiB/s     |
| #                                              ||backing store, waited for         0 B/s         |
|=#                                              ||spilled past full tiers           0 B/s         |
|##                                              ||filled into tiers                 0 B/s         |
|##                                              ||written back                      0 B/s         |
+------------------------------------------------++------------------------------------------------+
+ not yet in the backing store --------------------------------------------------------------------+
|2 files, 3.00 MiB, oldest 4 s; backlog 0                                                          |
|passthrough readwrite (99 opens)  1 errors                                                        |
+--------------------------------------------------------------------------------------------------+
+ busiest files -----------------------------------------------------------------------------------+
|file                                                             opens        size       where    |
|a/b.bin                                                          1,234        5.00 MiB   resident |
|                                                                                                  |
|                                                                                                  |
+--------------------------------------------------------------------------------------------------+
q quit  p pause  + slower  - faster   every 500ms  PAUSED";
    assert_eq!(draw(100, 22).join("\n"), expected);
}

#[test]
fn draw_when_the_terminal_is_tiny_then_nothing_panics() {
    for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 80)] {
        assert_eq!(draw(width, height).len(), usize::from(height));
    }
}
