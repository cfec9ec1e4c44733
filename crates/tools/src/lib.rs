//! The programs that tests, lints and the cluster run beside ours: which versions, how they are built, where they are.
//!
//! Each program lives in a cache outside the checkout, in a folder named after everything that went into it, so two
//! checkouts with different pins never fight and a changed pin is never mistaken for the old program. `PATH` is not
//! consulted for any of them: only Go, Cargo, Node and apt are taken from the machine.
//!
//! To add a program, add an entry to [`table::TOOLS`]; nothing else needs to know about it.

#![forbid(unsafe_code)]

mod build;
mod cache;
mod machine;
mod table;

pub use build::{Outcome, install};
pub use cache::cache_dir;
pub use table::TOOLS;

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// One program and how to get it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// The name used with [`path`] and `cargo xtask tools`; for built programs also the name of the file.
    pub name: &'static str,
    /// The version, for people to read; it is also part of the cache key.
    pub version: &'static str,
    /// Who needs it.
    pub group: Group,
    /// How to get it.
    pub recipe: Recipe,
}

/// Who needs a tool; `cargo xtask tools` takes the name of a group for all of its tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Peers and storage servers that every test run crosses with.
    Peers,
    /// Further releases of the peers and their own test suites, for `cargo xtask test --long`.
    Long,
    /// Checkers and fuzzers of the source.
    Lint,
    /// What a Kubernetes cluster for tests is made of.
    Cluster,
}

impl Group {
    /// Every group, in the order in which a listing shows them.
    pub const ALL: [Group; 4] = [Group::Peers, Group::Lint, Group::Long, Group::Cluster];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Group::Peers => "peers",
            Group::Long => "long",
            Group::Lint => "lint",
            Group::Cluster => "cluster",
        }
    }
}

/// How a tool is made. Folders are relative to `testbed/modules`; all files in them are part of the cache key.
#[derive(Debug, Clone, Copy)]
pub enum Recipe {
    /// One command of a Go module: `go build` of `package` inside `module`, whose `go.mod` and `go.sum` pin every
    /// source. A package of `.` builds sources that lie in the folder itself.
    GoBuild {
        /// The folder of the wrapper module.
        module: &'static str,
        /// The import path of the command.
        package: &'static str,
        /// Linker stamps (`-X variable=value`), for programs that report a version or derive names from it.
        stamps: &'static [(&'static str, &'static str)],
    },
    /// The same for a program that is too old for the Go of this machine: the go command fetches the release of Go that
    /// the program was written for, as a module whose checksum it verifies.
    OldGoBuild {
        /// The release of Go, as `GOTOOLCHAIN` names it.
        toolchain: &'static str,
        /// The folder of the wrapper module.
        module: &'static str,
        /// The import path of the command.
        package: &'static str,
        /// Linker stamps.
        stamps: &'static [(&'static str, &'static str)],
    },
    /// The compiled test suite of one package (`go test -c`), to be run against our program.
    GoTest {
        /// The folder of the wrapper module.
        module: &'static str,
        /// The import path of the package under test.
        package: &'static str,
    },
    /// A Node program, installed by `npm ci` from the `package-lock.json` in `folder`.
    Npm {
        /// The folder with `package.json` and `package-lock.json`.
        folder: &'static str,
        /// The command to call, as `node_modules/.bin` has it.
        command: &'static str,
    },
    /// A crate with a binary of the tool's own name, installed with its own lock file.
    Cargo {
        /// The name of the crate.
        package: &'static str,
        /// The profile of its build: `release` for what is measured, `dev` for what only has to be there soon.
        profile: &'static str,
    },
    /// Packages of the Debian release that runs the tests; their versions are the release's own.
    Debian {
        /// The packages to install.
        packages: &'static [&'static str],
        /// The program, by its absolute path.
        program: &'static str,
    },
}

/// The tool of that name.
pub fn find(name: &str) -> Result<&'static Tool> {
    let known = TOOLS.iter().find(|tool| tool.name == name);
    known.with_context(|| format!("there is no tool named {name}; `cargo xtask tools --list` shows all"))
}

/// The tools that `names` (of tools or groups) stand for, in table order and each once.
pub fn select<S: AsRef<str>>(names: &[S]) -> Result<Vec<&'static Tool>> {
    for name in names.iter().map(AsRef::as_ref) {
        if !Group::ALL.iter().any(|group| group.name() == name) {
            find(name)?;
        }
    }
    let wanted =
        |tool: &&Tool| names.iter().any(|name| [tool.name, tool.group.name()].contains(&name.as_ref()));
    Ok(TOOLS.iter().filter(wanted).collect())
}

/// The program of the tool called `name`, which must have been installed before.
pub fn path(name: &str) -> Result<PathBuf> {
    let program = cache::program(find(name)?)?;
    if !program.exists() {
        bail!("{name} is missing: run `cargo xtask tools {name}`");
    }
    Ok(program)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_name_of_its_own_and_complete_module_files() {
        for (at, tool) in TOOLS.iter().enumerate() {
            assert!(TOOLS[..at].iter().all(|other| other.name != tool.name), "{} twice", tool.name);
            assert!(Group::ALL.iter().all(|group| group.name() != tool.name), "{} is a group too", tool.name);
            let pins: &[&str] = match tool.recipe {
                Recipe::GoBuild { .. } | Recipe::OldGoBuild { .. } | Recipe::GoTest { .. } => {
                    &["go.mod", "go.sum"]
                }
                Recipe::Npm { .. } => &["package.json", "package-lock.json"],
                Recipe::Cargo { .. } | Recipe::Debian { .. } => &[],
            };
            for file in pins {
                let path = cache::folder(&tool.recipe).unwrap().join(file);
                assert!(path.is_file(), "{} needs {}", tool.name, path.display());
            }
        }
    }

    #[test]
    fn names_and_groups_select_tools_and_a_wrong_name_is_refused() {
        let chosen = select(&["kopia", "lint"]).unwrap();
        assert!(chosen.iter().any(|tool| tool.name == "kopia"));
        assert!(chosen.iter().any(|tool| tool.name == "cargo-deny"));
        assert!(chosen.iter().all(|tool| tool.name != "minio"));
        assert!(select(&["kopja"]).unwrap_err().to_string().contains("no tool named kopja"));
    }
}
