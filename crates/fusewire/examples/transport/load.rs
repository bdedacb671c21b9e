//! Clients that do one thing at a time as often as they can.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// Bytes of each file.
const SIZE: usize = 4096;

/// What a client does `operations` times; each is told its number.
type Step<'a> = &'a (dyn Fn(&Client, usize) -> io::Result<()> + Sync);

/// One client, with a directory and an open file of its own.
struct Client {
    directory: PathBuf,
    open: File,
}

impl Client {
    fn new(mountpoint: &Path, number: usize) -> io::Result<Self> {
        let directory = mountpoint.join(format!("client{number}"));
        fs::create_dir_all(&directory)?;
        let path = mountpoint.join(format!("open{number}"));
        let open =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { directory, open })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("file{number}"))
    }
}

fn create(client: &Client, number: usize) -> io::Result<()> {
    File::create_new(client.path(number)).map(drop)
}

/// The attributes of an open file, which the server is asked for each time.
fn getattr(client: &Client, _: usize) -> io::Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(&client.open, c"", flags, StatxFlags::BASIC_STATS)?;
    Ok(())
}

fn stat(client: &Client, number: usize) -> io::Result<()> {
    let flags = AtFlags::STATX_FORCE_SYNC;
    rustix::fs::statx(CWD, client.path(number), flags, StatxFlags::BASIC_STATS)?;
    Ok(())
}

fn open_read_close(client: &Client, number: usize) -> io::Result<()> {
    let mut bytes = [0; SIZE];
    File::open(client.path(number))?.read_exact(&mut bytes)
}

fn unlink(client: &Client, number: usize) -> io::Result<()> {
    fs::remove_file(client.path(number))
}

/// Processor time that all threads of a process have had.
fn processor_time(pid: &str) -> io::Result<Duration> {
    let mut nanoseconds = 0_u64;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ends meanwhile counts no more: servers have none that do.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Measures every operation with so many clients, and prints for each: its name, the number of
/// clients, operations a second, median and 99th percentile of their times in microseconds, and
/// microseconds of the server's processor time for each.
pub fn measure(
    mountpoint: &Path,
    pid: &str,
    clients: &str,
    operations: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (clients, operations): (usize, usize) = (clients.parse()?, operations.parse()?);
    let all: Vec<Client> =
        (0..clients).map(|number| Client::new(mountpoint, number)).collect::<io::Result<_>>()?;
    let steps: [(&str, Step<'_>); 5] = [
        ("getattr", &getattr),
        ("create+close", &create),
        ("open+read+close", &open_read_close),
        ("stat", &stat),
        ("unlink", &unlink),
    ];
    for (name, step) in steps {
        if name == "open+read+close" {
            fill(&all, operations)?;
        }
        let before = processor_time(pid)?;
        let (elapsed, mut times) = run(&all, operations, step)?;
        let spent = processor_time(pid)?.saturating_sub(before);
        times.sort_unstable();
        let count = times.len().max(1);
        let at = |share: usize| times.get(count * share / 100).copied().unwrap_or_default();
        println!(
            "{name},{clients},{:.0},{:.1},{:.1},{:.2}",
            count as f64 / elapsed.as_secs_f64(),
            at(50).as_secs_f64() * 1e6,
            at(99).as_secs_f64() * 1e6,
            spent.as_secs_f64() * 1e6 / count as f64,
        );
    }
    Ok(())
}

/// Gives each file its content, which is not measured.
fn fill(clients: &[Client], operations: usize) -> io::Result<()> {
    for client in clients {
        for number in 0..operations {
            fs::write(client.path(number), [7; SIZE])?;
        }
    }
    Ok(())
}

/// Lets all clients go at once; the time until the last is done, and that of each operation.
fn run(
    clients: &[Client],
    operations: usize,
    step: Step<'_>,
) -> io::Result<(Duration, Vec<Duration>)> {
    let barrier = Barrier::new(clients.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .map(|client| {
                let barrier = &barrier;
                scope.spawn(move || -> io::Result<(Instant, Instant, Vec<Duration>)> {
                    let mut times = Vec::with_capacity(operations);
                    barrier.wait();
                    let start = Instant::now();
                    let mut last = start;
                    for number in 0..operations {
                        step(client, number)?;
                        let now = Instant::now();
                        times.push(now - last);
                        last = now;
                    }
                    Ok((start, last, times))
                })
            })
            .collect();
        let mut all = Vec::with_capacity(operations * clients.len());
        let (mut first, mut last) = (None::<Instant>, None::<Instant>);
        for thread in threads {
            let done = thread.join().map_err(|_| io::Error::other("a client panicked"))?;
            let (start, end, times) = done?;
            first = Some(first.map_or(start, |known| known.min(start)));
            last = Some(last.map_or(end, |known| known.max(end)));
            all.extend(times);
        }
        let elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
        Ok((elapsed, all))
    })
}
