//! The names in a directory, as a page with links or as JSON.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use crate::media::LibraryEntry;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// What stays as it is in a link.
pub(super) const IN_LINKS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn link(name: &OsStr) -> String {
    percent_encode(name.as_bytes(), IN_LINKS).to_string()
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A page with a link to each; `query` goes with every link, such as a token that opened this one.
pub(super) fn page(path: &str, entries: &[LibraryEntry], query: &str) -> String {
    let title = escaped(path);
    let mut text = format!(
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n"
    );
    let query = if query.is_empty() { String::new() } else { format!("?{}", escaped(query)) };
    if path != "/" {
        let _ = writeln!(text, "<li><a href=\"../{query}\">../</a>");
    }
    for LibraryEntry { name, bytes } in entries {
        let (end, size) = match bytes {
            None => ("/", String::new()),
            Some(bytes) => ("", format!(" {bytes}")),
        };
        let (link, shown) = (link(name), escaped(&name.to_string_lossy()));
        // With "./" a name with a colon is no scheme.
        let _ = writeln!(text, "<li><a href=\"./{link}{end}{query}\">{shown}{end}</a>{size}");
    }
    text + "</ul>\n"
}

/// A list of `{"name", "link", "bytes"}`; directories have no bytes and end with a slash.
pub(super) fn json(entries: &[LibraryEntry]) -> String {
    let of = |LibraryEntry { name, bytes }: &LibraryEntry| {
        let end = if bytes.is_none() { "/" } else { "" };
        serde_json::json!({
            "name": name.to_string_lossy() + end,
            "link": link(name) + end,
            "bytes": bytes,
        })
    };
    serde_json::Value::from(entries.iter().map(of).collect::<Vec<_>>()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_when_hostile_then_escaped_in_page_and_links() {
        let name = OsStr::from_bytes(b"<script>'\"&\xff\n.mp4").to_owned();
        let entries = [
            LibraryEntry { name, bytes: Some(7) },
            LibraryEntry { name: "a:b".into(), bytes: None },
        ];
        let page = page("/x<y>/", &entries, "token=\"t");
        assert!(!page.contains("<script>") && !page.contains("x<y"), "{page}");
        assert!(
            page.contains("href=\"./%3Cscript%3E%27%22%26%FF%0A.mp4?token=&quot;t\""),
            "{page}"
        );
        assert!(page.contains("<a href=\"./a%3Ab/?token=&quot;t\">a:b/</a>"), "{page}");
        let list: serde_json::Value = serde_json::from_str(&json(&entries)).unwrap();
        assert_eq!((&list[0]["bytes"], &list[1]["link"]), (&7.into(), &"a%3Ab/".into()));
    }
}
