//! `content`: verify.

use super::bytes;
use crate::args::ContentCommand;
use crate::session::Session;
use anyhow::{Result, bail};
use lifeboat_kopia::verify::{self, VerifyContents};

pub fn run(session: &Session, command: &ContentCommand) -> Result<()> {
    let ContentCommand::Verify { full } = command;
    let repository = session.open()?;
    let options = VerifyContents { full: *full, ..VerifyContents::default() };
    let mut print = |damage: verify::ContentDamage| {
        eprintln!("damaged: content {} in pack {}: {}", damage.id, damage.pack, damage.reason);
    };
    let report = session.wait(verify::contents(&repository, &options, &mut print))?;
    println!("Verified {} contents, read {}.", report.contents, bytes(report.bytes_read));
    if report.damaged > 0 {
        bail!("{} contents are damaged; `snapshot verify` tells which snapshots need them", report.damaged);
    }
    Ok(())
}
