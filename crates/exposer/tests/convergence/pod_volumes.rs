//! Volumes of pods.

use crate::world::{Scenario, Wish, World, claims_go, explore, hosted, operation, pods_go, shown};
use lifeboat_exposer::{Kind, Next, ObjectKind, Placement, Surroundings, pod_volume};
use serde_json::json;

/// Once so many objects have been made, pods are not lost any more.
const MADE: u64 = 3;
/// The last words of a pod that has told.
const TOLD: &str = "told";

/// A volume of a pod, with a cache or without; its pod may be lost at any time.
struct PodVolume {
    kind: Kind,
    cache: bool,
}

impl PodVolume {
    /// What the hosting pod has left as its last words, if it has ended.
    fn last_words(world: &World) -> Option<String> {
        let pod = world.value(ObjectKind::Pod, "velero", "op")?;
        Some(pod["status"]["message"].as_str()?.to_owned())
    }

    fn ended(world: &World, words: &str) -> Option<World> {
        let mut pod = world.value(ObjectKind::Pod, "velero", "op")?;
        let mut after = world.clone();
        pod["status"] = json!({ "phase": "Failed", "message": words });
        after.put(ObjectKind::Pod, pod);
        Some(after)
    }
}

impl Scenario for PodVolume {
    fn may_wait(&self, _: &World, _: Wish) -> bool {
        false
    }

    fn plan(&self, world: &World, wish: Wish) -> Next {
        let details = pod_volume::Details {
            cache: self.cache.then(|| ("fast".to_owned(), 1 << 30)),
            hosted: hosted(),
            placement: Placement { node: Some("n1".into()), ..Placement::default() },
            surroundings: Surroundings::default(),
        };
        let seen = pod_volume::Seen {
            cache: world.get(ObjectKind::Claim, "velero", "op-cache"),
            pod: world.get(ObjectKind::Pod, "velero", "op"),
        };
        match wish {
            Wish::Expose | Wish::HandOver => pod_volume::next(&operation(self.kind), &details, &seen),
            Wish::Tell => {
                let spent = Self::last_words(world).is_some_and(|words| words != TOLD);
                pod_volume::tell(&operation(self.kind), &details, &seen, spent)
            }
            Wish::Clean | Wish::Keep | Wish::Kept => pod_volume::clean(&operation(self.kind), &seen),
        }
    }

    fn controllers(&self, world: &World) -> Vec<World> {
        [pods_go(world), claims_go(world, &[("velero", "op-cache")])].concat()
    }

    fn happenings(&self, world: &World, wish: Wish) -> Vec<(World, Wish)> {
        let mut next = Vec::new();
        if wish == Wish::Expose {
            next.push((world.clone(), Wish::Clean));
            if self.kind == Kind::PodVolumeRestore {
                next.push((world.clone(), Wish::Tell));
                // It runs out of memory, and then the restore is over.
                next.extend(Self::ended(world, "").map(|after| (after, Wish::Tell)));
            }
        }
        if wish == Wish::Tell {
            match Self::last_words(world).as_deref() {
                None => next.extend(Self::ended(world, TOLD).map(|after| (after, wish))),
                Some(TOLD) => next.push((world.clone(), Wish::Clean)),
                Some(_) => {}
            }
            // Or its time is up.
            next.push((world.clone(), Wish::Clean));
        }
        // Every pod that is made anew is another one: without a bound there would be no end of them.
        let lost = world.value(ObjectKind::Pod, "velero", "op").filter(|_| world.next <= MADE);
        if let Some(mut pod) = lost {
            let mut evicted = world.clone();
            evicted.remove(ObjectKind::Pod, "velero", "op");
            next.push((evicted, wish));
            let mut deleted = world.clone();
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            deleted.put(ObjectKind::Pod, pod);
            next.push((deleted, wish));
        }
        next
    }

    fn check(&self, world: &World, _: Wish) {
        for object in world.objects.values() {
            assert!(object.contains(r#""lifeboat.io/owner""#), "not in the ledger: {object}");
        }
    }

    fn check_end(&self, world: &World, wish: Wish) {
        let there = |kind, name| world.value(kind, "velero", name).is_some();
        let (pod, cache) = (there(ObjectKind::Pod, "op"), there(ObjectKind::Claim, "op-cache"));
        match wish {
            Wish::Clean | Wish::Keep | Wish::Kept => {
                assert!(!pod && !cache, "left behind:\n{}", shown(world));
            }
            Wish::Tell => {
                assert!(pod, "nobody tells:\n{}", shown(world));
                assert!(Self::last_words(world).is_none_or(|words| words == TOLD), "{}", shown(world));
            }
            Wish::Expose | Wish::HandOver => assert_eq!((pod, cache), (true, self.cache)),
        }
    }
}

#[test]
fn a_volume_of_a_pod_is_reached_and_let_go_whatever_comes_between() {
    for (kind, cache) in
        [(Kind::PodVolumeBackup, false), (Kind::PodVolumeRestore, false), (Kind::PodVolumeRestore, true)]
    {
        let states = explore(&PodVolume { kind, cache }, World::default());
        assert!(states > 10, "only {states} states");
    }
}
