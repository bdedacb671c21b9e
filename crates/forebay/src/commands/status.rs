//! `status` of one mount or all.

use super::{print, print_json, tell};
use crate::cli::StatusArgs;
use crate::control::{Client, Status};
use crate::error::{Error, Exit};
use crate::{mountinfo, render};

/// Prints the status.
pub fn run(args: &StatusArgs) -> Result<u8, Error> {
    if let Some(path) = &args.mountpoint {
        let status = Client::for_path(path)?.status()?;
        if args.json {
            print_json(&status)?;
        } else {
            print(&render::status(&status, args.verbose))?;
        }
        return Ok(Exit::Ok.code());
    }
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let mut answers: Vec<Status> = Vec::new();
    let mut exit = Exit::Ok;
    for mount in mounts.iter().filter(|mount| mount.is_forebay()) {
        match Client::for_mount(mount, &mounts).and_then(|mut client| client.status()) {
            Ok(status) => answers.push(status),
            Err(error) => {
                tell(&error.to_string());
                exit = error.exit();
            }
        }
    }
    if args.json {
        print_json(&answers)?;
    } else if answers.is_empty() && exit == Exit::Ok {
        print("no Forebay mounts\n")?;
    } else {
        let texts = answers.iter().map(|status| render::status(status, args.verbose));
        let texts: Vec<String> = texts.collect();
        print(&texts.join("\n"))?;
    }
    Ok(exit.code())
}
