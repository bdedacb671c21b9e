use super::*;
use crate::model::{DeviceProfile, Disk, Throttle};
use crate::pool::Pool;
use crossbeam_channel::unbounded;
use std::io::Write;
use std::time::Duration;

const CHUNK: usize = 64 * 1024;

/// A file of `bytes` bytes whose content tells where it is from.
fn media(device: &dyn Device, bytes: usize) -> Arc<Media> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content(bytes)).unwrap();
    file.sync_all().unwrap();
    let key = Media::key_of(&file).unwrap();
    let layout = device.layout(&file, key);
    Arc::new(Media::new(file, device.access(), layout).unwrap())
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + at / 4096) as u8).collect()
}

fn read(
    device: &dyn Device,
    media: &Arc<Media>,
    pool: &Arc<Pool>,
    offset: u64,
    chunks: usize,
) -> Completion {
    let (reply, replies) = unbounded();
    let chunks = (0..chunks).map(|_| pool.take().unwrap()).collect();
    device.submit(Read { token: 7, media: Arc::clone(media), offset, chunks, reply });
    let completion = replies.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(completion.token, 7);
    completion
}

fn conforms(device: &dyn Device) {
    let pool = Pool::new(64 * CHUNK as u64, CHUNK).unwrap();
    let bytes = 10 * CHUNK + 5000;
    let media = media(device, bytes);
    let expected = content(bytes);
    for (offset, chunks) in [(0, 1), (CHUNK, 4), (9 * CHUNK, 4), (10 * CHUNK, 1), (4096, 3)] {
        let completion = read(device, &media, &pool, offset as u64, chunks);
        let count = completion.result.unwrap();
        let end = (offset + chunks * CHUNK).min(bytes);
        assert_eq!(count, end - offset);
        let got: Vec<u8> = completion.chunks.iter().flat_map(|c| c.as_ref().to_vec()).collect();
        assert!(got == expected[offset..end], "at {offset}");
    }
    assert_eq!(read(device, &media, &pool, 11 * CHUNK as u64, 1).result.unwrap(), 0);
    // Many at once, more than a ring has room for: all come back, each with its own bytes.
    let (reply, replies) = unbounded();
    for token in 0..60 {
        let offset = (token % 10) * CHUNK as u64;
        let (media, reply) = (Arc::clone(&media), reply.clone());
        device.submit(Read { token, media, offset, chunks: vec![pool.take().unwrap()], reply });
    }
    for _ in 0..60 {
        let completion = replies.recv_timeout(Duration::from_secs(20)).unwrap();
        let from = (completion.token % 10) as usize * CHUNK;
        assert!(completion.chunks[0].as_ref() == &expected[from..from + CHUNK]);
    }
    assert_eq!(pool.used(), 0, "every chunk has come back");
}

#[test]
fn threads_when_read_from_then_the_bytes_of_the_file() {
    conforms(&Threads::start(2));
}

#[test]
fn uring_when_read_from_then_the_bytes_of_the_file() {
    match Uring::start() {
        Ok(device) => conforms(&device),
        Err(error) => eprintln!("skipped: io_uring is forbidden here: {error}"),
    }
}

#[test]
fn emulated_disk_when_read_from_then_the_bytes_of_the_file() {
    let mut disk = Disk::modern();
    (disk.outer_rate, disk.inner_rate) = (1e12, 1e12);
    (disk.seek.root, disk.seek.line, disk.revolution) = ((0.0, 0.0), (0.0, 0.0), 0.0);
    conforms(&Emulated::start(Model::Disk(disk), 1).unwrap());
}

/// Takes times until one is as short as it should be, for a machine with other work on it delays
/// some of them. All that were taken.
fn once_undisturbed(mut time: impl FnMut() -> f64, short: impl Fn(f64) -> bool) -> Vec<f64> {
    let mut all = Vec::new();
    while all.len() < 20 && !all.last().is_some_and(|took| short(*took)) {
        all.push(time());
    }
    all
}

#[test]
fn emulated_disk_when_timed_then_as_the_model_says() {
    let device = Emulated::start(Model::Disk(Disk::table_1()), 1).unwrap();
    let pool = Pool::new(64 * CHUNK as u64, CHUNK).unwrap();
    let medias: Vec<_> = (0..4).map(|_| media(&device, 4 * CHUNK)).collect();
    let time = || {
        let begun = Instant::now();
        for round in 0..5 {
            for media in &medias {
                drop(read(&device, media, &pool, (round % 4) * CHUNK as u64, 1));
            }
        }
        begun.elapsed().as_secs_f64()
    };
    // 20 reads of 64 KiB: 5 to 18 ms each for seek, rotation and transfer. A busy machine adds to that.
    let all: Vec<f64> = once_undisturbed(time, |took| took < 2.0);
    assert!(all.iter().all(|took| *took >= 0.1) && all.iter().any(|took| *took < 2.0), "{all:?}");
    assert_eq!(device.control().bytes(), (all.len() * 20 * CHUNK) as u64);
}

#[test]
fn emulated_disk_when_throttled_then_bytes_at_its_rate_after_the_burst() {
    let mut disk = Disk::modern();
    (disk.seek.root, disk.seek.line, disk.revolution) = ((0.0, 0.0), (0.0, 0.0), 0.0);
    let mut profile = DeviceProfile::of_disk("throttled", &disk);
    profile.throttle = Some(Throttle { rate: 2e6, burst: CHUNK as f64 });
    let pool = Pool::new(8 * CHUNK as u64, CHUNK).unwrap();
    let expected = 8.0 * CHUNK as f64 / 2e6;
    let time = || {
        let device = Emulated::start(Model::Profile(profile.clone()), 1).unwrap();
        let media = media(&device, 10 * CHUNK);
        let begun = Instant::now();
        for chunk in 0..9 {
            drop(read(&device, &media, &pool, chunk * CHUNK as u64, 1));
        }
        begun.elapsed().as_secs_f64()
    };
    let all = once_undisturbed(time, |took| took < expected + 1.0);
    assert!(all.iter().all(|took| *took >= expected * 0.99), "{all:?}, not {expected} s");
    assert!(all.iter().any(|took| *took < expected + 1.0), "{all:?}, not {expected} s");
}

#[test]
fn emulated_disk_when_made_to_misbehave_then_it_does() {
    let device = Emulated::start(Model::Disk(Disk::modern()), 1).unwrap();
    let (control, pool) = (device.control(), Pool::new(4 * CHUNK as u64, CHUNK).unwrap());
    let media = media(&device, 4 * CHUNK);
    control.fail_next(2);
    for _ in 0..2 {
        let error = read(&device, &media, &pool, 0, 1).result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert!(read(&device, &media, &pool, 0, 1).result.is_ok());
    control.stall(Duration::from_millis(300));
    let stalled = read(&device, &media, &pool, 0, 1);
    assert!(stalled.ended - stalled.started >= Duration::from_millis(300));
    let next = read(&device, &media, &pool, 0, 1);
    assert!(next.ended - next.started < Duration::from_millis(250));
    control.degrade(20.0);
    let slow = read(&device, &media, &pool, 3 * CHUNK as u64, 1);
    assert!(slow.ended - slow.started >= Duration::from_millis(20), "{slow:?}");
}
