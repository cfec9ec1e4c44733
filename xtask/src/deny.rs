//! Licences, sources and bans of all dependencies, by `cargo deny` and the workspace's `deny.toml`.

use anyhow::{Context, Result, ensure};
use std::process::Command;

/// Fails if a dependency breaks a rule of `deny.toml`.
pub fn check() -> Result<()> {
    let program = lifeboat_tools::path("cargo-deny")?;
    let status = Command::new(program)
        // Advisories are left out: see deny.toml.
        .args(["--workspace", "--locked", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
        .status()
        .context("start cargo-deny")?;
    ensure!(status.success(), "cargo deny: {status}");
    Ok(())
}
