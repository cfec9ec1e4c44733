//! A cluster as far as exposers know one, and the visit of every state that it can come to.

use k8s_openapi::api::core::v1::ResourceRequirements;
use lifeboat_api::Duration;
use lifeboat_exposer::{Action, HostedVolume, Kind, Next, Object, ObjectKind, Operation, VolumeSource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A cluster as far as exposers know one: objects by kind and place, and what the storage has.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Default)]
pub(crate) struct World {
    pub(crate) objects: BTreeMap<String, String>,
    /// Snapshots and volumes that the storage has.
    pub(crate) storage: BTreeMap<String, bool>,
    pub(crate) next: u64,
}

pub(crate) fn key(kind: ObjectKind, namespace: &str, name: &str) -> String {
    format!("{}/{namespace}/{name}", kind.name())
}

impl World {
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
    ) -> Option<T> {
        Some(serde_json::from_str(self.objects.get(&key(kind, namespace, name))?).unwrap())
    }

    pub(crate) fn value(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Value> {
        self.get(kind, namespace, name)
    }

    pub(crate) fn put(&mut self, kind: ObjectKind, mut object: Value) {
        // Versions only have to differ; counting every write would make every state a new one.
        object["metadata"]["resourceVersion"] = Value::Null;
        let version = format!("{:x}", fingerprint(&object.to_string()));
        object["metadata"]["resourceVersion"] = json!(version);
        let place = &object["metadata"];
        let place = key(kind, place["namespace"].as_str().unwrap_or(""), place["name"].as_str().unwrap());
        self.objects.insert(place, object.to_string());
    }

    pub(crate) fn create(&mut self, kind: ObjectKind, object: Value) {
        let place = &object["metadata"];
        let place = key(kind, place["namespace"].as_str().unwrap_or(""), place["name"].as_str().unwrap());
        if self.objects.contains_key(&place) {
            return;
        }
        let mut object = object;
        self.next += 1;
        object["metadata"]["uid"] = json!(format!("u{}", self.next));
        self.put(kind, object);
    }

    pub(crate) fn perform(&mut self, action: &Action) {
        match action {
            Action::CreateSnapshot(object) => {
                self.create(ObjectKind::Snapshot, serde_json::to_value(object).unwrap());
            }
            Action::CreateContent(object) => {
                self.create(ObjectKind::Content, serde_json::to_value(object).unwrap());
            }
            Action::CreateClaim(object) => {
                self.create(ObjectKind::Claim, serde_json::to_value(object).unwrap());
            }
            Action::CreatePod(object) => {
                self.create(ObjectKind::Pod, serde_json::to_value(object).unwrap());
            }
            Action::Patch(object, change) => {
                if let Some(mut current) = self.same(object) {
                    merge(&mut current, change);
                    self.put(object.kind, current);
                }
            }
            Action::Delete(object) => {
                if let Some(mut current) = self.same(object) {
                    current["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    self.put(object.kind, current);
                }
            }
        }
    }

    /// The object, if it still is as it was seen.
    pub(crate) fn same(&self, object: &Object) -> Option<Value> {
        let current = self.value(object.kind, &object.namespace, &object.name)?;
        let (uid, version) = (&current["metadata"]["uid"], &current["metadata"]["resourceVersion"]);
        (*uid == json!(object.uid) && *version == json!(object.version)).then_some(current)
    }

    pub(crate) fn remove(&mut self, kind: ObjectKind, namespace: &str, name: &str) {
        self.objects.remove(&key(kind, namespace, name));
    }
}

pub(crate) fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(crate) fn merge(target: &mut Value, change: &Value) {
    let Some(change) = change.as_object() else {
        *target = change.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in change {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

pub(crate) fn deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn operation(kind: Kind) -> Operation {
    Operation { kind, namespace: "velero".into(), name: "op".into(), uid: "op-uid".into() }
}

pub(crate) fn hosted() -> HostedVolume {
    HostedVolume {
        source: VolumeSource::Claim { block: false, read_only: false },
        cache: false,
        resource_timeout: Duration::from_secs(600),
        no_relabeling: false,
        program: "/velero".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        resources: ResourceRequirements::default(),
        priority_class: None,
        beside_velero: false,
    }
}

/// What the agents at work want.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Expose,
    HandOver,
    Clean,
    /// Keep a volume that could not be handed over.
    Keep,
    /// Clean up after it was kept, whoever does that.
    Kept,
    /// Tell a restored pod that its volume does not come.
    Tell,
}

/// A world, what the agents want, and what one of them is about to do after an earlier look.
pub(crate) type State = (World, Wish, Option<Late>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Late(String);

pub(crate) trait Scenario {
    fn plan(&self, world: &World, wish: Wish) -> Next;
    /// What the cluster's controllers do, each step by itself.
    fn controllers(&self, world: &World) -> Vec<World>;
    /// What else may happen.
    fn happenings(&self, world: &World, wish: Wish) -> Vec<(World, Wish)>;
    fn check(&self, world: &World, wish: Wish);
    fn check_end(&self, world: &World, wish: Wish);
    /// Whether there is something to wait for that nobody but people can bring about.
    fn may_wait(&self, world: &World, wish: Wish) -> bool;
}

/// Visits every state and lets a calm world lead from each to an end.
pub(crate) fn explore(scenario: &impl Scenario, start: World) -> usize {
    let mut actions: HashMap<Late, Action> = HashMap::new();
    let mut seen: HashMap<State, ()> = HashMap::new();
    let mut queue = VecDeque::from([(start, Wish::Expose, None)]);
    while let Some(state) = queue.pop_front() {
        if seen.insert(state.clone(), ()).is_some() {
            continue;
        }
        assert!(seen.len() < 400_000, "the states do not end");
        let (world, wish, late) = state;
        scenario.check(&world, wish);
        calm_end(scenario, world.clone(), wish);
        if let Next::Do(action) = scenario.plan(&world, wish) {
            let mut after = world.clone();
            after.perform(&action);
            queue.push_back((after, wish, late.clone()));
            if late.is_none() {
                let name = Late(format!("{action:?}"));
                actions.insert(name.clone(), action);
                queue.push_back((world.clone(), wish, Some(name)));
            }
        }
        if let Some(late) = &late {
            let mut after = world.clone();
            after.perform(&actions[late]);
            queue.push_back((after, wish, None));
        }
        for after in scenario.controllers(&world) {
            queue.push_back((after, wish, late.clone()));
        }
        for (after, wish) in scenario.happenings(&world, wish) {
            queue.push_back((after, wish, late.clone()));
        }
    }
    seen.len()
}

pub(crate) fn calm_end(scenario: &impl Scenario, mut world: World, wish: Wish) {
    let first = world.clone();
    for _ in 0..60 {
        match scenario.plan(&world, wish) {
            Next::Do(action) => world.perform(&action),
            Next::Wait(waiting) => match scenario.controllers(&world).into_iter().next() {
                Some(after) => world = after,
                None if scenario.may_wait(&world, wish) => return,
                None => panic!("waits for ever for {}:\n{}", waiting.for_what, shown(&world)),
            },
            Next::Done => return scenario.check_end(&settled(scenario, world), wish),
            Next::Impossible(_) => return scenario.check_end(&settled(scenario, world), wish),
        }
    }
    panic!("{wish:?} does not end, from\n{}\nstill at\n{}", shown(&first), shown(&world));
}

pub(crate) fn settled(scenario: &impl Scenario, mut world: World) -> World {
    for _ in 0..40 {
        match scenario.controllers(&world).into_iter().next() {
            Some(after) => world = after,
            None => return world,
        }
    }
    panic!("controllers do not settle");
}

pub(crate) fn shown(world: &World) -> String {
    world.objects.values().cloned().collect::<Vec<_>>().join("\n")
}

/// Claims that were deleted take their volumes along, if these are to be deleted.
pub(crate) fn claims_go(world: &World, places: &[(&str, &str)]) -> Vec<World> {
    let mut next = Vec::new();
    for (namespace, name) in places {
        let Some(claim) = world.value(ObjectKind::Claim, namespace, name).filter(deleted) else { continue };
        if world.value(ObjectKind::Pod, namespace, name).is_some() {
            continue;
        }
        let mut after = world.clone();
        after.remove(ObjectKind::Claim, namespace, name);
        let volume =
            claim["spec"]["volumeName"].as_str().and_then(|name| after.value(ObjectKind::Volume, "", name));
        let uid = &claim["metadata"]["uid"];
        if let Some(mut volume) = volume.filter(|volume| volume["spec"]["claimRef"]["uid"] == *uid) {
            volume["status"]["phase"] = json!("Released");
            after.put(ObjectKind::Volume, volume);
        }
        next.push(after);
    }
    next
}

pub(crate) fn volumes_go(world: &World) -> Vec<World> {
    let volume = world.value(ObjectKind::Volume, "", "pv");
    let released = volume.filter(|volume| volume["status"]["phase"] == "Released");
    let doomed = released.filter(|volume| volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete");
    doomed.map_or_else(Vec::new, |_| {
        let mut after = world.clone();
        after.remove(ObjectKind::Volume, "", "pv");
        after.storage.insert("pv".into(), false);
        vec![after]
    })
}

pub(crate) fn pods_go(world: &World) -> Vec<World> {
    world.value(ObjectKind::Pod, "velero", "op").filter(deleted).map_or_else(Vec::new, |_| {
        let mut after = world.clone();
        after.remove(ObjectKind::Pod, "velero", "op");
        vec![after]
    })
}

/// A claim of the hosting pod gets the volume `pv`, the first one at least.
pub(crate) fn provision(world: &World, policy: &str) -> Vec<World> {
    let Some(mut claim) = world.value(ObjectKind::Claim, "velero", "op") else { return Vec::new() };
    let only_one = world.value(ObjectKind::Volume, "", "pv").is_some();
    if claim["spec"]["volumeName"].is_string() || deleted(&claim) || only_one {
        return Vec::new();
    }
    let mut after = world.clone();
    claim["spec"]["volumeName"] = json!("pv");
    let uid = claim["metadata"]["uid"].clone();
    after.put(ObjectKind::Claim, claim);
    after.put(
        ObjectKind::Volume,
        json!({
            "metadata": { "name": "pv", "uid": "pv-uid" },
            "spec": {
                "persistentVolumeReclaimPolicy": policy,
                "claimRef": { "namespace": "velero", "name": "op", "uid": uid },
            },
            "status": { "phase": "Bound" },
        }),
    );
    after.storage.insert("pv".into(), true);
    vec![after]
}
