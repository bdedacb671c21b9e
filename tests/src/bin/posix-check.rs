//! x
fn main() {
    let d = std::env::args().nth(1).unwrap();
    let r = forebay_tests::posix::run(
        d.as_ref(),
        &std::env::args().nth(2).unwrap_or_default(),
        &mut std::io::stdout(),
    )
    .unwrap();
    println!("{} ok {} failed {} skipped", r.passed, r.failed.len(), r.skipped.len());
}
