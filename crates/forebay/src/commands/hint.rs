//! `hint`: gives, extends and withdraws the reference sequence of a job.

use std::time::Duration;

use super::paths::REQUEST_PATH_BYTES;
use super::progress::Meter;
use super::{print, print_json, sequence};
use crate::cli::HintArgs;
use crate::control::{Client, HintPart, Outcome, Request, WirePath};
use crate::error::{Error, Exit};
use crate::render;

/// Carries the command out. Paths that the mount does not have are named and left out.
pub fn run(args: &HintArgs) -> Result<u8, Error> {
    if args.job.is_empty() || args.job.len() > 255 || args.job.chars().any(char::is_control) {
        return Err(Error::Usage("--job: give a name of 1 to 255 printable bytes".into()));
    }
    let sourced = args.from.is_some() || args.trace.is_some() || args.permutation.is_some();
    if !args.withdraw && !sourced && args.paths.is_empty() {
        return Err(Error::Usage(
            "name the files that the job will use: a LIST, --from, --trace, --permutation with \
             --files, or paths; see `forebay hint --help`"
                .into(),
        ));
    }
    let mut client = Client::for_path(&args.mountpoint)?;
    if args.withdraw {
        let request = Request::Withdraw { job: args.job.clone() };
        client.order(request, Duration::from_secs(10))?;
        let gone = serde_json::json!({ "job": args.job, "withdrawn": true });
        if args.json {
            print_json(&gone)?;
        } else {
            print(&format!("job {}: withdrawn\n", args.job))?;
        }
        return Ok(Exit::Ok.code());
    }
    let total = give(&mut client, args)?;
    if args.json {
        print_json(&total)?;
    } else {
        print(&render::outcome(&format!("job {}: took", args.job), &total))?;
    }
    Ok(if total.failed > 0 { Exit::Failed.code() } else { Exit::Ok.code() })
}

/// Sends the sequence in parts that fit a request each.
fn give(client: &mut Client, args: &HintArgs) -> Result<Outcome, Error> {
    let mut sender = Sender {
        job: &args.job,
        expires: args.expires,
        replace: !args.append,
        meter: Meter::new(args.json),
        total: Outcome { complete: true, ..Outcome::default() },
    };
    let mountpoint = client.mountpoint().to_owned();
    let (mut part, mut bytes) = (Vec::new(), 0);
    sequence::each(args, &mountpoint, &mut |path| {
        bytes += path.as_path().as_os_str().len() + 4;
        part.push(path);
        if bytes < REQUEST_PATH_BYTES {
            return Ok(());
        }
        bytes = 0;
        sender.send(client, std::mem::take(&mut part), false)
    })?;
    sender.send(client, part, !args.open)?;
    Ok(sender.total)
}

struct Sender<'a> {
    job: &'a str,
    expires: Duration,
    replace: bool,
    meter: Meter,
    total: Outcome,
}

impl Sender<'_> {
    fn send(&mut self, client: &mut Client, paths: Vec<WirePath>, last: bool) -> Result<(), Error> {
        let part = HintPart {
            job: self.job.to_owned(),
            paths,
            replace: std::mem::take(&mut self.replace),
            last,
            expires_ms: u64::try_from(self.expires.as_millis()).unwrap_or(u64::MAX),
        };
        let outcome =
            client.work(Request::Hint(part), None, &mut |progress| self.meter.show(progress))?;
        super::paths::add(&mut self.total, outcome);
        Ok(())
    }
}
