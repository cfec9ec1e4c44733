//! Which paths are restored.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Paths below the root of a snapshot that are wanted, and that are not.
///
/// A pattern is a path. In its elements `*` stands for any characters and `?` for one; an element `**` stands for any
/// number of elements. A pattern matches what it names and everything below.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathFilter {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

type Pattern = Vec<Vec<u8>>;

impl PathFilter {
    /// Takes what matches any of `include`, or everything if there is none, but nothing that matches any of `exclude`.
    pub fn new<S: AsRef<[u8]>>(
        include: impl IntoIterator<Item = S>,
        exclude: impl IntoIterator<Item = S>,
    ) -> Self {
        PathFilter {
            include: include.into_iter().map(|text| elements(text.as_ref())).collect(),
            exclude: exclude.into_iter().map(|text| elements(text.as_ref())).collect(),
        }
    }

    /// Whether everything is taken.
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Whether what is at `path` is taken.
    pub fn takes(&self, path: &Path) -> bool {
        let path = elements(path.as_os_str().as_bytes());
        let matches = |pattern: &Pattern| matches(pattern, &path) == Match::Whole;
        (self.include.is_empty() || self.include.iter().any(matches)) && !self.exclude.iter().any(matches)
    }

    /// Whether something below the directory at `path` may be taken.
    pub fn descends(&self, path: &Path) -> bool {
        let path = elements(path.as_os_str().as_bytes());
        let leads = |pattern: &Pattern| matches(pattern, &path) != Match::Nothing;
        let is_out = |pattern: &Pattern| matches(pattern, &path) == Match::Whole;
        (self.include.is_empty() || self.include.iter().any(leads)) && !self.exclude.iter().any(is_out)
    }
}

fn elements(path: &[u8]) -> Pattern {
    let elements = path.split(|byte| *byte == b'/');
    elements.filter(|element| !matches!(*element, b"" | b".")).map(<[u8]>::to_vec).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Nothing,
    /// The path is above what the pattern names.
    Above,
    /// The path is what the pattern names, or below it.
    Whole,
}

fn matches(pattern: &[Vec<u8>], path: &[Vec<u8>]) -> Match {
    match (pattern, path) {
        ([], _) => Match::Whole,
        ([any, rest @ ..], _) if any == b"**" => {
            let here = matches(rest, path);
            match path {
                _ if here == Match::Whole => here,
                [] => Match::Above,
                [_, below @ ..] => here.max(matches(pattern, below)),
            }
        }
        (_, []) => Match::Above,
        ([first, rest @ ..], [name, below @ ..]) if is_like(first, name) => matches(rest, below),
        _ => Match::Nothing,
    }
}

/// Whether a name is as an element of a pattern says. Goes back to the last `*` only, so it takes no more than the
/// product of both lengths.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    let mut last_star = None;
    while place < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                last_star = Some((at, place));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[place] => {
                at += 1;
                place += 1;
            }
            _ => match last_star {
                Some((star, from)) => {
                    last_star = Some((star, from + 1));
                    at = star + 1;
                    place = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> PathFilter {
        PathFilter::new(include, exclude)
    }

    #[test]
    fn paths_and_wildcards_match_what_they_name_and_all_below() {
        let some = filter(&["etc/hosts", "/home/*/doc?", "**/*.rs"], &["home/eve", "**/tmp"]);
        for taken in ["etc/hosts", "etc/hosts/below", "home/a/docs/x/y", "a.rs", "x/y/z.rs", "x/y.rs/z"] {
            assert!(some.takes(Path::new(taken)), "{taken}");
        }
        for refused in
            ["", "etc", "etc/host", "etc/hosts2", "home/a/doc", "home/eve/docs", "tmp/a.rs", "z/tmp"]
        {
            assert!(!some.takes(Path::new(refused)), "{refused}");
        }
        let all = PathFilter::default();
        assert!(all.is_everything() && all.takes(Path::new("")) && all.descends(Path::new("x")));
    }

    #[test]
    fn directories_above_what_is_wanted_are_entered_and_others_are_not() {
        let some = filter(&["a/b/c"], &["a/b/x"]);
        for entered in ["", "a", "a/b", "a/b/c", "a/b/c/d"] {
            assert!(some.descends(Path::new(entered)), "{entered}");
        }
        for left in ["b", "a/c", "a/b/x", "a/b/d"] {
            assert!(!some.descends(Path::new(left)), "{left}");
        }
        assert!(filter(&["**/x"], &[]).descends(Path::new("a/b/c")));
        assert!(!filter(&[], &["a/*"]).descends(Path::new("a/b")));
    }

    #[test]
    fn stars_match_any_characters_in_reasonable_time() {
        assert!(is_like(b"*a*b*", b"xxaxxbxx") && is_like(b"*", b"") && is_like(b"a**", b"a"));
        assert!(!is_like(b"a?", b"a") && !is_like(b"*.rs", b"rs") && is_like(b"*?.rs", b"\xff.rs"));
        assert!(!is_like(&b"*a".repeat(100), &[b'a'; 99]));
        assert!(!is_like(&[&b"*a".repeat(60)[..], b"b"].concat(), &[b'a'; 255]));
    }
}
