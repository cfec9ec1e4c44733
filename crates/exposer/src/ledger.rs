//! The leak ledger: every temporary object says whom it serves and from when on it must not be there any more.

use crate::{Kind, Operation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lifeboat_api::Duration;
use std::collections::BTreeMap;

/// The label of every temporary object; its value is the kind of the operation.
pub const HOSTS: &str = "lifeboat.io/hosts";
/// The operation that a temporary object serves, as `Kind/namespace/name/uid`.
pub const OWNER: &str = "lifeboat.io/owner";
/// The label that says which agent made a temporary object.
pub const MADE_BY: &str = "lifeboat.io/made-by";
/// How long after it was made a temporary object counts as forgotten.
pub const EXPIRES_AFTER: &str = "lifeboat.io/expires-after";
/// Longer than any operation takes: a server gives up on one after four hours unless it is told otherwise.
const LIFETIME: u64 = 24 * 60 * 60;

/// The entry of a temporary object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The kind of the operation.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// From when on the object counts as forgotten, if that can be read.
    pub expires: Option<Timestamp>,
}

/// The entry of an object, if it is a temporary one.
#[must_use]
pub fn entry(metadata: &ObjectMeta) -> Option<Entry> {
    let annotations = metadata.annotations.as_ref()?;
    let mut parts = annotations.get(OWNER)?.split('/');
    let kind = parts.next()?;
    Some(Entry {
        kind: Kind::ALL.into_iter().find(|known| known.name() == kind)?,
        namespace: parts.next()?.to_owned(),
        name: parts.next()?.to_owned(),
        uid: parts.next()?.to_owned(),
        expires: expiry(metadata, annotations.get(EXPIRES_AFTER)?),
    })
}

fn expiry(metadata: &ObjectMeta, after: &str) -> Option<Timestamp> {
    let after: Duration = after.parse().ok()?;
    metadata.creation_timestamp.as_ref()?.0.checked_add(after.to_std()).ok()
}

/// Whether an object serves this operation: it says so, or it says nothing else. An object without a word is one that
/// Velero's own node-agent made before ours took its place.
#[must_use]
pub fn serves(metadata: &ObjectMeta, operation: &Operation) -> bool {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    entry(metadata).is_none_or(|entry| entry.uid == operation.uid)
        && (owners.is_empty() || owners.iter().any(|owner| owner.uid == operation.uid))
}

pub(crate) fn annotations(operation: &Operation) -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            OWNER.to_owned(),
            format!("{}/{}/{}/{}", operation.kind.name(), operation.namespace, operation.name, operation.uid),
        ),
        (EXPIRES_AFTER.to_owned(), Duration::from_secs(LIFETIME).to_string()),
    ])
}

pub(crate) fn labels(operation: &Operation) -> BTreeMap<String, String> {
    BTreeMap::from([(HOSTS.to_owned(), operation.kind.name().to_owned())])
}
