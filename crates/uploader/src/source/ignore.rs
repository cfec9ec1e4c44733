//! What the policies leave out: rules by name, rules in files such as `.kopiaignore`, large files, other file systems,
//! and the contents of cache directories.

use crate::source::wildcard::Pattern;
use crate::source::{Names, SourceDir};
use crate::{Error, Result};
use lifeboat_kopia::policy::PolicyTree;
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

/// The file that marks a directory as a cache, and what it must begin with.
const CACHE_TAG: &str = "CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// No file of rules that is meant as one is longer.
const MAX_RULES_BYTES: u64 = 4 << 20;

/// What is left out of a directory and of those below it that do not say otherwise.
#[derive(Debug, Default)]
pub struct Ignore {
    /// The rules above, which apply first.
    parent: Option<Arc<Ignore>>,
    rules: Vec<Pattern>,
    /// Whether there are any rules, here or above.
    has_rules: bool,
    /// Which files hold more rules.
    rule_files: Vec<String>,
    max_file_size: Option<u64>,
    one_file_system: bool,
}

impl Ignore {
    /// What is left out of `directory`, whose path below the root is `path` (empty for the root, else it begins
    /// with a slash), where `above` applies to the directory that it is in.
    pub(crate) fn below(
        above: &Arc<Ignore>,
        directory: &SourceDir,
        names: &Names,
        path: &str,
        policies: &PolicyTree,
    ) -> Result<Arc<Ignore>> {
        let rules = |name: &str| match names.may_have(name.as_bytes()) {
            true => read_rules(directory, name),
            false => Ok(Vec::new()),
        };
        let invalid = |reason: String| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
            Error::file("apply the ignore rules of", &directory.path, source)
        };
        Ignore::by(above, path, policies, rules, invalid)
    }

    /// The same for a directory of which `rules` tells what is in a file of rules, if it is there. A rule that is not
    /// understood is what `invalid` makes of it.
    pub fn by<E>(
        above: &Arc<Ignore>,
        path: &str,
        policies: &PolicyTree,
        mut rules: impl FnMut(&str) -> std::result::Result<Vec<String>, E>,
        invalid: impl Fn(String) -> E,
    ) -> std::result::Result<Arc<Ignore>, E> {
        let defined = policies.is_defined().then(|| &policies.policy().files);
        let rule_files = defined.map_or(&above.rule_files, |files| &files.ignore_dot_files);
        let mut in_files = Vec::new();
        for name in rule_files {
            in_files.extend(rules(name)?);
        }
        if in_files.is_empty() && defined.is_none() {
            return Ok(above.clone());
        }
        let mut ignore = Ignore {
            parent: Some(above.clone()),
            rule_files: rule_files.clone(),
            max_file_size: above.max_file_size,
            one_file_system: above.one_file_system,
            ..Ignore::default()
        };
        if let Some(files) = defined {
            if files.no_parent_ignore {
                ignore.parent = None;
            }
            if let Some(most) = u64::try_from(files.max_file_size).ok().filter(|most| *most > 0) {
                ignore.max_file_size = Some(most);
            }
            ignore.one_file_system = files.one_file_system.unwrap_or(false);
            for rule in &files.ignore {
                ignore.rules.push(Pattern::parse(rule, path).map_err(&invalid)?);
            }
        }
        for rule in in_files {
            ignore.rules.push(Pattern::parse(&rule, path).map_err(&invalid)?);
        }
        ignore.has_rules =
            !ignore.rules.is_empty() || ignore.parent.as_ref().is_some_and(|parent| parent.has_rules);
        Ok(Arc::new(ignore))
    }

    /// Whether there are rules by name at all.
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }

    /// Whether the rules leave out `path`, which begins with a slash.
    pub fn leaves_out(&self, path: &str, is_dir: bool) -> bool {
        let mut left_out = match &self.parent {
            Some(parent) if parent.has_rules => parent.leaves_out(path, is_dir),
            _ => false,
        };
        for rule in self.rules.iter().filter(|_| self.has_rules) {
            if left_out == rule.negated && rule.matches(path, is_dir) {
                left_out = !left_out;
            }
        }
        left_out
    }

    /// Whether a file of this size is too large.
    pub fn is_too_large(&self, size: u64) -> bool {
        self.max_file_size.is_some_and(|most| size > most)
    }

    /// Whether something on `device` in a directory on `directory_device` is left out.
    pub(crate) fn is_elsewhere(&self, device: u64, directory_device: u64) -> bool {
        self.one_file_system && device != directory_device
    }
}

/// Whether a directory says of itself that it is a cache, and the policy leaves the contents of caches out.
pub(crate) fn is_cache(directory: &SourceDir, names: &Names, policies: &PolicyTree) -> bool {
    let Some(tag) = cache_tag(policies).filter(|tag| names.may_have(tag.as_bytes())) else { return false };
    let tag = CString::new(tag).unwrap_or_default();
    directory.open_file(&tag).is_ok_and(|(file, _)| is_cache_tag(std::fs::File::from(file)))
}

/// The name of the file that marks a directory as a cache, if the policy leaves the contents of caches out.
pub fn cache_tag(policies: &PolicyTree) -> Option<&'static str> {
    policies.policy().files.ignore_cache_dirs.unwrap_or(true).then_some(CACHE_TAG)
}

/// Whether a file marks the directory that it is in as a cache.
pub fn is_cache_tag(mut file: impl Read) -> bool {
    let mut head = [0; CACHE_SIGNATURE.len()];
    file.read_exact(&mut head).is_ok() && head == CACHE_SIGNATURE
}

/// The rules in a file. It may be a link, as in Kopia: only rules are read through it, and only from a file.
fn read_rules(directory: &SourceDir, name: &str) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| Error::file("read the ignore rules in", &directory.path.join(name), e);
    let c_name = CString::new(name).map_err(|e| failed(e.into()))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match rustix::fs::openat(&directory.fd, &c_name, flags, Mode::empty()) {
        Ok(file) => file,
        // Directories with many entries are asked for names that they may not have.
        Err(rustix::io::Errno::NOENT) if directory.stat(&c_name).is_err() => return Ok(Vec::new()),
        Err(error) => return Err(failed(error.into())),
    };
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return match directory.stat(&c_name).map(|own| FileType::from_raw_mode(own.st_mode)) {
            Ok(FileType::Symlink) => Err(failed(std::io::Error::other("it does not link to a file"))),
            _ => Ok(Vec::new()),
        };
    }
    rules_in(std::fs::File::from(file)).map_err(failed)
}

/// The rules in a file of rules, without comments.
pub fn rules_in(file: impl Read) -> std::io::Result<Vec<String>> {
    let mut rules = Vec::new();
    for line in BufReader::new(file.take(MAX_RULES_BYTES)).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        if !line.starts_with('#') && !line.trim().is_empty() {
            rules.push(line.to_owned());
        }
    }
    Ok(rules)
}
