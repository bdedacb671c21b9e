//! What players of HLS and DASH need: sessions, bursts, playlists for plain files, rates that vary.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;

use forebay_streams::http::{Limits, ProbeConfig, Server, Tokens};
use support::film::film;
use support::*;

/// Segments of a second at [`RATE`].
const SEGMENT: usize = RATE as usize;

fn hls(names: &[&str]) -> String {
    let mut text = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n".to_owned();
    for name in names {
        text += &format!("#EXTINF:1.0,\n{name}\n");
    }
    text + "#EXT-X-ENDLIST\n"
}

/// A library with a playlist of playlists, `sub dir/master.m3u8`, and others to fill the device with.
fn segmented(model: &str, limits: Limits) -> Site {
    let names: Vec<String> = (0..6).map(|at| format!("sub dir/{at}.ts")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], SEGMENT)).collect();
    let site = site(model, 64 << 20, limits, &files);
    for at in 0..60 {
        let path = site.service.library().path().join(format!("other{at}"));
        std::fs::File::create(path).unwrap().set_len(20_000_000).unwrap();
    }
    let dir = site.service.library().path().join("sub dir");
    let master = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=2000000\nlist.m3u8\n";
    std::fs::write(dir.join("master.m3u8"), master).unwrap();
    let list = hls(&["0.ts", "1.ts", "2.ts", "3.ts", "4.ts", "5.ts"]);
    std::fs::write(dir.join("list.m3u8"), list).unwrap();
    site
}

/// Opens streams of other files until none is admitted any more; their connections keep them. Their
/// bytes are taken if `read` says so: who takes none keeps what it has in hand, also of a burst.
fn fill(site: &Site, read: bool) -> Vec<std::net::TcpStream> {
    let mut open = Vec::new();
    for at in 0..60 {
        let mut stream = connect(site.server.address());
        write!(stream, "GET /other{at}?rate=6M HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        match &head {
            b"HTTP/1.1 200" => {
                if read {
                    let mut reader = stream.try_clone().unwrap();
                    // It ends with the server.
                    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
                }
                open.push(stream);
            }
            b"HTTP/1.1 503" => return open,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    panic!("the device carries everything");
}

#[test]
fn segments_of_a_player_when_the_device_is_full_then_each_has_the_place_of_the_last() {
    let site = segmented("table1", open());
    let address = site.server.address();
    let (master, answer) = follow(address, "/sub%20dir/master.m3u8");
    assert!(master.starts_with("/.session/") && answer.status == 200, "{master} {}", answer.head);
    assert_eq!(answer.field("content-type"), Some("application/vnd.apple.mpegurl"));
    let list = beside(&master, "list.m3u8");
    assert_eq!(get(address, &list, "").status, 200, "the session goes on");
    assert_eq!(site.service.status().guaranteed, 0, "playlists need no place");
    let first = get(address, &beside(&list, "0.ts"), "");
    assert_eq!(first.field("forebay-rate-bytes-per-second"), Some("250000"));
    assert!(first.body == content(SEGMENT));
    let others = fill(&site, false);
    let before = site.service.status();
    assert_eq!(before.guaranteed, others.len() as u64 + 1, "the session holds its place");
    for number in 1..4 {
        let segment = get(address, &beside(&list, &format!("{number}.ts")), "");
        assert_eq!(segment.status, 200, "{number}: {}", segment.head);
        assert!(segment.body == content(SEGMENT));
        assert_eq!(site.service.status().guaranteed, before.guaranteed);
    }
    assert_eq!((site.server.reporter())().sessions, 1);
    let stranger = get(address, "/sub%20dir/4.ts?rate=6M", "");
    assert_eq!(stranger.status, 503, "who has no session has no place");
}

#[test]
fn player_that_asks_for_two_files_at_a_time_then_a_lane_for_each_and_no_more_later() {
    let site = segmented("ssd", open());
    let address = site.server.address();
    let (list, _) = follow(address, "/sub%20dir/list.m3u8");
    for round in 0..3 {
        let ask = |number: usize| {
            let mut stream = connect(address);
            let target = beside(&list, &format!("{number}.ts"));
            write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream
        };
        let mut both = [ask(2 * round), ask(2 * round + 1)];
        for stream in &mut both {
            assert!(receive(stream).body == content(SEGMENT));
        }
        assert_eq!(site.service.status().guaranteed, 2, "round {round}");
    }
}

/// A library with pictures and sound apart: segments of 2 and 12 Mb/s, named by DASH and HLS.
fn apart() -> Site {
    let site = segmented("table1", open());
    let library = site.service.library().path();
    for at in 0..60 {
        // They last longer than the first of a session may wait.
        let other = std::fs::File::options().write(true).open(library.join(format!("other{at}")));
        other.unwrap().set_len(90_000_000).unwrap();
    }
    let dir = library.join("sub dir");
    let set = |kind: &str, name: &str, bits: u64| {
        format!(
            "<AdaptationSet contentType=\"{kind}\"><Representation id=\"{name}\" bandwidth=\"{bits}\">\
             <SegmentTemplate media=\"{name}-$Number$.m4s\"/></Representation></AdaptationSet>"
        )
    };
    let text =
        format!("<MPD>{}{}</MPD>", set("video", "v", 2_000_000), set("audio", "a", 12_000_000));
    std::fs::write(dir.join("a.mpd"), text).unwrap();
    let text = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"s\",URI=\"sound.m3u8\"\n\
        #EXT-X-STREAM-INF:BANDWIDTH=2000000,AUDIO=\"s\"\npictures.m3u8\n";
    std::fs::write(dir.join("apart.m3u8"), text).unwrap();
    for (list, name, bytes) in [("pictures", "v", SEGMENT), ("sound", "a", SEGMENT * 6)] {
        let names = [1, 2, 3].map(|number| format!("{name}-{number}.m4s"));
        std::fs::write(dir.join(format!("{list}.m3u8")), hls(&names.each_ref().map(|n| &n[..])))
            .unwrap();
        for name in &names {
            std::fs::write(dir.join(name), content(bytes)).unwrap();
        }
    }
    site
}

#[test]
fn pictures_and_sound_of_a_session_then_admitted_together_or_not_at_all() {
    for manifest in ["a.mpd", "apart.m3u8"] {
        let site = apart();
        let address = site.server.address();
        let begin_session = || {
            let (list, answer) = follow(address, &format!("/sub%20dir/{manifest}"));
            assert_eq!(answer.status, 200, "{manifest}: {}", answer.head);
            if manifest.ends_with("m3u8") {
                assert_eq!(get(address, &beside(&list, "pictures.m3u8"), "").status, 200);
            }
            list
        };
        let mut others = fill(&site, true);
        // There is room for one of 6 Mb/s: for the pictures alone, but not with their sound.
        let end = |other: std::net::TcpStream| other.shutdown(std::net::Shutdown::Both).unwrap();
        end(others.pop().unwrap());
        let count = others.len() as u64;
        until(&site, "one to leave", |status| status.guaranteed == count);
        let list = begin_session();
        let refused = get(address, &beside(&list, "v-1.m4s"), "");
        assert_eq!(refused.status, 503, "{manifest}: {}", refused.head);
        until(&site, "nothing to be kept", |status| status.guaranteed == count);
        for _ in 0..2 {
            end(others.pop().unwrap());
        }
        until(&site, "two to leave", |status| status.guaranteed == count - 2);
        for (number, name) in ["v", "a", "v", "a"].iter().enumerate() {
            let target = beside(&list, &format!("{name}-{}.m4s", number / 2 + 1));
            let segment = get(address, &target, "");
            assert_eq!(segment.status, 200, "{manifest}, {target}: {}", segment.head);
            let status = site.service.status();
            assert_eq!(status.guaranteed, count - 2 + 2, "{manifest}, {target}");
        }
    }
}

/// Asks, and reads the head of the answer.
fn begin(address: std::net::SocketAddr, target: &str) -> std::net::TcpStream {
    let mut stream = connect(address);
    write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

#[test]
fn segment_when_there_is_room_then_faster_than_played_and_its_place_is_no_larger_afterwards() {
    let site = segmented("table1", Limits { burst: 4.0, ..open() });
    let address = site.server.address();
    let (list, _) = follow(address, "/sub%20dir/list.m3u8");
    for number in 0..3 {
        site.control.hold();
        let mut stream = begin(address, &beside(&list, &format!("{number}.ts")));
        assert_eq!(site.service.status().guaranteed_rate, 4 * RATE, "segment {number}");
        site.control.release();
        let mut body = vec![0; SEGMENT];
        stream.read_exact(&mut body).unwrap();
        assert!(body == content(SEGMENT));
        until(&site, "the burst to end", |status| status.guaranteed_rate == RATE);
    }
}

#[test]
fn player_at_the_lower_of_two_rates_then_shown_that_the_higher_one_would_do() {
    let site = segmented("table1", Limits { burst: 2.0, ..open() });
    let address = site.server.address();
    let dir = site.service.library().path().join("sub dir");
    let master = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=2000000\nlist.m3u8\n\
        #EXT-X-STREAM-INF:BANDWIDTH=5600000\nhigh.m3u8\n";
    std::fs::write(dir.join("master.m3u8"), master).unwrap();
    let (master, _) = follow(address, "/sub%20dir/master.m3u8");
    let list = beside(&master, "list.m3u8");
    assert_eq!(get(address, &list, "").status, 200);
    // The burst ends with the last byte, which must not come before the look.
    site.control.hold();
    let _stream = begin(address, &beside(&list, "0.ts"));
    assert_eq!(site.service.status().guaranteed_rate, 2 * 700_000);
    site.control.release();
}

#[test]
fn player_that_steps_up_when_the_device_is_full_then_it_keeps_the_rate_that_it_had() {
    let site = segmented("table1", open());
    let address = site.server.address();
    let dir = site.service.library().path().join("sub dir");
    let master = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=2000000\nlist.m3u8\n\
        #EXT-X-STREAM-INF:BANDWIDTH=16000000\nhigh.m3u8\n";
    std::fs::write(dir.join("master.m3u8"), master).unwrap();
    std::fs::write(dir.join("high.m3u8"), hls(&["4.ts", "5.ts"])).unwrap();
    let (master, _) = follow(address, "/sub%20dir/master.m3u8");
    for list in ["list.m3u8", "high.m3u8"] {
        assert_eq!(get(address, &beside(&master, list), "").status, 200);
    }
    assert_eq!(get(address, &beside(&master, "0.ts"), "").status, 200);
    let _others = fill(&site, false);
    let before = site.service.status();
    let _up = begin(address, &beside(&master, "4.ts"));
    let after = site.service.status();
    assert_eq!(
        (after.guaranteed, after.guaranteed_rate),
        (before.guaranteed, before.guaranteed_rate)
    );
}

#[test]
fn bursts_when_others_need_the_room_then_as_many_streams_as_without() {
    let count = |burst| fill(&segmented("table1", Limits { burst, ..open() }), true).len();
    let (without, with) = (count(1.0), count(3.0));
    assert!(with >= without && without > 3, "{with} with bursts, {without} without");
}

#[test]
fn start_with_a_burst_then_the_first_seconds_sooner_and_its_rate_afterwards() {
    let site = site("table1", 64 << 20, Limits { burst: 4.0, ..open() }, &[("a", 5_000_000)]);
    let mut stream = begin(site.server.address(), "/a?rate=2M");
    assert_eq!(site.service.status().guaranteed_rate, 4 * RATE);
    // Ten seconds of media, and some more, since what is under way counts as taken.
    stream.read_exact(&mut vec![0; 2_700_000]).unwrap();
    until(&site, "the burst to end", |status| status.guaranteed_rate == RATE);
    assert!(undisturbed(&site.service.status()), "{:?}", site.service.status());
}

#[test]
fn playlist_of_a_plain_film_then_segments_of_it_by_its_index_and_none_of_what_is_no_film() {
    let site = site("ssd", 16 << 20, open(), &[("no.mp4", 5000)]);
    let address = site.server.address();
    let film = film(&[50_000; 20]);
    std::fs::write(site.service.library().path().join("sub dir/a b.mp4"), &film).unwrap();
    let (list, answer) = follow(address, "/sub%20dir/a%20b.mp4.m3u8");
    assert_eq!(answer.status, 200, "{}", answer.head);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.contains("#EXT-X-MAP:URI=\"a%20b.mp4.hls/init.mp4\""), "{text}");
    let names: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(names.len(), 5, "{text}");
    let init = get(address, &beside(&list, "a%20b.mp4.hls/init.mp4"), "");
    assert_eq!(&init.body[4..8], b"ftyp");
    let mut played = Vec::new();
    for name in names {
        let segment = get(address, &beside(&list, name), "");
        assert_eq!((segment.status, &segment.body[4..8]), (200, &b"moof"[..]), "{name}");
        let piece = segment.body.windows(4).position(|four| four == b"mdat").unwrap() + 4;
        played.extend_from_slice(&segment.body[piece..]);
        assert_eq!(site.service.status().guaranteed, 1);
    }
    assert!(film.ends_with(&played) && played.len() == 1_000_000, "all of its samples");
    assert_eq!(get(address, &beside(&list, "a%20b.mp4.hls/5.m4s"), "").status, 404);
    let none = get(address, "/no.mp4.m3u8?session=no", "");
    assert_eq!(none.status, 404);
    assert!(String::from_utf8_lossy(&none.body).contains("no MP4 file"));
    assert_eq!(get(address, "/none.mp4.m3u8", "").status, 404);
}

#[test]
fn film_of_variable_rate_then_by_its_own_index_and_known_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let kept = state.path().join("stream-rates");
    let probe = ProbeConfig { program: Some("/nonexistent".into()), kept: Some(kept.clone()) };
    let limits = || Limits { probe: probe.clone(), ..open() };
    let site = site("ssd", 16 << 20, limits(), &[]);
    let mut sizes = vec![2_000; 100];
    sizes[60..65].fill(60_000);
    let path = site.service.library().path().join("a.mp4");
    std::fs::write(path, film(&sizes)).unwrap();
    let rate = |server: &Server| {
        let mut stream = connect(server.address());
        write!(stream, "GET /a.mp4 HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = [0; 600];
        let held = stream.read(&mut head).unwrap();
        let head = String::from_utf8_lossy(&head[..held]).into_owned();
        let (_, rate) = head.split_once("forebay-rate-bytes-per-second: ").expect("a rate");
        rate.lines().next().unwrap().parse::<u64>().unwrap()
    };
    let first = rate(&site.server);
    // Ten seconds ahead: less than half of what the loud seconds need, more than the quiet ones do.
    assert!((5_000..30_000).contains(&first), "{first}");
    let text = std::fs::read_to_string(&kept).unwrap();
    assert!(text.contains("\"steps\":[["), "{text}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let again = Server::start(site.service.clone(), listener, limits()).unwrap();
    assert_eq!(rate(&again), first);
    assert_eq!((again.reporter())().probed, 0, "it was known");
}

#[test]
fn session_that_a_token_has_begun_then_its_segments_need_none_and_others_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "a-token-that-nobody-guesses\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).unwrap();
    let tokens = Some(Tokens::read(&file).unwrap());
    let site = segmented("ssd", Limits { tokens, ..open() });
    let address = site.server.address();
    assert_eq!(get(address, "/sub%20dir/list.m3u8", "").status, 401);
    let asked = "/sub%20dir/list.m3u8?token=a-token-that-nobody-guesses";
    let (list, answer) = follow(address, asked);
    assert_eq!(answer.status, 200);
    assert!(!list.contains("token"), "{list}");
    let segment = beside(&list, "0.ts");
    assert_eq!(get(address, &segment, "").status, 200);
    let forged = format!("/.session/{}{}", "0".repeat(32), &segment["/.session/".len() + 32..]);
    assert_eq!(get(address, &forged, "").status, 401);
}
