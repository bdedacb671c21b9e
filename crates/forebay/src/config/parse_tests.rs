use super::*;
use crate::config::{Origin, Setting};

const POLICIES: &[&str] = &["s3fifo", "lru", "lfu", "sieve"];

fn config(given: &[(&str, &str)]) -> Result<MountConfig, Error> {
    let mut settings = Settings::default();
    let base = [("backing", "/b"), ("mountpoint", "/m"), ("tier", "/t=1G")];
    for (key, text) in given.iter().chain(&base) {
        settings.offer(Setting::find(key).unwrap(), vec![text.into()], Origin::Flag);
    }
    settings.fill_defaults();
    MountConfig::from_settings(&settings, POLICIES)
}

#[test]
fn from_settings_when_only_the_needed_is_given_then_defaults_hold() {
    let config = config(&[]).unwrap();
    assert_eq!(config.writeback, Writeback::After(Duration::from_secs(5)));
    assert_eq!(config.passthrough, Passthrough::Read);
    assert_eq!(config.extent_size, 1 << 20);
    assert_eq!((config.prefetch.of(100), config.event_log), (25, None));
    assert_eq!(config.state_dir, PathBuf::from("/t/state"));
    assert_eq!(config.log_file, Some("/t/state/forebay.log".into()));
    assert!(config.threads >= 1 && !config.foreground);
}

#[test]
fn from_settings_when_values_are_given_then_they_are_understood() {
    let config = config(&[
        ("writeback", "close"),
        ("passthrough", "off"),
        ("reserve", "10%"),
        ("single-thread", "true"),
        ("foreground", "true"),
        ("throttle", "100M/200"),
        ("metrics", "127.0.0.1:9464"),
        ("stream-profile", "disk"),
        ("stream-memory", "16M"),
        ("stream-emulate", "/p/measure"),
        ("tier", "/a=b/c=512MiB"),
    ])
    .unwrap();
    assert_eq!(config.writeback, Writeback::Close);
    assert_eq!(config.reserve.of(1000), 100);
    assert_eq!(config.threads, 1);
    assert_eq!(config.log_file, None);
    assert_eq!(config.throttle, Some(Throttle { bytes_per_second: 100 << 20, iops: Some(200) }));
    assert_eq!(config.metrics.unwrap().port(), 9464);
    let streams = config.streams.unwrap();
    assert_eq!(streams.profile, StreamDevice::BuiltIn("disk".into()));
    assert_eq!(streams.emulate, Some(StreamDevice::File("/p/measure".into())));
    assert_eq!(streams.memory, 16 << 20);
    let tier = TierConfig { dir: "/a=b/c".into(), size: SpaceSize::Bytes(512 << 20) };
    assert_eq!(config.tiers, [tier]);
}

#[test]
fn from_settings_when_a_value_is_wrong_then_the_message_says_what_is_right() {
    for (key, text, part) in [
        (
            "policy",
            "s3-fifo",
            "--policy: 's3-fifo' is none of s3fifo, lru, lfu, sieve; did you mean 's3fifo'?",
        ),
        ("writeback", "later", "neither a duration such as 5s nor one of close, through, evict"),
        ("writeback", "5", "neither a duration"),
        ("durability", "replicas=2", "need a cluster"),
        ("passthrough", "reads", "did you mean 'read'?"),
        ("extent-size", "3M", "not a power of two"),
        ("threads", "-1", "not a number of threads"),
        ("cluster-replicas", "many", "not a number of replicas"),
        ("cluster-leases", "some", "is none of on, off"),
        ("tier", "/fast", "is not DIR=SIZE"),
        ("tier", "/fast=lots", "size of /fast=lots"),
        ("low-mark", "96%", "must be below the high mark"),
        ("backing-timeout", "0s", "longer than 0"),
        ("metrics", "9464", "is not ADDRESS:PORT"),
        ("log-level", "loud=very=much", "--log-level"),
        ("read-only", "maybe", "'maybe' is none of true, false"),
        ("throttle", "fast", "not a size"),
        ("cluster-listen", "here", "is no address"),
        ("cluster-listen", "http://a:1", "is no address"),
        ("cluster-listen", "unix:a", "is no address"),
        ("cluster-listen", "mpi://self:0", "needs --cluster"),
        ("cluster-transport", "quick", "did you mean 'quic'?"),
        ("cluster-listen", "0.0.0.0:0", "needs --cluster"),
        ("cluster-tls", "maybe", "is none of on, off"),
        ("redundancy", "twice", "is neither none nor replicas=N"),
        ("redundancy", "replicas=2", "needs --cluster-listen"),
        ("repair-rate", "0", "would repair nothing"),
    ] {
        let message = config(&[(key, text)]).unwrap_err().to_string();
        assert!(message.contains(part), "{key}={text}: {message}");
    }
}

#[test]
fn secret_when_it_lies_beside_the_address_then_the_node_takes_it_and_listens_unless_told_not_to() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let address = format!("file:{}", at("address"));
    let made = |more: &[(&str, &str)]| {
        let all = [more, &[("cluster", &*address)]].concat();
        let cluster = config(&all).unwrap().cluster.unwrap();
        (cluster.secret, cluster.listen)
    };
    assert_eq!(made(&[]), (None, None));
    std::fs::write(at("secret"), "x").unwrap();
    let beside = Some(PathBuf::from(at("secret")));
    assert_eq!(made(&[]), (beside.clone(), Some("tcp://0.0.0.0:0".into())));
    assert_eq!(made(&[("cluster-listen", "n:7")]), (beside.clone(), Some("tcp://n:7".into())));
    let quic = [("cluster-transport", "quic")];
    assert_eq!(made(&quic), (beside, Some("quic://0.0.0.0:0".into())));
    let other = [("cluster-secret", "/s"), ("cluster-listen", "n:7")];
    assert_eq!(made(&other), (Some("/s".into()), Some("tcp://n:7".into())));
    for silent in [("cluster-listen", "none"), ("cluster-tls", "off")] {
        assert_eq!(made(&[silent]), (None, None), "{silent:?}");
    }
}

#[test]
fn cluster_transport_when_given_then_in_front_of_the_address_unless_it_has_one() {
    let listen = |more: &[(&'static str, &'static str)]| {
        let mut all = vec![("cluster", "redis://a/x"), ("cluster-tls", "off")];
        all.extend(more);
        config(&all).map(|config| config.cluster.unwrap().listen.unwrap())
    };
    let at = ("cluster-listen", "node7:0");
    assert_eq!(listen(&[at]).unwrap(), "tcp://node7:0");
    assert_eq!(listen(&[at, ("cluster-transport", "udt")]).unwrap(), "udt://node7:0");
    let message = listen(&[at, ("cluster-transport", "quic")]).unwrap_err().to_string();
    assert!(message.contains("is always encrypted"), "{message}");
    let at = ("cluster-listen", "unix:/run/f");
    assert_eq!(listen(&[at, ("cluster-transport", "udp")]).unwrap(), "unix:/run/f");
    let job = [("cluster-listen", "self:0"), ("cluster-transport", "mpi")];
    let message = listen(&job).unwrap_err().to_string();
    assert!(message.contains("needs --foreground"), "{message}");
    let secret = [("cluster-secret", "/s"), ("cluster-listen", "a:1")];
    for (transport, good) in [("quic", true), ("udt", true), ("udp", false), ("mpi", false)] {
        let given = [&secret[..], &[("cluster", "redis://a/x"), ("cluster-transport", transport)]];
        let made = config(&given.concat());
        assert_eq!(made.is_ok(), good, "{transport}: {made:?}");
    }
    let [at, way] = job;
    assert_eq!(listen(&[at, way, ("foreground", "true")]).unwrap(), "mpi://self:0");
}

#[test]
fn from_settings_when_no_tier_is_given_then_it_is_asked_for() {
    let mut settings = Settings::default();
    settings.fill_defaults();
    let message = MountConfig::from_settings(&settings, POLICIES).unwrap_err().to_string();
    assert!(message.starts_with("--tier DIR=SIZE"), "{message}");
}
