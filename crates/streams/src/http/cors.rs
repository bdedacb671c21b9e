//! Which pages of other origins may read what is served (the Fetch standard, "HTTP-CORS protocol").

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

/// What the server understands, and what players may read of its answers.
pub(super) const METHODS: &str = "GET, HEAD, OPTIONS";
const FIELDS: &str = "Authorization, Range, If-Range, If-None-Match, If-Modified-Since, \
    Accept, Cache-Control, Content-Type";
const SHOWN: &str = "Accept-Ranges, Content-Length, Content-Range, Date, ETag, Last-Modified, \
    Retry-After, Forebay-Rate-Bytes-Per-Second, Forebay-First-Byte-Within-Ms, Forebay-Class";
/// Seconds that a browser need not ask again.
const REMEMBERED: &str = "7200";

/// The origins that may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    all: bool,
    named: Vec<String>,
}

impl Origins {
    /// Origins such as `https://films.example`, or `*` for all of them.
    ///
    /// # Errors
    /// What is no origin, and how one looks.
    pub fn new(origins: &[String]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for origin in origins {
            let host = origin.split_once("://").map_or("", |(_, host)| host);
            let sound = !host.is_empty() && !host.contains(['/', ' ', ',']) && origin.is_ascii();
            match &origin[..] {
                "*" => allowed.all = true,
                origin if sound => allowed.named.push(origin.to_ascii_lowercase()),
                _ => {
                    return Err(format!(
                        "'{origin}' is no origin; write one such as https://films.example, or *"
                    ));
                }
            }
        }
        Ok(allowed)
    }

    /// Tells the browser of a request with these fields that its page may read the answer; `preflight`
    /// is the question before a request.
    pub(super) fn allow(&self, asked: &HeaderMap, preflight: bool, fields: &mut HeaderMap) {
        if !self.all && self.named.is_empty() {
            return;
        }
        let mut tell = |name: HeaderName, value: &'static str| {
            fields.insert(name, HeaderValue::from_static(value));
        };
        let origin = asked.get(header::ORIGIN);
        let named = origin.filter(|origin| {
            let origin = origin.to_str().unwrap_or("").to_ascii_lowercase();
            self.named.contains(&origin)
        });
        if self.all {
            tell(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
        } else {
            // A cache that has the answer for one page must not give it to another.
            tell(header::VARY, "Origin");
            if named.is_none() {
                return;
            }
        }
        tell(header::ACCESS_CONTROL_EXPOSE_HEADERS, SHOWN);
        tell(HeaderName::from_static("cross-origin-resource-policy"), "cross-origin");
        if preflight {
            tell(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            tell(header::ACCESS_CONTROL_ALLOW_HEADERS, FIELDS);
            tell(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        }
        if let Some(origin) = named.filter(|_| !self.all) {
            fields.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(origins: &[&str], from: &'static str) -> HeaderMap {
        let origins: Vec<String> = origins.iter().map(ToString::to_string).collect();
        let mut asked = HeaderMap::new();
        asked.insert(header::ORIGIN, HeaderValue::from_static(from));
        let mut fields = HeaderMap::new();
        Origins::new(&origins).unwrap().allow(&asked, true, &mut fields);
        fields
    }

    #[test]
    fn page_of_another_origin_when_named_or_all_then_may_read_and_else_not() {
        let allowed = |fields: &HeaderMap| {
            let value = fields.get(header::ACCESS_CONTROL_ALLOW_ORIGIN);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(allowed(&told(&["*"], "https://a.example")).unwrap(), "*");
        let named = told(&["https://a.example", "http://b:8080"], "https://A.example");
        assert_eq!(allowed(&named).unwrap(), "https://A.example");
        assert_eq!(named[header::VARY], "Origin");
        assert!(named.contains_key(header::ACCESS_CONTROL_ALLOW_HEADERS));
        let other = told(&["https://a.example"], "https://evil.example");
        assert!(allowed(&other).is_none() && other[header::VARY] == "Origin");
        assert!(told(&[], "https://a.example").is_empty());
        for wrong in ["a.example", "https://", "https://a/b", "https://a, https://b"] {
            assert!(Origins::new(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
