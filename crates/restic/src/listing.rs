//! A restic tree as a listing: the form in which movers read directories.

use crate::errors::CHECK;
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::snapshot::{
    DeviceNumber, DirEntry, DirSummary, DirWriter, EntryType, Extras, GoMode, HardLink, SpecialKind,
    XattrName, listed_name,
};
use lifeboat_repository::{Error, ErrorKind, Result};
use rustic_core::TreeId;
use rustic_core::repofile::{Node, NodeType, Tree};
use std::os::unix::ffi::OsStrExt;

/// The bits of Go's file modes that an entry carries: permissions, set-uid, set-gid and sticky. The others say what
/// the type says.
const MODE_BITS: u32 = 0o777 | 1 << 23 | 1 << 22 | 1 << 20;

/// The bytes of the listing.
pub(crate) fn encode(id: TreeId, tree: &Tree) -> Result<Vec<u8>> {
    let mut entries: Vec<DirEntry> =
        tree.nodes.iter().enumerate().map(|(place, node)| entry(id, place, node)).collect();
    entries.sort_by(DirEntry::listing_order);
    let mut writer = DirWriter::new();
    let mut write = || {
        entries.iter().try_for_each(|entry| writer.push(entry))?;
        std::mem::take(&mut writer).finish(&DirSummary::default())
    };
    write().map_err(|error| {
        let text = format!("tree {} cannot be listed: {error}; {CHECK}", id.to_hex().as_str());
        Error::new(ErrorKind::Damaged, text)
    })
}

/// A node as an entry. Its object is named by its place, unless it is a directory.
pub(crate) fn entry(tree: TreeId, place: usize, node: &Node) -> DirEntry {
    let (entry_type, kind, device) = match &node.node_type {
        NodeType::File => (EntryType::File, None, None),
        NodeType::Dir => (EntryType::Directory, None, None),
        NodeType::Symlink { .. } => (EntryType::Symlink, None, None),
        NodeType::Fifo => (EntryType::File, Some(SpecialKind::Fifo), None),
        NodeType::Socket => (EntryType::File, Some(SpecialKind::Socket), None),
        NodeType::Dev { device } => (EntryType::File, Some(SpecialKind::BlockDevice), Some(*device)),
        NodeType::Chardev { device } => (EntryType::File, Some(SpecialKind::CharDevice), Some(*device)),
    };
    let name = node.name();
    let raw = name.as_bytes();
    let listed = listed_name(raw);
    let mut extras = Extras {
        raw_name: listed.as_ref().map_or_else(Base64::default, |_| Base64(raw.to_vec())),
        kind,
        device: device.map(|number| DeviceNumber {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
            ..DeviceNumber::default()
        }),
        hard_link: hard_link(node),
        ..Extras::default()
    };
    for attribute in &node.meta.extended_attributes {
        let value = Base64(attribute.value.clone().unwrap_or_default());
        extras.xattrs.insert(XattrName(attribute.name.clone().into_bytes()), value);
    }
    let mut entry = DirEntry {
        name: listed.map_or_else(|| raw.to_vec().into(), Into::into),
        size: match &node.node_type {
            NodeType::File => node.meta.size,
            NodeType::Symlink { .. } => link_target(node).len() as u64,
            _ => 0,
        },
        entry_type,
        mode: GoMode(node.meta.mode.unwrap_or_default() & MODE_BITS),
        uid: node.meta.uid.unwrap_or_default(),
        gid: node.meta.gid.unwrap_or_default(),
        object: match node.is_dir() {
            true => node.subtree.map(|tree| tree.to_hex().as_str().to_owned()).unwrap_or_default(),
            false => format!("{}/{place}", tree.to_hex().as_str()),
        },
        extras: (!extras.is_empty()).then(|| Box::new(extras)),
        ..DirEntry::default()
    };
    if let Some(time) = node.meta.mtime {
        let nanoseconds = time.as_nanosecond();
        // Both fit: a timestamp is within the years -9999 to 9999.
        let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or_default();
        let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default();
        entry.set_file_time(seconds, rest);
    }
    entry
}

/// What a file has in common with its other names.
fn hard_link(node: &Node) -> Option<HardLink> {
    let is_linked = node.is_file() && node.meta.links > 1 && node.meta.inode > 0;
    is_linked.then(|| HardLink {
        inode: node.meta.inode,
        file_system: node.meta.device_id,
        names: node.meta.links,
        ..HardLink::default()
    })
}

/// The target of a symbolic link; empty for everything else.
pub(crate) fn link_target(node: &Node) -> &[u8] {
    match &node.node_type {
        NodeType::Symlink { linktarget_raw: Some(raw), .. } => raw,
        NodeType::Symlink { linktarget, .. } => linktarget.as_bytes(),
        _ => &[],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::DirParser;

    /// As restic 0.18 writes them.
    const TREE: &str = r#"{"nodes":[
        {"name":"caf\\xe9\\n","type":"file","mode":8389101,"mtime":"1969-12-31T23:59:59.000000005Z","uid":7,"gid":8,
         "inode":33,"device_id":5,"size":3,"links":2,
         "extended_attributes":[{"name":"user.x","value":"AAE="},{"name":"user.none","value":null}],
         "content":["0000000000000000000000000000000000000000000000000000000000000001"]},
        {"name":"link","type":"symlink","mode":134218239,"linktarget":"a\ufffd","linktarget_raw":"Yf8=","content":null},
        {"name":"null","type":"chardev","mode":69206454,"device":259,"content":null},
        {"name":"sub","type":"dir","mode":2147484141,
         "subtree":"00000000000000000000000000000000000000000000000000000000000000ab","content":null}]}"#;

    fn tree_id() -> TreeId {
        "cd".repeat(32).parse().unwrap()
    }

    #[test]
    fn everything_that_restic_keeps_is_in_the_listing() {
        let tree: Tree = serde_json::from_str(TREE).unwrap();
        let mut parser = DirParser::new("test");
        parser.feed(&encode(tree_id(), &tree).unwrap());
        let mut entries = Vec::new();
        while let Some(entry) = parser.next_entry().unwrap() {
            entries.push(entry);
        }
        parser.finish().unwrap();
        let [sub, file, link, null] = &entries[..] else { panic!("{entries:?}") };

        assert_eq!(
            (sub.is_dir(), sub.mode.to_unix(), &*sub.object),
            (true, 0o755, &*format!("{}ab", "00".repeat(31)))
        );
        assert_eq!((file.file_name(), file.mode.to_unix()), (&b"caf\xe9\n"[..], 0o4755));
        assert_eq!((file.uid, file.gid, file.size), (7, 8, 3));
        assert_eq!((file.file_time().seconds, file.file_time().nanoseconds), (-1, 5));
        assert_eq!(file.object, format!("{}/0", "cd".repeat(32)));
        let extras = file.extras.as_ref().unwrap();
        assert_eq!(extras.hard_link.as_ref().map(|link| (link.group(), link.names)), Some(((5, 33), 2)));
        let xattrs: Vec<_> = extras.xattrs.iter().map(|(name, value)| (&name.0[..], &value.0[..])).collect();
        assert_eq!(xattrs, [(&b"user.none"[..], &b""[..]), (b"user.x", b"\0\x01")]);
        assert_eq!((link.entry_type.clone(), link.size), (EntryType::Symlink, 2));
        assert_eq!(link_target(&tree.nodes[1]), b"a\xff");
        let extras = null.extras.as_ref().unwrap();
        assert_eq!(extras.kind, Some(SpecialKind::CharDevice));
        assert_eq!(extras.device.as_ref().map(|device| (device.major, device.minor)), Some((1, 3)));
    }

    #[test]
    fn a_directory_without_a_tree_is_one_that_cannot_be_opened() {
        let node: Node = serde_json::from_str(r#"{"name":"d","type":"dir","content":null}"#).unwrap();
        assert_eq!(entry(tree_id(), 0, &node).object, "");
    }
}
