//! `session`: who is writing to the repository, or was when their machine stopped.

use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use anyhow::{Context, Result};
use clap::Subcommand;
use futures::TryStreamExt;
use lifeboat_blobs::BlobMetadata;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::session::{MARKER_PREFIX, SessionId, SessionMarker};
use std::collections::BTreeMap;

/// Verbs of `session`.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the writers whose data is protected from maintenance although no snapshot has it yet
    #[command(visible_alias = "ls")]
    List(JsonArgs),
}

pub fn run(session: &Session, command: &SessionCommand) -> Result<()> {
    let SessionCommand::List(json) = command;
    let repository = session.open_for_reading()?;
    let mut sessions: Vec<SessionMarker> = session.wait(find(&repository))?.into_values().collect();
    sessions.sort_by_key(|marker| marker.start_time);
    if json.json {
        return output::print_json_list(sessions.iter().map(Ok));
    }
    sessions.iter().try_for_each(|SessionMarker { id, start_time, checkpoint_time, username, hostname }| {
        let (started, seen) = (output::time(*start_time), output::time(*checkpoint_time));
        output::line(&format!("{id} {username}@{hostname} started {started} last seen {seen}"))
    })
}

/// The latest marker of each session. Markers go when their session ends, also between being listed and being read.
async fn find(repository: &Repository) -> Result<BTreeMap<SessionId, SessionMarker>> {
    let mut latest: BTreeMap<SessionId, SessionMarker> = BTreeMap::new();
    let blobs: Vec<BlobMetadata> = repository.store().list(MARKER_PREFIX).try_collect().await?;
    for blob in blobs {
        let sealed = match repository.store().get(&blob.id).await {
            Err(error) if error.is_not_found() => continue,
            sealed => sealed?,
        };
        let name = blob.id.as_str();
        let plain = repository.contents().sealer().open_blob(name, &sealed)?;
        let marker: SessionMarker = serde_json::from_slice(&plain).with_context(|| {
            format!("{name} is not the marker of a session; `repository verify` tells more")
        })?;
        let is_newer = |known: &SessionMarker| known.checkpoint_time < marker.checkpoint_time;
        if latest.get(&marker.id).is_none_or(is_newer) {
            latest.insert(marker.id.clone(), marker);
        }
    }
    Ok(latest)
}
