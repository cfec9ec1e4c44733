//! What is taken from the machine: Go, Cargo, Node and apt, each with a clear word when it is missing or too old.

use crate::Recipe;
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;
use std::sync::OnceLock;

/// Velero 1.18 asks for it; everything else is content with less.
const GO: (u32, u32) = (1, 26);
/// The oldest release that Azurite 3.37 still names as supported.
const NODE: (u32, u32) = (20, 0);

/// The version of whatever compiles or runs the tool, as a part of its cache key.
pub(crate) fn toolchain(recipe: &Recipe) -> Result<String> {
    match recipe {
        Recipe::GoBuild { .. } | Recipe::OldGoBuild { .. } | Recipe::GoTest { .. } => go().cloned(),
        Recipe::Npm { .. } => node().cloned(),
        // A finished Rust binary does not depend on the compiler that made it, and Debian keeps its own versions.
        Recipe::Cargo { .. } | Recipe::Debian { .. } => Ok(String::new()),
    }
}

fn go() -> Result<&'static String> {
    static GO_VERSION: OnceLock<Result<String, String>> = OnceLock::new();
    let version = GO_VERSION.get_or_init(|| {
        // Without a module's own wishes: a toolchain that Go would download by itself must not change the key.
        let mut command = Command::new("go");
        command.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").current_dir("/");
        probe(command, "Go", GO, "install it from your distribution or https://go.dev/dl")
            .map_err(|e| format!("{e:#}"))
    });
    version.as_ref().map_err(|text| anyhow::anyhow!("{text}"))
}

fn node() -> Result<&'static String> {
    static NODE_VERSION: OnceLock<Result<String, String>> = OnceLock::new();
    let version = NODE_VERSION.get_or_init(|| {
        let mut command = Command::new("node");
        command.arg("--version");
        probe(command, "Node", NODE, "install nodejs and npm").map_err(|e| format!("{e:#}"))
    });
    version.as_ref().map_err(|text| anyhow::anyhow!("{text}"))
}

/// The version that `command` prints, if it is at least `oldest`.
fn probe(mut command: Command, name: &str, oldest: (u32, u32), remedy: &str) -> Result<String> {
    let (major, minor) = oldest;
    let needed = || format!("{name} {major}.{minor} or newer is needed: {remedy}");
    let output = command.output().with_context(needed)?;
    ensure!(output.status.success(), "{}", needed());
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut parts = digits.split(['.', '-', ' ']).map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if found < oldest {
        bail!("{}; this is {version}", needed());
    }
    Ok(version)
}
