//! fake-gcs-server, the Google Cloud Storage server.

use super::{client, expect_success, start};
use crate::process::Daemon;
use crate::tools;
use anyhow::{Context, Result};
use std::process::Command;
use tempfile::TempDir;

/// A running fake-gcs-server without buckets. It asks for no credentials.
#[derive(Debug)]
pub struct FakeGcs {
    daemon: Daemon,
    /// Keeps the server's log until it ends; its objects are in memory.
    _home: TempDir,
    port: u16,
}

impl FakeGcs {
    /// Starts a server that speaks plain HTTP.
    pub fn start() -> Result<FakeGcs> {
        let program = tools::path("fake-gcs-server")?;
        let home = tempfile::Builder::new().prefix("lifeboat-gcs-").tempdir()?;
        let command = |port: u16| {
            let mut command = Command::new(&program);
            command.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port.to_string()]);
            command.args(["-backend", "memory", "-log-level", "warn"]);
            // Upload and download addresses in answers must lead back to this server.
            command.args(["-public-host", &format!("127.0.0.1:{port}")]);
            command.args(["-external-url", &format!("http://127.0.0.1:{port}")]);
            command
        };
        let http = client(None)?;
        let ready = |port| {
            let answer = http.get(format!("http://127.0.0.1:{port}/storage/v1/b?project=test")).call();
            answer.is_ok_and(|answer| answer.status().is_success())
        };
        let (daemon, port) = start("fake-gcs-server", home.path(), command, ready)?;
        Ok(FakeGcs { daemon, _home: home, port })
    }

    /// `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A service-account file, as clients want one, that points at this server and needs no key.
    pub fn service_account_json(&self) -> String {
        serde_json::json!({
            "gcs_base_url": self.endpoint(),
            "disable_oauth": true,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        })
        .to_string()
    }

    /// Makes an empty bucket.
    pub fn create_bucket(&self, name: &str) -> Result<()> {
        let request = client(None)?
            .post(format!("{}/storage/v1/b?project=test", self.endpoint()))
            .header("content-type", "application/json")
            .send(serde_json::json!({ "name": name }).to_string());
        expect_success(&format!("create bucket {name}"), request).with_context(|| self.log_tail())
    }

    /// The last lines of the server's log, for a failure message.
    pub fn log_tail(&self) -> String {
        self.daemon.log_tail()
    }
}
