//! Every order in which an exposer, an older look of another agent, the cluster's controllers, a cancel and a deletion can
//! take turns: data is not lost, and in the end nothing is left.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "convergence/pod_volumes.rs"]
mod pod_volumes;
#[path = "convergence/world.rs"]
mod world;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lifeboat_api::config::BackupPvc;
use lifeboat_exposer::{
    HostedVolume, Kind, Next, ObjectKind, Placement, Surroundings, download, ledger, upload,
};
use serde_json::{Value, json};
use world::{
    Scenario, Wish, World, claims_go, deleted, explore, hosted, operation, pods_go, provision, shown,
    volumes_go,
};

struct Upload {
    source_policy: &'static str,
    volume_policy: &'static str,
}

impl Upload {
    fn source() -> upload::Source {
        upload::Source { namespace: "app".into(), snapshot: "snap".into(), storage_class: "class".into() }
    }

    fn start(&self) -> World {
        let mut world = World::default();
        world.put(
            ObjectKind::Snapshot,
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshot",
                "metadata": { "name": "snap", "namespace": "app", "uid": "snap-uid" },
                "spec": { "source": { "persistentVolumeClaimName": "data" }, "volumeSnapshotClassName": "c" },
                "status": { "boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi" },
            }),
        );
        world.put(
            ObjectKind::Content,
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshotContent",
                "metadata": { "name": "content", "uid": "content-uid" },
                "spec": {
                    "driver": "d",
                    "deletionPolicy": self.source_policy,
                    "volumeSnapshotRef": { "namespace": "app", "name": "snap", "uid": "snap-uid" },
                    "source": {},
                },
                "status": { "snapshotHandle": "handle", "readyToUse": true },
            }),
        );
        world.storage.insert("handle".into(), true);
        world
    }

    fn look(world: &World) -> upload::Seen {
        let mut seen = upload::Seen {
            source_snapshot: world.get(ObjectKind::Snapshot, "app", "snap"),
            source_content: None,
            snapshot: world.get(ObjectKind::Snapshot, "velero", "op"),
            content: world.get(ObjectKind::Content, "", "op"),
            claim: world.get(ObjectKind::Claim, "velero", "op"),
            volume: None,
            pod: world.get(ObjectKind::Pod, "velero", "op"),
        };
        let content = seen.source_content_name().map(str::to_owned);
        seen.source_content = content.and_then(|name| world.get(ObjectKind::Content, "", &name));
        let volume = seen.claim.as_ref().and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
        seen.volume = volume.and_then(|name| world.get(ObjectKind::Volume, "", &name));
        seen
    }
}

impl Scenario for Upload {
    fn may_wait(&self, _: &World, _: Wish) -> bool {
        false
    }

    fn plan(&self, world: &World, wish: Wish) -> Next {
        let details = upload::Details {
            configured: BackupPvc::default(),
            block: false,
            requested: Quantity("1Gi".into()),
            hosted: hosted(),
            placement: Placement::default(),
            surroundings: Surroundings::default(),
        };
        let operation = operation(Kind::DataUpload);
        match wish {
            Wish::Expose | Wish::HandOver => {
                upload::next(&operation, &Self::source(), &details, &Self::look(world))
            }
            Wish::Clean | Wish::Keep | Wish::Kept | Wish::Tell => {
                upload::clean(&operation, &Self::look(world))
            }
        }
    }

    fn controllers(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        // A snapshot that was deleted takes its content along, if that is to be deleted.
        for (namespace, name) in [("app", "snap"), ("velero", "op")] {
            let Some(snapshot) = world.value(ObjectKind::Snapshot, namespace, name) else { continue };
            let bound = snapshot["status"]["boundVolumeSnapshotContentName"].as_str();
            let content = bound.and_then(|name| world.value(ObjectKind::Content, "", name));
            if deleted(&snapshot) {
                let mut after = world.clone();
                after.remove(ObjectKind::Snapshot, namespace, name);
                if let Some(content) = content.filter(|content| content["spec"]["deletionPolicy"] == "Delete")
                {
                    after.remove(ObjectKind::Content, "", content["metadata"]["name"].as_str().unwrap());
                    after.storage.insert("handle".into(), false);
                }
                next.push(after);
                continue;
            }
            let ours = world.value(ObjectKind::Content, "", "op");
            let fits =
                |content: &Value| content["spec"]["volumeSnapshotRef"]["uid"] == snapshot["metadata"]["uid"];
            if bound.is_none() && ours.is_some_and(|content| fits(&content)) {
                let mut after = world.clone();
                let mut snapshot = snapshot;
                snapshot["status"] = json!({ "boundVolumeSnapshotContentName": "op", "readyToUse": true });
                after.put(ObjectKind::Snapshot, snapshot);
                next.push(after);
            }
        }
        for name in ["content", "op"] {
            if let Some(content) = world.value(ObjectKind::Content, "", name).filter(deleted) {
                let mut after = world.clone();
                after.remove(ObjectKind::Content, "", name);
                if content["spec"]["deletionPolicy"] == "Delete" {
                    after.storage.insert("handle".into(), false);
                }
                next.push(after);
            }
        }
        next.extend(pods_go(world));
        next.extend(claims_go(world, &[("velero", "op")]));
        next.extend(volumes_go(world));
        next.extend(provision(world, self.volume_policy));
        next
    }

    fn happenings(&self, world: &World, wish: Wish) -> Vec<(World, Wish)> {
        if wish == Wish::Clean { Vec::new() } else { vec![(world.clone(), Wish::Clean)] }
    }

    fn check(&self, world: &World, wish: Wish) {
        if wish != Wish::Clean {
            assert!(world.storage["handle"], "the snapshot was lost:\n{}", shown(world));
        }
    }

    fn check_end(&self, world: &World, wish: Wish) {
        match wish {
            Wish::Clean | Wish::Keep | Wish::Kept | Wish::Tell => {
                assert!(world.objects.is_empty(), "left behind:\n{}", shown(world));
                assert!(!world.storage.values().any(|there| *there), "the storage keeps {:?}", world.storage);
            }
            Wish::Expose | Wish::HandOver => {
                assert!(world.value(ObjectKind::Pod, "velero", "op").is_some());
                assert!(world.value(ObjectKind::Snapshot, "app", "snap").is_none());
                assert!(world.value(ObjectKind::Content, "", "content").is_none());
            }
        }
    }
}

#[test]
fn a_snapshot_is_taken_over_read_and_removed_whatever_comes_between() {
    for source_policy in ["Delete", "Retain"] {
        for volume_policy in ["Delete", "Retain"] {
            let upload = Upload { source_policy, volume_policy };
            let states = explore(&upload, upload.start());
            assert!(states > 200, "only {states} states");
        }
    }
}

struct Download {
    policy: &'static str,
}

impl Download {
    fn target() -> download::Target {
        download::Target { namespace: "app".into(), name: "data".into() }
    }

    fn start() -> World {
        let mut world = World::default();
        world.put(
            ObjectKind::Claim,
            json!({
                "metadata": { "name": "data", "namespace": "app", "uid": "data-uid" },
                "spec": {
                    "storageClassName": "class",
                    "selector": { "matchLabels": { "velero.io/dynamic-pv-restore": "x" } },
                },
            }),
        );
        world
    }

    fn look(world: &World) -> download::Seen {
        download::Seen {
            target: world.get(ObjectKind::Claim, "app", "data"),
            claim: world.get(ObjectKind::Claim, "velero", "op"),
            cache: world.get(ObjectKind::Claim, "velero", "op-cache"),
            pod: world.get(ObjectKind::Pod, "velero", "op"),
            volume: world.get(ObjectKind::Volume, "", "pv"),
        }
    }

    /// All that the sweeper sees, who knows neither the operation nor its target: what has the operation's name, and the volume
    /// if the claim or the ledger has it.
    fn look_without_operation(world: &World) -> download::Seen {
        let mut seen = Self::look(world);
        let claim_has_it = download::filled_volume(&seen).is_some();
        let ledger_has_it =
            |volume: &PersistentVolume| ledger::entry(&volume.metadata).is_some_and(|it| it.uid == "op-uid");
        seen.volume = seen.volume.filter(|volume| claim_has_it || ledger_has_it(volume));
        seen.target = None;
        seen
    }

    /// The claim for which the volume is kept, if it is.
    fn kept_for(world: &World) -> Option<String> {
        let volume = world.get::<PersistentVolume>(ObjectKind::Volume, "", "pv")?;
        download::kept_for(&volume).map(str::to_owned)
    }

    fn target_lives(world: &World) -> bool {
        world.value(ObjectKind::Claim, "app", "data").is_some_and(|claim| !deleted(&claim))
    }
}

impl Scenario for Download {
    fn may_wait(&self, world: &World, wish: Wish) -> bool {
        wish == Wish::Expose && !Self::target_lives(world)
    }

    fn plan(&self, world: &World, wish: Wish) -> Next {
        let details = download::Details {
            late: false,
            cache: Some(("fast".into(), 1 << 30)),
            hosted: HostedVolume { cache: true, ..hosted() },
            placement: Placement::default(),
            surroundings: Surroundings::default(),
        };
        let (operation, seen) = (operation(Kind::DataDownload), Self::look(world));
        match wish {
            Wish::Expose => download::next(&operation, &Self::target(), &details, &seen),
            Wish::HandOver => download::hand_over(&operation, &Self::target(), &seen),
            Wish::Clean | Wish::Tell => download::clean(&operation, &seen),
            Wish::Keep => download::keep(&operation, &Self::target(), &seen),
            Wish::Kept => download::clean(&operation, &Self::look_without_operation(world)),
        }
    }

    fn controllers(&self, world: &World) -> Vec<World> {
        let mut next = pods_go(world);
        next.extend(claims_go(world, &[("velero", "op"), ("velero", "op-cache"), ("app", "data")]));
        next.extend(volumes_go(world));
        next.extend(provision(world, self.policy));
        // The volume controller binds what says that it belongs together.
        if let (Some(mut volume), Some(mut claim)) =
            (world.value(ObjectKind::Volume, "", "pv"), world.value(ObjectKind::Claim, "app", "data"))
        {
            let belongs = volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
            let bound = claim["status"]["phase"] == "Bound" && volume["status"]["phase"] == "Bound";
            if belongs && !bound && !deleted(&claim) {
                let mut after = world.clone();
                claim["spec"]["volumeName"] = json!("pv");
                claim["status"]["phase"] = json!("Bound");
                volume["status"]["phase"] = json!("Bound");
                after.put(ObjectKind::Claim, claim);
                after.put(ObjectKind::Volume, volume);
                next.push(after);
            }
        }
        // A volume whose claim is gone is released.
        if let Some(mut volume) = world.value(ObjectKind::Volume, "", "pv") {
            let claim = &volume["spec"]["claimRef"];
            let (namespace, name) = (claim["namespace"].as_str().unwrap(), claim["name"].as_str().unwrap());
            let gone = world
                .value(ObjectKind::Claim, namespace, name)
                .is_none_or(|there| there["metadata"]["uid"] != claim["uid"]);
            if gone && volume["status"]["phase"] != "Released" {
                let mut after = world.clone();
                volume["status"]["phase"] = json!("Released");
                after.put(ObjectKind::Volume, volume);
                next.push(after);
            }
        }
        next
    }

    fn happenings(&self, world: &World, wish: Wish) -> Vec<(World, Wish)> {
        let mut next = Vec::new();
        let filled = world.value(ObjectKind::Volume, "", "pv").is_some();
        let runs = world.value(ObjectKind::Pod, "velero", "op").is_some();
        if wish == Wish::Expose {
            next.push((world.clone(), Wish::Clean));
            if filled && runs {
                next.push((world.clone(), Wish::HandOver));
            }
        }
        if let Some(mut target) = world.value(ObjectKind::Claim, "app", "data").filter(|it| !deleted(it)) {
            let mut after = world.clone();
            target["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            after.put(ObjectKind::Claim, target);
            next.push((after, wish));
        }
        // Only an operation that has handed over, or cannot any more, is cleaned up after.
        let over = matches!(self.plan(world, wish), Next::Done | Next::Impossible(_));
        if wish == Wish::HandOver && over {
            next.push((world.clone(), Wish::Clean));
        }
        // Unless that takes too long: the controllers do not get on, or the cluster refuses the next step.
        let bound = world.value(ObjectKind::Claim, "app", "data").is_some_and(|it| it["status"].is_object());
        if wish == Wish::HandOver && !over && !bound {
            next.push((world.clone(), Wish::Keep));
        }
        // Whoever looks next tries to hand over first. The operation fails, and may be gone, once the volume is kept.
        if wish == Wish::Keep {
            next.push((world.clone(), Wish::HandOver));
            if !bound && Self::kept_for(world).is_some() {
                next.push((world.clone(), Wish::Kept));
            }
        }
        next
    }

    fn check(&self, world: &World, wish: Wish) {
        let wanted = matches!(wish, Wish::HandOver | Wish::Keep) && Self::target_lives(world);
        if wanted || wish == Wish::Kept {
            assert!(world.storage["pv"], "restored data was lost:\n{}", shown(world));
        }
        if Self::kept_for(world).is_some() {
            let volume = world.value(ObjectKind::Volume, "", "pv").unwrap();
            assert_eq!(
                volume["spec"]["persistentVolumeReclaimPolicy"],
                "Retain",
                "is not kept:\n{}",
                shown(world)
            );
        }
    }

    fn check_end(&self, world: &World, wish: Wish) {
        let lives = Self::target_lives(world);
        let volume = world.value(ObjectKind::Volume, "", "pv");
        match wish {
            Wish::HandOver if lives => {
                let target = world.value(ObjectKind::Claim, "app", "data").unwrap();
                let volume = volume.unwrap();
                assert_eq!(target["spec"]["volumeName"], "pv");
                assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], self.policy);
                assert_eq!(volume["metadata"]["labels"], json!({ "velero.io/dynamic-pv-restore": "x" }));
                assert_eq!(volume["metadata"]["annotations"], json!({}));
            }
            Wish::Kept => {
                nothing_hosts(world);
                let volume = volume.unwrap();
                assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
                assert_eq!(volume["metadata"]["annotations"], json!({ "lifeboat.io/kept-for": "app/data" }));
                assert!(!volume.to_string().contains(ledger::HOSTS), "in the ledger:\n{}", shown(world));
            }
            Wish::Clean => {
                nothing_hosts(world);
                // What stays is the target's, or what its class keeps, or what was kept before its claim was deleted.
                if let Some(volume) = volume.filter(|_| Self::kept_for(world).is_none()) {
                    let bound = volume["spec"]["claimRef"]["name"] == "data";
                    assert!(bound, "left behind:\n{}", shown(world));
                    assert!(lives || self.policy == "Retain", "left behind:\n{}", shown(world));
                }
            }
            Wish::Expose | Wish::HandOver | Wish::Keep | Wish::Tell => {}
        }
    }
}

fn nothing_hosts(world: &World) {
    for (kind, name) in [(ObjectKind::Pod, "op"), (ObjectKind::Claim, "op"), (ObjectKind::Claim, "op-cache")]
    {
        assert!(world.value(kind, "velero", name).is_none(), "left behind:\n{}", shown(world));
    }
}

#[test]
fn a_restored_volume_reaches_its_claim_or_is_kept_whatever_comes_between() {
    for policy in ["Delete", "Retain"] {
        let states = explore(&Download { policy }, Download::start());
        assert!(states > 200, "only {states} states");
    }
}
