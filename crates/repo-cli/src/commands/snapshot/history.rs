//! `snapshot copy-history` and `move-history`: snapshots under the name of another user, host or path.

use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result, bail};
use clap::Args;
use lifeboat_kopia::snapshot::{self, SourceInfo};

/// From where to where.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Whose snapshots: user@host:/path, user@host or @host
    pub source: String,
    /// Whose they are to be; parts that are left out stay the same. By default those of this connection
    pub destination: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,
}

pub fn run(session: &Session, args: &HistoryArgs, is_move: bool) -> Result<()> {
    let connection = session.connection()?;
    let parse = |text: &str| {
        let parsed = SourceInfo::parse(text).filter(|source| !source.host.is_empty());
        parsed.with_context(|| format!("{text:?} is not user@host:/path, user@host or @host"))
    };
    let from = parse(&args.source)?;
    let to = match &args.destination {
        Some(text) => parse(text)?,
        None => SourceInfo::new(&connection.username, &connection.hostname, ""),
    };
    check(&from, &to)?;
    let trees = Trees::of(session, session.open()?)?;
    let is_same = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
    let verb = if is_move { "moving" } else { "copying" };
    for old in trees.snapshots() {
        let source = &old.source;
        let is_meant = is_same(&from.host, &source.host)
            && is_same(&from.user_name, &source.user_name)
            && is_same(&from.path, &source.path);
        let target = renamed(source, &to);
        if !is_meant || target == *source {
            continue;
        }
        let is_there = trees
            .snapshots()
            .iter()
            .any(|other| other.source == target && other.start_time == old.start_time);
        println!("{verb} {source} ({}) => {target}", output::time(old.start_time));
        if args.dry_run {
            continue;
        }
        if !is_there {
            let mut copy = old.clone();
            copy.source = target;
            session.wait(snapshot::save(trees.repository.manifests(), &mut copy))?;
        }
        if is_move {
            session.wait(trees.repository.manifests().delete(&old.id))?;
        }
    }
    Ok(session.wait(trees.repository.close())?)
}

/// Several users or paths must not become one.
fn check(from: &SourceInfo, to: &SourceInfo) -> Result<()> {
    if from.path.is_empty() && !to.path.is_empty() {
        bail!("the snapshots of several paths would become those of one: name the path of the source, too");
    }
    if from.user_name.is_empty() && !to.user_name.is_empty() {
        bail!("the snapshots of several users would become those of one: name the user of the source, too");
    }
    Ok(())
}

fn renamed(source: &SourceInfo, to: &SourceInfo) -> SourceInfo {
    let or = |new: &String, old: &String| if new.is_empty() { old.clone() } else { new.clone() };
    SourceInfo::new(
        or(&to.user_name, &source.user_name),
        or(&to.host, &source.host),
        or(&to.path, &source.path),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_left_out_stay_the_same() {
        let source = SourceInfo::new("u", "h", "/p");
        let to = |text| SourceInfo::parse(text).unwrap();
        assert_eq!(renamed(&source, &to("@h2")).to_string(), "u@h2:/p");
        assert_eq!(renamed(&source, &to("u2@h2")).to_string(), "u2@h2:/p");
        assert_eq!(renamed(&source, &to("u2@h2:/q")).to_string(), "u2@h2:/q");
    }

    #[test]
    fn users_and_paths_never_become_one() {
        let check = |from, to| check(&SourceInfo::parse(from).unwrap(), &SourceInfo::parse(to).unwrap());
        for (from, to) in [("@h", "u@h2"), ("@h", "u@h2:/p"), ("u@h", "u2@h2:/p")] {
            assert!(check(from, to).is_err(), "{from} to {to}");
        }
        for (from, to) in [("@h", "@h2"), ("u@h", "u2@h2"), ("u@h:/p", "u2@h2:/q")] {
            assert!(check(from, to).is_ok(), "{from} to {to}");
        }
    }
}
