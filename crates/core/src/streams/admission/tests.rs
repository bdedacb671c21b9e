//! What is admitted, and why not.

use super::cycles::LONGER;
use super::*;

const MB: u64 = 1_000_000;

fn spread(count: u64, rate: &Rate, admission: &Admission) -> Vec<Demand> {
    let step = admission.profile.capacity / count;
    let layout = |at| Layout::contiguous(at * step, 10 * MB).expect("a layout");
    (0..count)
        .map(|at| Demand::new(rate, &layout(at), 0, &admission.profile, &admission.config))
        .collect()
}

fn most(config: AdmissionConfig, profile: &str) -> (u64, Plan) {
    let mut admission = Admission::new(DeviceProfile::built_in(profile).expect("one"), config);
    let rate = Rate::constant(250_000).expect("a rate");
    let fits = |n: u64, admission: &mut Admission| {
        let demands = spread(n, &rate, admission);
        admission.plan(&demands)
    };
    let count = (1..).take_while(|n| fits(*n, &mut admission).is_ok()).last().expect("one");
    (count, fits(count, &mut admission).expect("fits"))
}

#[test]
fn table_1_disk_then_statistical_admits_more_than_deterministic() {
    let config = AdmissionConfig { memory: 40 * MB, chunk: 16_384, ..Default::default() };
    let (sure, plan) = most(config.clone(), "table1");
    let statistical = AdmissionConfig { assurance: Assurance::Statistical(4.0), ..config };
    let (likely, _) = most(statistical, "table1");
    assert!((25..=50).contains(&sure), "{sure} {plan:?}");
    assert!(likely > sure && likely < 56, "{likely} against {sure}");
}

#[test]
fn little_memory_then_short_cycle_and_memory_is_what_lacks() {
    let config = AdmissionConfig { memory: 3 * MB, chunk: 16_384, ..Default::default() };
    let (few, plan) = most(config.clone(), "table1");
    assert!(plan.memory <= 3 * MB && few < 25, "{few} {plan:?}");
    let profile = DeviceProfile::built_in("table1").expect("one");
    let mut admission = Admission::new(profile, config);
    let rate = Rate::constant(250_000).expect("a rate");
    let demands = spread(few + 1, &rate, &admission);
    assert_eq!(admission.plan(&demands), Err(Shortage::Memory));
}

#[test]
fn refusal_then_its_rate_fits_and_a_higher_one_does_not() {
    let config = AdmissionConfig { chunk: 16_384, ..Default::default() };
    let mut admission = Admission::new(DeviceProfile::built_in("table1").expect("one"), config);
    let rate = Rate::constant(250_000).expect("a rate");
    let mut demands = spread(20, &rate, &admission);
    let layout = Layout::contiguous(0, 100 * MB).expect("a layout");
    let fast = Rate::constant(20 * MB).expect("a rate");
    let refusal = admission
        .admit(&mut demands, &layout, &fast, 0, Some(90 * Tick::SECOND))
        .expect_err("too fast");
    assert_eq!((refusal.shortage, refusal.retry_after), (Shortage::Alone, None));
    let fitting = refusal.fitting_rate.expect("room for a slower one");
    let mut admit = |rate| {
        let rate = Rate::constant(rate).expect("a rate");
        admission.admit(&mut demands.clone(), &layout, &rate, 0, None)
    };
    assert!(admit(fitting).is_ok() && admit(fitting + fitting / 100).is_err(), "{fitting}");
    assert!(refusal.to_string().contains("would fit"), "{refusal}");
}

#[test]
fn throttle_then_no_more_than_its_share() {
    let mut profile = DeviceProfile::built_in("ssd").expect("one");
    profile.throttle = Some(super::super::profile::Throttle { rate: 10e6, burst: 1e6 });
    let mut admission = Admission::new(profile, AdmissionConfig::default());
    let rate = Rate::constant(MB).expect("a rate");
    let demands = spread(10, &rate, &admission);
    assert!(admission.plan(&demands[..9]).is_ok());
    assert_eq!(admission.plan(&demands), Err(Shortage::Throttle));
}

#[test]
fn device_that_gives_its_budget_in_slices_then_fewer_streams_and_the_delay_once_a_sweep() {
    let config = AdmissionConfig { memory: 16 * MB, chunk: 16_384, ..Default::default() };
    let at_once = DeviceProfile::built_in("table1").expect("one");
    let sliced = DeviceProfile { delay: 0.1, ..at_once.clone() };
    for assurance in [Assurance::Deterministic, Assurance::Statistical(4.0)] {
        let config = AdmissionConfig { assurance, ..config.clone() };
        let rate = Rate::constant(250_000).expect("a rate");
        let plan = |profile: &DeviceProfile, count| {
            let mut admission = Admission::new(profile.clone(), config.clone());
            let demands = spread(count, &rate, &admission);
            admission.unchecked(&demands)
        };
        for count in [5, 20] {
            let more = plan(&sliced, count).busy - plan(&at_once, count).busy;
            let expected = 100_000_000..102_000_000;
            assert!(expected.contains(&more), "{assurance:?}, {count}: {more}");
        }
        let most = |profile: &DeviceProfile| {
            let mut admission = Admission::new(profile.clone(), config.clone());
            let fits = |count: &u64| {
                let demands = spread(*count, &rate, &admission);
                admission.plan(&demands).is_ok()
            };
            (1..100).take_while(fits).last().unwrap_or(0)
        };
        assert!(most(&sliced) < most(&at_once), "{assurance:?}");
    }
}

#[test]
fn slow_device_then_fewer_streams() {
    let config = AdmissionConfig { chunk: 16_384, ..Default::default() };
    let profile = DeviceProfile::built_in("table1").expect("one");
    let mut admission = Admission::new(profile, config);
    let rate = Rate::constant(250_000).expect("a rate");
    let demands = spread(30, &rate, &admission);
    assert!(admission.plan(&demands).is_ok());
    admission.slow_down(2.0);
    assert_eq!(admission.plan(&demands), Err(Shortage::Device));
    assert!(admission.plan(&demands[..10]).is_ok());
}

#[test]
fn stream_that_fits_only_without_the_reserve_then_given_up_and_the_margin_down_to_the_least() {
    let config = AdmissionConfig { memory: 17 * MB, chunk: 4096, ..Default::default() };
    let profile = DeviceProfile::built_in("table1").expect("one");
    let mut admission = Admission::new(profile, config.clone());
    let rate = Rate::constant(250_000).expect("a rate");
    let few = spread(20, &rate, &admission);
    let plan = admission.plan(&few).expect("few");
    assert!(plan.margin == config.margin && plan.budget >= plan.cycle / 20, "{plan:?}");
    let (count, plan) = most(config.clone(), "table1");
    assert!(plan.margin == config.least && plan.budget == 0, "{plan:?}");
    assert!(plan.busy as f64 <= (1.0 - config.least) * plan.cycle as f64, "{plan:?}");
    let stingy = AdmissionConfig { least: config.margin, ..config };
    let fewer = most(stingy, "table1");
    assert!(fewer.0 < count && fewer.1.margin == 0.05, "{fewer:?} {count}");
}

#[test]
fn statistical_cycle_when_memory_is_there_then_longer_than_it_must_be() {
    let likely = Assurance::Statistical(4.0);
    let config = AdmissionConfig { assurance: likely, chunk: 4096, ..Default::default() };
    let rate = Rate::constant(250_000).expect("a rate");
    let plan = |memory, count| {
        let profile = DeviceProfile::built_in("table1").expect("one");
        let mut admission = Admission::new(profile, AdmissionConfig { memory, ..config.clone() });
        let demands = spread(count, &rate, &admission);
        admission.plan(&demands).expect("few")
    };
    let ample = plan(64 * MB, 10);
    assert_eq!(ample.cycle, LONGER * config.cycles[0]);
    assert!(ample.needs < ample.full() / 2, "{ample:?}");
    let scarce = plan(2 * MB, 16);
    assert!(scarce.memory <= 2 * MB && scarce.cycle < LONGER * config.cycles[0], "{scarce:?}");
}

#[test]
fn memory_that_is_short_then_told_how_much_would_do() {
    for assurance in [Assurance::Deterministic, Assurance::Statistical(4.0)] {
        let memory = 4 * MB;
        let config = AdmissionConfig { assurance, memory, chunk: 4096, ..Default::default() };
        let profile = DeviceProfile::built_in("table1").expect("one");
        let mut admission = Admission::new(profile.clone(), config.clone());
        let rate = Rate::constant(250_000).expect("a rate");
        let (count, _) = most(config.clone(), "table1");
        let mut demands = spread(count, &rate, &admission);
        let layout = Layout::contiguous(profile.capacity / 2, 10 * MB).expect("a layout");
        let mut refusal = None;
        while refusal.is_none() {
            refusal = admission.admit(&mut demands, &layout, &rate, 0, None).err();
        }
        let refusal = refusal.expect("refused in the end");
        let memory = refusal.memory.expect("nothing else is short");
        assert!(memory > config.memory && refusal.to_string().contains(&memory.to_string()));
        let config = AdmissionConfig { memory, ..config };
        let mut admission = Admission::new(profile, config);
        assert!(admission.admit(&mut demands, &layout, &rate, 0, None).is_ok(), "{assurance:?}");
    }
}
