//! Objects that hardly ever change, as they were a moment ago: a burst of operations asks for them once.

use kube::api::Api;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Short enough that nobody who changes one has to wait for it to count.
const LIFETIME: Duration = Duration::from_secs(10);

/// Objects of one kind by their names.
pub(crate) struct Recent<K>(Mutex<HashMap<String, (Instant, K)>>);

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + DeserializeOwned + Debug> Recent<K> {
    /// The object of this name, if there is one. That there is none is asked for anew: somebody waits for it.
    pub(crate) async fn get_opt(&self, api: &Api<K>, name: &str) -> Result<Option<K>, kube::Error> {
        let known = self.0.lock().get(name).filter(|(asked, _)| asked.elapsed() < LIFETIME).cloned();
        if let Some((_, object)) = known {
            return Ok(Some(object));
        }
        let found = api.get_opt(name).await?;
        let mut known = self.0.lock();
        known.retain(|_, (asked, _)| asked.elapsed() < LIFETIME);
        known.extend(found.clone().map(|object| (name.to_owned(), (Instant::now(), object))));
        Ok(found)
    }
}
