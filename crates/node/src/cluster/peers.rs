//! The other nodes, as far as this one talks to them without the metadata engine between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_meta::Member;
use forebay_peer::transport::Ways;
use forebay_peer::{
    Address, Client, ClientConfig, ClusterSecret, Identity, Limits, Security, Server, Service,
    Versions,
};
use parking_lot::{Mutex, RwLock};

use super::NO_SECRET;
use super::sources::DirectoryNode;
use super::{Cluster, identity_of};
use crate::config::PeerConfig;
use crate::error::{NodeError, Result};

/// What other nodes are doing here may take so long to end.
const GRACE: Duration = Duration::from_secs(2);
/// An address that was somebody else's is tried for so long.
const AGAIN: Duration = Duration::from_secs(2);

/// A node that listens.
struct Known {
    epoch: u64,
    reach: String,
    client: Arc<Client>,
}

/// The nodes that this one can talk to.
pub(super) struct Peers {
    me: Identity,
    ways: Ways,
    server: Mutex<Option<Server>>,
    known: RwLock<BTreeMap<u16, Known>>,
    /// Nodes, and their epochs, that listen where this one can't talk to.
    beyond: Mutex<BTreeSet<(u16, u64)>>,
    pub(super) directory_node: DirectoryNode,
}

impl Peers {
    /// Takes in who listens where.
    pub(super) fn learn(&self, members: &[Member]) {
        let mut known = self.known.write();
        let listens = |member: &&Member| {
            u64::from(member.node) != self.me.node && !member.left && !member.reach.is_empty()
        };
        let now: Vec<&Member> = members.iter().filter(listens).collect();
        known.retain(|node, _| now.iter().any(|member| member.node == *node));
        for member in now {
            let same = |old: &Known| (old.epoch, &old.reach) == (member.epoch, &member.reach);
            if known.get(&member.node).is_some_and(same) {
                continue;
            }
            let Ok(address) = member.reach.parse::<Address>() else {
                tracing::warn!(
                    node = member.node,
                    reach = member.reach,
                    "a node announces an address that this one does not understand, and can't be \
                     reached: check --cluster-listen there"
                );
                continue;
            };
            let way = match self.ways.to(&address) {
                Ok(way) => way,
                Err(error) => {
                    // Once for each start of it, not at each look at the members.
                    if self.beyond.lock().insert((member.node, member.epoch)) {
                        tracing::warn!(
                            node = member.node,
                            %error,
                            "a node can't be reached from here: what it has comes by way of the \
                             backing store"
                        );
                    }
                    continue;
                }
            };
            let config = ClientConfig {
                expected: Some(member.node.into()),
                ..ClientConfig::new(self.me.clone())
            };
            let client = Arc::new(Client::new(way, address, config));
            let (epoch, reach) = (member.epoch, member.reach.clone());
            tracing::info!(node = member.node, epoch, at = reach, "another node can be talked to");
            known.insert(member.node, Known { epoch, reach, client });
        }
    }

    /// How to talk to a node; `None` if it does not listen.
    pub(super) fn client(&self, node: u16) -> Option<Arc<Client>> {
        self.known.read().get(&node).map(|known| known.client.clone())
    }

    /// Whether there is any.
    pub(super) fn is_alone(&self) -> bool {
        self.known.read().is_empty()
    }

    /// The nodes that listen, this one among them, ascending.
    pub(super) fn listening(&self) -> Vec<u16> {
        let mut all: Vec<u16> = self.known.read().keys().copied().collect();
        all.extend(u16::try_from(self.me.node));
        all.sort_unstable();
        all
    }

    /// Listens where another daemon has until now; `None` if somebody else does by now.
    fn listen_again(&self, server: &mut Server, former: &Address) -> Option<Address> {
        let until = Instant::now() + AGAIN;
        loop {
            let listening = self.ways.to(former).and_then(|way| server.listen(&*way, former));
            match listening {
                Ok(listening) => return Some(listening),
                Err(error) if Instant::now() >= until => {
                    tracing::warn!(
                        %error,
                        "can't listen at the address of the daemon before: a new one is taken, and \
                         other nodes look it up"
                    );
                    return None;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Ends what others do here, and lets nobody begin anything.
    pub(crate) fn close(&self) {
        // Not under the lock: what is under way here may want to talk to others.
        let server = self.server.lock().take();
        if let Some(mut server) = server {
            server.close(GRACE);
        }
        self.known.write().clear();
    }

    /// Nobody is talked to any more.
    pub(super) fn end(&self) {
        self.ways.end();
    }
}

impl Cluster {
    /// The nodes that listen and are not taken for dead, this one among them, ascending.
    pub(super) fn within_reach(&self, peers: &Peers) -> Vec<u16> {
        let mut nodes = peers.listening();
        nodes.retain(|node| *node == self.me.node || !self.is_silent(*node));
        nodes
    }

    /// Listens for other nodes, if that was asked for; `service` does what they ask.
    ///
    /// # Errors
    /// A secret that can't be used, an address that can't be listened on.
    pub(crate) fn start_peers(&self, service: Arc<dyn Service>) -> Result<()> {
        let Some(config) = &self.config.peers else { return Ok(()) };
        let wrong = |error: forebay_peer::Error| {
            NodeError::Config(format!("--cluster-listen {}: {error}", config.listen))
        };
        if self.peers.get().is_none() {
            let peers = self.new_peers(config)?;
            if self.peers.set(peers).is_err() {
                return Err(NodeError::Config("a node listens once".into()));
            }
        }
        let Some(peers) = self.peers.get() else { return Ok(()) };
        let wanted = address_of(&config.listen).map_err(wrong)?;
        let mut server =
            Server::start(service, peers.me.clone(), Limits::default()).map_err(wrong)?;
        // Others know the daemon before this one by its address.
        let former = self.listens.lock().parse::<Address>().ok();
        let again = former.and_then(|former| peers.listen_again(&mut server, &former));
        let listening = match again {
            Some(listening) => listening,
            None => {
                let way = peers.ways.to(&wanted).map_err(wrong)?;
                server.listen(&*way, &wanted).map_err(wrong)?
            }
        };
        let reach = reach(&wanted, &listening, &self.config.host);
        tracing::info!(%listening, reach, "other nodes can talk to this one");
        *self.listens.lock() = listening.to_string();
        *peers.server.lock() = Some(server);
        peers.learn(&self.meta.members()?);
        self.meta.listen_at(&reach)?;
        Ok(())
    }

    fn new_peers(&self, config: &PeerConfig) -> Result<Peers> {
        let ways = Ways::new(security(config)?);
        let (number, epoch) = (self.me.node.into(), self.me.epoch);
        let me = Identity {
            versions: versions(),
            ..Identity::new(identity_of(&self.meta)?, number, epoch)
        };
        let (server, known, beyond) = (Mutex::default(), RwLock::default(), Mutex::default());
        Ok(Peers { me, ways, server, known, beyond, directory_node: DirectoryNode::default() })
    }

    /// How to talk to a node, also one that has joined only now.
    pub(super) fn peer(&self, node: u16) -> Option<Arc<Client>> {
        let peers = self.peers.get()?;
        if let Some(client) = peers.client(node) {
            return Some(client);
        }
        peers.learn(&self.meta.members().ok()?);
        peers.client(node)
    }
}

/// The versions of the protocol that this node speaks. A fail point, which production builds have not,
/// stands for a program to come that speaks more: so many more as a file says, if it is there.
fn versions() -> Versions {
    fail::fail_point!("node.peers.newest", |file| {
        let said = file.and_then(|file| std::fs::read_to_string(file).ok());
        let more = said.and_then(|said| said.trim().parse::<u16>().ok()).unwrap_or_default();
        let known = Versions::default();
        Versions { newest: known.newest + more, ..known }
    });
    Versions::default()
}

fn security(config: &PeerConfig) -> Result<Security> {
    let Some((own, other)) = secrets(config)? else { return Ok(Security::Off) };
    let identity = own.identity_beside(other.as_ref());
    identity.map(Security::Tls).map_err(|error| NodeError::Config(error.to_string()))
}

/// What tells this node's secret from others, and a second one's.
pub(crate) fn fingerprints(config: &PeerConfig) -> Result<(String, Option<String>)> {
    Ok(match secrets(config)? {
        Some((own, other)) => (own.fingerprint(), other.map(|other| other.fingerprint())),
        None => (NO_SECRET.into(), None),
    })
}

/// The secret, and the second one that is believed.
fn secrets(config: &PeerConfig) -> Result<Option<(ClusterSecret, Option<ClusterSecret>)>> {
    let Some(path) = &config.secret else { return Ok(None) };
    let secret = |option: &str, path: &Path| {
        let wrong = |error| NodeError::Config(format!("{option} {}: {error}", path.display()));
        ClusterSecret::read(path).map_err(wrong)
    };
    let own = secret("--cluster-secret", path)?;
    let other = config.other_secret.as_deref();
    let other = other.map(|path| secret("--cluster-secret-also", path)).transpose()?;
    Ok(Some((own, other)))
}

fn address_of(listen: &str) -> forebay_peer::Result<Address> {
    match listen.starts_with("unix:") || listen.contains("://") {
        true => listen.parse(),
        false => format!("tcp://{listen}").parse(),
    }
}

/// What others connect to: the host as it was given, for it may mean another address to them, and
/// the port that was had. Who listens everywhere is reached by the name of the machine.
fn reach(wanted: &Address, listening: &Address, machine: &str) -> String {
    let had = listening.to_string();
    if matches!(listening, Address::Unix(_) | Address::Mpi(_)) {
        return had;
    }
    let wanted = wanted.to_string();
    let parts = |address: &str| -> Option<(String, String, String)> {
        let (scheme, at) = address.split_once("://")?;
        let (host, port) = at.rsplit_once(':')?;
        Some((scheme.to_owned(), host.to_owned(), port.to_owned()))
    };
    let (Some((scheme, host, _)), Some((_, _, port))) = (parts(&wanted), parts(&had)) else {
        return had;
    };
    let host = if matches!(&*host, "0.0.0.0" | "[::]") { machine } else { &host };
    format!("{scheme}://{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_when_listening_everywhere_then_the_machine_and_else_the_host_as_given() {
        let at = |wanted: &str, had: &str| {
            reach(&address_of(wanted).unwrap(), &address_of(had).unwrap(), "node7")
        };
        assert_eq!(at("0.0.0.0:0", "0.0.0.0:4711"), "tcp://node7:4711");
        assert_eq!(at("[::]:9", "[::]:9"), "tcp://node7:9");
        assert_eq!(at("tcp://fast7:0", "10.0.0.7:4711"), "tcp://fast7:4711");
        assert_eq!(at("quic://0.0.0.0:0", "quic://0.0.0.0:4711"), "quic://node7:4711");
        assert_eq!(at("unix:/run/f", "unix:/run/f"), "unix:/run/f");
        assert_eq!(at("mpi://self:0", "mpi://3:1"), "mpi://3:1");
    }
}
