//! Texts for terminals and logs. Names of files, which any user may choose, can hold line ends,
//! commands to terminals, and characters that are not seen or that turn the text around them.

use std::fmt::Write;

/// Whether a character is not seen as what it is: it ends a line, commands a terminal, turns the
/// direction of the text, or shows nothing at all.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
            | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            // No width, and marks of direction.
            | '\u{200b}'..='\u{200f}'
            // Ends of lines and paragraphs; embeddings and overrides of direction.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators; isolates of direction.
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

fn escaped(text: &str, hides: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) {
            escape(&mut shown, c);
        } else {
            shown.push(c);
        }
    }
    shown
}

fn as_in_sources(shown: &mut String, c: char) {
    shown.extend(c.escape_default());
}

/// A text as one line, with its hidden characters escaped.
pub fn one_line(text: &str) -> String {
    escaped(text, is_hidden, as_in_sources)
}

/// A text of several lines, with its other hidden characters escaped.
pub fn lines(text: &str) -> String {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'), as_in_sources)
}

/// A record of JSON as one line, with its hidden characters escaped as JSON has it.
pub fn json_line(text: &str) -> String {
    escaped(text, is_hidden, |shown, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // To write to a string can't fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What must never reach a terminal as it is.
    fn hidden() -> impl Iterator<Item = char> {
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2066}'..='\u{2069}',
            '\u{feff}'..='\u{feff}',
            '\u{e0001}'..='\u{e007f}',
        ];
        ranges.into_iter().flatten()
    }

    #[test]
    fn text_when_it_has_hidden_characters_then_they_are_escaped_and_others_are_not() {
        for c in hidden() {
            let text = format!("a{c}b");
            for shown in [one_line(&text), lines(&text), json_line(&text)] {
                let stays = matches!(c, '\n' | '\t') && shown == text;
                assert!(stays || shown.is_ascii() && shown.contains('\\'), "{c:?}: {shown:?}");
            }
        }
        let plain = "caf\u{e9} e\u{301} \u{65e5}\u{672c} \u{5d0}\u{5d1} \u{1f600} \"'\\ x";
        assert_eq!(
            (one_line(plain), lines(plain), json_line(plain)),
            (plain.into(), plain.into(), plain.into())
        );
        assert_eq!(one_line("x\u{202e}gpj.exe\n"), "x\\u{202e}gpj.exe\\n");
        assert_eq!(lines("x\u{2066}\ny\t\r"), "x\\u{2066}\ny\t\\r");
    }

    #[test]
    fn json_when_a_string_has_hidden_characters_then_it_means_the_same_after_it() {
        let text: String = hidden().collect();
        let line = json_line(&serde_json::to_string(&text).unwrap());
        assert!(line.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
