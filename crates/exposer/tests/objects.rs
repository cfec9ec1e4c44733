//! Hosting objects as the cluster gets to see them.

#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lifeboat_api::config::BackupPvc;
use lifeboat_api::{Duration, NodeOs};
use lifeboat_exposer::{
    BackupClaim, HostedVolume, Kind, Operation, Placement, Surroundings, VolumeSource, backup_claim,
    cache_claim, cache_size, hosting_pod, restore_claim,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

fn operation(kind: Kind) -> Operation {
    Operation { kind, namespace: "velero".into(), name: "b1-x7k2p".into(), uid: "5f0c".into() }
}

fn surroundings() -> Surroundings {
    Surroundings {
        image: "lifeboat:1".into(),
        env: vec![serde_json::from_value(json!({ "name": "VELERO_NAMESPACE", "value": "velero" })).unwrap()],
        volumes: vec![serde_json::from_value(json!({ "name": "scratch", "emptyDir": {} })).unwrap()],
        volume_mounts: vec![
            serde_json::from_value(json!({ "name": "scratch", "mountPath": "/scratch" })).unwrap(),
        ],
        service_account: Some("velero".into()),
        labels: BTreeMap::from([("azure.workload.identity/use".into(), "true".into())]),
        log_args: vec!["--log-format=json".into()],
        ..Surroundings::default()
    }
}

fn volume(source: VolumeSource) -> HostedVolume {
    HostedVolume {
        source,
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

fn claim(block: bool) -> VolumeSource {
    VolumeSource::Claim { block, read_only: false }
}

fn host() -> VolumeSource {
    VolumeSource::Host { path: "/var/lib/kubelet/pods/u1/volumes/x/data/mount".into(), privileged: false }
}

/// An object as it is written, without its entry in the ledger, which every object has to have.
fn listed(object: impl serde::Serialize) -> Value {
    let mut object = serde_json::to_value(object).unwrap();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for (marks, keys) in [("labels", &["hosts"][..]), ("annotations", &["owner", "expires-after"])] {
        let entry = metadata[marks].as_object_mut().unwrap();
        for key in keys {
            assert!(entry.remove(&format!("lifeboat.io/{key}")).is_some(), "no {key}");
        }
        if entry.is_empty() {
            metadata.remove(marks);
        }
    }
    object
}

fn build(kind: Kind, volume: &HostedVolume, placement: &Placement) -> Value {
    let pod: Pod = hosting_pod(&operation(kind), volume, placement, &surroundings());
    listed(pod)
}

#[test]
fn the_pod_of_an_upload() {
    let pod = build(Kind::DataUpload, &volume(claim(false)), &Placement::default());
    assert_eq!(
        pod["metadata"],
        json!({
            "name": "b1-x7k2p",
            "namespace": "velero",
            "labels": {
                "azure.workload.identity/use": "true",
                "velero.io/data-upload": "b1-x7k2p",
                "velero.io/exposer-pod-group": "snapshot-exposer",
            },
            "ownerReferences": [{ "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "b1-x7k2p", "uid": "5f0c", "controller": true }],
        })
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["name"], "5f0c");
    assert_eq!(container["command"], json!(["/velero", "data-mover", "backup"]));
    assert_eq!(
        container["args"],
        json!([
            "--volume-path=/5f0c",
            "--volume-mode=Filesystem",
            "--data-upload=b1-x7k2p",
            "--resource-timeout=10m0s",
            "--log-format=json"
        ])
    );
    assert_eq!(container["volumeMounts"][0], json!({ "name": "5f0c", "mountPath": "/5f0c" }));
    assert_eq!(
        pod["spec"]["volumes"][0],
        json!({ "name": "5f0c", "persistentVolumeClaim": { "claimName": "b1-x7k2p" } })
    );
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 0);
    assert_eq!(pod["spec"]["os"], json!({ "name": "linux" }));
    let spread = &pod["spec"]["topologySpreadConstraints"][0];
    assert_eq!(
        spread["labelSelector"],
        json!({ "matchLabels": { "velero.io/exposer-pod-group": "snapshot-exposer" } })
    );
    assert_eq!(spread["whenUnsatisfiable"], "ScheduleAnyway");
    assert_eq!(pod["spec"]["nodeName"], Value::Null);
}

#[test]
fn arguments_of_the_other_kinds() {
    let args = |kind, volume: &HostedVolume| {
        build(kind, volume, &Placement::default())["spec"]["containers"][0]["args"].clone()
    };
    assert_eq!(
        args(Kind::DataDownload, &volume(claim(true))),
        json!([
            "--volume-path=/5f0c",
            "--volume-mode=Block",
            "--data-download=b1-x7k2p",
            "--resource-timeout=10m0s",
            "--cache-volume-path=",
            "--log-format=json"
        ])
    );
    assert_eq!(
        args(Kind::PodVolumeBackup, &volume(host())),
        json!([
            "--volume-path=/5f0c",
            "--resource-timeout=10m0s",
            "--pod-volume-backup=b1-x7k2p",
            "--log-format=json"
        ])
    );
    assert_eq!(
        args(Kind::PodVolumeRestore, &HostedVolume { cache: true, ..volume(host()) }),
        json!([
            "--volume-path=/5f0c",
            "--resource-timeout=10m0s",
            "--pod-volume-restore=b1-x7k2p",
            "--cache-volume-path=/cachedir",
            "--log-format=json"
        ])
    );
}

#[test]
fn pods_of_every_kind_run_the_agents_image_once_with_the_command_and_the_resources_that_are_theirs() {
    let resources: ResourceRequirements = serde_json::from_value(json!({
        "requests": { "cpu": "100m", "memory": "96Mi" }, "limits": { "memory": "128Mi" },
    }))
    .unwrap();
    for kind in Kind::ALL {
        let source = if kind.is_pod_volume() { host() } else { claim(false) };
        let hosted = HostedVolume { resources: resources.clone(), ..volume(source) };
        let pod = build(kind, &hosted, &Placement::default());
        let spec = &pod["spec"];
        // How it ends is how its operation ends: nothing may begin it anew.
        assert_eq!(spec["restartPolicy"], "Never", "{kind:?}");
        assert_eq!(spec["containers"].as_array().unwrap().len(), 1, "{kind:?}");
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "lifeboat:1", "{kind:?}");
        let words = match kind {
            Kind::DataUpload => ["data-mover", "backup"],
            Kind::DataDownload => ["data-mover", "restore"],
            Kind::PodVolumeBackup => ["pod-volume", "backup"],
            Kind::PodVolumeRestore => ["pod-volume", "restore"],
        };
        assert_eq!(container["command"], json!(["/velero", words[0], words[1]]));
        assert_eq!(container["resources"], serde_json::to_value(&resources).unwrap(), "{kind:?}");
    }
    let unset = build(Kind::DataUpload, &volume(claim(false)), &Placement::default());
    assert_eq!(unset["spec"]["containers"][0]["resources"], Value::Null);
}

#[test]
fn a_device_is_a_device_and_a_cache_has_its_own_claim() {
    let pod = build(
        Kind::DataDownload,
        &HostedVolume { cache: true, ..volume(claim(true)) },
        &Placement::default(),
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["volumeDevices"], json!([{ "name": "5f0c", "devicePath": "/5f0c" }]));
    let mounted: Vec<_> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].clone())
        .collect();
    assert_eq!(mounted, ["/cachedir", "/scratch", "/tmp"]);
    assert_eq!(
        pod["spec"]["volumes"][1],
        json!({ "name": "cachedir", "persistentVolumeClaim": { "claimName": "b1-x7k2p-cache" } })
    );
}

/// The `baseline` standard forbids folders of the host, privileged containers and other capabilities than these.
#[test]
fn pods_of_claims_are_within_the_baseline_standard() {
    let allowed = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        for block in [false, true] {
            let pod = build(kind, &volume(claim(block)), &Placement::default());
            assert!(
                pod["spec"]["volumes"].as_array().unwrap().iter().all(|volume| volume["hostPath"].is_null())
            );
            let security = &pod["spec"]["containers"][0]["securityContext"];
            assert_eq!(security["privileged"], false);
            assert_eq!(security["allowPrivilegeEscalation"], false);
            assert_eq!(security["readOnlyRootFilesystem"], true);
            assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
            let added = security["capabilities"]["add"].as_array().cloned().unwrap_or_default();
            assert!(
                added.iter().all(|capability| allowed.contains(&capability.as_str().unwrap())),
                "{added:?}"
            );
            assert_eq!(block, added.is_empty(), "a device needs nothing but root");
            assert_eq!(pod["spec"]["securityContext"]["seccompProfile"], json!({ "type": "RuntimeDefault" }));
        }
    }
}

/// Root is for files of other people; where another user is named, nothing is left that the `restricted` standard forbids.
#[test]
fn pods_of_another_user_are_within_the_restricted_standard() {
    let surroundings = Surroundings { user: NonZeroU32::new(1000), ..surroundings() };
    for (kind, block) in [(Kind::DataUpload, false), (Kind::DataUpload, true), (Kind::DataDownload, false)] {
        let pod = hosting_pod(&operation(kind), &volume(claim(block)), &Placement::default(), &surroundings);
        let pod = listed(pod);
        let mut expected = json!({
            "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" },
        });
        // What is read must stay as it is, what is written has to be opened.
        if kind == Kind::DataDownload {
            expected["fsGroup"] = json!(1000);
        }
        assert_eq!(pod["spec"]["securityContext"], expected);
        let container = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(container["allowPrivilegeEscalation"], false);
    }
}

#[test]
fn a_pod_for_a_pods_volume_sees_that_one_folder_and_goes_to_its_node() {
    let placement = Placement { node: Some("n1".into()), ..Placement::default() };
    let pod = build(Kind::PodVolumeBackup, &volume(host()), &placement);
    assert_eq!(pod["spec"]["nodeName"], "n1");
    assert_eq!(pod["spec"]["nodeSelector"], Value::Null);
    assert_eq!(pod["spec"]["topologySpreadConstraints"], Value::Null);
    let folders: Vec<_> = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|volume| !volume["hostPath"].is_null())
        .collect();
    assert_eq!(
        folders,
        [&json!({
            "name": "5f0c",
            "hostPath": { "path": "/var/lib/kubelet/pods/u1/volumes/x/data/mount", "type": "Directory" },
        })]
    );
    // Files of a pod belong to whomever they belong to.
    assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 0);
    let mount = |pod: &Value| pod["spec"]["containers"][0]["volumeMounts"][0].clone();
    assert_eq!(mount(&pod)["mountPropagation"], "HostToContainer");
    assert_eq!(mount(&pod)["readOnly"], true);
    let restore = build(Kind::PodVolumeRestore, &volume(host()), &placement);
    assert_eq!(restore["spec"]["securityContext"]["runAsUser"], 0);
    assert_eq!(mount(&restore)["readOnly"], Value::Null);
    let privileged = volume(VolumeSource::Host { path: "/x".into(), privileged: true });
    let pod = build(Kind::PodVolumeBackup, &privileged, &placement);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], json!({ "privileged": true }));
}

#[test]
fn a_restore_follows_the_node_that_was_selected() {
    let placement = Placement { node: Some("n1".into()), ..Placement::default() };
    let pod = build(Kind::DataDownload, &volume(claim(false)), &placement);
    assert_eq!(pod["spec"]["nodeSelector"], json!({ "kubernetes.io/hostname": "n1" }));
    assert_eq!(pod["spec"]["nodeName"], Value::Null);
}

#[test]
fn what_people_want_replaces_what_is_inherited_but_never_our_own_labels() {
    let wanted = HostedVolume {
        labels: BTreeMap::from([
            ("team".into(), "x".into()),
            ("velero.io/data-upload".into(), "other".into()),
        ]),
        annotations: BTreeMap::from([("a".into(), "b".into())]),
        priority_class: Some("low".into()),
        no_relabeling: true,
        source: VolumeSource::Claim { block: false, read_only: true },
        ..volume(claim(false))
    };
    let pod = build(Kind::DataUpload, &wanted, &Placement::default());
    assert_eq!(
        pod["metadata"]["labels"],
        json!({ "team": "x", "velero.io/data-upload": "b1-x7k2p", "velero.io/exposer-pod-group": "snapshot-exposer" })
    );
    assert_eq!(pod["metadata"]["annotations"], json!({ "a": "b" }));
    let beside = HostedVolume { beside_velero: true, ..wanted };
    let labels = build(Kind::DataUpload, &beside, &Placement::default())["metadata"]["labels"].clone();
    assert_eq!(labels, json!({ "team": "x", "velero.io/exposer-pod-group": "snapshot-exposer" }));
    assert_eq!(pod["spec"]["priorityClassName"], "low");
    assert_eq!(pod["spec"]["securityContext"]["seLinuxOptions"], json!({ "type": "spc_t" }));
    assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"], true);
    assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"], true);
}

#[test]
fn a_pod_for_windows() {
    let placement = Placement { os: Some(NodeOs::Windows), ..Placement::default() };
    // Privileged containers are of another kind there, which cannot give files back to their owners.
    let privileged = volume(VolumeSource::Host { path: r"\x".into(), privileged: true });
    let pod = build(Kind::PodVolumeBackup, &privileged, &placement);
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], Value::Null);
    assert_eq!(pod["spec"]["os"], json!({ "name": "windows" }));
    let pod = build(Kind::DataUpload, &volume(claim(false)), &placement);
    assert_eq!(pod["spec"]["os"], json!({ "name": "windows" }));
    assert_eq!(
        pod["spec"]["securityContext"],
        json!({ "windowsOptions": { "runAsUserName": "ContainerAdministrator" } })
    );
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], Value::Null);
    let effects: Vec<_> = pod["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|toleration| toleration["effect"].clone())
        .collect();
    assert_eq!(effects, ["NoSchedule", "NoExecute"]);
}

/// What is for Linux only makes an API server refuse a pod for Windows, whatever is configured.
#[test]
fn a_pod_for_a_pods_volume_on_windows_has_nothing_of_linux() {
    let placement = Placement { node: Some("w1".into()), os: Some(NodeOs::Windows), ..Placement::default() };
    let path = r"\var\lib\kubelet\pods\u1\volumes\kubernetes.io~csi\pv-1\mount";
    for (kind, privileged, no_relabeling, user) in [
        (Kind::PodVolumeBackup, false, false, None),
        (Kind::PodVolumeBackup, true, true, NonZeroU32::new(1000)),
        (Kind::PodVolumeRestore, false, false, None),
        (Kind::PodVolumeRestore, true, true, NonZeroU32::new(1000)),
    ] {
        let hosted =
            HostedVolume { no_relabeling, ..volume(VolumeSource::Host { path: path.into(), privileged }) };
        let surroundings = Surroundings { user, ..surroundings() };
        let pod = listed(hosting_pod(&operation(kind), &hosted, &placement, &surroundings));
        let spec = &pod["spec"];
        assert_eq!(spec["nodeName"], "w1");
        assert_eq!(spec["os"], json!({ "name": "windows" }));
        assert_eq!(spec["volumes"][0]["hostPath"], json!({ "path": path, "type": "Directory" }));
        // No user by number, no seccomp, no labels of SELinux.
        let user = json!({ "windowsOptions": { "runAsUserName": "ContainerAdministrator" } });
        assert_eq!(spec["securityContext"], user, "{kind:?}");
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"], Value::Null, "{kind:?}");
        let reads = kind == Kind::PodVolumeBackup;
        assert_eq!(container["command"][2], if reads { "backup" } else { "restore" });
        assert_eq!(container["volumeMounts"][0]["readOnly"] == true, reads);
    }
}

#[test]
fn the_claim_of_a_backup_follows_what_is_configured_for_its_class() {
    let size = Quantity("5Gi".into());
    let build = |configured: &BackupPvc, block| {
        let from = BackupClaim { snapshot: "b1-x7k2p", source_class: "gold", configured, block, size: &size };
        listed(backup_claim(&operation(Kind::DataUpload), &from))
    };
    let plain = build(&BackupPvc::default(), false);
    assert_eq!(
        plain["spec"],
        json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "gold",
            "volumeMode": "Filesystem",
            "dataSource": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "b1-x7k2p" },
            "resources": { "requests": { "storage": "5Gi" } },
        })
    );
    assert_eq!(plain["metadata"]["annotations"], Value::Null);
    let configured = BackupPvc {
        storage_class: "snap".into(),
        read_only: true,
        annotations: BTreeMap::from([("x".into(), "1".into())]),
        ..BackupPvc::default()
    };
    let claim = build(&configured, true);
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadOnlyMany"]));
    assert_eq!(claim["spec"]["storageClassName"], "snap");
    assert_eq!(claim["spec"]["volumeMode"], "Block");
    assert_eq!(claim["metadata"]["annotations"], json!({ "x": "1" }));
}

#[test]
fn the_claim_of_a_restore_is_like_the_targets_but_empty_and_free() {
    let target: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "data", "namespace": "app", "labels": { "app": "web" }, "annotations": { "volume.kubernetes.io/storage-provisioner": "d" } },
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "gold", "volumeMode": "Block", "volumeName": "pv1",
            "selector": { "matchLabels": { "velero.io/dynamic-pv-restore": "app.data.abcde" } },
            "dataSource": { "kind": "VolumeSnapshot", "name": "s" }, "resources": { "requests": { "storage": "1Gi" } },
        },
    }))
    .unwrap();
    let claim = listed(restore_claim(&operation(Kind::DataDownload), &target, None));
    assert_eq!(
        claim["spec"],
        json!({ "accessModes": ["ReadWriteMany"], "storageClassName": "gold", "volumeMode": "Block", "resources": { "requests": { "storage": "1Gi" } } })
    );
    assert_eq!(claim["metadata"]["labels"], json!({ "app": "web" }));
    assert_eq!(claim["metadata"]["annotations"], json!({ "volume.kubernetes.io/storage-provisioner": "d" }));
    let claim = listed(restore_claim(&operation(Kind::DataDownload), &target, Some("n1")));
    assert_eq!(claim["metadata"]["annotations"], json!({ "volume.kubernetes.io/selected-node": "n1" }));
}

#[test]
fn a_cache_is_made_for_large_snapshots_and_those_of_unknown_size() {
    let gib = 1u64 << 30;
    assert_eq!(cache_size(100 << 20, 1024, 5000), None);
    assert_eq!(cache_size(2 * gib, 1024, 5000), Some(6 * gib));
    assert_eq!(cache_size(0, 1024, 5000), Some(6 * gib));
    let claim = listed(cache_claim(&operation(Kind::DataDownload), "fast", 6 * gib, Some("n1")));
    assert_eq!(claim["metadata"]["name"], "b1-x7k2p-cache");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], (6 * gib).to_string());
    assert_eq!(claim["metadata"]["annotations"], json!({ "volume.kubernetes.io/selected-node": "n1" }));
}

#[test]
fn a_folder_for_temporary_files_is_there_exactly_once() {
    let tmp_mounts = |surroundings: &Surroundings| {
        let pod = hosting_pod(
            &operation(Kind::DataUpload),
            &volume(claim(false)),
            &Placement::default(),
            surroundings,
        );
        let pod = serde_json::to_value(pod).unwrap();
        let named = |value: &Value| value.as_array().unwrap().iter().filter(|it| it["name"] == "tmp").count();
        (named(&pod["spec"]["volumes"]), named(&pod["spec"]["containers"][0]["volumeMounts"]))
    };
    assert_eq!(tmp_mounts(&surroundings()), (1, 1));
    let mut own = surroundings();
    own.volumes.push(serde_json::from_value(json!({ "name": "tmp", "emptyDir": {} })).unwrap());
    own.volume_mounts.push(serde_json::from_value(json!({ "name": "tmp", "mountPath": "/tmp" })).unwrap());
    assert_eq!(tmp_mounts(&own), (1, 1));
}
