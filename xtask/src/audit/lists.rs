//! What is allowed, and what is not.

/// The lists by which packages are judged.
pub struct Lists {
    /// Licences that suit a program under Apache-2.0, as SPDX names them.
    pub licences: &'static [&'static str],
    /// Crates that must not come in, and why.
    pub banned: &'static [(&'static str, &'static str)],
    /// Crates that nobody looks after any more, and what takes their place.
    pub unmaintained: &'static [(&'static str, &'static str)],
    /// Those of them that are used all the same, and why.
    pub accepted_unmaintained: &'static [(&'static str, &'static str)],
    /// Crates that are built in several major versions, and in how many. May only shrink.
    pub duplicates: &'static [(&'static str, usize)],
    /// Vulnerabilities that don't concern this program, and why.
    pub accepted_advisories: &'static [(&'static str, &'static str)],
}

const ONE_RUNTIME: &str = "a second asynchronous runtime; tokio is the one";
const ONE_TLS: &str = "a C library for TLS; rustls is the one";

/// The lists of this repository. `deny.toml` says the same to cargo-deny.
pub const LISTS: Lists = Lists {
    licences: &[
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "ISC",
        "MIT",
        "Unicode-3.0",
        "Unlicense",
        "Zlib",
    ],
    banned: &[
        ("async-std", ONE_RUNTIME),
        ("smol", ONE_RUNTIME),
        ("glommio", ONE_RUNTIME),
        ("monoio", ONE_RUNTIME),
        ("actix-rt", ONE_RUNTIME),
        ("compio", ONE_RUNTIME),
        ("openssl", ONE_TLS),
        ("openssl-sys", ONE_TLS),
        ("native-tls", ONE_TLS),
        ("bincode", "no longer maintained; formats on disk and wire are our own"),
    ],
    unmaintained: &[
        ("ansi_term", "use anstyle"),
        ("adler", "use adler2"),
        ("atty", "use std::io::IsTerminal"),
        ("backoff", "use backon"),
        ("derivative", "use derive_more, or write it out"),
        ("dotenv", "use dotenvy"),
        ("failure", "use thiserror"),
        ("fxhash", "use rustc-hash"),
        ("instant", "use web-time, or std"),
        ("mach", "use mach2"),
        ("net2", "use socket2"),
        ("number_prefix", "use unit-prefix"),
        ("paste", "use pastey"),
        ("proc-macro-error", "use proc-macro-error2, or write it out"),
        ("rustls-pemfile", "use rustls-pki-types"),
        ("serde_cbor", "use ciborium"),
        ("serde_yaml", "use another format"),
        ("structopt", "use clap"),
        ("tempdir", "use tempfile"),
        ("term_size", "use terminal_size"),
        ("wee_alloc", "use the default allocator"),
        ("yaml-rust", "use another format"),
    ],
    accepted_unmaintained: &[],
    duplicates: &[
        ("getrandom", 2),
        ("hashbrown", 3),
        ("itertools", 2),
        ("quick_cache", 2),
        ("rand", 2),
        ("rand_core", 2),
        ("synstructure", 2),
        ("syn", 2),
    ],
    accepted_advisories: &[],
};
