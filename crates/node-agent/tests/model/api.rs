//! The objects of a cluster with their versions, who may write them when, and who is told.

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// As many changes of a kind are remembered for watches that begin in the past.
const REMEMBERED: usize = 4096;

/// Where an object is: its kind as `group/plural`, its namespace, and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Place {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// What became of an object.
#[derive(Debug, Clone)]
pub struct Change {
    pub place: Place,
    pub before: Option<Arc<Value>>,
    /// Nothing if it is gone.
    pub after: Option<Arc<Value>>,
    /// Who changed it.
    pub by: String,
}

/// Why a write is refused, as the status code of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    NotFound,
    Conflict,
    Forbidden,
}

/// Which objects are asked for.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    /// Empty for all namespaces.
    pub namespace: String,
    /// Labels with the value that they have to have, if any.
    pub labels: Vec<(String, Option<String>)>,
    /// Fields, as JSON pointers, with the value that they have to have.
    pub fields: Vec<(String, String)>,
}

impl Selector {
    fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        (self.namespace.is_empty() || metadata["namespace"] == self.namespace.as_str())
            && self.labels.iter().all(|(key, value)| {
                let found = metadata["labels"].get(key).and_then(Value::as_str);
                found.is_some_and(|found| value.as_deref().is_none_or(|value| value == found))
            })
            && self
                .fields
                .iter()
                .all(|(path, value)| object.pointer(path).and_then(Value::as_str) == Some(value))
    }
}

/// One watch.
struct Watch {
    selector: Selector,
    metadata_only: bool,
    client: String,
    sink: UnboundedSender<Arc<str>>,
}

/// All objects of a kind.
#[derive(Default)]
struct Collection {
    objects: BTreeMap<(String, String), Arc<Value>>,
    watches: Vec<Watch>,
    /// What happened last, with the version that it led to.
    history: VecDeque<(u64, Change)>,
    /// Watches from before this version have to list again.
    forgotten: u64,
}

#[derive(Default)]
struct State {
    version: u64,
    collections: HashMap<String, Collection>,
}

/// The API of a cluster.
pub struct Api {
    state: Mutex<State>,
    observers: Mutex<Vec<UnboundedSender<Change>>>,
    /// Called for every change, before anybody else can make another.
    audit: Box<dyn Fn(&Change) + Send + Sync>,
    down: AtomicBool,
    uids: AtomicU64,
    changes: AtomicU64,
    forbidden: Mutex<HashSet<Place>>,
    requests: Mutex<BTreeMap<String, u64>>,
    /// Kinds of which somebody lists or watches all objects that there are.
    unselected: Mutex<BTreeSet<String>>,
    meddler: Mutex<Option<Meddler>>,
}

/// Somebody who is told of the patch of an agent in the moment before it counts.
type Meddler = Box<dyn Fn(&Api, &Place, &Value) + Send>;

impl Api {
    pub fn new(audit: impl Fn(&Change) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            observers: Mutex::default(),
            audit: Box::new(audit),
            down: AtomicBool::new(false),
            uids: AtomicU64::new(1),
            changes: AtomicU64::new(0),
            forbidden: Mutex::default(),
            requests: Mutex::default(),
            unselected: Mutex::default(),
            meddler: Mutex::default(),
        })
    }

    /// All changes from now on.
    pub fn observe(&self) -> UnboundedReceiver<Change> {
        let (sender, receiver) = unbounded_channel();
        self.observers.lock().push(sender);
        receiver
    }

    pub fn get(&self, place: &Place) -> Option<Arc<Value>> {
        let state = self.state.lock();
        let key = (place.namespace.clone(), place.name.clone());
        state.collections.get(&place.kind)?.objects.get(&key).cloned()
    }

    /// All objects of a kind that are asked for, and the version of this picture.
    pub fn list(&self, kind: &str, selector: &Selector) -> (Vec<Arc<Value>>, u64) {
        let state = self.state.lock();
        let all = state.collections.get(kind).into_iter().flat_map(|it| it.objects.values());
        (all.filter(|object| selector.matches(object)).cloned().collect(), state.version)
    }

    /// Makes an object; its name may be left to us.
    pub fn create(&self, by: &str, kind: &str, mut object: Value) -> Result<Arc<Value>, Refused> {
        let number = self.uids.fetch_add(1, Ordering::Relaxed);
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            metadata["name"] =
                format!("{}{number}", metadata["generateName"].as_str().unwrap_or("x-")).into();
        }
        metadata["uid"] = format!("00000000-0000-4000-8000-{number:012}").into();
        metadata["creationTimestamp"] = now();
        let place = place_of(kind, &object);
        let mut state = self.state.lock();
        if state.at(&place).is_some() {
            return Err(Refused::Conflict);
        }
        self.write(&mut state, by, place, Some(object)).ok_or(Refused::NotFound)
    }

    /// Changes an object by a merge patch, if it is the one and as old as the patch says.
    pub fn patch(&self, by: &str, place: &Place, patch: &Value) -> Result<Arc<Value>, Refused> {
        let mut state = self.state.lock();
        let current = state.at(place).ok_or(Refused::NotFound)?;
        meant(&current, &patch["metadata"])?;
        let mut after = (*current).clone();
        merge(&mut after, patch);
        after["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
        if after == *current {
            return Ok(current);
        }
        let has_time = after["metadata"]["deletionGracePeriodSeconds"].as_u64().is_some_and(|time| time > 0);
        let over = !after["metadata"]["deletionTimestamp"].is_null() && !held(&after) && !has_time;
        if over {
            self.write(&mut state, by, place.clone(), None);
            return Ok(Arc::new(after));
        }
        self.write(&mut state, by, place.clone(), Some(after)).ok_or(Refused::NotFound)
    }

    /// Deletes an object as the options of the API say, or marks it as deleted as long as somebody holds it or a pod has time
    /// to end.
    pub fn delete(&self, by: &str, place: &Place, options: &Value) -> Result<(), Refused> {
        let mut state = self.state.lock();
        let current = state.at(place).ok_or(Refused::NotFound)?;
        meant(&current, &options["preconditions"])?;
        let time = options["gracePeriodSeconds"].as_u64().unwrap_or(0);
        if !held(&current) && time == 0 {
            self.write(&mut state, by, place.clone(), None);
        } else if current["metadata"]["deletionTimestamp"].is_null() {
            let mut after = (*current).clone();
            after["metadata"]["deletionTimestamp"] = now();
            after["metadata"]["deletionGracePeriodSeconds"] = time.into();
            self.write(&mut state, by, place.clone(), Some(after));
        }
        Ok(())
    }

    /// The next so many objects that an agent wants to delete as it has seen them have changed in that moment.
    pub fn change_before_deletes(&self, count: u64) {
        self.changes.store(count, Ordering::SeqCst);
    }

    /// Whether an object changes in the moment in which it is to be deleted.
    pub fn changes_before_delete(&self, options: &Value) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let versioned = !options["preconditions"]["resourceVersion"].is_null();
        versioned && self.changes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// From now on no agent may change this object.
    pub fn forbid(&self, place: Place) {
        self.forbidden.lock().insert(place);
    }

    /// From now on agents may change this object again.
    pub fn allow(&self, place: &Place) {
        self.forbidden.lock().remove(place);
    }

    /// Whether an agent may change this object.
    pub fn is_forbidden(&self, place: &Place) -> bool {
        self.forbidden.lock().contains(place)
    }

    /// From now on somebody may change what an agent is about to change, which the agent cannot have seen.
    pub fn let_meddle(&self, meddler: impl Fn(&Self, &Place, &Value) + Send + 'static) {
        *self.meddler.lock() = Some(Box::new(meddler));
    }

    /// An agent is about to change an object.
    pub fn about_to_patch(&self, place: &Place, patch: &Value) {
        if let Some(meddler) = &*self.meddler.lock() {
            meddler(self, place, patch);
        }
    }

    fn write(&self, state: &mut State, by: &str, place: Place, after: Option<Value>) -> Option<Arc<Value>> {
        state.version += 1;
        let version = state.version;
        let collection = state.collections.entry(place.kind.clone()).or_default();
        let key = (place.namespace.clone(), place.name.clone());
        let after = after.map(|mut object| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            Arc::new(object)
        });
        let before = match &after {
            Some(object) => collection.objects.insert(key, Arc::clone(object)),
            None => collection.objects.remove(&key),
        };
        let change = Change { place, before, after: after.clone(), by: by.to_owned() };
        (self.audit)(&change);
        collection.tell(version, &change);
        collection.history.push_back((version, change.clone()));
        if collection.history.len() > REMEMBERED
            && let Some((oldest, _)) = collection.history.pop_front()
        {
            collection.forgotten = oldest;
        }
        self.observers.lock().retain(|observer| observer.send(change.clone()).is_ok());
        after
    }

    /// What happens to objects of a kind after a version, as lines of JSON; nothing if that is too long ago.
    pub fn watch(
        &self,
        client: &str,
        kind: &str,
        selector: Selector,
        metadata_only: bool,
        since: u64,
    ) -> Option<UnboundedReceiver<Arc<str>>> {
        let mut state = self.state.lock();
        let collection = state.collections.entry(kind.to_owned()).or_default();
        if since < collection.forgotten {
            return None;
        }
        let (sink, lines) = unbounded_channel();
        let watch = Watch { selector, metadata_only, client: client.to_owned(), sink };
        for (version, change) in collection.history.iter().filter(|(version, _)| *version > since) {
            if let Some(event) = seen_by(&watch.selector, change) {
                let _ = watch.sink.send(line(event, change, *version, metadata_only));
            }
        }
        collection.watches.push(watch);
        Some(lines)
    }

    /// Ends the watches of a client.
    pub fn hang_up(&self, client: &str) {
        for collection in self.state.lock().collections.values_mut() {
            collection.watches.retain(|watch| watch.client != client);
        }
    }

    /// The API server goes: nobody gets an answer, and it will have forgotten what it told.
    pub fn go_down(&self) {
        self.down.store(true, Ordering::SeqCst);
        let mut state = self.state.lock();
        let version = state.version;
        for collection in state.collections.values_mut() {
            collection.watches.clear();
            collection.history.clear();
            collection.forgotten = version;
        }
    }

    pub fn come_up(&self) {
        self.down.store(false, Ordering::SeqCst);
    }

    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    /// Takes down that a request of this name was made.
    pub fn count(&self, request: &str) {
        *self.requests.lock().entry(request.to_owned()).or_default() += 1;
    }

    /// Takes down which objects a list or a watch is about.
    pub fn note_selection(&self, kind: &str, selector: &Selector) {
        if selector.labels.is_empty() && selector.fields.is_empty() {
            self.unselected.lock().insert(kind.to_owned());
        }
    }

    /// The kinds of which an agent lists or watches all objects, of a namespace or of the cluster.
    pub fn unselected(&self) -> BTreeSet<String> {
        self.unselected.lock().clone()
    }

    /// How many requests of which name there were.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.requests.lock().clone()
    }
}

impl State {
    fn at(&self, place: &Place) -> Option<Arc<Value>> {
        let key = (place.namespace.clone(), place.name.clone());
        self.collections.get(&place.kind)?.objects.get(&key).cloned()
    }
}

impl Collection {
    /// Tells whoever watches; each way of telling is put into words once, however many listen.
    fn tell(&mut self, version: u64, change: &Change) {
        let mut lines: HashMap<(&'static str, bool), Arc<str>> = HashMap::new();
        self.watches.retain(|watch| {
            let Some(event) = seen_by(&watch.selector, change) else { return !watch.sink.is_closed() };
            let line = lines
                .entry((event, watch.metadata_only))
                .or_insert_with(|| line(event, change, version, watch.metadata_only));
            watch.sink.send(Arc::clone(line)).is_ok()
        });
    }
}

/// What a change is to somebody who sees a part of all objects.
fn seen_by(selector: &Selector, change: &Change) -> Option<&'static str> {
    let matches = |object: &Option<Arc<Value>>| object.as_deref().is_some_and(|it| selector.matches(it));
    match (matches(&change.before), matches(&change.after)) {
        (false, true) => Some("ADDED"),
        (true, true) => Some("MODIFIED"),
        (true, false) => Some("DELETED"),
        (false, false) => None,
    }
}

fn line(event: &str, change: &Change, version: u64, metadata_only: bool) -> Arc<str> {
    let object = change.after.as_ref().or(change.before.as_ref());
    let mut object = object.map_or(Value::Null, |object| shown(object, metadata_only));
    object["metadata"]["resourceVersion"] = version.to_string().into();
    // The type comes first, as in the real API: whoever reads knows at once what the object is, and need not keep it to read
    // it a second time.
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n").into()
}

/// An object as it is answered with.
pub fn shown(object: &Value, metadata_only: bool) -> Value {
    if metadata_only {
        json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"] })
    } else {
        object.clone()
    }
}

fn place_of(kind: &str, object: &Value) -> Place {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    Place { kind: kind.to_owned(), namespace: text("namespace"), name: text("name") }
}

/// Whether somebody holds an object that is being deleted.
fn held(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
}

/// Whether an object is the one that is meant, as it was when it was looked at.
fn meant(object: &Value, wanted: &Value) -> Result<(), Refused> {
    let same = |key: &str| {
        let wanted = wanted.get(key).filter(|wanted| !wanted.is_null());
        wanted.is_none_or(|wanted| *wanted == object["metadata"][key])
    };
    if same("uid") && same("resourceVersion") { Ok(()) } else { Err(Refused::Conflict) }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

pub fn now() -> Value {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}
