//! The cluster's object store: MinIO in the cluster's network, with buckets made on request.

use crate::components::Components;
use crate::control::Process;
use crate::spec::{NodeId, addresses};
use crate::{Error, Result, files};
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The region MinIO is told to be in.
pub const REGION: &str = "testbed";

/// The name of its process among the components of the first node.
pub(crate) const PROCESS: &str = "minio";

/// How to reach the object store from the cluster's network.
#[derive(Clone, Serialize, Deserialize)]
pub struct ObjectStore {
    /// `http://` or `https://` with address and port.
    pub endpoint: String,
    /// The access key of the owner of everything.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// The authority that signed the store's certificate, if it speaks TLS.
    pub authority: Option<PathBuf>,
}

impl std::fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectStore").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl ObjectStore {
    /// A store with fresh random credentials.
    pub(crate) fn create(authority: Option<PathBuf>) -> Result<Self> {
        let scheme = if authority.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}:{}", NodeId::FIRST.address(), addresses::S3_PORT);
        Ok(Self { endpoint, access_key: random(10)?, secret_key: random(20)?, authority })
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        serde_json::from_str(&files::read(path)?)
            .map_err(|problem| Error::unexpected("object store record", problem))
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let record =
            serde_json::to_vec(self).map_err(|problem| Error::unexpected("object store record", problem))?;
        files::write_secret(path, record)
    }

    /// The credentials in the form of an AWS credentials file.
    pub fn credentials_file(&self) -> String {
        format!(
            "[default]\naws_access_key_id={}\naws_secret_access_key={}\n",
            self.access_key, self.secret_key
        )
    }

    pub(crate) fn process(&self, on: &Components<'_>, data: &Path) -> Result<Process> {
        let mut process = on.built("minio", PROCESS)?.arg("server").arg(data.display().to_string());
        process =
            process.args(["--address".to_owned(), format!("{}:{}", on.node.address(), addresses::S3_PORT)]);
        // Without TLS the folder given is empty, which MinIO takes to mean plain HTTP.
        let certificates = if self.authority.is_some() { "pki/minio" } else { "conf/no-certificates" };
        process = process
            .args(["--certs-dir".to_owned(), on.layout.folder().join(certificates).display().to_string()]);
        Ok(process
            .env("MINIO_ROOT_USER", &self.access_key)
            .env("MINIO_ROOT_PASSWORD", &self.secret_key)
            .env("MINIO_REGION", REGION)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .env("HOME", "/run"))
    }

    /// Creates a bucket, with object lock if asked; one that is there already is left as it is.
    ///
    /// Must be called from the cluster's network; see [`crate::Cluster::in_network`].
    pub async fn create_bucket(&self, bucket: &str, object_lock: bool) -> Result<()> {
        let failed = |problem: &dyn std::fmt::Display| Error::unexpected(format!("bucket {bucket}"), problem);
        let mut client = reqwest::Client::builder().timeout(Duration::from_secs(10));
        if let Some(authority) = &self.authority {
            let pem = files::read(authority)?;
            let authority =
                reqwest::Certificate::from_pem(pem.as_bytes()).map_err(|problem| failed(&problem))?;
            client = client.tls_certs_merge([authority]);
        }
        let client = client.build().map_err(|problem| failed(&problem))?;
        let mut request = client.put(format!("{}/{bucket}", self.endpoint));
        for (name, value) in self.signed_headers(bucket, object_lock)? {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(|problem| failed(&problem))?;
        let status = answer.status();
        let body = answer.text().await.unwrap_or_default();
        if status.is_success() || body.contains("BucketAlreadyOwnedByYou") {
            return Ok(());
        }
        Err(failed(&format!("{status} {body}")))
    }

    /// The headers of a bucket creation, signed the AWS way (Signature Version 4).
    fn signed_headers(&self, bucket: &str, object_lock: bool) -> Result<Vec<(&'static str, String)>> {
        let now = Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = &now[..8];
        let host = self.endpoint.split("://").nth(1).unwrap_or_default().to_owned();
        let body = hex::encode(Sha256::digest(b""));
        let mut headers = vec![("host", host)];
        if object_lock {
            headers.push(("x-amz-bucket-object-lock-enabled", "true".to_owned()));
        }
        headers.push(("x-amz-content-sha256", body.clone()));
        headers.push(("x-amz-date", now.clone()));
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let canonical = format!("PUT\n/{bucket}\n\n{lines}\n{names}\n{body}");
        let scope = format!("{day}/{REGION}/s3/aws4_request");
        let digest = hex::encode(Sha256::digest(canonical));
        let to_sign = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}");
        let mut key = format!("AWS4{}", self.secret_key).into_bytes();
        for part in [day, REGION, "s3", "aws4_request", &to_sign] {
            key = keyed_hash(&key, part)?;
        }
        let signature = hex::encode(key);
        let access_key = &self.access_key;
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        headers.push(("authorization", authorization));
        Ok(headers)
    }
}

fn keyed_hash(key: &[u8], message: &str) -> Result<Vec<u8>> {
    let mut hash =
        Hmac::<Sha256>::new_from_slice(key).map_err(|problem| Error::unexpected("signature", problem))?;
    hash.update(message.as_bytes());
    Ok(hash.finalize().into_bytes().to_vec())
}

fn random(bytes: usize) -> Result<String> {
    let mut buffer = vec![0; bytes];
    getrandom::fill(&mut buffer).map_err(|problem| Error::unexpected("random numbers", problem))?;
    Ok(hex::encode(buffer))
}
