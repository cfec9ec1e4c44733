//! The named options of the interface in terms of the engine. The names are those that Velero uses.

use crate::{Error, ErrorKind, RepositoryOptions, Result};
use lifeboat_blobs::{Retention, RetentionMode};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::velero;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Kopia's share of the client cache for data; the rest is for metadata.
const DATA_CACHE_PERCENT: u64 = 80;
/// What Velero gives the cache when nothing is said.
const DEFAULT_CACHE_MB: u64 = 5000;

/// The options of the engine, checked.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) identity: ClientIdentity,
    pub(super) create: CreateOptions,
    pub(super) read_only: bool,
    pub(super) cache_folder: Option<PathBuf>,
    pub(super) data_cache_bytes: u64,
    pub(super) metadata_cache_bytes: u64,
    /// How often everything is to be maintained; set when a repository is created.
    pub(super) full_maintenance_interval: Option<Duration>,
}

impl Settings {
    pub(super) fn parse(options: &RepositoryOptions) -> Result<Self> {
        let mut named = Named::new("option", &options.general_options);
        let text = |value: Option<&str>, default: String| value.map_or(default, str::to_owned);
        let defaults = CreateOptions::default();
        let cache_bytes = named.number("cacheLimitMB")?.unwrap_or(DEFAULT_CACHE_MB).saturating_mul(1 << 20);
        let data_cache_bytes = cache_bytes / 100 * DATA_CACHE_PERCENT;
        let settings = Settings {
            identity: ClientIdentity {
                username: text(named.take("username"), velero::IDENTITY.to_owned()),
                hostname: text(named.take("domainname"), velero::IDENTITY.to_owned()),
            },
            create: CreateOptions {
                hash: text(named.take("hashAlgo"), defaults.hash),
                encryption: text(named.take("encryptAlgo"), defaults.encryption),
                splitter: text(named.take("splitAlgo"), defaults.splitter),
                retention: retention(&mut named)?,
                ..CreateOptions::default()
            },
            read_only: named.flag("readOnly")?,
            cache_folder: named.take("cacheDir").map(PathBuf::from),
            data_cache_bytes,
            metadata_cache_bytes: cache_bytes - data_cache_bytes,
            full_maintenance_interval: named
                .take("fullMaintenanceInterval")
                .map(maintenance_interval)
                .transpose()?,
        };
        named.finish()?;
        Ok(settings)
    }
}

fn retention(named: &mut Named<'_>) -> Result<Option<Retention>> {
    let mode = match named.take("retentionMode") {
        None | Some("") => None,
        Some("GOVERNANCE") => Some(RetentionMode::Governance),
        Some("COMPLIANCE") => Some(RetentionMode::Compliance),
        Some(other) => {
            return Err(invalid(format!("retentionMode {other:?} is neither GOVERNANCE nor COMPLIANCE")));
        }
    };
    let period =
        named.number("retentionPeriod")?.filter(|nanoseconds| *nanoseconds > 0).map(Duration::from_nanos);
    match (mode, period) {
        (None, None) => Ok(None),
        (Some(mode), Some(period)) => Ok(Some(Retention { mode, period })),
        _ => Err(invalid("retentionMode and retentionPeriod go together".to_owned())),
    }
}

fn maintenance_interval(name: &str) -> Result<Duration> {
    let hours = match name {
        "" | "normalGC" => 24,
        "fastGC" => 12,
        "eagerGC" => 6,
        other => {
            let text = format!("fullMaintenanceInterval {other:?} is not one of normalGC, fastGC, eagerGC");
            return Err(invalid(text));
        }
    };
    Ok(Duration::from_secs(hours * 3600))
}

/// The storage as Kopia's connection file describes it: `{"type": …, "config": {…}}`.
pub(super) fn storage(options: &RepositoryOptions) -> Result<Value> {
    let mut named = Named::new("storage option", &options.storage_options.0);
    let (kind, config) = match options.storage_type.as_str() {
        "filesystem" => ("filesystem", filesystem(&mut named)?),
        "s3" => ("s3", s3(&mut named)?),
        "gcs" => ("gcs", gcs(&mut named)?),
        "azure" => ("azureBlob", azure(&mut named)?),
        other => {
            return Err(invalid(format!("storage type {other:?} is not one of filesystem, s3, gcs, azure")));
        }
    };
    named.finish()?;
    Ok(json!({ "type": kind, "config": config }))
}

fn filesystem(named: &mut Named<'_>) -> Result<Map<String, Value>> {
    let mut path = PathBuf::from(named.required("fspath")?);
    if !path.is_absolute() {
        return Err(invalid("the storage option \"fspath\" must be an absolute path".to_owned()));
    }
    path.extend(named.take("prefix"));
    let path = path.to_str().ok_or_else(|| invalid("\"fspath\" is not valid UTF-8".to_owned()))?;
    // As Velero sets them: nobody but the owner sees anything.
    Ok(object([("path", json!(path)), ("fileMode", json!(0o600)), ("dirMode", json!(0o700))]))
}

fn s3(named: &mut Named<'_>) -> Result<Map<String, Value>> {
    let mut config = object([("bucket", json!(named.required("bucket")?))]);
    named.copy(
        &mut config,
        &[
            ("prefix", "prefix"),
            ("endpoint", "endpoint"),
            ("region", "region"),
            ("accessKeyID", "accessKeyID"),
            ("secretAccessKey", "secretAccessKey"),
            ("sessionToken", "sessionToken"),
            ("customCA", "rootCA"),
        ],
    );
    for (name, field) in [("doNotUseTLS", "doNotUseTLS"), ("skipTLSVerify", "doNotVerifyTLS")] {
        if named.flag(name)? {
            config.insert(field.to_owned(), json!(true));
        }
    }
    Ok(config)
}

fn gcs(named: &mut Named<'_>) -> Result<Map<String, Value>> {
    let mut config = object([("bucket", json!(named.required("bucket")?))]);
    named.copy(&mut config, &[("prefix", "prefix"), ("credFile", "credentialsFile")]);
    if named.flag("readonly")? {
        config.insert("readOnly".to_owned(), json!(true));
    }
    Ok(config)
}

fn azure(named: &mut Named<'_>) -> Result<Map<String, Value>> {
    let mut config = object([("container", json!(named.required("bucket")?))]);
    named.copy(
        &mut config,
        &[
            ("prefix", "prefix"),
            ("storageAccount", "storageAccount"),
            ("storageKey", "storageKey"),
            ("sasToken", "sasToken"),
            ("storageDomain", "storageDomain"),
            ("tenantID", "tenantID"),
            ("clientID", "clientID"),
            ("clientSecret", "clientSecret"),
        ],
    );
    Ok(config)
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

/// Options by name, of which none may be left over: a setting that is not understood is refused.
struct Named<'a> {
    what: &'static str,
    left: BTreeMap<&'a str, &'a str>,
}

impl<'a> Named<'a> {
    fn new(what: &'static str, options: &'a BTreeMap<String, String>) -> Self {
        Named { what, left: options.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect() }
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        self.left.remove(name)
    }

    fn required(&mut self, name: &str) -> Result<&'a str> {
        let value = self.take(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| invalid(format!("the {} {name:?} is missing", self.what)))
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name) {
            None | Some("") => Ok(false),
            Some(value) => value.parse().map_err(|_| {
                invalid(format!("the {} {name:?} is {value:?}, which is neither true nor false", self.what))
            }),
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let parse = |value: &str| {
            value.parse().map_err(|_| {
                invalid(format!("the {} {name:?} is {value:?}, which is not a number", self.what))
            })
        };
        self.left.remove(name).filter(|value| !value.is_empty()).map(parse).transpose()
    }

    /// Copies options that are there and not empty, under the names of the other side.
    fn copy(&mut self, into: &mut Map<String, Value>, names: &[(&str, &str)]) {
        for (name, field) in names {
            if let Some(value) = self.take(name).filter(|value| !value.is_empty()) {
                into.insert((*field).to_owned(), json!(value));
            }
        }
    }

    fn finish(self) -> Result<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(invalid(format!("the {} {name:?} is not known", self.what))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::StorageOptions;

    fn options(storage_type: &str, pairs: &[(&str, &str)]) -> RepositoryOptions {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        RepositoryOptions {
            storage_type: storage_type.to_owned(),
            storage_options: StorageOptions(pairs),
            ..RepositoryOptions::default()
        }
    }

    #[test]
    fn veleros_s3_options_become_kopias() {
        let given =
            [("bucket", "b"), ("prefix", "kopia/ns/"), ("skipTLSVerify", "true"), ("doNotUseTLS", "false")];
        let expected =
            json!({"type": "s3", "config": {"bucket": "b", "prefix": "kopia/ns/", "doNotVerifyTLS": true}});
        assert_eq!(storage(&options("s3", &given)).unwrap(), expected);
    }

    #[test]
    fn what_is_missing_or_not_understood_is_named() {
        for (kind, given, named) in [
            ("s3", &[][..], "bucket"),
            ("s3", &[("bucket", "b"), ("skipTLSVerify", "maybe")], "skipTLSVerify"),
            ("gcs", &[("bucket", "b"), ("colour", "red")], "colour"),
            ("filesystem", &[("fspath", "relative")], "fspath"),
            ("tape", &[], "tape"),
        ] {
            let error = storage(&options(kind, given)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn the_cache_is_divided_and_the_interval_named() {
        let mut given = options("s3", &[]);
        given.general_options.insert("cacheLimitMB".to_owned(), "100".to_owned());
        given.general_options.insert("fullMaintenanceInterval".to_owned(), "eagerGC".to_owned());
        let settings = Settings::parse(&given).unwrap();
        assert_eq!(settings.data_cache_bytes + settings.metadata_cache_bytes, 100 << 20);
        assert_eq!(settings.full_maintenance_interval, Some(Duration::from_secs(6 * 3600)));
        given.general_options.insert("fullMaintenanceInterval".to_owned(), "never".to_owned());
        assert_eq!(Settings::parse(&given).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
