//! From a connection file and a password to an open repository.

use crate::args::Global;
use crate::output::note;
use crate::progress::Display;
use anyhow::{Context, Result, bail};
use lifeboat_blobs::BlobStore;
use lifeboat_blobs::config::Limits;
use lifeboat_budget::Budget;
use lifeboat_kopia::connection::{Connection, StorageInfo, load_password};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{Format, Password};
use lifeboat_kopia::repo::{Access, OpenOptions, Repository};
use lifeboat_uploader::Cancel;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

/// Metadata kept for another use by commands that read everything once: object indexes, for the most part.
const READ_ONCE_CACHE: usize = 4 << 20;

/// The first and the longest pause of a command that finds the repository locked for an upgrade.
const UPGRADE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What every command starts from.
pub struct Session {
    runtime: Runtime,
    config_file: PathBuf,
    password: Option<Password>,
    budget: Budget,
    display: Display,
    upgrade_owner: Option<String>,
    waits_for_upgrades: bool,
}

impl Session {
    /// Reads the environment; opens nothing yet.
    pub fn new(global: &Global) -> Result<Self> {
        let config_file = match global
            .config_file
            .clone()
            .or_else(|| variable(&["LIFEBOAT_CONFIG_PATH", "KOPIA_CONFIG_PATH"]))
        {
            Some(file) => file,
            None => default_config_file()?,
        };
        let password = global
            .password
            .clone()
            .or_else(|| text_variable(&["LIFEBOAT_PASSWORD", "KOPIA_PASSWORD"]))
            .map(Password::new);
        let bytes = match global.memory_budget_mb {
            Some(mib) => mib << 20,
            None => lifeboat_budget::default_bytes(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let display = Display::choose(!global.no_progress);
        Ok(Session {
            runtime,
            config_file,
            password,
            budget: Budget::new(bytes),
            display,
            upgrade_owner: global.upgrade_owner_id.clone(),
            waits_for_upgrades: !global.upgrade_no_block,
        })
    }

    /// Runs storage calls to their end on this thread.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The connection file.
    pub fn config_file(&self) -> &PathBuf {
        &self.config_file
    }

    /// The memory for buffers.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// How progress is shown.
    pub fn display(&self) -> Display {
        self.display
    }

    /// Where storage calls run.
    #[cfg(feature = "restic")]
    pub fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Reads the connection file.
    pub fn connection(&self) -> Result<Connection> {
        if !self.config_file.exists() {
            bail!(
                "not connected: {} does not exist; run `lifeboat-repo repository connect` or `create` first",
                self.config_file.display()
            );
        }
        Ok(Connection::load(&self.config_file)?)
    }

    /// The password: as given, else as stored beside the connection file.
    pub fn password(&self) -> Result<Password> {
        match &self.password {
            Some(password) => Ok(password.clone()),
            None => load_password(&self.config_file)?
                .context("no password: set LIFEBOAT_PASSWORD or KOPIA_PASSWORD, or use --password"),
        }
    }

    /// The options to open (or create) the repository of `connection` with.
    pub fn open_options(&self, connection: &Connection, create: bool) -> Result<OpenOptions> {
        self.open_options_with(connection, create, self.password()?)
    }

    /// The same with a password that is known already.
    pub fn open_options_with(
        &self,
        connection: &Connection,
        create: bool,
        password: Password,
    ) -> Result<OpenOptions> {
        let identity =
            ClientIdentity { username: connection.username.clone(), hostname: connection.hostname.clone() };
        let store = self.store(connection.storage()?, connection.throttling, create)?;
        let _context = self.runtime.enter();
        let mut options = OpenOptions::new(store, password, identity);
        options.access = if connection.readonly { Access::ReadOnly } else { Access::ReadWrite };
        options.runtime = Handle::current();
        options.upgrade_owner.clone_from(&self.upgrade_owner);
        options.budget = self.budget.clone();
        options.cache_folder = connection
            .caching
            .as_ref()
            .map(|caching| PathBuf::from(&caching.cache_directory))
            .filter(|folder| !folder.as_os_str().is_empty());
        Ok(options)
    }

    /// Opens the repository that this machine is connected to.
    pub fn open(&self) -> Result<Repository> {
        self.open_with(self.open_options(&self.connection()?, false)?)
    }

    /// Opens it for commands that never write: all of the memory is for reading then.
    pub fn open_for_reading(&self) -> Result<Repository> {
        let mut options = self.open_options(&self.connection()?, false)?;
        options.access = Access::ReadOnly;
        options.metadata_cache_bytes = options.metadata_cache_bytes.min(READ_ONCE_CACHE);
        self.open_with(options)
    }

    /// Opens it for a backup. Listings of earlier snapshots are read once, and many at a time: memory is of more use for
    /// that than for keeping those that were read.
    pub fn open_for_backup(&self) -> Result<Repository> {
        let mut options = self.open_options(&self.connection()?, false)?;
        options.metadata_cache_bytes = options.metadata_cache_bytes.min(READ_ONCE_CACHE);
        self.open_with(options)
    }

    /// Opens a repository, once it is not locked for an upgrade.
    pub fn open_with(&self, options: OpenOptions) -> Result<Repository> {
        self.when_unlocked(async || Repository::open(options.clone()).await)
    }

    /// The same for commands that need nothing but the format.
    pub fn open_format(&self, options: &OpenOptions) -> Result<Format> {
        let OpenOptions { store, password, environment, upgrade_owner, .. } = options;
        self.when_unlocked(async || {
            Format::open(&**store, password, environment, upgrade_owner.as_deref()).await
        })
    }

    /// Tries again for as long as somebody else upgrades the repository, unless the user wants not to wait.
    pub fn when_unlocked<T>(&self, attempt: impl AsyncFn() -> lifeboat_kopia::Result<T>) -> Result<T> {
        let mut pause = UPGRADE_PAUSES.0;
        loop {
            match self.wait(attempt()) {
                Err(error @ lifeboat_kopia::Error::UpgradeInProgress { .. }) if self.waits_for_upgrades => {
                    note(&format!(
                        "{error}: trying again in {} s (--upgrade-no-block: not at all)",
                        pause.as_secs()
                    ));
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(UPGRADE_PAUSES.1);
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// A switch that the signals to end turn. A second signal ends the process at once.
    pub fn cancel_on_signal(&self) -> Cancel {
        use tokio::signal::unix::{SignalKind, signal};
        let cancel = Cancel::default();
        let switch = cancel.clone();
        // From here on they are heard, not only when a thread gets round to the task.
        let signals = {
            let _inside = self.runtime.enter();
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        };
        self.runtime.spawn(async move {
            let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return };
            for is_second in [false, true] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if is_second {
                    std::process::exit(130);
                }
                switch.cancel();
                note("ending; a second signal ends at once");
            }
        });
        cancel
    }

    /// Opens a storage; limits of the connection replace those of the storage itself.
    pub fn store(
        &self,
        storage: &StorageInfo,
        limits: Option<Limits>,
        create: bool,
    ) -> Result<Arc<dyn BlobStore>> {
        let mut storage = storage.clone();
        if let (Some(Value::Object(limits)), Some(config)) =
            (limits.map(serde_json::to_value).transpose()?, storage.config.as_object_mut())
        {
            config.extend(limits);
        }
        let config = storage.store_config()?;
        Ok(self.wait(config.open(&lifeboat_blobs::OpenOptions { create, ..Default::default() }))?)
    }
}

/// The first of these environment variables that is set and not empty.
fn variable(names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty())).map(PathBuf::from)
}

/// The same for text.
pub fn text_variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn default_config_file() -> Result<PathBuf> {
    let folder = match variable(&["XDG_CONFIG_HOME"]) {
        Some(folder) => folder,
        None => variable(&["HOME"]).context("HOME is not set; use --config-file")?.join(".config"),
    };
    Ok(folder.join("lifeboat").join("repository.config"))
}
