//! A cluster seen by a process that has not joined it: its servers, what its nodes agree on, who they
//! are, and what it survives.

use std::fmt::Write;

use super::super::{print, print_json};
use crate::control::{ClusterLook, ClusterServer, ClusterStatus, ClusterTerms, ServerLog};
use crate::engine::Engine;
use crate::error::{Error, Exit};
use crate::render;

/// How a cluster is off when one of its servers dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outlook {
    /// Nothing is lost, and work goes on.
    GoesOn,
    /// Nothing is lost, and some or all work waits.
    Waits,
    /// No node can work, or what was acknowledged may be lost.
    Unfit,
}

/// Shows it.
pub fn status(address: &str, json: bool, engine: &dyn Engine) -> Result<u8, Error> {
    let look = engine.look_at_cluster(address)?;
    if json {
        print_json(&look)?;
    } else {
        print(&shown(&look))?;
    }
    let usable = look.trouble.is_none();
    Ok(if usable { Exit::Ok.code() } else { Exit::Failed.code() })
}

fn shown(look: &ClusterLook) -> String {
    let mut out =
        String::from("server                  role     replicas  log           version\n");
    for server in &look.servers {
        let _ = writeln!(
            out,
            "{:<22}  {:<7}  {:<8}  {:<12}  {}",
            server.address,
            if server.primary { "primary" } else { "replica" },
            if server.primary { server.replicas.to_string() } else { "-".into() },
            log_of(server),
            server.version.as_deref().unwrap_or("?"),
        );
        if let Some(trouble) = &server.trouble {
            let _ = writeln!(out, "      {trouble}");
        }
    }
    if let Some(trouble) = &look.trouble {
        let _ = writeln!(out, "the names can't be used: {trouble}");
    }
    let (_, survives) = survives(look);
    let _ = writeln!(out, "when a server dies: {survives}");
    let _ = writeln!(out, "agreed: {}", agreed(&look.terms));
    if look.nodes.is_empty() {
        return out;
    }
    let status = ClusterStatus { this: 0, nodes: look.nodes.clone(), safety: None };
    out + &render::cluster(&status)
}

/// What a server keeps on its disk, in a word or two.
pub fn log_of(server: &ClusterServer) -> &'static str {
    match server.log {
        None => "?",
        Some(ServerLog::Nothing) => "none",
        Some(ServerLog::EverySecond) => "every second",
        Some(ServerLog::Always) => "always",
    }
}

/// What the nodes agree on, in a line.
pub fn agreed(terms: &ClusterTerms) -> String {
    let replicas = match terms.replicas {
        Some(replicas) => format!("{replicas} replicas confirm"),
        None => "how many replicas confirm is not said".into(),
    };
    let redundancy = match &terms.redundancy {
        Some(level) => format!("redundancy {level}"),
        None => "redundancy is not said".into(),
    };
    let secret = match terms.secret.as_deref() {
        Some("off") => "no secret".into(),
        Some(print) => format!("secret {print}"),
        None => "no node has named its secret yet".into(),
    };
    let store = match &terms.backing {
        Some(path) => format!("backing store {}", path.as_path().display()),
        None => "no backing store yet".into(),
    };
    [replicas, redundancy, secret, store].join("; ")
}

/// What becomes of the names when a server dies.
pub fn survives(look: &ClusterLook) -> (Outlook, String) {
    let serving: Vec<&ClusterServer> =
        look.servers.iter().filter(|server| server.primary && server.serves).collect();
    let replicas = serving.iter().map(|server| server.replicas).min().unwrap_or(0);
    let takes_over = serving.iter().any(|server| server.in_cluster);
    let confirm = look.terms.replicas.unwrap_or(0);
    let told = |outlook, text: &str| (outlook, text.to_owned());
    if let Some(server) = serving.iter().find(|server| server.log == Some(ServerLog::Nothing)) {
        let why = "keeps no log on its disk, and its end loses all names: set `appendonly yes`";
        return (Outlook::Unfit, format!("{} {why}", server.address));
    }
    match (replicas, confirm) {
        _ if serving.is_empty() => told(Outlook::Unfit, "none serves now"),
        (there, confirm) if confirm > there => (
            Outlook::Unfit,
            format!("no change counts already: {confirm} replicas shall confirm, {there} follow"),
        ),
        (0, _) => told(
            Outlook::Waits,
            "its part of the names stands still until it is back with its log; nothing is lost. Servers \
             that go on have 2 replicas each: `forebay cluster init DIR --replicas 2`",
        ),
        _ if !takes_over => told(
            Outlook::Waits,
            "the names stand still until it is back with its log, as nobody takes over from a server \
             that is no cluster; nothing is lost",
        ),
        (_, 0) => told(
            Outlook::Unfit,
            "what was acknowledged right before may be lost, so mounts are refused: let a replica \
             confirm (`forebay cluster init ADDRESS --cluster-replicas 1`)",
        ),
        (there, confirm) if confirm == there => told(
            Outlook::Waits,
            "nothing is lost, and changes in its part fail until the dead one is back. Servers that go \
             on have a replica more than shall confirm",
        ),
        _ => told(Outlook::GoesOn, "nothing is lost, and work goes on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(in_cluster: bool, replicas: &[u32], confirm: Option<u32>) -> ClusterLook {
        let server = |replicas: &u32| ClusterServer {
            in_cluster,
            primary: true,
            serves: true,
            replicas: *replicas,
            log: Some(ServerLog::Always),
            ..ClusterServer::default()
        };
        let terms = ClusterTerms { replicas: confirm, ..ClusterTerms::default() };
        ClusterLook {
            servers: replicas.iter().map(server).collect(),
            terms,
            ..ClusterLook::default()
        }
    }

    #[test]
    fn survives_when_replicas_and_confirmations_differ_then_as_the_table_of_durability_says() {
        use Outlook::{GoesOn, Unfit, Waits};
        for (in_cluster, replicas, confirm, expected) in [
            (false, &[0][..], None, Waits),
            (false, &[1], Some(1), Waits),
            (false, &[0], Some(1), Unfit),
            (true, &[0, 0, 0], None, Waits),
            (true, &[1, 1, 1], None, Unfit),
            (true, &[1, 1, 1], Some(1), Waits),
            (true, &[1, 1, 1], Some(2), Unfit),
            (true, &[2, 2, 2], Some(1), GoesOn),
            (true, &[2, 1, 2], Some(1), Waits),
            (true, &[2, 2, 2], Some(2), Waits),
            (true, &[], Some(1), Unfit),
        ] {
            let found = survives(&look(in_cluster, replicas, confirm));
            assert_eq!(found.0, expected, "{in_cluster} {replicas:?} {confirm:?}: {}", found.1);
        }
        let mut forgetful = look(true, &[2, 2, 2], Some(1));
        forgetful.servers[1].log = Some(ServerLog::Nothing);
        assert_eq!(survives(&forgetful).0, Unfit);
    }
}
