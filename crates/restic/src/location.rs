//! restic's names of repositories, such as `s3:https://host/bucket/folder`, as storage of ours.

use lifeboat_blobs::StoreConfig;
use lifeboat_blobs::config::{AzureConfig, FilesystemConfig, GcsConfig, S3Config};
use lifeboat_repository::{Error, ErrorKind, Result};

/// Kinds of storage that restic has and we do not.
const OTHERS: [&str; 6] = ["rest", "sftp", "b2", "swift", "rclone", "opendal"];

/// The storage that `name` means to restic. It names no credentials: those are the caller's to add.
pub fn parse(name: &str) -> Result<StoreConfig> {
    let Some((kind, rest)) = name.split_once(':') else { return Ok(folder(name)) };
    match kind {
        "local" => Ok(folder(rest)),
        "s3" => s3(name, rest),
        "gs" => container(name, rest)
            .map(|(bucket, prefix)| StoreConfig::Gcs(GcsConfig { bucket, prefix, ..GcsConfig::default() })),
        "azure" => container(name, rest).map(|(container, prefix)| {
            StoreConfig::Azure(AzureConfig { container, prefix, ..AzureConfig::default() })
        }),
        other if OTHERS.contains(&other) => {
            let text = format!(
                "restic repositories behind \"{other}:\" cannot be read, only those in a folder, S3, GCS or Azure; \
                 copy it there first, file by file or with `restic copy`"
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        }
        // A path may have a colon, too.
        _ => Ok(folder(name)),
    }
}

fn folder(path: &str) -> StoreConfig {
    StoreConfig::Filesystem(FilesystemConfig { path: path.into(), ..FilesystemConfig::default() })
}

/// `https://host:port/bucket/folder`, where the scheme, or all of it but `//`, may be missing.
fn s3(name: &str, rest: &str) -> Result<StoreConfig> {
    let (do_not_use_tls, rest) = match rest.split_once("//") {
        Some(("http:", rest)) => (true, rest),
        Some(("https:" | "", rest)) => (false, rest),
        _ => (false, rest),
    };
    let (endpoint, rest) = rest.split_once('/').ok_or_else(|| not_understood(name))?;
    let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
    if endpoint.is_empty() || bucket.is_empty() {
        return Err(not_understood(name));
    }
    Ok(StoreConfig::S3(S3Config {
        bucket: bucket.to_owned(),
        prefix: prefix(folder),
        endpoint: endpoint.to_owned(),
        do_not_use_tls,
        ..S3Config::default()
    }))
}

/// `container:/folder`.
fn container(name: &str, rest: &str) -> Result<(String, String)> {
    let (container, folder) = rest.split_once(':').ok_or_else(|| not_understood(name))?;
    match container.is_empty() {
        true => Err(not_understood(name)),
        false => Ok((container.to_owned(), prefix(folder))),
    }
}

fn prefix(folder: &str) -> String {
    match folder.trim_matches('/') {
        "" => String::new(),
        folder => format!("{folder}/"),
    }
}

fn not_understood(name: &str) -> Error {
    let text = format!(
        "{name:?} does not name a restic repository; such names look like /folder, s3:https://host/bucket/folder, \
         gs:bucket:/folder or azure:container:/folder"
    );
    Error::new(ErrorKind::InvalidInput, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_they_mean_to_restic() {
        for (name, meant) in [
            ("/srv/restic", "folder /srv/restic"),
            ("relative/with:colon", "folder relative/with:colon"),
            ("local:/srv/restic", "folder /srv/restic"),
            ("s3:s3.amazonaws.com/bucket", "s3://bucket/"),
            ("s3:https://host:9000/bucket/velero/restic/ns", "s3://bucket/velero/restic/ns/"),
            ("s3://host/bucket/a/", "s3://bucket/a/"),
            ("gs:bucket:/", "gs://bucket/"),
            ("gs:bucket:/a/b", "gs://bucket/a/b/"),
            ("azure:container:a", "azure:///container/a/"),
        ] {
            assert_eq!(parse(name).unwrap().to_string(), meant, "{name}");
        }
        for (name, endpoint, plain) in
            [("s3:http://127.0.0.1:9000/b", "127.0.0.1:9000", true), ("s3:https://host/b", "host", false)]
        {
            let StoreConfig::S3(s3) = parse(name).unwrap() else { panic!("{name}") };
            assert_eq!((&*s3.endpoint, s3.do_not_use_tls), (endpoint, plain));
        }
    }

    #[test]
    fn names_that_mean_nothing_or_something_else_are_refused() {
        for name in ["s3:", "s3:host", "s3:https://host/", "gs:bucket", "azure::/x"] {
            let error = parse(name).unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(name), "{error}");
        }
        let error = parse("sftp:user@host:/srv/restic").unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("sftp"), "{error}");
    }
}
