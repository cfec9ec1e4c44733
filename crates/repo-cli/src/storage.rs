//! The storage that flags describe, as the connection file holds it.

use crate::args::{S3Args, Storage};
use anyhow::{Context, Result};
use lifeboat_kopia::connection::StorageInfo;
use serde_json::{Map, Value, json};

/// How Kopia spread files over folders when there was nothing but format version 1, and no file that says how.
const OLD_SHARDS: [u32; 2] = [3, 3];

/// The storage and a sentence about it. What is made there for `format_version`, others can read who know no later one.
pub fn describe(storage: &Storage, format_version: Option<u8>) -> Result<(StorageInfo, String)> {
    let (kind, config) = match storage {
        Storage::Filesystem { path, flat, file_mode, dir_mode, owner_uid, owner_gid } => {
            let path =
                std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?;
            let path = path.to_str().context("the path of the repository is not valid UTF-8")?;
            let shards = match format_version {
                _ if *flat => json!([]),
                Some(1) => json!(OLD_SHARDS),
                _ => Value::Null,
            };
            let mut config = object([
                ("path", json!(path)),
                ("fileMode", json!(file_mode)),
                ("dirMode", json!(dir_mode)),
                ("dirShards", shards),
            ]);
            for (name, number) in [("uid", owner_uid), ("gid", owner_gid)] {
                config.extend(number.map(|number| (name.to_owned(), json!(number))));
            }
            ("filesystem", config)
        }
        Storage::S3(s3) => ("s3", s3_config(s3)?),
        Storage::Gcs { bucket, prefix, credentials_file, embed_credentials, read_only } => {
            let mut config = object([("bucket", json!(bucket))]);
            if *read_only {
                config.insert("readOnly".to_owned(), json!(true));
            }
            let file = match credentials_file {
                Some(file) if *embed_credentials => {
                    let failed = || format!("cannot read credentials from {}", file.display());
                    let text = std::fs::read(file).with_context(failed)?;
                    let credentials: Value = serde_json::from_slice(&text).with_context(failed)?;
                    config.insert("credentials".to_owned(), credentials);
                    None
                }
                file => file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            };
            ("gcs", with_given(config, [("prefix", prefix.clone()), ("credentialsFile", file)]))
        }
        Storage::Azure(azure) => {
            let fields = [
                ("prefix", azure.prefix.clone()),
                ("storageKey", azure.storage_key.clone()),
                ("sasToken", azure.sas_token.clone()),
                ("storageDomain", azure.storage_domain.clone()),
                ("TenantID", azure.tenant_id.clone()),
                ("ClientID", azure.client_id.clone()),
                ("ClientSecret", azure.client_secret.clone()),
                ("azureFederatedTokenFile", azure.azure_federated_token_file.clone()),
            ];
            let names =
                [("container", json!(azure.container)), ("storageAccount", json!(azure.storage_account))];
            ("azureBlob", with_given(object(names), fields))
        }
    };
    let info = StorageInfo {
        storage_type: kind.to_owned(),
        config: Value::Object(config),
        ..StorageInfo::default()
    };
    let about = about(&info);
    Ok((info, about))
}

/// A sentence about a storage.
pub fn about(storage: &StorageInfo) -> String {
    let text = |name| storage.config.get(name).and_then(Value::as_str).unwrap_or_default();
    match storage.storage_type.as_str() {
        "filesystem" => format!("Repository in Filesystem: {}", text("path")),
        "s3" => format!("Repository in S3: {} {}", text("endpoint"), text("bucket")),
        "gcs" => format!("Repository in Google Cloud Storage: {}", text("bucket")),
        "azureBlob" => format!("Repository in Azure Blob Storage: {}", text("container")),
        other => format!("Repository in {other}"),
    }
}

fn s3_config(s3: &S3Args) -> Result<Map<String, Value>> {
    let mut config = object([("bucket", json!(s3.bucket)), ("endpoint", json!(s3.endpoint))]);
    for (name, set) in [("doNotUseTLS", s3.disable_tls), ("doNotVerifyTLS", s3.disable_tls_verification)] {
        if set {
            config.insert(name.to_owned(), json!(true));
        }
    }
    if let Some(path) = &s3.root_ca_pem_path {
        let pem = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        config.insert("rootCA".to_owned(), json!(lifeboat_kopia::gojson::Base64(pem)));
    }
    if let Some(text) = &s3.root_ca_pem_base64 {
        let pem: lifeboat_kopia::gojson::Base64 =
            serde_json::from_value(json!(text)).context("--root-ca-pem-base64 is not base64")?;
        config.insert("rootCA".to_owned(), json!(pem));
    }
    Ok(with_given(
        config,
        [
            ("prefix", s3.prefix.clone()),
            ("region", s3.region.clone()),
            ("accessKeyID", s3.access_key.clone()),
            ("secretAccessKey", s3.secret_access_key.clone()),
            ("sessionToken", s3.session_token.clone()),
        ],
    ))
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn with_given<const N: usize>(
    mut config: Map<String, Value>,
    fields: [(&str, Option<String>); N],
) -> Map<String, Value> {
    for (name, value) in fields {
        if let Some(value) = value {
            config.insert(name.to_owned(), json!(value));
        }
    }
    config
}
