//! The flags of `policy set` about commands that run before and after a backup.

use crate::commands::parse_duration;
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use lifeboat_kopia::policy::{ActionCommand, ActionsPolicy};
use std::time::Duration;

/// The longest script that a policy holds, as in Kopia.
const MAX_SCRIPT: usize = 32_000;

/// Commands before and after. They run only where the connection allows it (`--enable-actions`).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("action").multiple(true))]
pub struct ActionArgs {
    /// Run this before each snapshot (`none` not to, or `inherit`); a line KOPIA_SNAPSHOT_PATH=DIR that it prints has that
    /// directory read instead
    #[arg(long, value_name = "COMMAND", group = "action")]
    pub before_snapshot_root_action: Option<String>,
    /// Run this after each snapshot (`none` not to, or `inherit`)
    #[arg(long, value_name = "COMMAND", group = "action")]
    pub after_snapshot_root_action: Option<String>,
    /// Run this before this directory is read (`none` not to); not inherited
    #[arg(long, value_name = "COMMAND", group = "action")]
    pub before_folder_action: Option<String>,
    /// Run this after this directory was read (`none` not to); not inherited
    #[arg(long, value_name = "COMMAND", group = "action")]
    pub after_folder_action: Option<String>,
    /// How long such a command may take
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, requires = "action")]
    pub action_command_timeout: Duration,
    /// Whether a backup fails with it (essential), goes on without it (optional) or does not wait for it (async)
    #[arg(long, value_name = "MODE", default_value = "essential", value_parser = ["essential", "optional", "async"], requires = "action")]
    pub action_command_mode: String,
    /// The command is a file whose text the policy keeps
    #[arg(long, requires = "action")]
    pub persist_action_script: bool,
}

impl ActionArgs {
    /// Changes the actions.
    pub fn apply(&self, actions: &mut ActionsPolicy) -> Result<()> {
        let places = [
            (&self.before_snapshot_root_action, &mut actions.before_snapshot_root),
            (&self.after_snapshot_root_action, &mut actions.after_snapshot_root),
            (&self.before_folder_action, &mut actions.before_folder),
            (&self.after_folder_action, &mut actions.after_folder),
        ];
        for (text, place) in places {
            match text.as_deref() {
                None => {}
                Some("" | "none" | "inherit") => *place = None,
                Some(text) => *place = Some(self.command(text)?),
            }
        }
        Ok(())
    }

    fn command(&self, text: &str) -> Result<ActionCommand> {
        let mut action = ActionCommand {
            timeout_seconds: i64::try_from(self.action_command_timeout.as_secs()).unwrap_or(i64::MAX),
            mode: self.action_command_mode.clone(),
            ..ActionCommand::default()
        };
        if self.persist_action_script {
            let script =
                std::fs::read_to_string(text).with_context(|| format!("cannot read the script {text}"))?;
            if script.is_empty() || script.len() > MAX_SCRIPT {
                bail!("the script {text} has {} bytes; a policy holds 1 to {MAX_SCRIPT}", script.len());
            }
            action.script = script;
        } else {
            let mut words = split(text).with_context(|| format!("{text:?} is not a command"))?.into_iter();
            action.command = words.next().unwrap_or_default();
            action.arguments = words.collect();
        }
        Ok(action)
    }
}

/// The words of a command: with single spaces in between, and in double quotes if they have some themselves; a quote
/// inside is written twice.
fn split(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        let mut word = String::new();
        match rest.strip_prefix('"') {
            Some(mut quoted) => loop {
                let (part, behind) = quoted.split_once('"').context("a quote is not closed")?;
                word.push_str(part);
                match behind.strip_prefix('"') {
                    Some(more) => {
                        word.push('"');
                        quoted = more;
                    }
                    None => {
                        rest = behind;
                        break;
                    }
                }
            },
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                word.push_str(&rest[..end]);
                rest = &rest[end..];
                if word.contains('"') {
                    bail!("a quote is in the middle of a word");
                }
            }
        }
        words.push(word);
        match rest.strip_prefix(' ') {
            Some(more) => rest = more,
            None if rest.is_empty() => return Ok(words),
            None => bail!("something follows a closing quote"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_kopia_splits_them() {
        for (text, words) in [
            ("run", &["run"][..]),
            ("run it  now", &["run", "it", "", "now"]),
            (r#"run "two words" "" "a ""b"" c""#, &["run", "two words", "", r#"a "b" c"#]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
        for wrong in [r#"run "open"#, r#"run in"side"#, r#"run "shut"behind"#] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }
}
