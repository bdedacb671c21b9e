//! What one client may take from all: connections, streams and their rate, by address.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use hyper::header::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Requests of one address that are prepared at a time: less than there are threads for it.
const AT_WORK: usize = 3;

/// What one address may have at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Connections.
    pub connections: u32,
    /// Streams, with and without a guarantee.
    pub streams: u32,
    /// The rates of its streams with a guarantee together, in bytes a second; without it a quarter of
    /// what the device reads at its slowest place.
    pub rate: Option<u64>,
    /// Addresses of proxies that say by `X-Forwarded-For` for whom they ask. What they ask for counts
    /// as their clients', and their own connections are not limited.
    pub proxies: Vec<IpAddr>,
}

impl ClientLimits {
    /// No limits at all.
    pub fn none() -> Self {
        let (connections, streams, rate) = (u32::MAX, u32::MAX, Some(u64::MAX));
        Self { connections, streams, rate, proxies: Vec::new() }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { connections: 64, streams: 16, rate: None, proxies: Vec::new() }
    }
}

/// Who a client is: one address, or, since every customer has a network of them, the upper half of
/// one of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client(IpAddr);

impl Client {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(six) if !six.is_loopback() => {
                let network = six.to_bits() >> 64 << 64;
                Self(Ipv6Addr::from_bits(network).into())
            }
            other => Self(other),
        }
    }
}

/// What an address wants one more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    Connection,
    /// While a request is answered.
    Request,
    /// A stream of so many bytes a second, 0 without a guarantee.
    Stream(u64),
}

/// Which limit an address has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Connections,
    Streams,
    /// So many bytes a second are left to it.
    Rate(u64),
}

impl Reached {
    /// As it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "client-connections",
            Self::Streams => "client-streams",
            Self::Rate(_) => "client-rate",
        }
    }
}

#[derive(Debug)]
struct Usage {
    connections: u32,
    requests: u32,
    streams: u32,
    rate: u64,
    at_work: Arc<Semaphore>,
}

impl Usage {
    fn is_none(&self) -> bool {
        self.connections == 0 && self.requests == 0 && self.streams == 0
    }
}

/// What all addresses have. There are no more entries than connections, requests and streams.
#[derive(Debug)]
pub(super) struct Clients {
    limits: ClientLimits,
    rate: u64,
    usage: Mutex<HashMap<Client, Usage>>,
    /// Times that a client was turned away, by why.
    turned_away: Mutex<BTreeMap<&'static str, u64>>,
}

/// Something that an address has, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    clients: Arc<Clients>,
    client: Client,
    share: Share,
    at_work: Arc<Semaphore>,
}

impl Permit {
    /// The turns in which the requests of this address are prepared.
    pub fn turns(&self) -> &Arc<Semaphore> {
        &self.at_work
    }
}

impl Clients {
    /// `rate` is what counts if the limits say none.
    pub fn new(limits: ClientLimits, rate: u64) -> Arc<Self> {
        let rate = limits.rate.unwrap_or(rate);
        Arc::new(Self { limits, rate, usage: Mutex::default(), turned_away: Mutex::default() })
    }

    /// Whether this is a proxy that says for whom it asks.
    pub fn is_proxy(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.limits.proxies.iter().any(|proxy| proxy.to_canonical() == address)
    }

    /// Who asks: whoever is at the other end, or for whom that one says it asks. The last entry is the
    /// proxy's own; what comes before it anybody may have written.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        if !self.is_proxy(peer) {
            return Client::of(peer);
        }
        let lines = headers.get_all("x-forwarded-for");
        let texts: Vec<&str> = lines.iter().filter_map(|line| line.to_str().ok()).collect();
        let named = texts.iter().flat_map(|line| line.split(',')).map(address_in);
        let mut from_the_last: Vec<Option<IpAddr>> = named.collect();
        from_the_last.reverse();
        let found = from_the_last
            .into_iter()
            .map_while(|address| address)
            .find(|address| !self.is_proxy(*address));
        Client::of(found.unwrap_or(peer))
    }

    /// Takes something for an address.
    ///
    /// # Errors
    /// Which limit it has reached.
    pub fn take(self: &Arc<Self>, client: Client, share: Share) -> Result<Permit, Reached> {
        let mut all = self.usage.lock();
        let usage = all.entry(client).or_insert_with(|| Usage {
            connections: 0,
            requests: 0,
            streams: 0,
            rate: 0,
            at_work: Arc::new(Semaphore::new(AT_WORK)),
        });
        let reached = match share {
            Share::Connection if usage.connections >= self.limits.connections => {
                Some(Reached::Connections)
            }
            Share::Stream(_) if usage.streams >= self.limits.streams => Some(Reached::Streams),
            Share::Stream(rate) if rate > self.rate.saturating_sub(usage.rate) => {
                Some(Reached::Rate(self.rate.saturating_sub(usage.rate)))
            }
            _ => None,
        };
        if let Some(reached) = reached {
            if usage.is_none() {
                all.remove(&client);
            }
            drop(all);
            self.count(reached.name());
            return Err(reached);
        }
        match share {
            Share::Connection => usage.connections += 1,
            Share::Request => usage.requests += 1,
            Share::Stream(rate) => {
                usage.streams += 1;
                usage.rate += rate;
            }
        }
        let at_work = Arc::clone(&usage.at_work);
        Ok(Permit { clients: Arc::clone(self), client, share, at_work })
    }

    /// Somebody was turned away.
    pub fn count(&self, why: &'static str) {
        *self.turned_away.lock().entry(why).or_default() += 1;
    }

    /// Times that clients were turned away, by why.
    pub fn turned_away(&self) -> BTreeMap<String, u64> {
        let counts = self.turned_away.lock();
        counts.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = self.clients.usage.lock();
        let Some(usage) = all.get_mut(&self.client) else { return };
        match self.share {
            Share::Connection => usage.connections -= 1,
            Share::Request => usage.requests -= 1,
            Share::Stream(rate) => {
                usage.streams -= 1;
                usage.rate -= rate;
            }
        }
        if usage.is_none() {
            all.remove(&self.client);
        }
    }
}

/// An address as proxies write them: alone, with a port, in brackets.
fn address_in(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let whole = text.parse::<IpAddr>().ok();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    whole.or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn forwarded(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-forwarded-for", hyper::header::HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn address_when_it_takes_more_than_its_share_then_refused_and_others_not() {
        let limits =
            ClientLimits { connections: 2, streams: 2, rate: Some(100), proxies: Vec::new() };
        let clients = Clients::new(limits, 0);
        let (one, two) = (Client::of(ip("10.0.0.1")), Client::of(ip("10.0.0.2")));
        let held = clients.take(one, Share::Stream(60)).unwrap();
        assert_eq!(clients.take(one, Share::Stream(41)).unwrap_err(), Reached::Rate(40));
        let other = clients.take(one, Share::Stream(40)).unwrap();
        assert_eq!(clients.take(one, Share::Stream(0)).unwrap_err(), Reached::Streams);
        assert!(clients.take(two, Share::Stream(100)).is_ok());
        drop(held);
        let again = clients.take(one, Share::Stream(60)).unwrap();
        let connections = [0, 1].map(|_| clients.take(one, Share::Connection).unwrap());
        assert_eq!(clients.take(one, Share::Connection).unwrap_err(), Reached::Connections);
        assert_eq!(clients.turned_away()["client-rate"], 1);
        drop((other, again, connections));
        assert!(clients.usage.lock().is_empty(), "nothing is kept of those who have nothing");
    }

    #[test]
    fn addresses_of_one_network_then_one_client() {
        assert_eq!(Client::of(ip("2001:db8::1")), Client::of(ip("2001:db8::ffff:2")));
        assert_ne!(Client::of(ip("2001:db8::1")), Client::of(ip("2001:db8:0:1::1")));
        assert_eq!(Client::of(ip("::ffff:10.0.0.1")), Client::of(ip("10.0.0.1")));
        assert_ne!(Client::of(ip("10.0.0.1")), Client::of(ip("10.0.0.2")));
    }

    #[test]
    fn client_behind_a_proxy_then_the_last_address_that_is_no_proxy() {
        let proxies = vec![ip("127.0.0.1"), ip("10.9.9.9")];
        let clients = Clients::new(ClientLimits { proxies, ..ClientLimits::default() }, 1);
        let of = |peer, values: &[&'static str]| clients.client(ip(peer), &forwarded(values));
        let client = Client::of(ip("192.0.2.7"));
        assert_eq!(of("127.0.0.1", &["192.0.2.7"]), client);
        assert_eq!(of("127.0.0.1", &["203.0.113.1, 192.0.2.7:4711"]), client, "others may lie");
        assert_eq!(of("127.0.0.1", &["203.0.113.1", "192.0.2.7, 10.9.9.9"]), client);
        assert_eq!(of("::ffff:127.0.0.1", &["192.0.2.7"]), client);
        assert_eq!(of("127.0.0.1", &["192.0.2.1, nonsense"]), Client::of(ip("127.0.0.1")));
        assert_eq!(of("127.0.0.1", &[]), Client::of(ip("127.0.0.1")));
        assert_eq!(of("192.0.2.9", &["192.0.2.7"]), Client::of(ip("192.0.2.9")), "no proxy");
    }
}
