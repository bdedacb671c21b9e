//! Who may ask: whoever has one of the tokens of a file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hyper::header::{self, HeaderMap};
use percent_encoding::percent_decode_str;

/// Characters of a token at least: what nobody guesses.
const SHORTEST: usize = 16;
/// A token's characters, and tokens, at most.
const MAX: usize = 256;

/// The tokens that open a server.
#[derive(Clone)]
pub struct Tokens(Vec<Vec<u8>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

impl Tokens {
    /// Reads a file with a token in each line; empty lines and those that begin with `#` do not count.
    ///
    /// # Errors
    /// What is wrong with the file, without a word of what is in it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wrong = |why: String| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mode = file.metadata().map_err(|error| wrong(error.to_string()))?.mode();
        if mode & 0o007 != 0 {
            let why = "everybody on this machine can read or change it; chmod 600";
            return Err(wrong(why.into()));
        }
        let mut text = String::new();
        let most = (MAX * MAX) as u64;
        file.take(most).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // What RFC 6750 allows in a header.
            let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
            if !(SHORTEST..=MAX).contains(&line.len()) || !line.bytes().all(sound) {
                return Err(format!(
                    "line {}: a token has {SHORTEST} to {MAX} letters, digits or -._~+/=; \
                     `openssl rand -hex 32` makes a good one",
                    at + 1
                ));
            }
            tokens.push(line.as_bytes().to_vec());
        }
        match tokens.len() {
            0 => Err("there is no token in it; `openssl rand -hex 32` makes one".into()),
            count if count > MAX => Err(format!("more than {MAX} tokens")),
            _ => Ok(Self(tokens)),
        }
    }

    /// Whether a request has one of them, in `Authorization: Bearer` or as `token=` in its query.
    pub(super) fn admit(&self, headers: &HeaderMap, query: &str) -> bool {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
        });
        bearer.is_some_and(|given| self.has(given))
            || in_query(query).is_some_and(|given| self.has(&given))
    }

    /// Looks at all bytes of all tokens, so that the time says nothing of where they differ.
    fn has(&self, given: &[u8]) -> bool {
        self.0.iter().fold(false, |found, token| found | same(token, given))
    }
}

/// The token of a query, as it was meant.
pub(super) fn in_query(query: &str) -> Option<Vec<u8>> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("token="))?;
    Some(percent_decode_str(value).collect())
}

/// Whether two texts are equal, in a time that only their lengths decide.
fn same(ours: &[u8], given: &[u8]) -> bool {
    if ours.len() != given.len() {
        return false;
    }
    let different = ours.iter().zip(given).fold(0, |different, (a, b)| different | (a ^ b));
    std::hint::black_box(different) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use std::os::unix::fs::PermissionsExt;

    const FIRST: &str = "0123456789abcdef";
    const SECOND: &str = "fedcba9876543210/+";

    #[test]
    fn request_when_it_has_a_token_then_admitted_and_only_then() {
        let tokens = Tokens::parse(&format!("# players\n\n{FIRST}\n  {SECOND}\n")).unwrap();
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            tokens.admit(&headers, "rate=2M")
        };
        assert!(with(&format!("Bearer {FIRST}")) && with(&format!("bearer  {SECOND}")));
        let asked = |query: &str| tokens.admit(&HeaderMap::new(), query);
        assert!(asked(&format!("rate=2M&token={FIRST}")));
        assert!(asked("token=fedcba9876543210%2F%2B"));
        for wrong in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", FIRST, "Bearer 0123456789"]
        {
            assert!(!with(wrong), "{wrong}");
        }
        for wrong in ["", "token=", "token=0123456789abcdeF", "xtoken=0123456789abcdef"] {
            assert!(!asked(wrong), "{wrong}");
        }
    }

    #[test]
    fn file_of_tokens_when_open_to_others_or_weak_then_refused_and_nothing_of_it_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |mode, text: &str| {
            std::fs::write(file.path(), text).unwrap();
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
            Tokens::read(file.path())
        };
        let tokens = open(0o640, FIRST).unwrap();
        assert!(!format!("{tokens:?}").contains(FIRST));
        for (mode, text) in [
            (0o644, FIRST),
            (0o600, "# none"),
            (0o600, "shortsecret"),
            (0o600, "with a space 1234"),
        ] {
            let why = open(mode, text).unwrap_err();
            assert!(!why.contains(text), "{why}");
        }
    }
}
