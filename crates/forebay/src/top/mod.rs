//! `top`: a live view of one mount over its control socket.

mod history;
mod view;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::cli::TopArgs;
use crate::control::Client;
use crate::error::Error;
use crate::mountinfo;

use history::History;

/// The shortest and longest interval that the keys can set.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Pause,
    Faster,
    Slower,
    Nothing,
}

fn command(event: &Event) -> Command {
    let Event::Key(key) = event else { return Command::Nothing };
    if key.kind != KeyEventKind::Press {
        return Command::Nothing;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Command::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Command::Quit,
        KeyCode::Char('p' | ' ') => Command::Pause,
        KeyCode::Char('+') => Command::Slower,
        KeyCode::Char('-') => Command::Faster,
        _ => Command::Nothing,
    }
}

/// Shows the view until the user quits or the mount is gone.
pub fn run(args: &TopArgs) -> Result<(), Error> {
    let mut client = Client::for_path(&mountpoint(args)?)?;
    // Asked once before the screen is taken, so that a refusal is readable.
    let mut history = History::new(client.status()?, Instant::now());
    let mut terminal = ratatui::try_init().map_err(Error::io("terminal"))?;
    let result = watch(&mut terminal, &mut client, &mut history, args.interval);
    ratatui::restore();
    result
}

fn mountpoint(args: &TopArgs) -> Result<PathBuf, Error> {
    if let Some(path) = &args.mountpoint {
        return Ok(path.clone());
    }
    let mounts = mountinfo::read().map_err(Error::io("/proc/self/mountinfo"))?;
    let mut ours = mounts.into_iter().filter(mountinfo::Mount::is_forebay);
    match (ours.next(), ours.next()) {
        (Some(only), None) => Ok(only.mountpoint),
        (None, _) => Err(Error::Usage("no Forebay mounts; name the mount point".into())),
        _ => Err(Error::Usage("several Forebay mounts; name one".into())),
    }
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    client: &mut Client,
    history: &mut History,
    interval: Duration,
) -> Result<(), Error> {
    let (mut interval, mut paused) = (interval.clamp(INTERVALS.0, INTERVALS.1), false);
    let mut due = Instant::now() + interval;
    loop {
        let screen = view::Screen { history, interval, paused };
        terminal.draw(|frame| screen.draw(frame)).map_err(Error::io("terminal"))?;
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left).map_err(Error::io("terminal"))? {
            match command(&event::read().map_err(Error::io("terminal"))?) {
                Command::Quit => return Ok(()),
                Command::Pause => paused = !paused,
                Command::Faster => interval = (interval / 2).max(INTERVALS.0),
                Command::Slower => interval = (interval * 2).min(INTERVALS.1),
                Command::Nothing => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            if !paused {
                history.push(client.status()?, Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn wish_when_keys_are_pressed_then_they_mean_what_the_footer_says() {
        let press = |code, modifiers| command(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(press(KeyCode::Char('q'), KeyModifiers::NONE), Command::Quit);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Command::Quit);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), Command::Nothing);
        assert_eq!(press(KeyCode::Char('+'), KeyModifiers::NONE), Command::Slower);
        assert_eq!(command(&Event::FocusLost), Command::Nothing);
    }
}
