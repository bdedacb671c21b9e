//! Who must get nothing, whatever the way they come.

use forebay_peer::message::Hello;
use forebay_peer::{Identity, Service};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::sync::atomic::{AtomicU32, Ordering};

pub const CLUSTER: &str = "a-cluster-whose-name-is-nobodys-business";

/// Counts who got as far as to say who it is.
#[derive(Default)]
pub struct Counting(pub AtomicU32);

impl Service for Counting {
    fn admit(&self, _who: &Hello) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// A node of the cluster.
pub fn me(node: u64) -> Identity {
    Identity::new(CLUSTER.into(), node, 1)
}

/// Fails if a stranger was told anything of the cluster.
pub fn nothing_of_ours(heard: &[u8]) {
    for telling in [b"FBP".as_slice(), CLUSTER.as_bytes(), b"forebay"] {
        let found = heard.windows(telling.len()).any(|some| some.eq_ignore_ascii_case(telling));
        assert!(!found, "a stranger heard {heard:?}");
    }
}

/// A stranger who believes any server, to hear as much as can be heard.
#[derive(Debug)]
pub struct Gullible;

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // What the certificate itself tells everybody.
        nothing_of_ours(own);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _own: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _own: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
