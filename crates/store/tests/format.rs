//! The bytes on a tier are those that docs/reference/format.md describes.

use forebay_store::Tier;
use forebay_store::tier::DirTier;
use xxhash_rust::xxh3::xxh3_64;

#[test]
fn label_of_a_new_tier_has_the_documented_bytes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = DirTier::open(dir.path()).unwrap();
    let bytes = std::fs::read(dir.path().join("forebay-tier")).unwrap();
    let mut expected = b"FBAYTIER\x01\0\0\0\0\0\0\0".to_vec();
    expected.extend_from_slice(&tier.id().0);
    expected.extend_from_slice(&xxh3_64(&expected).to_le_bytes());
    assert_eq!(bytes, expected);
}

#[test]
fn map_of_a_known_object_has_the_documented_bytes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tier = DirTier::open(dir.path()).unwrap();
    let mut map = tier.create_map(0x0102, 1 << 20, (5 << 20) + 7).unwrap();
    map.mark_clean(0..1 << 20).unwrap();
    map.mark_dirty((1 << 20)..(1 << 20) + 1).unwrap();
    map.begin_sync();
    map.mark_clean((4 << 20)..(5 << 20) + 7).unwrap();
    map.finish_sync().unwrap().sync().unwrap();
    map.set_len((5 << 20) + 3).unwrap();
    // 0x0102 * 0x9e3779b97f4a7c15 begins with the byte 0x73.
    let bytes = std::fs::read(dir.path().join("objects/73/0000000000000102.map")).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let hex: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    let mut expected = b"FBAYMAP\0\x02\0\0\0\x14\0\0\0\x02\x01\0\0\0\0\0\0".to_vec();
    expected.extend_from_slice(b"\x03\0\x50\0\0\0\0\0\x03\0\x50\0\0\0\0\0");
    expected.extend_from_slice(&u128::from_str_radix(&hex, 16).unwrap().to_be_bytes());
    expected.extend_from_slice(&xxh3_64(&expected).to_le_bytes());
    expected.extend_from_slice(&[0xa5, 0x87, 0xf0, 0xf0, 0xe1, 0xc3]);
    assert_eq!(bytes, expected);
}
