//! Objects that hardly ever change, as they were a moment ago: a burst of operations asks for them once.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::Api;
use lifeboat_api::NodeOs;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Short enough that nobody who changes one has to wait for it to count.
const LIFETIME: Duration = Duration::from_secs(10);

/// The volumes of a cluster that are attached, each with a node that has it.
pub(crate) type Attachments = Arc<Vec<(String, String)>>;

/// What several looks at an operation, or looks at several of them, need to know.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) storage_classes: Recent<StorageClass>,
    pub(crate) daemon_sets: Recent<DaemonSet>,
    /// Volumes of applications.
    pub(crate) volumes: Recent<PersistentVolume>,
    /// All at once, by no name.
    pub(crate) attachments: Recent<Attachments>,
    /// The systems of nodes.
    pub(crate) systems: Recent<NodeOs>,
}

/// Objects of one kind, or what was found out about them, by their names.
pub(crate) struct Recent<K>(Mutex<HashMap<String, (Instant, K)>>);

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone> Recent<K> {
    /// What is known by this name, or else what `ask` finds out. That there is nothing is asked for anew: somebody waits for it.
    pub(crate) async fn or_ask(
        &self,
        name: &str,
        ask: impl Future<Output = Result<Option<K>, kube::Error>>,
    ) -> Result<Option<K>, kube::Error> {
        let known = self.0.lock().get(name).filter(|(asked, _)| asked.elapsed() < LIFETIME).cloned();
        if let Some((_, object)) = known {
            return Ok(Some(object));
        }
        let found = ask.await?;
        let mut known = self.0.lock();
        known.retain(|_, (asked, _)| asked.elapsed() < LIFETIME);
        known.extend(found.clone().map(|object| (name.to_owned(), (Instant::now(), object))));
        Ok(found)
    }
}

impl<K: Clone + DeserializeOwned + Debug> Recent<K> {
    /// The object of this name, if there is one.
    pub(crate) async fn get_opt(&self, api: &Api<K>, name: &str) -> Result<Option<K>, kube::Error> {
        self.or_ask(name, api.get_opt(name)).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn what_is_there_is_asked_for_once_and_what_is_not_every_time() {
        let (recent, asked) = (Recent::default(), Cell::new(0));
        let count = &asked;
        let ask = |answer: Option<u32>| async move {
            count.set(count.get() + 1);
            Ok(answer)
        };
        assert_eq!(recent.or_ask("a", ask(None)).await.unwrap(), None);
        assert_eq!(recent.or_ask("a", ask(Some(1))).await.unwrap(), Some(1));
        assert_eq!(recent.or_ask("a", ask(Some(2))).await.unwrap(), Some(1));
        assert_eq!(recent.or_ask("b", ask(Some(3))).await.unwrap(), Some(3));
        assert_eq!(asked.get(), 3);
    }

    #[tokio::test]
    async fn what_was_known_too_long_is_asked_for_anew_and_forgotten() {
        let recent = Recent::default();
        let long_ago = Instant::now().checked_sub(LIFETIME).unwrap();
        recent.0.lock().extend(["a", "b"].map(|name| (name.to_owned(), (long_ago, 1))));
        assert_eq!(recent.or_ask("a", async { Ok(Some(2)) }).await.unwrap(), Some(2));
        assert_eq!(recent.0.lock().keys().collect::<Vec<_>>(), ["a"]);
    }
}
