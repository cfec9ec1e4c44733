//! Volumes of pods.

use crate::world::{Scenario, Wish, World, claims_go, explore, hosted, operation, pods_go, shown};
use lifeboat_exposer::{Kind, Next, ObjectKind, Placement, Surroundings, pod_volume};
use serde_json::json;

/// Once so many objects have been made, pods are not lost any more.
const MADE: u64 = 3;

/// A volume of a pod, with a cache or without; its pod may be lost at any time.
struct PodVolume {
    kind: Kind,
    cache: bool,
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
