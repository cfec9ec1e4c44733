//! Azurite, the Azure Blob server.

use super::{client, expect_success, start};
use crate::process::Daemon;
use crate::tools;
use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::process::Command;
use tempfile::TempDir;

/// The account of every test server; it guards nothing and only listens on loopback.
const ACCOUNT: &str = "lifeboattest";
/// The service version that our own requests speak.
const API_VERSION: &str = "2023-11-03";

/// A running Azurite without containers.
#[derive(Debug)]
pub struct Azurite {
    daemon: Daemon,
    /// Keeps the server's data until it ends.
    _home: TempDir,
    port: u16,
    key: String,
}

impl Azurite {
    /// Starts a server that speaks plain HTTP.
    pub fn start() -> Result<Azurite> {
        let program = tools::path("azurite-blob")?;
        let home = tempfile::Builder::new().prefix("lifeboat-azurite-").tempdir()?;
        let key = BASE64.encode([9u8; 64]);
        let command = |port: u16| {
            let mut command = Command::new(&program);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
            command.arg("--location").arg(home.path().join("data"));
            // Clients may speak a newer version of the service than this release knows.
            command.args(["--skipApiVersionCheck", "--disableTelemetry"]);
            command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{key}"));
            command
        };
        let http = client(None)?;
        // Any answer will do: without a signature the server refuses, but it is up.
        let ready = |port| http.get(format!("http://127.0.0.1:{port}/{ACCOUNT}")).call().is_ok();
        let (daemon, port) = start("azurite", home.path(), command, ready)?;
        Ok(Azurite { daemon, _home: home, port, key })
    }

    /// `http://127.0.0.1:port/account`, below which the containers are.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/{ACCOUNT}", self.port)
    }

    /// The name of the storage account.
    pub fn account(&self) -> &'static str {
        ACCOUNT
    }

    /// The key of the storage account, in base64.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Makes an empty container.
    pub fn create_container(&self, name: &str) -> Result<()> {
        let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        // The "Shared Key" scheme: verb, eleven unused standard headers, our own headers, then the resource, which
        // carries the account twice because this server has it in its paths.
        let signed = format!(
            "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{API_VERSION}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        );
        let mut mac = Hmac::<Sha256>::new_from_slice(&BASE64.decode(&self.key)?)?;
        mac.update(signed.as_bytes());
        let signature = BASE64.encode(mac.finalize().into_bytes());
        let request = client(None)?
            .put(format!("{}/{name}?restype=container", self.endpoint()))
            .header("x-ms-date", date)
            .header("x-ms-version", API_VERSION)
            .header("authorization", format!("SharedKey {ACCOUNT}:{signature}"));
        expect_success(&format!("create container {name}"), request.send_empty())
            .with_context(|| self.log_tail())
    }

    /// The last lines of the server's log, for a failure message.
    pub fn log_tail(&self) -> String {
        self.daemon.log_tail()
    }
}
