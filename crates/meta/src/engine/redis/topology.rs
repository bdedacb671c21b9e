//! Which server has which slot.

use std::collections::BTreeSet;

use super::url::{self, Address};

pub(super) const SLOTS: usize = 16_384;
const NOBODY: u16 = u16::MAX;

/// The slot of a hash tag: CRC-16/XMODEM modulo 16384 (Redis Cluster specification, "Key
/// distribution model").
pub(super) fn slot(tag: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
        }
    }
    crc % SLOTS as u16
}

/// The primaries and their slots, as one server saw them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Topology {
    /// Primaries that are not known to have failed, also those without slots.
    pub primaries: Vec<Address>,
    owners: Vec<u16>,
    /// The greatest configuration epoch of a primary: a later view is not less.
    pub epoch: u64,
    /// Not a cluster: one server has all slots.
    pub single: bool,
}

impl Topology {
    pub fn single(server: Address) -> Self {
        Topology { primaries: vec![server], owners: vec![0; SLOTS], epoch: 0, single: true }
    }

    pub fn owner(&self, slot: u16) -> Option<&Address> {
        self.primaries.get(usize::from(self.owners[usize::from(slot)]))
    }

    /// Whether a primary has any slot.
    pub fn has_slots(&self, primary: &Address) -> bool {
        let at = self.primaries.iter().position(|known| known == primary);
        at.is_some_and(|at| self.owners.iter().any(|owner| usize::from(*owner) == at))
    }

    /// Whether every slot has an owner.
    pub fn is_complete(&self) -> bool {
        !self.owners.contains(&NOBODY)
    }

    /// From the answer to `CLUSTER NODES` of the server `asked`; `None` if it makes no sense.
    ///
    /// A line is `id ip:port@bus[,hostname] flags primary ping pong epoch link slot...`.
    pub fn parse(nodes: &str, asked: &Address, tls: bool) -> Option<Self> {
        let mut epoch = 0;
        let mut primaries: Vec<(Address, Vec<(usize, usize)>)> = Vec::new();
        for line in nodes.lines() {
            let mut words = line.split(' ');
            let (_, place, flags) = (words.next()?, words.next()?, words.next()?);
            let own_epoch: u64 = words.nth(3)?.parse().ok()?;
            words.next()?;
            let has = |flag: &str| flags.split(',').any(|word| word == flag);
            if !has("master") || has("fail") || has("noaddr") || has("handshake") {
                continue;
            }
            epoch = epoch.max(own_epoch);
            // A slot in brackets is on its way: it still belongs where it is listed plainly.
            let ranges = words.filter(|word| !word.starts_with('[')).map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                Some((first.parse().ok()?, last.parse().ok()?))
            });
            primaries.push((named(place, tls, asked)?, ranges.collect::<Option<_>>()?));
        }
        // Every server lists itself first: in one order, views can be compared.
        primaries.sort();
        let mut owners = vec![NOBODY; SLOTS];
        for (index, (_, ranges)) in primaries.iter().enumerate() {
            for (first, last) in ranges {
                owners.get_mut(*first..*last + 1)?.fill(index as u16);
            }
        }
        let primaries: Vec<Address> = primaries.into_iter().map(|(address, _)| address).collect();
        (!primaries.is_empty()).then_some(Topology { primaries, owners, epoch, single: false })
    }
}

/// A server as the others list it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedServer {
    pub address: Address,
    pub in_cluster: bool,
    pub primary: bool,
    /// It has slots.
    pub serves: bool,
    /// The others take it for dead.
    pub failed: bool,
}

impl ListedServer {
    /// A server that is no cluster, as far as is known.
    pub fn alone(address: Address) -> Self {
        ListedServer { address, in_cluster: false, primary: true, serves: true, failed: false }
    }
}

/// All servers that an answer to `CLUSTER NODES` lists, primaries first.
pub(super) fn listed_servers(nodes: &str, asked: &Address, tls: bool) -> Vec<ListedServer> {
    let listed = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let flags: Vec<&str> = words.get(2)?.split(',').collect();
        Some(ListedServer {
            address: named(words.get(1)?, tls, asked)?,
            in_cluster: true,
            primary: flags.contains(&"master"),
            serves: words.iter().skip(8).any(|slot| !slot.starts_with('[')),
            failed: flags.contains(&"fail"),
        })
    };
    let mut servers: Vec<ListedServer> = nodes.lines().filter_map(listed).collect();
    servers.sort_by(|a, b| (!a.primary, &a.address).cmp(&(!b.primary, &b.address)));
    servers
}

/// The servers that an answer to `CLUSTER NODES` lists, by the names that they keep for ever.
pub(super) fn ids(nodes: &str) -> BTreeSet<String> {
    nodes.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// `ip:port@bus[,hostname]`. A certificate names hosts, so TLS takes the name where there is one; a
/// server that nobody has met yet doesn't know its address.
fn named(place: &str, tls: bool, asked: &Address) -> Option<Address> {
    let (place, names) = place.split_once(',').unwrap_or((place, ""));
    let (place, _) = place.split_once('@')?;
    let (host, port) = place.rsplit_once(':')?;
    let name = names.split(',').next().filter(|name| tls && !name.is_empty()).unwrap_or(host);
    let name = if name.is_empty() { &asked.host } else { name };
    Some(Address { host: name.to_string(), port: port.parse().ok()? })
}

/// The server of a redirection, `slot host:port`; without a host it is the one that was `asked`.
pub(super) fn redirection(detail: &str, asked: &Address) -> Option<Address> {
    let (_, place) = detail.split_once(' ')?;
    match place.strip_prefix(':').and_then(|port| port.parse().ok()) {
        Some(port) => Some(Address { host: asked.host.clone(), port }),
        None => {
            // An address of version 6 comes without brackets.
            let (host, port) = place.rsplit_once(':')?;
            match host.contains(':') {
                true => Some(Address { host: host.to_string(), port: port.parse().ok()? }),
                false => url::address(place).ok(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_known_tags_then_as_the_servers_say() {
        // The check value of CRC-16/XMODEM, and slots as `CLUSTER KEYSLOT` gives them.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"0000"), slot(b"0000") % SLOTS as u16);
    }

    #[test]
    fn nodes_when_listed_then_primaries_and_slots_are_known() {
        let text = "\
a1 :7001@17001 myself,master - 0 0 1 connected 0-5460 [93-<-b2]
b2 10.0.0.2:7002@17002,host-b master - 0 0 7 connected 5461-10922 16383
c3 10.0.0.3:7003@17003 master,fail - 0 0 3 disconnected 10923-16382
d4 10.0.0.4:7004@17004 slave a1 0 0 1 connected
e5 10.0.0.5:7005@17005 master - 0 0 0 connected
";
        let asked = Address { host: "127.0.0.1".into(), port: 7001 };
        let topology = Topology::parse(text, &asked, true).unwrap();
        let names: Vec<String> = topology.primaries.iter().map(Address::to_string).collect();
        assert_eq!(names, ["10.0.0.5:7005", "127.0.0.1:7001", "host-b:7002"]);
        assert_eq!(topology.owner(0), Some(&asked));
        assert_eq!(topology.owner(16383).unwrap().port, 7002);
        assert_eq!(topology.owner(12000), None);
        let servers = listed_servers(text, &asked, true);
        let port = |server: &ListedServer| {
            (server.address.port, server.primary, server.serves, server.failed)
        };
        assert_eq!(
            servers.iter().map(port).collect::<Vec<_>>(),
            [
                (7003, true, true, true),
                (7005, true, false, false),
                (7001, true, true, false),
                (7002, true, true, false),
                (7004, false, false, false)
            ]
        );
        assert_eq!((topology.epoch, topology.is_complete()), (7, false));
        assert_eq!(Topology::parse("nonsense", &asked, false), None);
        assert_eq!(Topology::parse("a b master c d e 1 g 0-99999", &asked, false), None);
    }

    #[test]
    fn redirection_then_names_a_server_also_without_host_or_with_colons() {
        let asked = Address { host: "h".into(), port: 1 };
        let of = |text: &str| redirection(text, &asked).map(|server| (server.host, server.port));
        assert_eq!(of("5 10.0.0.1:7000"), Some(("10.0.0.1".into(), 7000)));
        assert_eq!(of("5 :7000"), Some(("h".into(), 7000)));
        assert_eq!(of("5 ::1:7000"), Some(("::1".into(), 7000)));
        assert_eq!(of("nonsense"), None);
    }
}
