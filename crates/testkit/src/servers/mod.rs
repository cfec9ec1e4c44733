//! Real storage servers on loopback, one process per value, gone when the value is dropped.
//!
//! Every server keeps its data and its log in a temporary folder of its own and runs with an empty environment, so
//! nothing of the developer's own accounts reaches it.

mod azurite;
mod fakegcs;
mod minio;
mod pki;

pub use azurite::Azurite;
pub use fakegcs::FakeGcs;
pub use minio::Minio;
use pki::ServerIdentity;

use crate::process::Daemon;
use anyhow::{Result, bail};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Another process may take a port between our look and the server's bind; three losses in a row are no accident.
const START_ATTEMPTS: usize = 3;
/// Longer than any request that sets up a test may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A port that nobody listens on at this moment.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Starts a server on a free port and waits until it answers. `command` gets the port; `ready` is asked again and
/// again, with the port, until it holds.
fn start(
    name: &str,
    home: &Path,
    command: impl Fn(u16) -> Command,
    ready: impl Fn(u16) -> bool,
) -> Result<(Daemon, u16)> {
    let mut failure = None;
    for _ in 0..START_ATTEMPTS {
        let port = free_port()?;
        let mut command = command(port);
        let own = command_env(&command);
        command.env_clear().envs(own).env("HOME", home).current_dir(home);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let mut daemon = Daemon::spawn(name, command, &home.join("log"))?;
        match daemon.wait_until(|| ready(port)) {
            Ok(()) => return Ok((daemon, port)),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => bail!("{name} was never started"),
    }
}

/// The variables set on the command itself, which `env_clear` would forget as well.
fn command_env(command: &Command) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    command.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
}

/// An HTTP client that trusts exactly `ca` (if any), asks no proxy and returns error answers as answers.
fn client(ca: Option<&[u8]>) -> Result<ureq::Agent> {
    let mut config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(REQUEST_LIMIT))
        .max_idle_connections(0)
        .proxy(None);
    if let Some(ca) = ca {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(vec![Certificate::from_pem(ca)?.to_owned()])))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .build();
        config = config.tls_config(tls);
    }
    Ok(config.build().into())
}

/// Fails, with what the server said, unless the answer is a success.
fn expect_success(what: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<()> {
    let mut answer = answer.map_err(|error| anyhow::anyhow!("{what}: {error}"))?;
    if !answer.status().is_success() {
        let body = answer.body_mut().read_to_string().unwrap_or_default();
        bail!("{what}: {} {body}", answer.status());
    }
    Ok(())
}
