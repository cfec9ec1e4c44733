//! Patterns of ignore rules: the syntax of `.gitignore` as Kopia understands it.

use std::iter::Peekable;
use std::str::Chars;

/// A pattern for paths below the root of a snapshot, such as `/folder/file`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    tokens: Vec<Token>,
    /// Whether it takes back what earlier rules say.
    pub(crate) negated: bool,
    directories_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`: any character but a slash.
    Any,
    /// `*`: any characters but slashes.
    Star,
    /// `**`: any characters.
    Stars,
    /// `[…]`
    Set {
        negated: bool,
        items: Vec<Item>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Range(char, char),
    Class(Class),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Alnum,
    Alpha,
    Ascii,
    Blank,
    Control,
    Digit,
    Graphic,
    Lower,
    Print,
    Punctuation,
    Space,
    Upper,
    HexDigit,
}

impl Pattern {
    /// Parses a rule of the directory `base`: empty for the root, else a path that begins with a slash. A text says
    /// what is wrong with the rule.
    pub(crate) fn parse(rule: &str, base: &str) -> Result<Pattern, String> {
        // A blank at the end counts if it is escaped.
        let escaped_end = rule.len() > 1 && rule.as_bytes().get(rule.len() - 2) == Some(&b'\\');
        let text = if escaped_end { rule.trim_start() } else { rule.trim() };
        let (negated, text) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (directories_only, body) = match text.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut tokens: Vec<Token> = base.chars().map(Token::Char).collect();
        let rooted = body.starts_with('/');
        if !rooted && (!base.is_empty() || body.contains('/')) {
            tokens.push(Token::Char('/'));
        }
        if !rooted && !body.contains('/') && text != "**" {
            // A plain name is meant wherever it occurs.
            tokens.extend([Token::Stars, Token::Char('/')]);
        }
        Parser { rule, chars: body.chars().peekable(), previous: None }.parse_into(&mut tokens)?;
        Ok(Pattern { tokens, negated, directories_only })
    }

    /// Whether the pattern is about `path`.
    pub(crate) fn matches(&self, path: &str, is_dir: bool) -> bool {
        (is_dir || !self.directories_only) && self.matches_text(path)
    }

    /// Follows all ways through the pattern at once, so that no pattern takes longer than its length times the
    /// path's, however hostile.
    fn matches_text(&self, text: &str) -> bool {
        let mut places = vec![false; self.tokens.len() + 1];
        self.enter(0, &mut places);
        let mut next = vec![false; places.len()];
        for c in text.chars() {
            next.fill(false);
            for (place, token) in self.tokens.iter().enumerate().filter(|(place, _)| places[*place]) {
                match token {
                    Token::Star if c != '/' => self.enter(place, &mut next),
                    Token::Stars => self.enter(place, &mut next),
                    Token::Char(wanted) if *wanted == c => self.enter(place + 1, &mut next),
                    Token::Any if c != '/' => self.enter(place + 1, &mut next),
                    Token::Set { negated, items } if items.iter().any(|item| item.has(c)) != *negated => {
                        self.enter(place + 1, &mut next);
                    }
                    _ => {}
                }
            }
            std::mem::swap(&mut places, &mut next);
        }
        places[self.tokens.len()]
    }

    /// Marks a place and those that are reached from it without any character.
    fn enter(&self, place: usize, places: &mut [bool]) {
        let mut place = place;
        loop {
            places[place] = true;
            match self.tokens.get(place) {
                Some(Token::Star) => {}
                Some(Token::Stars) => {
                    // `**/` is also no directory at all.
                    let slash = self.tokens.get(place + 1) == Some(&Token::Char('/'));
                    if slash && place + 2 < self.tokens.len() {
                        self.enter(place + 2, places);
                    }
                }
                _ => return,
            }
            place += 1;
        }
    }
}

struct Parser<'a> {
    rule: &'a str,
    chars: Peekable<Chars<'a>>,
    previous: Option<char>,
}

impl Parser<'_> {
    fn parse_into(mut self, tokens: &mut Vec<Token>) -> Result<(), String> {
        while let Some(c) = self.chars.next() {
            let token = match c {
                '\\' => Token::Char(self.escaped()?),
                '?' => Token::Any,
                '*' => self.star(),
                '[' => self.set()?,
                c => Token::Char(c),
            };
            tokens.push(token);
            self.previous = Some(c);
        }
        Ok(())
    }

    fn escaped(&mut self) -> Result<char, String> {
        self.chars.next().ok_or_else(|| self.wrong("it ends with a backslash"))
    }

    fn star(&mut self) -> Token {
        let mut several = false;
        while self.chars.next_if_eq(&'*').is_some() {
            several = true;
        }
        let starts = self.previous.is_none();
        let is_element = self.previous == Some('/') && matches!(self.chars.peek(), None | Some('/'));
        if several && (starts || is_element) { Token::Stars } else { Token::Star }
    }

    fn set(&mut self) -> Result<Token, String> {
        let negated = self.chars.next_if_eq(&'!').is_some();
        let mut items = Vec::new();
        loop {
            let c = match self.chars.next() {
                None => return Err(self.wrong("it has a [ without a ]")),
                Some(']') => return Ok(Token::Set { negated, items }),
                Some('[') if self.chars.peek() == Some(&':') => match self.class()? {
                    Some(class) => {
                        items.push(Item::Class(class));
                        continue;
                    }
                    None => '[',
                },
                Some('\\') => self.escaped()?,
                Some(c) => c,
            };
            let mut ahead = self.chars.clone();
            let is_range = ahead.next() == Some('-') && !matches!(ahead.next(), None | Some(']'));
            let end = match is_range {
                false => c,
                true => {
                    self.chars.next();
                    match self.chars.next() {
                        Some('\\') => self.escaped()?,
                        Some(end) => end,
                        None => return Err(self.wrong("it has a [ without a ]")),
                    }
                }
            };
            items.push(Item::Range(c, end));
        }
    }

    /// A class such as `[:alpha:]`, of which the first bracket has been read; `None` if it is not one.
    fn class(&mut self) -> Result<Option<Class>, String> {
        let text: String = self.chars.clone().take_while(|c| *c != ']').collect();
        let Some(name) = text.strip_prefix(':').and_then(|rest| rest.strip_suffix(':')) else {
            return Ok(None);
        };
        let class = match name.to_lowercase().as_str() {
            "alnum" => Class::Alnum,
            "alpha" => Class::Alpha,
            "ascii" => Class::Ascii,
            "blank" => Class::Blank,
            "cntrl" => Class::Control,
            "digit" => Class::Digit,
            "graph" => Class::Graphic,
            "lower" => Class::Lower,
            "print" => Class::Print,
            "punct" => Class::Punctuation,
            "space" => Class::Space,
            "upper" => Class::Upper,
            "xdigit" => Class::HexDigit,
            _ => return Err(self.wrong(&format!("it has the unknown class [:{name}:]"))),
        };
        // The name and the bracket behind it.
        self.chars.nth(text.chars().count());
        Ok(Some(class))
    }

    fn wrong(&self, what: &str) -> String {
        format!("the ignore rule {:?} is not valid: {what}", self.rule)
    }
}

impl Item {
    fn has(&self, c: char) -> bool {
        match self {
            Item::Range(first, last) => (*first..=*last).contains(&c),
            Item::Class(class) => class.has(c),
        }
    }
}

impl Class {
    fn has(self, c: char) -> bool {
        let visible = !c.is_control() && !c.is_whitespace();
        match self {
            Class::Alnum => c.is_alphanumeric(),
            Class::Alpha => c.is_alphabetic(),
            Class::Ascii => c.is_ascii(),
            Class::Blank => c == '\t' || c.is_whitespace() && !c.is_control(),
            Class::Control => c.is_control(),
            Class::Digit => c.is_numeric(),
            Class::Graphic => visible || c.is_whitespace() && !c.is_control(),
            Class::Lower => c.is_lowercase(),
            Class::Print => visible || c == ' ',
            Class::Punctuation => visible && !c.is_alphanumeric(),
            Class::Space => c.is_whitespace(),
            Class::Upper => c.is_uppercase(),
            Class::HexDigit => c.is_ascii_hexdigit() || c.is_numeric(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Whether a rule of the root ignores a path; a slash at its end says that it is a directory.
    fn matches(rule: &str, base: &str, path: &str) -> bool {
        let (path, is_dir) = match path.strip_suffix('/') {
            Some(directory) => (directory, true),
            None => (path, false),
        };
        Pattern::parse(rule, base).unwrap().matches(path, is_dir)
    }

    #[test]
    fn names_paths_and_wildcards_match_as_in_kopia() {
        for (rule, path) in [
            ("*.txt", "/foo/bar/a.txt"),
            ("foo", "/foo"),
            ("foo\\.txt", "/a/foo.txt"),
            ("*/", "/.git/"),
            ("ab*cd", "/abxxxcd"),
            ("ab***cd", "/abcd"),
            ("?*?", "/abc"),
            ("**", "/foo/bar"),
            ("**/", "/foo/"),
            ("/a/**/b/foo.txt", "/a/b/c/b/foo.txt"),
            ("/a/**/b/foo.txt", "/a/b/c/b/foo.txt/e/b/foo.txt"),
            ("foo/**", "/foo/bar/a/b/c.txt"),
            ("/foo/**/bar/**/p.txt", "/foo/bar/p.txt"),
            ("/foo/**/bar/**/p.txt", "/foo/x/x/bar/x/y/p.txt"),
            ("**/bar/a.txt", "/foo/x/x/bar/a.txt"),
            ("bar/a.txt", "/bar/a.txt"),
            ("foo/", "/bar/foo/"),
            ("foo/**/bar/", "/foo/xx/yy/bar/"),
            ("  \tfoo  ", "/foo"),
            (" foo\\ ", "/foo "),
            ("/users/*/logs", "/users/user1/logs"),
            ("/users/user?/logs", "/users/user1/logs"),
            ("!foo/bar/", "/foo/bar/"),
        ] {
            assert!(matches(rule, "", path), "{rule} must match {path}");
        }
        for (rule, path) in [
            ("b", "/a"),
            ("ab*", "/ab/cd"),
            ("ab**", "/ab/cd"),
            ("??", "/a"),
            ("/a/**/b/foo.txt", "/a/b/c/d/foo.txt"),
            ("/a/**/b/foo.txt", "/a/b/c/b/foo.txt/other"),
            ("bar/a.txt", "/foo/bar/a.txt"),
            ("/*.txt", "/foo/bar/a.txt"),
            ("foo/", "/foo"),
            ("foo/", "/foo/bar/"),
            ("**/", "/foo"),
            ("!foo/bar", "/car/foo/bar"),
        ] {
            assert!(!matches(rule, "", path), "{rule} must not match {path}");
        }
    }

    #[test]
    fn rules_of_a_directory_are_about_what_is_below_it() {
        for (rule, path, expected) in [
            ("*", "/foo", false),
            ("**", "/foo", false),
            ("*", "/base/foo", true),
            ("**", "/base/foo", true),
            ("*.txt", "/other/foo.txt", false),
            ("/src/file.txt", "/base/src/file.txt", true),
            ("**/src/file.txt", "/base/foo/src/file.txt", true),
            ("src/file.txt", "/base/foo/src/file.txt", false),
            ("src/file.txt", "/base/src/file.txt", true),
            ("file.txt", "/base/foo/src/file.txt", true),
            ("file.txt", "/base/file.txt", true),
        ] {
            assert_eq!(matches(rule, "/base", path), expected, "{rule} and {path}");
        }
    }

    #[test]
    fn sets_hold_characters_ranges_and_classes() {
        for (rule, path, expected) in [
            ("ab[cd]", "/abc", true),
            ("ab[!de]", "/abc", true),
            ("[\\\\]", "/\\", true),
            ("[!\\\\]", "/\\", false),
            ("[-abc]", "/-", true),
            ("[abc-]", "/-", true),
            ("[[]", "/[", true),
            ("[a-z]", "/q", true),
            ("[a-\\z]", "/q", true),
            ("[a-d]", "/e", false),
            ("[a\\-c]", "/b", false),
            ("[[:ab]", "/:", true),
            ("[[:ab]", "/c", false),
            ("[![:digit:]ab]", "/3", false),
            ("[![:digit:]ab]", "/c", true),
            ("name-with-a-long-head[[:upper:]]", "/name-with-a-long-headQ", true),
            ("[[:alpha:]]", "/Б", true),
            ("[[:space:]]", "/\t", true),
            ("[[:punct:]]", "/$", true),
            ("[[:xdigit:]]", "/G", false),
        ] {
            assert_eq!(matches(rule, "", path), expected, "{rule} and {path}");
        }
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        for rule in ["[a", "[a-", "\\", "[\\", "[a-\\", "[[:alnum", "[[:alnum:]", "[[:foobar:]]"] {
            let error = Pattern::parse(rule, "").unwrap_err();
            assert!(error.contains("is not valid"), "{error}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_longer_than_any_other() {
        let rule = "*a".repeat(200) + "b";
        let path = format!("/{}", "a".repeat(4000));
        assert!(!matches(&rule, "", &path));
    }
}
