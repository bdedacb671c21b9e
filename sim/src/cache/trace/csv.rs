//! Traces as comma-separated values: ours, `id,size`, and what other simulators read.

use std::str::FromStr;

use super::Request;

/// What headings call the column of the file, and that of its size.
const IDS: [&str; 7] = ["id", "obj_id", "object_id", "objid", "object", "obj", "key"];
const SIZES: [&str; 6] = ["size", "obj_size", "object_size", "objsize", "bytes", "size_bytes"];

/// Which column of a line says what: the parameters that libCacheSim takes for CSV traces
/// (`--trace-type-params`), under its names.
///
/// `obj-id-col` and `obj-size-col` count columns from 1; without a size every file has 1 byte.
/// `delimiter` is a character, or `comma`, `tab`, `space`, `semicolon`. `has-header` says whether the
/// first line is a heading; otherwise it is taken for one if it holds no numbers where they belong.
/// What else libCacheSim knows (`time-col`, `op-col`, `ttl-col`, `cnt-col`, `obj-id-is-num`) makes no
/// difference here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    id: usize,
    size: Option<usize>,
    delimiter: char,
    heading: Option<bool>,
    /// Whether files may have names in place of numbers.
    names: bool,
}

impl Default for Columns {
    fn default() -> Self {
        Self { id: 0, size: Some(1), delimiter: ',', heading: None, names: false }
    }
}

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut columns = Self { size: None, names: true, ..Self::default() };
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        for part in parts {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
            match (name.trim().replace('_', "-").as_str(), value.trim()) {
                ("obj-id-col", value) => columns.id = column(part, value)?,
                ("obj-size-col", value) => columns.size = Some(column(part, value)?),
                // The comma itself separates these parameters, so that its value is empty.
                ("delimiter", "" | "comma") => columns.delimiter = ',',
                ("delimiter", "tab" | "\\t") => columns.delimiter = '\t',
                ("delimiter", "space") => columns.delimiter = ' ',
                ("delimiter", "semicolon") => columns.delimiter = ';',
                ("delimiter", value) => columns.delimiter = single(part, value)?,
                ("has-header", "true" | "1") => columns.heading = Some(true),
                ("has-header", "false" | "0") => columns.heading = Some(false),
                ("time-col" | "op-col" | "ttl-col" | "cnt-col" | "obj-id-is-num", _) => {}
                _ => return Err(wrong(part)),
            }
        }
        Ok(columns)
    }
}

fn wrong(part: &str) -> String {
    format!(
        "{part:?}: give obj-id-col=N, obj-size-col=N, delimiter=CHARACTER or has-header=true|false, \
         separated by commas"
    )
}

fn column(part: &str, value: &str) -> Result<usize, String> {
    let number: usize = value.parse().map_err(|_| wrong(part))?;
    number.checked_sub(1).ok_or_else(|| format!("{part:?}: columns are counted from 1"))
}

fn single(part: &str, value: &str) -> Result<char, String> {
    let mut characters = value.chars();
    match (characters.next(), characters.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(wrong(part)),
    }
}

impl Columns {
    /// The columns that a heading names, where nobody has said which.
    fn named(heading: &str) -> Option<Self> {
        let names: Vec<String> =
            heading.split(',').map(|name| name.trim().to_lowercase().replace('-', "_")).collect();
        let at = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
        let heading = Some(true);
        Some(Self { id: at(&IDS)?, size: Some(at(&SIZES)?), heading, ..Self::default() })
    }

    fn request(&self, line: &str) -> Option<Request> {
        let field = |at: usize| line.split(self.delimiter).nth(at).map(str::trim);
        let id = field(self.id)?;
        let id = id.parse().ok().or_else(|| (self.names && !id.is_empty()).then(|| hash(id)))?;
        let size = match self.size {
            Some(at) => field(at)?.parse().ok()?,
            None => 1,
        };
        Some(Request { id, size })
    }
}

/// A number for a file that has a name (FNV-1a: Fowler, Noll, Vo).
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Reads a trace; `None` for the columns goes by the heading, or by `id,size`.
pub(super) fn parse(text: &str, columns: Option<Columns>) -> Result<Vec<Request>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let first = lines.peek().map_or("", |(_, line)| line);
    let named = || Columns::named(first.trim_start_matches(['#', ' ']));
    let columns = columns.or_else(named).unwrap_or_default();
    let heading = columns.heading.unwrap_or_else(|| columns.request(first).is_none());
    if heading {
        lines.next();
    }
    lines
        .filter(|(_, line)| !line.starts_with('#'))
        .map(|(at, line)| {
            let request = columns.request(line);
            request.ok_or_else(|| format!("line {}: expected id,size but found {line:?}", at + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, size: u64) -> Request {
        Request { id, size }
    }

    fn columns(text: &str) -> Option<Columns> {
        Some(text.parse().expect("sound parameters"))
    }

    #[test]
    fn heading_and_spaces_then_the_requests() {
        let requests = parse("id,size\n1, 20\n\n2,30,extra\n", None).expect("sound");
        assert_eq!(requests, [request(1, 20), request(2, 30)]);
        let error = parse("1,2\n3,x\n", None).expect_err("no number");
        assert!(error.starts_with("line 2"), "{error}");
    }

    #[test]
    fn heading_in_another_order_then_its_names_decide() {
        let text = "#time,obj_id,obj_size,next_access_vtime\n1,77,4096,-1\n2,78,512,-1\n";
        assert_eq!(parse(text, None).expect("sound"), [request(77, 4096), request(78, 512)]);
    }

    #[test]
    fn parameters_of_libcachesim_then_its_columns() {
        let said = columns("time-col=2, obj-id-col=5, obj-size-col=4, delimiter=,");
        let text = "1,10,w,512,42\n2,11,r,1024,43\n";
        assert_eq!(parse(text, said).expect("sound"), [request(42, 512), request(43, 1024)]);
        let said = columns("obj-id-col=2,delimiter=tab,has-header=true");
        let requests = parse("1\t2\n10\t/a\n11\t/b\n12\t/a\n", said).expect("sound");
        assert_eq!(requests.len(), 3);
        assert_eq!(requests[0], requests[2]);
        assert!(requests[0].id != requests[1].id && requests.iter().all(|r| r.size == 1));
    }

    #[test]
    fn parameters_that_are_wrong_then_an_error_that_names_them() {
        for text in ["obj-id-col=0", "obj-id-col=x", "delimiter=ab", "size=3", "nonsense"] {
            let error = text.parse::<Columns>().expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
