//! A folder as other programs lay it out: each file is a blob, under its path below the folder. Only for reading.

use super::{PAGE, blocking, file, name_of, no_folder, walk};
use crate::wrap::pace::Scope;
use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutOptions, Result,
    arrival,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The files of a folder and of the folders in it, named by their paths with `/` between the parts.
#[derive(Debug, Clone)]
pub struct PlainFolder {
    root: PathBuf,
    name: String,
}

impl PlainFolder {
    /// Opens an existing folder.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let folder = PlainFolder::new(path.into());
        blocking(move || match std::fs::metadata(&folder.root) {
            Ok(found) if found.is_dir() => Ok(folder),
            Ok(_) => Err(no_folder(&folder.name, "it is not a folder")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(no_folder(&folder.name, "it does not exist"))
            }
            Err(error) => Err(file::failure(Operation::Open, "", &folder.name, "look at it", error)),
        })
        .await
    }

    fn new(root: PathBuf) -> Self {
        PlainFolder { name: name_of(&root), root }
    }

    /// Fails for names that are not a path downwards, so that no name leads out of the folder.
    fn path(&self, operation: Operation, id: &BlobId) -> Result<PathBuf> {
        let path = Path::new(id.as_str());
        if path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Ok(self.root.join(path));
        }
        let detail = "a folder cannot hold a blob of this name";
        Err(Error::new(ErrorKind::Configuration, operation, id, &*self.name, detail))
    }

    fn open_blob(&self, operation: Operation, id: &BlobId) -> Result<(File, BlobMetadata)> {
        let path = self.path(operation, id)?;
        let open = || {
            let file = File::open(path)?;
            let found = file.metadata()?;
            match found.is_file() {
                true => Ok((file, walk::metadata(id.clone(), &found)?)),
                false => Err(io::ErrorKind::NotFound.into()),
            }
        };
        open().map_err(|error| self.failure(operation, id, "open its file", error))
    }

    fn read(
        &self,
        id: &BlobId,
        range: impl FnOnce(u64) -> Result<Range<u64>>,
        buffer: Vec<u8>,
        pace: Option<&Scope>,
    ) -> Result<Bytes> {
        let (file, found) = self.open_blob(Operation::Get, id)?;
        let range = range(found.size)?;
        file::read_exact_at(&file, range, buffer, pace)
            .map_err(|error| self.failure(Operation::Get, id, "read its file", error))
    }

    fn failure(&self, operation: Operation, id: &BlobId, doing: &str, error: io::Error) -> Error {
        match error.kind() {
            // A file where the name has a folder is no such blob, either.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::not_found(operation, id, &*self.name)
            }
            _ => file::failure(operation, id.as_str(), &self.name, doing, error),
        }
    }

    fn refuse(&self, operation: Operation, id: &BlobId) -> Result<()> {
        let detail = "it belongs to another program, and is only read";
        Err(Error::new(ErrorKind::ReadOnly, operation, id, &*self.name, detail))
    }

    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&PlainFolder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = self.clone();
        blocking(move || call(&folder)).await
    }
}

/// The files that are still to be listed: folders that are open, outermost first, with their paths.
struct Files {
    prefix: String,
    open: Vec<(std::fs::ReadDir, String)>,
}

impl Files {
    /// Starts in the deepest folder that has everything that begins with the prefix.
    fn start(folder: &PlainFolder, prefix: String) -> Result<Self> {
        let above = prefix.rsplit_once('/').map_or(String::new(), |(above, _)| format!("{above}/"));
        let path = match BlobId::new(above.trim_end_matches('/')) {
            Ok(id) => folder.path(Operation::List, &id)?,
            Err(_) => folder.root.clone(),
        };
        let open = match std::fs::read_dir(path) {
            Ok(entries) => vec![(entries, above)],
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.root.is_dir() => Vec::new(),
            Err(error) => {
                return Err(file::failure(Operation::List, &prefix, &folder.name, "read it", error));
            }
        };
        Ok(Files { prefix, open })
    }

    fn next_page(&mut self) -> io::Result<Vec<BlobMetadata>> {
        let mut page = Vec::new();
        while page.len() < PAGE
            && let Some((folder, above)) = self.open.last_mut()
        {
            let Some(entry) = folder.next().transpose()? else {
                self.open.pop();
                continue;
            };
            // What is no text is no blob of anybody whom we know.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{above}{name}");
            let common = name.len().min(self.prefix.len());
            if name.as_bytes()[..common] != self.prefix.as_bytes()[..common] {
                continue;
            }
            match std::fs::metadata(entry.path()) {
                Ok(found) if found.is_dir() => {
                    self.open.push((std::fs::read_dir(entry.path())?, format!("{name}/")));
                }
                Ok(found) if found.is_file() && name.len() >= self.prefix.len() => {
                    if let Ok(id) = BlobId::new(name) {
                        page.push(walk::metadata(id, &found)?);
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // deleted meanwhile
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }
}

#[async_trait]
impl BlobStore for PlainFolder {
    fn describe(&self) -> String {
        self.name.clone()
    }

    async fn put(&self, id: &BlobId, _: Payload, _: &PutOptions) -> Result<()> {
        self.refuse(Operation::Put, id)
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        let (id, pace) = (id.clone(), Scope::current());
        self.run(move |folder| folder.read(&id, |size| Ok(0..size), Vec::new(), pace.as_ref())).await
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        let buffer = arrival::admitted().await;
        let (id, pace) = (id.clone(), Scope::current());
        self.run(move |folder| {
            let checked = |size| {
                crate::store::check_range(&range, size, &id, || folder.name.clone())?;
                Ok(range.clone())
            };
            folder.read(&id, checked, buffer, pace.as_ref())
        })
        .await
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let id = id.clone();
        self.run(move |folder| Ok(folder.open_blob(Operation::Head, &id)?.1)).await
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let prefix = prefix.to_owned();
        let pages = stream::try_unfold(None, move |files: Option<Files>| {
            let prefix = prefix.clone();
            self.run(move |folder| {
                let mut files = match files {
                    Some(files) => files,
                    None => Files::start(folder, prefix)?,
                };
                match files.next_page() {
                    Ok(page) if page.is_empty() => Ok(None),
                    Ok(page) => Ok(Some((stream::iter(page.into_iter().map(Ok)), Some(files)))),
                    Err(error) => {
                        Err(file::failure(Operation::List, &files.prefix, &folder.name, "read it", error))
                    }
                }
            })
        });
        pages.try_flatten().boxed()
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.refuse(Operation::Delete, id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_found_by_their_paths_and_nothing_outside_is() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("theirs");
        for (path, text) in
            [("config", "c"), ("data/ab/abcd", "0123456789"), ("data/ac/x", ""), ("keys/k", "k")]
        {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(place.path().join("outside"), "secret").unwrap();
        let store = PlainFolder::open(&root).await.unwrap();
        let names = |prefix: &'static str| {
            let store = store.clone();
            async move {
                let found: Vec<BlobMetadata> = store.list(prefix).try_collect().await.unwrap();
                let mut names: Vec<String> = found.iter().map(|blob| blob.id.to_string()).collect();
                names.sort();
                names
            }
        };
        assert_eq!(names("").await, ["config", "data/ab/abcd", "data/ac/x", "keys/k"]);
        assert_eq!(names("data/").await, ["data/ab/abcd", "data/ac/x"]);
        assert_eq!(names("data/ab").await, ["data/ab/abcd"]);
        assert_eq!(names("da").await, ["data/ab/abcd", "data/ac/x"]);
        assert_eq!(names("snapshots/").await, Vec::<String>::new());

        let id = |name: &str| BlobId::new(name).unwrap();
        assert_eq!(store.get(&id("data/ab/abcd")).await.unwrap(), "0123456789");
        assert_eq!(store.get_range(&id("data/ab/abcd"), 2..5).await.unwrap(), "234");
        let beyond = store.get_range(&id("data/ab/abcd"), 8..11).await.unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::InvalidRange);
        assert_eq!(store.head(&id("config")).await.unwrap().size, 1);
        for missing in ["data/ab/none", "data/ab", "config/below"] {
            assert!(store.get(&id(missing)).await.unwrap_err().is_not_found(), "{missing}");
        }
        for outside in ["../outside", "/etc/passwd", "data/../../outside"] {
            assert_eq!(store.get(&id(outside)).await.unwrap_err().kind(), ErrorKind::Configuration);
        }
        let put = store.put(&id("new"), Payload::default(), &PutOptions::default()).await.unwrap_err();
        let delete = store.delete(&id("config")).await.unwrap_err();
        assert_eq!((put.kind(), delete.kind()), (ErrorKind::ReadOnly, ErrorKind::ReadOnly));
    }
}
