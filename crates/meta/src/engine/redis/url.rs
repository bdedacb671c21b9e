//! Addresses of clusters: `redis://[user[:password]@]host[:port][,host[:port]...][/name]`.

use super::super::EngineError;

const PORT: u16 = 6379;

/// A server, as `host` and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where a cluster is and how to log in. Its `Debug` form hides the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    pub seeds: Vec<Address>,
    pub tls: bool,
    pub user: Option<String>,
    pub password: Option<String>,
    /// Keeps the file systems of one cluster apart.
    pub name: String,
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seeds: Vec<String> = self.seeds.iter().map(Address::to_string).collect();
        write!(
            f,
            "{}://{}/{}",
            if self.tls { "rediss" } else { "redis" },
            seeds.join(","),
            self.name
        )
    }
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, EngineError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("no scheme"))?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(invalid("the scheme is neither redis nor rediss")),
        };
        let (rest, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = if name.is_empty() { "forebay" } else { name };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            return Err(invalid("the name after the slash may have letters, digits, - _ ."));
        }
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, rest),
        };
        let (mut user, mut password) = (None, None);
        if let Some(login) = login {
            let (name, secret) = login.split_once(':').unwrap_or((login, ""));
            user = Some(decoded(name)?).filter(|name| !name.is_empty());
            password = Some(decoded(secret)?).filter(|secret| !secret.is_empty());
            if password.is_none() {
                return Err(invalid("a user without a password"));
            }
        }
        let seeds = hosts.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
        Ok(Url { seeds, tls, user, password, name: name.to_string() })
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn address(text: &str) -> Result<Address, EngineError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| invalid("no ] after the ["))?;
            (host, port.strip_prefix(':'))
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| invalid("a port is not a number"))?,
        None => PORT,
    };
    if host.is_empty() {
        return Err(invalid("a server has no host"));
    }
    Ok(Address { host: host.to_string(), port })
}

/// With `%xx` taken for bytes.
fn decoded(text: &str) -> Result<String, EngineError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| invalid("a % is not followed by two digits"))?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).map_err(|_| invalid("the login is not UTF-8"))
}

fn invalid(why: &'static str) -> EngineError {
    EngineError::Address(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    #[test]
    fn url_when_full_then_every_part_is_read() {
        let url = Url::parse("rediss://me:p%40ss%3a@a,b:7001,[::1]:7002/scratch").unwrap();
        assert_eq!(url.seeds, [at("a", 6379), at("b", 7001), at("::1", 7002)]);
        assert!(url.tls);
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), Some("p@ss:")));
        assert_eq!(url.name, "scratch");
        assert!(!format!("{url:?}").contains("p@ss"));
    }

    #[test]
    fn url_when_short_then_has_defaults() {
        let url = Url::parse("redis://:secret@host").unwrap();
        assert_eq!(url.seeds, [at("host", 6379)]);
        assert_eq!((url.user, url.password.as_deref()), (None, Some("secret")));
        assert_eq!(url.name, "forebay");
    }

    #[test]
    fn url_when_wrong_then_the_reason_is_told() {
        for wrong in [
            "host",
            "http://host",
            "redis://",
            "redis://a,,b",
            "redis://a:x",
            "redis://me@host",
            "redis://u:%4@h",
            "redis://u:%zz@h",
            "redis://h/a:b",
            "redis://[::1",
        ] {
            assert!(matches!(Url::parse(wrong), Err(EngineError::Address(_))), "{wrong}");
        }
    }
}
