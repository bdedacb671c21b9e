//! What members of a cluster share, and what follows from it.
//!
//! From the secret, HKDF (RFC 5869) makes the key of a certificate authority, the same on every
//! node; each node signs itself a certificate for a key that it makes at its start and never writes
//! down. A node is believed if its certificate was signed by that authority. So whoever has the
//! secret is a member, and nobody else; members are not protected from each other.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::OFlags;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};

/// The name in every node's certificate. It tells a stranger nothing.
pub(crate) const NAME: &str = "node";

/// The longest file that a secret is read from.
const MAX_FILE: u64 = 64 << 10;

/// What the members of a cluster share.
#[derive(Clone)]
pub struct ClusterSecret(Vec<u8>);

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret")
    }
}

impl ClusterSecret {
    /// A secret from random bytes that are kept elsewhere. They must come from a source of
    /// randomness, not from a person: a stranger who sees a handshake can try guesses at leisure.
    ///
    /// # Errors
    /// [`Error::Settings`] if there are fewer than 16 bytes.
    pub fn new(bytes: &[u8]) -> Result<ClusterSecret> {
        match bytes.len() {
            16.. => Ok(ClusterSecret(bytes.to_vec())),
            few => Err(Error::Settings(format!(
                "a cluster's secret of {few} bytes is too short; use 32 random bytes"
            ))),
        }
    }

    /// A new secret of 32 random bytes, to be kept where only members can read it.
    ///
    /// # Errors
    /// [`Error::Settings`] if the system has no randomness to give.
    pub fn generate() -> Result<ClusterSecret> {
        let mut bytes = vec![0; 32];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| Error::Settings("the system gives no random bytes".into()))?;
        Ok(ClusterSecret(bytes))
    }

    /// The secret that a file has.
    ///
    /// # Errors
    /// [`Error::Settings`] if the file can't be read, is not a plain file, or is too long; if others
    /// than its owner can read it; if the secret is too short.
    pub fn read(path: &Path) -> Result<ClusterSecret> {
        ClusterSecret::read_if(path, |_| true)
    }

    /// As [`ClusterSecret::read`], for one who was told the path by somebody else: only of a file that
    /// belongs to one of these users.
    ///
    /// # Errors
    /// As [`ClusterSecret::read`], and if the file belongs to another user.
    pub fn read_of(path: &Path, owners: &[u32]) -> Result<ClusterSecret> {
        ClusterSecret::read_if(path, |owner| owners.contains(&owner))
    }

    fn read_if(path: &Path, is_believed: impl FnOnce(u32) -> bool) -> Result<ClusterSecret> {
        let failed = |error: std::io::Error| Error::Settings(error.to_string());
        let refused = |why: &str| Err(Error::Settings(why.into()));
        // One may wait for ever for what is no file, already when it is opened.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return refused("it is not a plain file");
        }
        if !is_believed(found.uid()) {
            return refused("it belongs to another user, who could have others count as nodes");
        }
        if found.mode() & 0o077 != 0 {
            return refused("others can read it, who would count as nodes; chmod 600");
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE {
            return refused("it is too long; use 32 random bytes");
        }
        ClusterSecret::new(&bytes)
    }

    /// The secret's bytes, to be written down.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What tells it from other secrets, and nothing of it: 16 digits.
    pub fn fingerprint(&self) -> String {
        let print = self.derive("forebay fingerprint 1");
        print[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What a node needs to talk by TLS: a certificate of its own, and how it judges others.
    ///
    /// # Errors
    /// [`Error::Settings`] if the libraries refuse, which no secret makes them do.
    pub fn identity(&self) -> Result<TlsIdentity> {
        self.identity_beside(None)
    }

    /// As [`ClusterSecret::identity`]; whoever has the other secret is believed as well. So a cluster
    /// changes its secret node by node.
    ///
    /// # Errors
    /// As [`ClusterSecret::identity`].
    pub fn identity_beside(&self, other: Option<&ClusterSecret>) -> Result<TlsIdentity> {
        self.try_identity(other)
            .map_err(|why| Error::Settings(format!("making a certificate from the secret: {why}")))
    }

    fn try_identity(
        &self,
        other: Option<&ClusterSecret>,
    ) -> Result<TlsIdentity, Box<dyn std::error::Error>> {
        let (authority, issuer) = self.authority()?;
        let mut believed = vec![authority];
        if let Some(other) = other {
            believed.push(other.authority()?.0);
        }
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = params_for(NAME)?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let own = params.signed_by(&key, &issuer)?;
        configs(&believed, own.der(), key.serialized_der())
    }

    /// The authority's certificate, and what signs others by it.
    fn authority(
        &self,
    ) -> Result<(CertificateDer<'static>, Issuer<'static, KeyPair>), Box<dyn std::error::Error>>
    {
        let key = self.authority_key()?;
        let mut params = params();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Ok((certificate, Issuer::new(params, key)))
    }

    /// The authority's key, as PKCS#8 (RFC 8410, section 7) around the 32 bytes that HKDF gives.
    fn authority_key(&self) -> Result<KeyPair, Box<dyn std::error::Error>> {
        const BEFORE_SEED: [u8; 16] =
            [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        let mut pkcs8 = BEFORE_SEED.to_vec();
        pkcs8.extend_from_slice(&self.derive("forebay authority ed25519 1"));
        let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8);
        Ok(KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519)?)
    }

    /// 32 bytes for one purpose.
    fn derive(&self, purpose: &str) -> [u8; 32] {
        struct Len;
        impl KeyType for Len {
            fn len(&self) -> usize {
                32
            }
        }
        let mut key = [0; 32];
        let purpose = [purpose.as_bytes()];
        let prk = Salt::new(HKDF_SHA256, b"forebay cluster secret").extract(&self.0);
        let filled = prk.expand(&purpose, Len).and_then(|okm| okm.fill(&mut key));
        filled.expect("32 bytes are within what HKDF may give");
        key
    }
}

/// Parameters without anything that would tell a stranger something.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
}

fn params_for(name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

fn configs(
    believed: &[CertificateDer<'static>],
    own: &CertificateDer<'static>,
    key: &[u8],
) -> Result<TlsIdentity, Box<dyn std::error::Error>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in believed {
        roots.add(authority.clone())?;
    }
    let roots = Arc::new(roots);
    let key = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_vec()));

    let judge =
        WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(judge)
        .with_single_cert(vec![own.clone()], key())?;
    // Connections live long; every one shows its certificate.
    server.send_tls13_tickets = 0;

    let judge = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(judge)
        .with_client_auth_cert(vec![own.clone()], key())?;
    client.enable_sni = false;
    client.resumption = rustls::client::Resumption::disabled();
    Ok(TlsIdentity { server: Arc::new(server), client: Arc::new(client) })
}

/// A node's certificate and how it judges those of others, for both directions.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

/// How bytes are protected on a network.
#[derive(Clone, Debug)]
pub enum Security {
    /// Mutual TLS 1.3.
    Tls(TlsIdentity),
    /// Not at all: whoever reaches the address is believed. Only where the network is closed, and
    /// only when somebody asked for it.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secret_when_short_then_refused() {
        assert!(ClusterSecret::new(&[7; 15]).is_err());
        assert!(ClusterSecret::new(&[7; 16]).is_ok());
    }

    #[test]
    fn secret_when_in_a_file_then_read_unless_it_is_another_users_or_not_a_plain_file() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let path = dir.path().join("secret");
        std::fs::write(&path, [7; 32]).unwrap();
        mode(&path, 0o600);
        let own = std::fs::metadata(&path).unwrap().uid();
        assert_eq!(ClusterSecret::read(&path).unwrap().bytes(), [7; 32]);
        assert_eq!(ClusterSecret::read_of(&path, &[own + 1, own]).unwrap().bytes(), [7; 32]);
        let why = |refused: Result<ClusterSecret>| refused.unwrap_err().to_string();
        assert!(why(ClusterSecret::read_of(&path, &[own + 1])).contains("another user"));
        mode(&path, 0o640);
        assert!(why(ClusterSecret::read(&path)).contains("chmod 600"));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        mode(&path, 0o600);
        assert!(why(ClusterSecret::read(&path)).contains("too long"));
        // To open it for reading waits for a writer, who never comes.
        let pipe = dir.path().join("pipe");
        let made = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, made).unwrap();
        assert!(why(ClusterSecret::read(&pipe)).contains("plain file"));
    }

    #[test]
    fn authority_when_derived_twice_then_the_same_key_and_another_secret_gives_another() {
        let key = |byte| ClusterSecret::new(&[byte; 32]).unwrap().authority_key().unwrap();
        assert_eq!(key(1).serialized_der(), key(1).serialized_der());
        assert_ne!(key(1).serialized_der(), key(2).serialized_der());
    }

    #[test]
    fn secret_when_shown_for_debugging_then_stays_secret() {
        let secret = ClusterSecret::generate().unwrap();
        assert_eq!(format!("{secret:?}"), "ClusterSecret");
        assert_eq!(secret.bytes().len(), 32);
    }
}
