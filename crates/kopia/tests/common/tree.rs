//! A plain uploader and a plain reader of trees: just enough to cross contents and objects with kopia.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use lifeboat_index::Prefix;
use lifeboat_kopia::object::{ObjectId, WriterOptions};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{
    self, DirEntries, DirEntry, DirSummary, DirWriter, EntryType, GoMode, SnapshotManifest, SourceInfo,
    SummaryBuilder, entry_time,
};
use lifeboat_primitives::compress::Compressor;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a file or link of a tree holds, by path.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Stores a folder and returns its root object. Blocking.
pub fn upload(repository: &Repository, folder: &Path, compression: Option<Compressor>) -> DirEntry {
    let objects = repository.objects();
    let mut children = Vec::new();
    for child in fs::read_dir(folder).unwrap() {
        let path = child.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            children.push(upload(repository, &path, compression));
            continue;
        }
        let data = if metadata.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            fs::read(&path).unwrap()
        };
        let entry_type = if metadata.is_symlink() { EntryType::Symlink } else { EntryType::File };
        let metadata_compression = Some(Compressor::ZstdFastest);
        let compression = compression.filter(|_| entry_type == EntryType::File);
        let mut writer =
            objects.writer(WriterOptions { compression, metadata_compression, ..WriterOptions::default() });
        writer.write(&data).unwrap();
        let object = writer.finish().unwrap();
        children.push(entry(&path, &metadata, entry_type, data.len() as u64, object, None));
    }
    children.sort_by(DirEntry::listing_order);
    let mut sums = SummaryBuilder::default();
    let mut listing = DirWriter::new();
    for child in &children {
        sums.add(child);
        listing.push(child).unwrap();
    }
    let metadata = fs::symlink_metadata(folder).unwrap();
    let summary = sums.build(entry_time(metadata.mtime(), metadata.mtime_nsec() as u32), "");
    let listing = listing.finish(&summary).unwrap();
    let compression = Some(Compressor::ZstdFastest);
    let options = WriterOptions {
        prefix: Prefix::DIRECTORY,
        compression,
        metadata_compression: compression,
        splitter: None,
    };
    let mut writer = objects.writer(options);
    writer.write(&listing).unwrap();
    let object = writer.finish().unwrap();
    entry(folder, &metadata, EntryType::Directory, 0, object, Some(summary))
}

fn entry(
    path: &Path,
    metadata: &fs::Metadata,
    entry_type: EntryType,
    size: u64,
    object: ObjectId,
    summary: Option<DirSummary>,
) -> DirEntry {
    DirEntry {
        name: path.file_name().unwrap().as_bytes().to_vec().into(),
        entry_type,
        mode: GoMode::from_unix(metadata.mode()),
        size,
        mtime: entry_time(metadata.mtime(), metadata.mtime_nsec() as u32),
        uid: metadata.uid(),
        gid: metadata.gid(),
        object: object.to_string(),
        summary,
        ..DirEntry::default()
    }
}

/// Backs a folder up: everything is flushed when it returns.
pub async fn back_up(
    repository: &Repository,
    folder: &Path,
    compression: Option<Compressor>,
) -> SnapshotManifest {
    let (repository2, folder2) = (repository.clone(), folder.to_owned());
    let started = jiff::Timestamp::now();
    let root =
        tokio::task::spawn_blocking(move || upload(&repository2, &folder2, compression)).await.unwrap();
    let identity = repository.identity();
    let mut manifest = SnapshotManifest {
        source: SourceInfo::new(&identity.username, &identity.hostname, folder.to_str().unwrap()),
        start_time: started,
        end_time: jiff::Timestamp::now(),
        root_entry: Some(root),
        ..SnapshotManifest::default()
    };
    snapshot::save(repository.manifests(), &mut manifest).await.unwrap();
    repository.flush().await.unwrap();
    manifest
}

/// Everything below a directory object.
pub async fn read_tree(repository: &Repository, root: &str) -> Files {
    let mut files = Files::new();
    let mut waiting = vec![(Vec::new(), root.to_owned())];
    while let Some((path, object)) = waiting.pop() {
        let id: ObjectId = object.parse().unwrap();
        let listing = repository.objects().read_all(id, 1 << 30).await.unwrap();
        for entry in DirEntries::new(&object, &listing[..]) {
            let entry = entry.unwrap();
            let path = [&path, b"/".as_slice(), entry.name.as_bytes()].concat();
            if entry.is_dir() {
                waiting.push((path, entry.object));
                continue;
            }
            let id = entry.object.parse().unwrap();
            let data = repository.objects().read_all(id, 1 << 30).await.unwrap();
            assert_eq!(data.len() as u64, entry.size);
            files.insert(path, data.to_vec());
        }
    }
    files
}

/// The same from the file system.
pub fn read_folder(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut waiting = vec![(Vec::new(), folder.to_owned())];
    while let Some((path, folder)) = waiting.pop() {
        for child in fs::read_dir(folder).unwrap() {
            let child = child.unwrap();
            let path = [&path, b"/".as_slice(), child.file_name().as_bytes()].concat();
            let kind = child.file_type().unwrap();
            if kind.is_dir() {
                waiting.push((path, child.path()));
            } else if kind.is_symlink() {
                files.insert(path, fs::read_link(child.path()).unwrap().as_os_str().as_bytes().to_vec());
            } else {
                files.insert(path, fs::read(child.path()).unwrap());
            }
        }
    }
    files
}
