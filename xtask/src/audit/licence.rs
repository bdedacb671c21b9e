//! SPDX licence expressions, as far as crates use them.

/// Whether one of the choices that the expression leaves is made of `allowed` licences only.
/// `None` if it can't be read. The old form `MIT/Apache-2.0` means `OR`.
pub fn is_allowed(expression: &str, allowed: &[&str]) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let verdict = reader.either()?;
    reader.words.is_empty().then_some(verdict)
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl<'a> Reader<'a> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn either(&mut self) -> Option<bool> {
        let mut verdict = self.both()?;
        while self.take("OR") {
            verdict |= self.both()?;
        }
        Some(verdict)
    }

    fn both(&mut self) -> Option<bool> {
        let mut verdict = self.single()?;
        while self.take("AND") {
            verdict &= self.single()?;
        }
        Some(verdict)
    }

    fn single(&mut self) -> Option<bool> {
        if self.take("(") {
            let verdict = self.either()?;
            return self.take(")").then_some(verdict);
        }
        let name = self.next().filter(|word| !["OR", "AND", "WITH", ")"].contains(word))?;
        if self.take("WITH") {
            let exception = self.next()?;
            return Some(self.allowed.contains(&format!("{name} WITH {exception}").as_str()));
        }
        Some(self.allowed.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [&str; 3] = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];

    #[test]
    fn expression_when_a_choice_is_allowed_then_allowed() {
        let fine = [
            "MIT",
            "MIT OR GPL-3.0-only",
            "GPL-2.0/MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "GPL-3.0 OR Apache-2.0 WITH LLVM-exception",
        ];
        for expression in fine {
            assert_eq!(is_allowed(expression, &ALLOWED), Some(true), "{expression}");
        }
    }

    #[test]
    fn expression_when_a_part_of_every_choice_is_not_then_refused() {
        let refused = [
            "GPL-3.0-only",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND GPL-3.0 OR BSD-3-Clause",
            "MIT WITH Classpath-exception",
        ];
        for expression in refused {
            assert_eq!(is_allowed(expression, &ALLOWED), Some(false), "{expression}");
        }
    }

    #[test]
    fn expression_when_not_well_formed_then_unreadable() {
        for expression in ["", "MIT OR", "(MIT", "MIT )", "AND MIT", "MIT WITH", "MIT ISC"] {
            assert_eq!(is_allowed(expression, &ALLOWED), None, "{expression}");
        }
    }
}
