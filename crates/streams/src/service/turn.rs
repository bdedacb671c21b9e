//! Turns of the device for those who read by their own means: in the time that streams leave.

use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};

use super::{Command, Service};

/// The right to keep the device busy with one read. It ends when dropped.
#[derive(Debug)]
pub struct Turn {
    commands: Sender<Command>,
    began: Instant,
    /// What a busy host has taken of it until now.
    added: Duration,
}

impl Service {
    /// Waits until `bytes` at the place `physical` of the device can be read without a stream
    /// suffering. Ask for few bytes: a read is not interrupted. `None` if the service has stopped,
    /// and nobody suffers any more.
    pub fn turn(&self, physical: u64, bytes: u64) -> Option<Turn> {
        let commands = self.handle.commands.clone();
        let physical = self.device.place(physical) % self.capacity.max(1);
        let (reply, granted) = bounded(1);
        commands.send(Command::Turn { physical, bytes, reply }).ok()?;
        let granted = granted.recv().ok()?;
        let mut turn = Turn { commands, began: Instant::now(), added: granted.elapsed() };
        turn.added += self.device.occupy(physical, bytes);
        Some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (service, ended, added) = (self.began.elapsed(), Instant::now(), self.added);
        // A driver that is gone needs no telling.
        let _ = self.commands.send(Command::TurnEnded { service, ended, added });
    }
}
