//! What the servers of a cluster say to a process that has not joined it, and may never.

use std::collections::HashMap;

use super::members::Member;
use super::node_status::{NodeStatus, node_of, status_from};
use crate::codec;
use crate::engine::{Engine, MiniTransaction, Outcome};
use crate::error::{Error, Result};
use crate::keys;

/// Free-form settings of the namespace that an engine has, by their names; all `None` if it has none.
///
/// # Errors
/// If the engine fails.
pub fn settings_of(engine: &dyn Engine, names: &[&str]) -> Result<Vec<Option<Vec<u8>>>> {
    let keys = names.iter().map(|name| keys::setting(name)).collect();
    let Outcome::Committed(found) = engine.execute(&MiniTransaction::reading(keys))? else {
        return Err(Error::Conflict(1));
    };
    let decoded = names
        .iter()
        .zip(found)
        .map(|(name, value)| value.map(|value| codec::decode_bytes(name, &value)).transpose());
    decoded.collect()
}

/// The nodes that have ever joined the namespace that an engine has, by number.
///
/// # Errors
/// If the engine fails.
pub fn members_of(engine: &dyn Engine) -> Result<Vec<Member>> {
    let prefix = keys::members();
    let page = engine.scan(prefix.partition(), prefix.bytes(), None, usize::MAX)?;
    let member = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let number = keys::number(key).and_then(|number| u16::try_from(number).ok());
        codec::decode_member(number.unwrap_or_default(), value)
    };
    page.items.iter().map(member).collect()
}

/// What each of these nodes has said that it has.
///
/// # Errors
/// If the engine fails.
pub fn node_statuses_of(engine: &dyn Engine) -> Result<HashMap<u16, NodeStatus>> {
    let prefix = keys::node_statuses();
    let page = engine.scan(prefix.partition(), prefix.bytes(), None, usize::MAX)?;
    page.items.iter().map(|(key, value)| Ok((node_of(key)?, status_from(value)?))).collect()
}
