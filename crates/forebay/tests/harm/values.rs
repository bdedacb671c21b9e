//! Values in the index, each of which says which version of its format it has.

use std::path::{Path, PathBuf};

use forebay_meta::{Embedded, EmbeddedOptions, Engine, Key, MiniTransaction, Write};

/// What is damaged of it: the tag of the key with what follows it as text, and which of those.
pub struct Value {
    name: &'static str,
    tag: &'static [u8],
    last: bool,
}

const fn value(name: &'static str, tag: &'static [u8], last: bool) -> Value {
    Value { name, tag, last }
}

pub const ALL: &[Value] = &[
    value("root", b"I", false),
    value("record", b"I", true),
    value("entry", b"D", true),
    value("turn", b"Q", false),
    value("orphan", b"O", false),
    value("format", b"Sforebay.format", false),
    value("counts", b"Sforebay.counts", false),
    value("spill", b"Sspill.", false),
];

/// The directory in which values stand among the files of a scene.
const DIR: &str = "index";

/// As what a value stands among the files.
pub fn path(value: &Value) -> PathBuf {
    Path::new(DIR).join(value.name)
}

/// Whether it stands for a value.
pub fn is_value(path: &Path) -> bool {
    path.starts_with(DIR)
}

/// Makes the value one of a newer version. What it was, if there is one.
pub fn make_newer(index: &Path, path: &Path) -> Option<(Key, Vec<u8>)> {
    let value = ALL.iter().find(|value| self::path(value) == path)?;
    let engine = Embedded::open(index, &EmbeddedOptions::default()).unwrap();
    let all = engine.sweep(None, 10_000).unwrap();
    let mut fits = all.into_iter().filter(|(key, _)| key.bytes().starts_with(value.tag));
    let (key, was) = if value.last { fits.next_back() } else { fits.next() }?;
    let mut newer = was.clone();
    *newer.first_mut()? = 9;
    put(&engine, key.clone(), newer);
    Some((key, was))
}

/// Puts a value back.
pub fn put_back(index: &Path, (key, was): (Key, Vec<u8>)) {
    let engine = Embedded::open(index, &EmbeddedOptions::default()).unwrap();
    put(&engine, key, was);
}

fn put(engine: &Embedded, key: Key, value: Vec<u8>) {
    let write = vec![Write::Put(key, value)];
    engine.execute(&MiniTransaction { write, ..MiniTransaction::default() }).unwrap();
    engine.sync().unwrap();
}
