use std::os::fd::OwnedFd;

use proptest::prelude::*;

use super::*;
use crate::negotiate::Negotiated;

fn connection() -> Connection {
    let negotiated = Negotiated {
        minor: 45,
        kernel_minor: 45,
        features: Features::SETXATTR_EXT,
        offered: Features::NONE,
        max_write: 4096,
        max_pages: 1,
        max_readahead: 0,
    };
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    Connection::new(OwnedFd::from(null), negotiated, 4)
}

fn request(connection: &Connection, bytes: &[u8]) -> Option<Request> {
    let mut buffer = connection.buffer();
    buffer[..bytes.len()].copy_from_slice(bytes);
    Request::new(buffer, bytes.len(), connection.clone())
}

fn mkdir_with(extensions: &[u8]) -> Vec<u8> {
    let body = [&0o755_u32.to_ne_bytes()[..], &[0; 4], b"d\0"].concat();
    let header = abi::InHeader {
        len: (40 + body.len() + extensions.len()) as u32,
        opcode: crate::opcode::MKDIR,
        unique: 2 | UNIQUE_RESEND,
        nodeid: 1,
        uid: 10,
        gid: 20,
        pid: 30,
        total_extlen: (extensions.len() / 8) as u16,
        padding: 0,
    };
    [header.as_bytes(), &body, extensions].concat()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn extensions_when_present_then_contexts_and_group_are_found_and_the_name_is_intact() {
    // One context of 4 bytes, padded to 8; then one group, padded.
    let context = [words(&[32, 1, 4, 0]), b"security.x\0".to_vec(), b"ctx\0".to_vec(), vec![0; 1]];
    let context = context.concat();
    assert_eq!(context.len(), 32);
    let groups = words(&[16, abi::EXT_GROUPS, 1, 1234]);
    let bytes = mkdir_with(&[context, groups].concat());
    let request = request(&connection(), &bytes).expect("whole header");
    assert!(request.is_resent());
    let operation = request.operation().expect("decodes");
    assert_eq!(operation, Operation::Mkdir { name: b"d", mode: 0o755, umask: 0 });
    let extensions = request.extensions().expect("well formed");
    assert_eq!(extensions.supplementary_group(), Some(1234));
    let contexts: Vec<_> = extensions.security_contexts().collect();
    assert_eq!(contexts, [SecurityContext { name: b"security.x", value: b"ctx\0" }]);
}

#[test]
fn request_when_the_length_is_a_lie_then_operation_fails() {
    let mut bytes = mkdir_with(&[]);
    bytes[0] += 1;
    let request = request(&connection(), &bytes).expect("whole header");
    assert!(matches!(request.operation(), Err(DecodeError::Length { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn request_when_bytes_are_arbitrary_then_nothing_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        honest: bool,
        opcode in 0_u8..60,
        extension_words in 0_u8..40,
    ) {
        if honest && bytes.len() >= 40 {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes[4..8].copy_from_slice(&u32::from(opcode).to_ne_bytes());
            bytes[36..38].copy_from_slice(&u16::from(extension_words).to_ne_bytes());
        }
        let connection = connection();
        let Some(request) = request(&connection, &bytes) else {
            prop_assert!(bytes.len() < 40);
            return Ok(());
        };
        let _ = format!("{:?}", request.operation());
        if let Ok(extensions) = request.extensions() {
            let _ = extensions.supplementary_group();
            prop_assert!(extensions.security_contexts().count() < 64);
        }
    }
}
