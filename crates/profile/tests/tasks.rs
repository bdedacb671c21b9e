//! Tasks that share blocks and tasks that do not: by the paper's measure and by what is saved.

use forebay_profile::diagram::Grid;
use forebay_profile::flow::{self, Terms, overlap};
use forebay_profile::{Access, Config, Kind, Migration, Node, Origin, Profiler, paper};
use proptest::collection::vec;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn node() -> Node {
    Node { slots: 4, cores: 4.0, memory_bytes: 4 << 30, free_bytes: 2 << 30 }
}

fn access(task: u64, at: u64, block: u64, kind: Kind) -> Access {
    let origin = Origin { node: 0, task: Some(task), handle: 0 };
    Access { at, origin, file: 1, block, kind, count: 1 }
}

/// Two tasks on two nodes, 45 MB each.
fn two(config: Config) -> Profiler {
    let mut profiler = Profiler::new(config);
    for task in 0..2 {
        assert!(profiler.task(task, task as u32, 45_000_000, 0.5));
    }
    profiler
}

fn both(profiler: &Profiler) -> (Option<Migration>, Vec<Migration>) {
    let nodes = vec![node(); 2];
    (
        paper::plan(profiler, &nodes),
        flow::plan(profiler, &nodes, &Terms::default(), 1 << 40).concat(),
    )
}

fn fixed(rows: u64) -> Config {
    Config { grid: Grid::Rows(rows), ..Config::default() }
}

/// Bursts of 256 reads to two rows, which begin at `first`, at the beginning of each second.
fn bursts(profiler: &mut Profiler, task: u64, first: u64) {
    for second in 0..3 {
        for event in 0..255 {
            let block = first * 32 + event % 64;
            profiler.record(&access(task, second * 1000 * MS + event * MS / 10, block, Kind::Read));
        }
        let block = first * 32;
        profiler.record(&access(task, second * 1000 * MS + 999 * MS, block, Kind::Read));
    }
}

#[test]
fn disjoint_bursts_when_scanned_then_moved_by_the_paper_s_grid_and_left_alone_by_flow() {
    let mut profiler = two(fixed(32));
    bursts(&mut profiler, 0, 0);
    bursts(&mut profiler, 1, 16);
    let (by_paper, by_flow) = both(&profiler);
    assert_eq!(by_paper.map(|m| (m.task, m.from, m.to, m.with)), Some((1, 1, 0, 0)));
    assert_eq!(by_flow, []);
    assert_eq!(overlap(profiler.get(0).expect("there"), profiler.get(1).expect("there")), 0.0);
    // Compared over touched rows only, they are not similar.
    let mut profiler = two(Config::default());
    bursts(&mut profiler, 0, 0);
    bursts(&mut profiler, 1, 16);
    assert_eq!(both(&profiler), (None, vec![]));
}

#[test]
fn bursts_on_the_same_blocks_when_scanned_then_moved_by_both() {
    let mut profiler = two(Config::default());
    bursts(&mut profiler, 0, 0);
    bursts(&mut profiler, 1, 0);
    let (by_paper, by_flow) = both(&profiler);
    assert_eq!(by_paper.map(|m| (m.task, m.to)), Some((1, 0)));
    assert_eq!(by_flow.len(), 1);
    assert!(
        (overlap(profiler.get(0).expect("there"), profiler.get(1).expect("there")) - 1.0).abs()
            < 1e-9
    );
}

/// One writes block after block, the other reads them `lag` blocks later.
fn pipeline(profiler: &mut Profiler, lag: u64) {
    for step in 0..1024 + lag {
        let at = step * MS;
        profiler.record(&access(0, at, step, Kind::Write));
        if step >= lag {
            profiler.record(&access(1, at, step - lag, Kind::Read));
        }
    }
}

#[test]
fn consumer_that_lags_when_scanned_then_missed_by_the_paper_and_moved_by_flow() {
    for lag in [64, 128, 200] {
        let mut profiler = two(Config::default());
        pipeline(&mut profiler, lag);
        let (by_paper, by_flow) = both(&profiler);
        assert_eq!(by_paper, None, "lag {lag}");
        assert_eq!(by_flow.len(), 1, "lag {lag}");
        assert_eq!(by_flow[0].with, 1 - by_flow[0].task);
    }
}

#[test]
fn disjoint_scans_of_a_large_file_when_scanned_then_moved_by_the_paper_s_grid_only() {
    // 16 GiB in blocks of 64 KiB: 8,192 rows.
    let mut profiler = two(fixed(8192));
    for event in 0..768 {
        profiler.record(&access(0, event * MS, event, Kind::Read));
        profiler.record(&access(1, event * MS, 131_072 + event, Kind::Read));
    }
    let (by_paper, by_flow) = both(&profiler);
    assert!(by_paper.is_some_and(|m| m.worth > 0.999));
    assert_eq!(by_flow, []);
}

#[test]
fn image_above_a_quarter_of_the_memory_or_what_is_free_then_nothing_moves() {
    let mut profiler = two(Config::default());
    bursts(&mut profiler, 0, 0);
    bursts(&mut profiler, 1, 0);
    let limit = |memory_bytes, free_bytes| vec![Node { memory_bytes, free_bytes, ..node() }; 2];
    let moves = |nodes: &[Node]| {
        let ours = flow::plan(&profiler, nodes, &Terms::default(), 1 << 40).len();
        (paper::plan(&profiler, nodes).is_some(), ours)
    };
    assert_eq!(moves(&limit(180_000_000, 1 << 30)), (true, 1));
    assert_eq!(moves(&limit(180_000_000 - 1, 1 << 30)), (false, 0));
    assert_eq!(moves(&limit(1 << 30, 44_999_999)), (false, 0));
}

#[test]
fn node_without_a_slot_then_the_paper_moves_nothing_and_flow_exchanges() {
    let mut profiler = two(Config::default());
    pipeline(&mut profiler, 64);
    // Each has an idle neighbour that does something of its own.
    for (task, first) in [(2, 100_000), (3, 200_000)] {
        profiler.task(task, task as u32 - 2, 45_000_000, 0.5);
        for event in 0..1024 {
            profiler.record(&access(task, event * MS, first + event, Kind::Read));
        }
    }
    let nodes = vec![Node { slots: 2, ..node() }; 2];
    assert_eq!(paper::plan(&profiler, &nodes), None);
    let moves = flow::plan(&profiler, &nodes, &Terms::default(), 1 << 40).concat();
    assert_eq!(moves.len(), 2);
    assert_eq!((moves[0].from, moves[0].to), (moves[1].to, moves[1].from));
    assert!(moves[0].task < 2 && moves[1].task >= 2, "{moves:?}");
}

#[test]
fn node_that_is_busy_when_more_would_slow_it_down_then_flow_leaves_it_alone() {
    let mut profiler = two(Config::default());
    pipeline(&mut profiler, 64);
    for task in 0..2 {
        profiler.task(task, task as u32, 45_000_000, 1.0);
    }
    let nodes = |cores| vec![Node { cores, ..node() }; 2];
    let moves = |cores| flow::plan(&profiler, &nodes(cores), &Terms::default(), 1 << 40).len();
    assert_eq!((moves(1.0), moves(2.0)), (0, 1));
}

#[test]
fn task_that_has_moved_when_scanned_soon_then_stays() {
    let mut profiler = two(Config::default());
    pipeline(&mut profiler, 64);
    profiler.moved(0, 0, 5_000 * MS);
    profiler.moved(1, 1, 5_000 * MS);
    let nodes = vec![node(); 2];
    let moves = |now| flow::plan(&profiler, &nodes, &Terms::default(), now).len();
    assert_eq!((moves(14_999 * MS), moves(15_000 * MS)), (0, 1));
}

#[test]
fn task_whose_partner_changes_with_every_window_then_stays() {
    let mut profiler = two(Config::default());
    profiler.task(2, 1, 45_000_000, 0.5);
    for window in 0..4u64 {
        for event in 0..256 {
            let at = (window * 256 + event) * MS;
            // Tasks 0 (node 0) and 2 (node 1) have a region each; task 1 reads them in turn.
            profiler.record(&access(0, at, event, Kind::Write));
            profiler.record(&access(2, at, 50_000 + event, Kind::Write));
            let region = if window % 2 == 0 { 50_000 } else { 0 };
            profiler.record(&access(1, at, region + event, Kind::Read));
        }
    }
    let nodes = vec![node(); 2];
    let moves = flow::plan(&profiler, &nodes, &Terms::default(), 1 << 40).concat();
    assert!(moves.iter().all(|m| m.task != 1), "{moves:?}");
    let agree = Terms { agree: 1, ..Terms::default() };
    let moves = flow::plan(&profiler, &nodes, &agree, 1 << 40).concat();
    assert!(!moves.is_empty(), "the newest window alone says otherwise");
}

#[test]
fn events_without_a_task_when_the_handle_is_known_then_attributed() {
    let mut profiler = Profiler::new(Config::default());
    profiler.opened(0, 77, 5);
    let origin = Origin { node: 0, task: None, handle: 77 };
    let hits = Access { at: 1, origin, file: 1, block: 0, kind: Kind::Write, count: 600 };
    profiler.record(&hits);
    let task = profiler.get(5).expect("known by its handle");
    assert_eq!((task.patterns().len(), task.scale()), (2, 256));
    profiler.closed(0, 77);
    profiler.record(&hits);
    assert_eq!(profiler.lost(), (600, 0));
    profiler.ended(5);
    assert!(profiler.get(5).is_none());
}

#[test]
fn scan_when_two_tasks_had_two_windows_then_due() {
    let mut profiler = two(Config::default());
    for event in 0..512 {
        assert!(!profiler.due());
        profiler.record(&access(0, event, event, Kind::Read));
    }
    assert!(!profiler.due(), "one task alone");
    (0..512).for_each(|event| profiler.record(&access(1, event, event, Kind::Read)));
    assert!(profiler.due());
    profiler.scanned();
    assert!(!profiler.due());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn profiler_any_events_then_bounded_and_windows_are_whole(
        events in vec((0u64..6, 0u64..1000, 0u64..5000, any::<bool>(), 1u32..2000), 0..300),
    ) {
        let config = Config { window: 64, memory_bytes: 40_000, ..Config::default() };
        let most = config.most_tasks();
        prop_assert!(most < 6);
        let mut profiler = Profiler::new(config);
        for (task, at, block, write, count) in events {
            let kind = if write { Kind::Write } else { Kind::Read };
            let origin = Origin { node: task as u32 % 3, task: Some(task), handle: 0 };
            profiler.record(&Access { at, origin, file: block % 2, block, kind, count });
        }
        prop_assert!(profiler.tasks().count() <= most);
        for (_, task) in profiler.tasks() {
            prop_assert!(task.patterns().len() <= 3);
            for pattern in task.patterns() {
                prop_assert_eq!(pattern.scale(), 64);
                prop_assert!(pattern.entries().len() <= 64);
            }
        }
        let nodes = vec![node(); 3];
        for (a, first) in profiler.tasks() {
            for (_, second) in profiler.tasks() {
                let (ab, ba) = (overlap(first, second), overlap(second, first));
                prop_assert!((ab - ba).abs() < 1e-9 && (0.0..=1.0 + 1e-9).contains(&ab));
                let similar = paper::similarity(profiler.config(), first, second);
                prop_assert_eq!(similar, paper::similarity(profiler.config(), second, first));
                prop_assert!(similar.is_none_or(|value| value > 0.9 && value <= 1.0));
            }
            prop_assert!(profiler.get(a).is_some());
        }
        let moves = flow::plan(&profiler, &nodes, &Terms::default(), 1 << 40).concat();
        prop_assert!(moves.len() <= 16);
        for moved in moves.iter().chain(&paper::plan(&profiler, &nodes)) {
            prop_assert!(moved.from != moved.to && (moved.to as usize) < nodes.len());
            prop_assert_eq!(profiler.get(moved.task).map(|task| task.node), Some(moved.from));
        }
    }

    #[test]
    fn tasks_without_a_common_row_any_accesses_then_flow_moves_none(
        events in vec((0u64..4, 0u64..100_000, 0u64..3000, any::<bool>()), 0..2000),
    ) {
        let mut profiler = Profiler::new(Config { window: 32, ..Config::default() });
        for (task, at, block, write) in events {
            let kind = if write { Kind::Write } else { Kind::Read };
            let origin = Origin { node: task as u32, task: Some(task), handle: 0 };
            let file = task;
            profiler.record(&Access { at, origin, file, block, kind, count: 1 });
        }
        let terms = Terms { margin: 0.0, downtime_s: 0.0, agree: 1, ..Terms::default() };
        prop_assert_eq!(flow::plan(&profiler, &vec![node(); 4], &terms, 1 << 40).concat(), vec![]);
    }
}
