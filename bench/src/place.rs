//! Where the repositories that are measured lie: in a folder, or in buckets of a server that is far away.

use crate::latency::LongWay;
use anyhow::Result;
use lifeboat_testbed::processor_time;
use lifeboat_testkit::servers::Minio;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A kind of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A folder in memory.
    Folder,
    /// MinIO, with so many milliseconds added to every round trip.
    S3 {
        /// The milliseconds.
        round_trip: u64,
    },
}

impl Place {
    /// For tables.
    pub fn describe(self) -> String {
        match self {
            Place::Folder => String::new(),
            Place::S3 { round_trip } => format!(", S3 at {round_trip} ms"),
        }
    }

    /// Makes it ready.
    pub fn open(self, folder: &Path) -> Result<Storage> {
        Ok(match self {
            Place::Folder => Storage::Folder(folder.to_path_buf()),
            Place::S3 { round_trip } => {
                let server = Minio::start()?;
                let way = LongWay::to(&server.address(), Duration::from_millis(round_trip))?;
                Storage::S3 { server, way }
            }
        })
    }
}

/// Storage for one repository.
#[derive(Debug)]
pub enum Storage {
    /// Repositories are folders in this one.
    Folder(PathBuf),
    /// Repositories are buckets.
    S3 {
        /// The server.
        server: Minio,
        /// The way to it.
        way: LongWay,
    },
}

/// The place of one repository.
#[derive(Debug)]
pub enum Location {
    /// A folder that exists.
    Folder(PathBuf),
    /// A bucket that exists.
    Bucket {
        /// Host and port of the server.
        endpoint: String,
        /// The bucket's name.
        bucket: String,
        /// The server's region.
        region: &'static str,
        /// An account's name.
        access_key: &'static str,
        /// Its secret.
        secret_key: &'static str,
    },
}

impl Storage {
    /// What a server, and the way to it, which is in this process, have used of the processors so far.
    pub fn processor_time(&self) -> Result<Option<Duration>> {
        let Storage::S3 { server, .. } = self else { return Ok(None) };
        let of = |process: String| processor_time(&Path::new("/proc").join(process));
        Ok(Some(of(server.pid().to_string())? + of("self".to_owned())?))
    }

    /// An empty place for the repository of the program `name`.
    pub fn location(&self, name: &str) -> Result<Location> {
        match self {
            Storage::Folder(folder) => {
                let path = folder.join(format!("{name}-repository"));
                std::fs::create_dir(&path)?;
                Ok(Location::Folder(path))
            }
            Storage::S3 { server, way } => {
                server.create_bucket(name)?;
                Ok(Location::Bucket {
                    endpoint: way.address(),
                    bucket: name.to_owned(),
                    region: server.region(),
                    access_key: server.access_key(),
                    secret_key: server.secret_key(),
                })
            }
        }
    }
}

impl Location {
    /// Gives a command what it needs to sign requests.
    pub fn sign_in(&self, command: &mut Command) {
        if let Location::Bucket { region, access_key, secret_key, .. } = self {
            command.env("AWS_ACCESS_KEY_ID", access_key).env("AWS_SECRET_ACCESS_KEY", secret_key);
            command.env("AWS_DEFAULT_REGION", region);
        }
    }

    /// The words that name it on the command lines of kopia and of ours.
    pub fn words(&self) -> Vec<String> {
        match self {
            Location::Folder(path) => {
                vec!["filesystem".to_owned(), "--path".to_owned(), path.display().to_string()]
            }
            Location::Bucket { endpoint, bucket, region, .. } => {
                let words = ["s3", "--bucket", bucket, "--endpoint", endpoint, "--region", region];
                words.into_iter().chain(["--disable-tls"]).map(str::to_owned).collect()
            }
        }
    }
}
