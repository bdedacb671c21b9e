//! `fsck`: checks tiers that are not mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::progress::Meter;
use super::{print, print_json};
use crate::cli::FsckArgs;
use crate::config::{FileSource, Settings, SpaceSize, TierConfig};
use crate::engine::{Engine, FsckRequest};
use crate::error::{Error, Exit};
use crate::render;

/// Checks, prints the report, and fails if problems remain.
pub fn run(args: &FsckArgs, engine: &dyn Engine) -> Result<u8, Error> {
    let request = request(args)?;
    let mut meter = Meter::new(args.json);
    let report = engine.fsck(&request, &mut |progress| {
        meter.show(&progress);
        true
    })?;
    drop(meter);
    if args.json {
        print_json(&report)?;
    } else {
        print(&render::fsck(&report))?;
        let repairs = args.repair || args.rebuild || args.accept_loss;
        if report.problems > report.repaired && !repairs && !report.other_store {
            print(
                "run `forebay fsck --repair` to repair them, `--rebuild` if the index is lost, `--accept-loss` to give up what is lost\n",
            )?;
        }
    }
    let remain = report.problems > report.repaired;
    Ok(if remain { Exit::BadState.code() } else { Exit::Ok.code() })
}

fn request(args: &FsckArgs) -> Result<FsckRequest, Error> {
    if let Some(address) = &args.cluster {
        let cluster = Some((address.clone(), args.cluster_replicas));
        return Ok(FsckRequest { repair: args.repair, cluster, ..FsckRequest::default() });
    }
    let mut texts: Vec<OsString> = args.tiers.clone();
    let mut backing = args.backing.clone();
    let mut state_dir = args.state_dir.clone();
    if let Some(path) = &args.config {
        let mut settings = Settings::default();
        FileSource::read(path)?.offer(&mut settings)?;
        let first = |key| settings.get(key).and_then(|value| value.texts.first().cloned());
        texts = settings.get("tier").map(|value| value.texts.clone()).unwrap_or_default();
        backing = backing.or_else(|| first("backing").map(Into::into));
        state_dir = state_dir.or_else(|| first("state-dir").map(Into::into));
    }
    if texts.is_empty() {
        return Err(Error::Usage(
            "name the tiers, fastest first, a --config that has them, or a --cluster".into(),
        ));
    }
    let tiers = texts.iter().map(tier).collect::<Result<Vec<_>, _>>()?;
    for tier in &tiers {
        let readable = std::fs::read_dir(&tier.dir);
        readable.map_err(|source| Error::File { path: tier.dir.clone(), source })?;
    }
    Ok(FsckRequest {
        tiers,
        backing,
        state_dir,
        rebuild: args.rebuild,
        repair: args.repair,
        accept_loss: args.accept_loss,
        accept_store: args.accept_store,
        cluster: None,
    })
}

/// A tier with or without its size; an existing directory whose name has a `=` is meant as such.
fn tier(text: &OsString) -> Result<TierConfig, Error> {
    let plain = TierConfig { dir: text.into(), size: SpaceSize::Bytes(0) };
    if !text.as_bytes().contains(&b'=') || plain.dir.is_dir() {
        return Ok(plain);
    }
    TierConfig::parse(text).map_err(Error::Usage)
}
