//! MinIO, the S3 server.

use super::{ServerIdentity, client, expect_success, start};
use crate::process::Daemon;
use crate::tools;
use anyhow::{Context, Result};
use base64::Engine;
use rusty_s3::{
    Bucket, Credentials, S3Action, UrlStyle,
    actions::{CreateBucket, HeadBucket},
};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The root account of every test server; it guards nothing and only listens on loopback.
const ACCESS_KEY: &str = "lifeboat-test";
const SECRET_KEY: &str = "lifeboat-test-secret";
/// The key of the server's built-in key service, for SSE-S3 and SSE-KMS.
const KMS_KEY: &str = "lifeboat-test-key";

const REGION: &str = "us-east-1";
/// How long a signed request may take to reach the server.
const SIGNATURE_LIFE: Duration = Duration::from_secs(60);

/// A running MinIO with an empty data folder.
#[derive(Debug)]
pub struct Minio {
    daemon: Daemon,
    home: TempDir,
    port: u16,
    ca: Option<String>,
}

impl Minio {
    /// Starts a server that speaks plain HTTP.
    pub fn start() -> Result<Minio> {
        Minio::launch(None)
    }

    /// Starts a server that speaks TLS with a certificate of a private authority made for it.
    pub fn start_tls() -> Result<Minio> {
        Minio::launch(Some(super::pki::loopback_identity()?))
    }

    fn launch(identity: Option<ServerIdentity>) -> Result<Minio> {
        let program = tools::path("minio")?;
        let home = tempfile::Builder::new().prefix("lifeboat-minio-").tempdir()?;
        let certificates = home.path().join("certs");
        std::fs::create_dir(&certificates)?;
        std::fs::create_dir(home.path().join("data"))?;
        let ca = identity.as_ref().map(|identity| identity.ca.clone());
        if let Some(identity) = &identity {
            std::fs::write(certificates.join("public.crt"), &identity.certificate)?;
            write_private(&certificates.join("private.key"), &identity.key)?;
            std::fs::write(home.path().join("ca.crt"), &identity.ca)?;
        }
        let scheme = if ca.is_some() { "https" } else { "http" };
        let http = client(ca.as_deref().map(str::as_bytes))?;
        let command = |port| {
            let mut command = Command::new(&program);
            command.arg("server").arg(home.path().join("data")).arg("--certs-dir").arg(&certificates);
            command.args(["--address", &format!("127.0.0.1:{port}")]);
            command.env("MINIO_ROOT_USER", ACCESS_KEY).env("MINIO_ROOT_PASSWORD", SECRET_KEY);
            command.env("MINIO_BROWSER", "off").env("MINIO_UPDATE", "off");
            // Names like `bucket.localhost` address a bucket, beside the path style.
            command.env("MINIO_DOMAIN", "localhost");
            let key = base64::engine::general_purpose::STANDARD.encode([7u8; 32]);
            command.env("MINIO_KMS_SECRET_KEY", format!("{KMS_KEY}:{key}"));
            command
        };
        // The port is open and the health checks are content before requests are taken. Only an answer to a real
        // one counts: here, that a bucket does not exist.
        let ready = |port| {
            let Ok(bucket) = bucket(&format!("{scheme}://127.0.0.1:{port}"), "no-such-bucket") else {
                return false;
            };
            let url = HeadBucket::new(&bucket, Some(&credentials())).sign(SIGNATURE_LIFE);
            http.head(url.as_str()).call().is_ok_and(|answer| answer.status() == 404)
        };
        let (daemon, port) = start("minio", home.path(), command, ready)?;
        Ok(Minio { daemon, home, port, ca })
    }

    /// `http://127.0.0.1:port`, or `https://…` of a TLS server.
    pub fn endpoint(&self) -> String {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address())
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port on loopback. `<bucket>.localhost` at this port is the virtual-host style.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The region that the server believes to be in.
    pub fn region(&self) -> &'static str {
        REGION
    }

    /// The access key of the root account.
    pub fn access_key(&self) -> &'static str {
        ACCESS_KEY
    }

    /// The secret key of the root account.
    pub fn secret_key(&self) -> &'static str {
        SECRET_KEY
    }

    /// The id of a key that SSE-KMS requests may name.
    pub fn kms_key(&self) -> &'static str {
        KMS_KEY
    }

    /// The certificate of the private authority, if the server speaks TLS.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// The same as a file.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.ca.as_ref().map(|_| self.home.path().join("ca.crt"))
    }

    /// Makes an empty bucket.
    pub fn create_bucket(&self, name: &str) -> Result<()> {
        self.make_bucket(name, false)
    }

    /// Makes an empty bucket with versions and object lock, without a default retention.
    pub fn create_locked_bucket(&self, name: &str) -> Result<()> {
        self.make_bucket(name, true)
    }

    fn make_bucket(&self, name: &str, lock: bool) -> Result<()> {
        let (bucket, credentials) = (bucket(&self.endpoint(), name)?, credentials());
        let mut action = CreateBucket::new(&bucket, &credentials);
        const LOCK: &str = "x-amz-bucket-object-lock-enabled";
        if lock {
            action.headers_mut().insert(LOCK, "true");
        }
        let mut request =
            client(self.ca.as_deref().map(str::as_bytes))?.put(action.sign(SIGNATURE_LIFE).as_str());
        if lock {
            request = request.header(LOCK, "true");
        }
        expect_success(&format!("create bucket {name}"), request.send_empty())
            .with_context(|| self.log_tail())
    }

    /// The process id, for tests that stop or starve the server.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// The last lines of the server's log, for a failure message.
    pub fn log_tail(&self) -> String {
        self.daemon.log_tail()
    }
}

fn bucket(endpoint: &str, name: &str) -> Result<Bucket> {
    Ok(Bucket::new(endpoint.parse()?, UrlStyle::Path, name.to_owned(), REGION)?)
}

fn credentials() -> Credentials {
    Credentials::new(ACCESS_KEY, SECRET_KEY)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}
