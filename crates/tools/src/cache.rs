//! Where a tool lies in the cache, by everything that went into it.

use crate::{Recipe, Tool, machine};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Raised when the way of building changes in a manner that the recipes do not show.
const SCHEMA: &str = "1";

/// The folder of everything that may be made again: `$LIFEBOAT_CACHE`, else `lifeboat` in the user's cache folder.
pub fn cache_dir() -> Result<PathBuf> {
    let from =
        |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = from("LIFEBOAT_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|dir| dir.join("lifeboat")))
        .or_else(|| from("HOME").map(|dir| dir.join(".cache/lifeboat")))
        .context("no folder for the cache: set LIFEBOAT_CACHE or HOME")?;
    // A relative folder would be another one for each crate's tests.
    ensure!(root.is_absolute(), "the cache folder {} must be an absolute path", root.display());
    Ok(root)
}

/// The folder of all tools.
pub(crate) fn tools_dir() -> Result<PathBuf> {
    Ok(cache_dir()?.join("tools"))
}

/// The folder below the checkout that pins the recipe's sources, if it has one.
pub(crate) fn folder(recipe: &Recipe) -> Option<PathBuf> {
    let folder = match recipe {
        Recipe::GoBuild { module, .. }
        | Recipe::OldGoBuild { module, .. }
        | Recipe::GoTest { module, .. } => module,
        Recipe::Npm { folder, .. } => folder,
        Recipe::Cargo { .. } | Recipe::Debian { .. } => return None,
    };
    Some(modules_dir().join(folder))
}

/// `testbed/modules` of the checkout that this crate was compiled from.
fn modules_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/modules")
}

/// The folder in which this very version of the tool lies or will lie.
pub(crate) fn home(tool: &Tool) -> Result<PathBuf> {
    Ok(tools_dir()?.join(format!("{}-{}", tool.name, key(tool)?)))
}

/// The program of the tool, whether it is installed or not.
pub(crate) fn program(tool: &Tool) -> Result<PathBuf> {
    if let Recipe::Debian { program, .. } = tool.recipe {
        return Ok(PathBuf::from(program));
    }
    Ok(home(tool)?.join(program_in_home(tool)))
}

/// The program relative to the tool's folder.
pub(crate) fn program_in_home(tool: &Tool) -> PathBuf {
    match tool.recipe {
        Recipe::Npm { command, .. } => Path::new("node_modules/.bin").join(command),
        Recipe::Cargo { .. } => Path::new("bin").join(tool.name),
        Recipe::GoBuild { .. }
        | Recipe::OldGoBuild { .. }
        | Recipe::GoTest { .. }
        | Recipe::Debian { .. } => PathBuf::from(tool.name),
    }
}

/// A digest over version, recipe, pinned sources and the compiler.
fn key(tool: &Tool) -> Result<String> {
    let mut digest = Sha256::new();
    let mut field = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    field(SCHEMA.as_bytes());
    field(tool.version.as_bytes());
    field(format!("{:?}", tool.recipe).as_bytes());
    field(machine::toolchain(&tool.recipe)?.as_bytes());
    if let Some(folder) = folder(&tool.recipe) {
        for path in files_below(&folder)? {
            field(path.strip_prefix(&folder)?.as_os_str().as_encoded_bytes());
            field(&std::fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(hex::encode(&digest.finalize()[..8]))
}

/// All files below `folder`, sorted.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}
