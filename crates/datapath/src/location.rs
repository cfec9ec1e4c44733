//! From a backup location to the store of one namespace's repository, by Velero's rules.

use lifeboat_api::v1::BackupStorageLocationSpec;
use lifeboat_blobs::StoreConfig;
use lifeboat_blobs::config::{
    AzureAdditions, AzureConfig, FilesystemConfig, GcsAdditions, GcsConfig, S3Additions, S3Addressing,
    S3Config, Secret,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why a backup location leads nowhere.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// Nobody knows such storage.
    #[error(
        "the backup location's provider {0:?} is none of aws, azure, gcp and fs, and its config has no s3Url to say that it speaks S3"
    )]
    UnknownProvider(String),
    /// A setting is missing or wrong.
    #[error("the backup location's {setting} {problem}")]
    Setting {
        /// Which one.
        setting: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The file with credentials is not there.
    #[error("cannot read the credentials in {}: {source}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What a backup location's own description leaves open.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Certificates (PEM) to trust.
    pub ca: Option<Vec<u8>>,
    /// The file with the location's own credentials; without it, the one that the environment names.
    pub credentials_file: Option<PathBuf>,
    /// The variables of the process.
    pub environment: BTreeMap<String, String>,
}

impl Access {
    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The credentials: the location's own, or those that a variable names.
    fn file(&self, variable: &str) -> Option<PathBuf> {
        self.credentials_file.clone().or_else(|| self.variable(variable).map(PathBuf::from))
    }
}

/// The store that holds the repository of `namespace` in a backup location.
///
/// # Errors
/// If the location's settings make no sense, or its credentials cannot be read.
pub fn store_config(
    location: &BackupStorageLocationSpec,
    namespace: &str,
    access: &Access,
) -> Result<StoreConfig, LocationError> {
    let place = Place {
        config: &location.config,
        access,
        bucket: bucket(location),
        prefix: prefix(location, namespace),
    };
    let provider = location.provider.strip_prefix("velero.io/").unwrap_or(&location.provider);
    match provider {
        "aws" => place.s3(),
        "azure" => place.azure(),
        "gcp" => Ok(place.gcs()),
        "fs" => place.filesystem(),
        _ if place.setting("s3Url").is_some() => place.s3(),
        other => Err(LocationError::UnknownProvider(other.to_owned())),
    }
}

fn bucket(location: &BackupStorageLocationSpec) -> String {
    let given = Some(location.object_storage.bucket.trim_matches('/')).filter(|bucket| !bucket.is_empty());
    let config = || location.config.get("bucket").map(|bucket| bucket.trim_matches('/'));
    given.or_else(config).unwrap_or_default().to_owned()
}

/// Where in the bucket the repository is: what every name of a blob begins with.
fn prefix(location: &BackupStorageLocationSpec, namespace: &str) -> String {
    let given = Some(location.object_storage.prefix.trim_matches('/')).filter(|prefix| !prefix.is_empty());
    let config = || location.config.get("prefix").map(|prefix| prefix.trim_matches('/'));
    match given.or_else(config).unwrap_or_default() {
        "" => format!("kopia/{namespace}/"),
        prefix => format!("{prefix}/kopia/{namespace}/"),
    }
}

struct Place<'a> {
    config: &'a BTreeMap<String, String>,
    access: &'a Access,
    bucket: String,
    prefix: String,
}

impl Place<'_> {
    fn setting(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn flag(&self, name: &'static str) -> Result<bool, LocationError> {
        match self.setting(name) {
            None => Ok(false),
            Some(value) => value.parse().map_err(|_| LocationError::Setting {
                setting: name,
                problem: format!("is {value:?}, which is neither true nor false"),
            }),
        }
    }

    fn s3(&self) -> Result<StoreConfig, LocationError> {
        let (endpoint, plain) = match self.setting("s3Url") {
            Some(url) => host_of(url)?,
            None => (String::new(), false),
        };
        Ok(StoreConfig::S3(S3Config {
            bucket: self.bucket.clone(),
            prefix: self.prefix.clone(),
            endpoint,
            do_not_use_tls: plain,
            do_not_verify_tls: self.flag("insecureSkipTLSVerify")?,
            root_ca: self.access.ca.clone(),
            region: self.setting("region").unwrap_or_default().to_owned(),
            lifeboat: S3Additions {
                addressing: self.flag("s3ForcePathStyle")?.then_some(S3Addressing::Path),
                profile: self.setting("profile").map(str::to_owned),
                credentials_file: self.access.file("AWS_SHARED_CREDENTIALS_FILE"),
                server_side_encryption: self.setting("serverSideEncryption").map(str::to_owned),
                kms_key_id: self.setting("kmsKeyId").map(str::to_owned),
                ..S3Additions::default()
            },
            ..S3Config::default()
        }))
    }

    fn gcs(&self) -> StoreConfig {
        StoreConfig::Gcs(GcsConfig {
            bucket: self.bucket.clone(),
            prefix: self.prefix.clone(),
            credentials_file: self.access.file("GOOGLE_APPLICATION_CREDENTIALS"),
            lifeboat: GcsAdditions {
                base_url: self.setting("storeEndpoint").map(str::to_owned),
                root_ca: self.access.ca.clone(),
                ..GcsAdditions::default()
            },
            ..GcsConfig::default()
        })
    }

    fn filesystem(&self) -> Result<StoreConfig, LocationError> {
        let wrong =
            |problem: &str| LocationError::Setting { setting: "config.fspath", problem: problem.to_owned() };
        let root = Path::new(self.setting("fspath").ok_or_else(|| wrong("is missing"))?);
        if !root.is_absolute() {
            return Err(wrong("is not an absolute path"));
        }
        // As Velero sets them: nobody but the owner sees anything.
        let path = root.join(&self.prefix);
        Ok(StoreConfig::Filesystem(FilesystemConfig {
            path,
            file_mode: 0o600,
            dir_mode: 0o700,
            ..FilesystemConfig::default()
        }))
    }

    fn azure(&self) -> Result<StoreConfig, LocationError> {
        let account = self.setting("storageAccount").ok_or_else(|| LocationError::Setting {
            setting: "config.storageAccount",
            problem: "is missing".to_owned(),
        })?;
        let given = match self.access.file("AZURE_CREDENTIALS_FILE") {
            Some(path) => variables(&path)?,
            None => BTreeMap::new(),
        };
        let value = |name: &str| {
            let own = given.get(name).map(String::as_str).filter(|value| !value.is_empty());
            own.or_else(|| self.access.variable(name)).unwrap_or_default().to_owned()
        };
        let mut config = AzureConfig {
            container: self.bucket.clone(),
            prefix: self.prefix.clone(),
            storage_account: account.to_owned(),
            storage_domain: storage_domain(&value("AZURE_CLOUD_NAME"))?.to_owned(),
            lifeboat: AzureAdditions {
                endpoint: self.setting("storageAccountURI").map(str::to_owned),
                authority: self.setting("activeDirectoryAuthorityURI").map(str::to_owned),
                root_ca: self.access.ca.clone(),
                ..AzureAdditions::default()
            },
            ..AzureConfig::default()
        };
        if let Some(name) = self.setting("storageAccountKeyEnvVar") {
            let key = value(name);
            if key.is_empty() {
                let problem = format!("names {name}, which the credentials do not have");
                return Err(LocationError::Setting { setting: "config.storageAccountKeyEnvVar", problem });
            }
            config.storage_key = Secret::from(key);
            return Ok(StoreConfig::Azure(config));
        }
        config.tenant_id = value("AZURE_TENANT_ID");
        config.client_id = value("AZURE_CLIENT_ID");
        config.client_secret = Secret::from(value("AZURE_CLIENT_SECRET"));
        let token = value("AZURE_FEDERATED_TOKEN_FILE");
        config.azure_federated_token_file = (!token.is_empty()).then(|| PathBuf::from(token));
        config.lifeboat.managed_identity =
            config.client_secret.is_empty() && config.azure_federated_token_file.is_none();
        Ok(StoreConfig::Azure(config))
    }
}

/// Host and port of an address, and whether it is spoken to without TLS.
fn host_of(url: &str) -> Result<(String, bool), LocationError> {
    let wrong = |problem: &str| LocationError::Setting {
        setting: "config.s3Url",
        problem: format!("is {url:?}, {problem}"),
    };
    let (host, plain) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(host), _) => (host, true),
        (None, Some(host)) => (host, false),
        (None, None) => return Err(wrong("which begins neither with http:// nor with https://")),
    };
    let host = host.strip_suffix('/').unwrap_or(host);
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(wrong("which is more than a host and a port"));
    }
    Ok((host.to_owned(), plain))
}

/// What follows the account in the host name; nothing for the public cloud.
fn storage_domain(cloud: &str) -> Result<&'static str, LocationError> {
    match cloud {
        "" | "AzurePublicCloud" | "AzureCloud" => Ok(""),
        "AzureChinaCloud" => Ok("blob.core.chinacloudapi.cn"),
        "AzureUSGovernmentCloud" | "AzureUSGovernment" => Ok("blob.core.usgovcloudapi.net"),
        other => Err(LocationError::Setting {
            setting: "AZURE_CLOUD_NAME",
            problem: format!(
                "is {other:?}; there are AzurePublicCloud, AzureChinaCloud and AzureUSGovernmentCloud"
            ),
        }),
    }
}

/// The lines `NAME=value` of a file, as Velero's credentials for Azure are written.
fn variables(path: &Path) -> Result<BTreeMap<String, String>, LocationError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| LocationError::Credentials { path: path.to_owned(), source })?;
    let unquoted = |value: &str| value.trim().trim_matches(['"', '\'']).to_owned();
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), unquoted(value)))
        .collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use serde_json::json;

    fn location(provider: &str, config: serde_json::Value) -> BackupStorageLocationSpec {
        let spec = json!({ "provider": provider, "config": config, "objectStorage": { "bucket": "b", "prefix": "/p/" } });
        serde_json::from_value(spec).unwrap()
    }

    fn s3(provider: &str, config: serde_json::Value, access: &Access) -> S3Config {
        match store_config(&location(provider, config), "shop", access).unwrap() {
            StoreConfig::S3(config) => config,
            other => panic!("{other:?}"),
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> Access {
        let environment =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Access { environment, ..Access::default() }
    }

    #[test]
    fn an_s3_location_is_read_as_velero_reads_it() {
        let config = json!({ "region": "minio", "s3Url": "http://10.200.0.1:9000", "s3ForcePathStyle": "true", "profile": "backup" });
        let access = environment(&[("AWS_SHARED_CREDENTIALS_FILE", "/credentials/cloud")]);
        let found = s3("aws", config.clone(), &access);
        assert_eq!((&*found.bucket, &*found.prefix), ("b", "p/kopia/shop/"));
        assert_eq!((&*found.endpoint, found.do_not_use_tls), ("10.200.0.1:9000", true));
        assert_eq!((&*found.region, found.lifeboat.addressing), ("minio", Some(S3Addressing::Path)));
        assert_eq!(found.lifeboat.profile.as_deref(), Some("backup"));
        assert_eq!(found.lifeboat.credentials_file.as_deref(), Some(Path::new("/credentials/cloud")));
        // A location's own credentials come before the server's; a provider that is not known may still speak S3.
        let own = Access { credentials_file: Some("/tmp/own".into()), ca: Some(b"pem".to_vec()), ..access };
        let found = s3("example.com/own", config, &own);
        assert_eq!(found.lifeboat.credentials_file.as_deref(), Some(Path::new("/tmp/own")));
        assert_eq!(found.root_ca.as_deref(), Some(&b"pem"[..]));
        let found = s3(
            "velero.io/aws",
            json!({ "s3Url": "https://store:1/", "insecureSkipTLSVerify": "true" }),
            &own,
        );
        assert_eq!(
            (&*found.endpoint, found.do_not_use_tls, found.do_not_verify_tls),
            ("store:1", false, true)
        );
    }

    #[test]
    fn certificates_of_a_location_are_trusted_whatever_the_cloud() {
        let access = Access { ca: Some(b"pem".to_vec()), ..Access::default() };
        let found = |provider, config| store_config(&location(provider, config), "shop", &access).unwrap();
        let StoreConfig::Gcs(gcs) = found("gcp", json!({})) else { panic!() };
        assert_eq!(gcs.lifeboat.root_ca.as_deref(), Some(&b"pem"[..]));
        let StoreConfig::Azure(azure) = found("azure", json!({ "storageAccount": "a" })) else { panic!() };
        assert_eq!(azure.lifeboat.root_ca.as_deref(), Some(&b"pem"[..]));
    }

    #[test]
    fn bucket_and_prefix_may_be_in_the_config() {
        let spec = json!({ "provider": "aws", "config": { "bucket": "c", "prefix": "q/" }, "objectStorage": { "bucket": "" } });
        let spec: BackupStorageLocationSpec = serde_json::from_value(spec).unwrap();
        let StoreConfig::S3(found) = store_config(&spec, "shop", &Access::default()).unwrap() else {
            panic!()
        };
        assert_eq!((&*found.bucket, &*found.prefix), ("c", "q/kopia/shop/"));
        let bare = json!({ "provider": "gcp", "objectStorage": { "bucket": "b" } });
        let bare: BackupStorageLocationSpec = serde_json::from_value(bare).unwrap();
        let StoreConfig::Gcs(found) = store_config(&bare, "shop", &Access::default()).unwrap() else {
            panic!()
        };
        assert_eq!(found.prefix, "kopia/shop/");
    }

    #[test]
    fn settings_that_lead_nowhere_are_named() {
        for (provider, config, named) in [
            ("tape", json!({}), "tape"),
            ("aws", json!({ "s3Url": "minio:9000" }), "s3Url"),
            ("aws", json!({ "s3Url": "http://minio:9000/path" }), "s3Url"),
            ("aws", json!({ "s3ForcePathStyle": "yes" }), "s3ForcePathStyle"),
            ("fs", json!({}), "fspath"),
            ("fs", json!({ "fspath": "relative" }), "fspath"),
            ("azure", json!({}), "storageAccount"),
            ("azure", json!({ "storageAccount": "a", "storageAccountKeyEnvVar": "KEY" }), "KEY"),
        ] {
            let error = store_config(&location(provider, config), "shop", &Access::default()).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn azure_takes_a_key_before_an_identity_and_shows_neither() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# comment\nexport AZURE_TENANT_ID=t\nAZURE_CLIENT_ID=\"c\"\nAZURE_CLIENT_SECRET=hush\nKEY=sesame==\nAZURE_CLOUD_NAME=AzureUSGovernmentCloud\n";
        std::fs::write(file.path(), text).unwrap();
        let access = Access { credentials_file: Some(file.path().to_owned()), ..Access::default() };
        let find = |config: serde_json::Value| match store_config(&location("azure", config), "shop", &access)
            .unwrap()
        {
            StoreConfig::Azure(config) => config,
            other => panic!("{other:?}"),
        };
        let with_key = find(json!({ "storageAccount": "a", "storageAccountKeyEnvVar": "KEY" }));
        assert_eq!((with_key.storage_key.reveal(), &*with_key.client_id), ("sesame==", ""));
        assert_eq!(with_key.storage_domain, "blob.core.usgovcloudapi.net");
        let principal = find(json!({ "storageAccount": "a" }));
        assert_eq!((&*principal.tenant_id, &*principal.client_id), ("t", "c"));
        assert!(!principal.lifeboat.managed_identity);
        let shown = format!("{with_key:?}{principal:?}");
        assert!(!shown.contains("sesame") && !shown.contains("hush"), "{shown}");
        let missing = Access { credentials_file: Some("/nowhere".into()), ..Access::default() };
        let error = store_config(&location("azure", json!({ "storageAccount": "a" })), "shop", &missing);
        assert!(error.unwrap_err().to_string().contains("/nowhere"));
    }
}
