//! Making a volume of a running pod reachable in a hosting pod on the same node, and taking that away again.
//!
//! The hosting pod mounts one folder of its node: the one in which the kubelet shows that volume to its pod. Where that is
//! follows from the names of pod, volume and plugin ([`folder`]), so nobody has to look around on the node. The mount asks
//! for a folder that is there: a place that turns out to be wrong is an error of the pod, never an empty backup.

use crate::step::{clean_in_order, forget, pod_at_last, remove, stranger};
use crate::{
    Action, After, HostedVolume, Next, ObjectKind, Operation, Placement, Surroundings, cache_claim,
    hosting_pod,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::Value;

/// The init container in which a restored pod waits for its volumes.
pub const RESTORE_WAIT: &str = "restore-wait";
/// Annotations of a volume that name the driver that serves it though its source is of another kind.
const SERVED_BY: [&str; 2] = ["pv.kubernetes.io/migrated-to", "pv.kubernetes.io/provisioned-by"];
/// The plugin of all CSI drivers.
const CSI: &str = "kubernetes.io~csi";
/// Sources of volumes, as pods and volumes name them, and the folder of the plugin that serves them.
const PLUGINS: [(&str, &str); 20] = [
    ("awsElasticBlockStore", "kubernetes.io~aws-ebs"),
    ("azureDisk", "kubernetes.io~azure-disk"),
    ("azureFile", "kubernetes.io~azure-file"),
    ("cephfs", "kubernetes.io~cephfs"),
    ("cinder", "kubernetes.io~cinder"),
    ("emptyDir", "kubernetes.io~empty-dir"),
    ("fc", "kubernetes.io~fc"),
    ("gcePersistentDisk", "kubernetes.io~gce-pd"),
    ("gitRepo", "kubernetes.io~git-repo"),
    ("glusterfs", "kubernetes.io~glusterfs"),
    ("iscsi", "kubernetes.io~iscsi"),
    ("local", "kubernetes.io~local-volume"),
    ("nfs", "kubernetes.io~nfs"),
    ("photonPersistentDisk", "kubernetes.io~photon-pd"),
    ("portworxVolume", "kubernetes.io~portworx-volume"),
    ("quobyte", "kubernetes.io~quobyte"),
    ("rbd", "kubernetes.io~rbd"),
    ("scaleIO", "kubernetes.io~scaleio"),
    ("storageos", "kubernetes.io~storageos"),
    ("vsphereVolume", "kubernetes.io~vsphere-volume"),
];

/// Everything there is of an operation's hosting.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The claim of the cache.
    pub cache: Option<PersistentVolumeClaim>,
    /// The hosting pod.
    pub pod: Option<Pod>,
}

/// What claim and pod are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Details {
    /// The cache volume's class and size, if there is to be one.
    pub cache: Option<(String, u64)>,
    /// The pod.
    pub hosted: HostedVolume,
    /// The node of the pod whose volume it is.
    pub placement: Placement,
    /// What it takes over from the node-agent.
    pub surroundings: Surroundings,
}

/// Why a volume of a pod cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The pod has no such volume.
    #[error("the pod {pod} has no volume {volume}")]
    Unknown {
        /// The pod, with its namespace.
        pod: String,
        /// The volume.
        volume: String,
    },
    /// The volume is a device.
    #[error(
        "the volume {volume} of pod {pod} is a device, and only files are moved out of and into running pods: \
         back it up by its snapshots, with --snapshot-move-data"
    )]
    Device {
        /// The pod, with its namespace.
        pod: String,
        /// The volume.
        volume: String,
    },
    /// The volume is none that the kubelet keeps for the pod.
    #[error(
        "the volume {volume} of pod {pod} has no folder of its own below that of the pod: leave it out with the \
         annotation backup.velero.io/backup-volumes-excludes"
    )]
    NoFolder {
        /// The pod, with its namespace.
        pod: String,
        /// The volume.
        volume: String,
    },
}

impl Seen {
    /// Looks at the cluster.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn look(client: &Client, operation: &Operation) -> Result<Self, kube::Error> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &operation.namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &operation.namespace);
        Ok(Self {
            cache: claims.get_opt(&operation.cache_claim_name()).await?,
            pod: pods.get_opt(&operation.name).await?,
        })
    }

    /// The same after a write.
    pub fn take_in(&mut self, after: After) {
        match after {
            After::Pod(pod) => self.pod = Some(*pod),
            After::Claim(cache) => self.cache = Some(*cache),
            // Nothing of that kind is made for it.
            After::Volume(_) | After::Snapshot(_) | After::Content(_) => {}
            After::Gone(gone) => {
                forget(&mut self.pod, &gone);
                forget(&mut self.cache, &gone);
            }
        }
    }

    fn objects(&self) -> [(ObjectKind, Option<&ObjectMeta>); 2] {
        [
            (ObjectKind::Pod, self.pod.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Claim, self.cache.as_ref().map(|object| &object.metadata)),
        ]
    }
}

/// The next step towards a hosting pod beside the pod whose volume it is.
#[must_use]
pub fn next(operation: &Operation, details: &Details, seen: &Seen) -> Next {
    if let Some(stranger) = stranger(operation, &seen.objects()) {
        return stranger;
    }
    if let (Some((class, size)), None) = (&details.cache, &seen.cache) {
        let node = details.placement.node.as_deref();
        return Next::Do(Action::CreateClaim(Box::new(cache_claim(operation, class, *size, node))));
    }
    pod_at_last(seen.pod.as_ref(), || {
        hosting_pod(operation, &details.hosted, &details.placement, &details.surroundings)
    })
}

/// The next step towards a hosting pod that tells a restored pod that its volume does not come: one like any other, since every
/// mover that finds its restore over does that. One that is there does it too, unless it is `spent`: then it makes room.
#[must_use]
pub fn tell(operation: &Operation, details: &Details, seen: &Seen, spent: bool) -> Next {
    if let Some(stranger) = stranger(operation, &seen.objects()) {
        return stranger;
    }
    match &seen.pod {
        Some(pod) if spent => remove(ObjectKind::Pod, &pod.metadata),
        pod => pod_at_last(pod.as_ref(), || {
            // No data is moved any more.
            let hosted = HostedVolume { cache: false, ..details.hosted.clone() };
            hosting_pod(operation, &hosted, &details.placement, &details.surroundings)
        }),
    }
}

/// The next step towards nothing being left. The volume itself is its pod's, and is not touched.
#[must_use]
pub fn clean(operation: &Operation, seen: &Seen) -> Next {
    clean_in_order(operation, &seen.objects())
}

/// The volume of this name.
///
/// # Errors
/// If the pod has none.
pub fn volume<'a>(pod: &'a Pod, name: &str) -> Result<&'a Volume, VolumeError> {
    let mut all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    all.find(|volume| volume.name == name)
        .ok_or_else(|| VolumeError::Unknown { pod: shown(pod), volume: name.to_owned() })
}

/// The claim behind a volume, if there is one.
#[must_use]
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    // Made for the pod, and called after both.
    let made = || volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name));
    named.or_else(made)
}

/// The drivers, of which at least one has to exist for the volume to be served by one though its own source is another.
pub fn possible_drivers(volume: &PersistentVolume) -> impl Iterator<Item = &str> {
    let has_source = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some());
    let named = SERVED_BY.iter().filter_map(|key| volume.annotations().get(*key));
    named.map(String::as_str).filter(move |_| !has_source)
}

/// Where the kubelet shows a volume to its pod, below the folder of that pod. `bound` is the volume behind its claim, if it
/// has one, and `by_driver` whether a CSI driver serves that though its own source is another.
///
/// # Errors
/// If there is no such place.
pub fn folder(
    pod: &Pod,
    volume: &Volume,
    bound: Option<&PersistentVolume>,
    by_driver: bool,
) -> Result<String, VolumeError> {
    let name = bound.map_or_else(|| volume.name.clone(), ResourceExt::name_any);
    let mode = bound.and_then(|bound| bound.spec.as_ref()?.volume_mode.as_deref());
    if mode == Some("Block") {
        return Err(VolumeError::Device { pod: shown(pod), volume: volume.name.clone() });
    }
    let source = match bound {
        Some(bound) => serde_json::to_value(bound.spec.as_ref()),
        None => serde_json::to_value(volume),
    };
    // What was read from JSON can be written as JSON.
    let source = source.unwrap_or_default();
    if by_driver || source.get("csi").is_some() {
        return Ok(format!("volumes/{CSI}/{name}/mount"));
    }
    let plugin = PLUGINS.iter().find(|(key, _)| source.get(key).is_some());
    let plugin = plugin.map(|(_, folder)| (*folder).to_owned()).or_else(|| {
        let driver = source.get("flexVolume").and_then(|flex| flex.get("driver")).and_then(Value::as_str);
        driver.map(|driver| driver.replace('/', "~"))
    });
    let missing = || VolumeError::NoFolder { pod: shown(pod), volume: volume.name.clone() };
    Ok(format!("volumes/{}/{name}", plugin.ok_or_else(missing)?))
}

/// The whole path on the node, as its system writes paths.
#[must_use]
pub fn host_path(pod: &Pod, folder: &str, placement: &Placement, surroundings: &Surroundings) -> String {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let path = format!("{}/{uid}/{folder}", surroundings.pods_folder.trim_end_matches('/'));
    if placement.windows() { path.replace('/', "\\") } else { path }
}

/// Whether a restored pod waits for its volumes by now.
#[must_use]
pub fn waits_for_volumes(pod: &Pod) -> bool {
    let status = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let runs = |state: &k8s_openapi::api::core::v1::ContainerState| state.running.is_some();
    status.filter(|one| one.name == RESTORE_WAIT).any(|one| one.state.as_ref().is_some_and(runs))
}

/// Whether the init container of a restored pod has said that there is nothing to wait for any more. It begins again and again
/// after that, and ends as often, so what it does at the moment tells nothing.
#[must_use]
pub fn has_given_up(pod: &Pod) -> bool {
    let status = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let states = status
        .filter(|one| one.name == RESTORE_WAIT)
        .flat_map(|one| [one.state.as_ref(), one.last_state.as_ref()]);
    let mut ends = states.flatten().filter_map(|state| state.terminated.as_ref());
    // One that was killed, with its node for example, leaves no words and waits again.
    ends.any(|end| end.exit_code != 0 && end.message.as_deref().is_some_and(|words| !words.trim().is_empty()))
}

fn shown(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_api::NodeOs;
    use serde_json::json;

    fn pod(source: Value) -> Pod {
        let mut volume = json!({ "name": "data" });
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "p-1" },
            "spec": { "containers": [], "volumes": [{ "name": "other", "emptyDir": {} }, volume] },
        }))
        .unwrap()
    }

    fn bound(spec: Value, annotations: Value) -> PersistentVolume {
        serde_json::from_value(
            json!({ "metadata": { "name": "pv-1", "annotations": annotations }, "spec": spec }),
        )
        .unwrap()
    }

    fn place(
        source: Value,
        bound: Option<&PersistentVolume>,
        by_driver: bool,
    ) -> Result<String, VolumeError> {
        let pod = pod(source);
        folder(&pod, volume(&pod, "data").unwrap(), bound, by_driver)
    }

    #[test]
    fn a_volume_is_where_the_kubelet_shows_it_to_its_pod() {
        let of_pod = |source| place(source, None, false).unwrap();
        assert_eq!(of_pod(json!({ "emptyDir": {} })), "volumes/kubernetes.io~empty-dir/data");
        assert_eq!(of_pod(json!({ "csi": { "driver": "d" } })), "volumes/kubernetes.io~csi/data/mount");
        assert_eq!(
            of_pod(json!({ "nfs": { "server": "s", "path": "/" } })),
            "volumes/kubernetes.io~nfs/data"
        );
        assert_eq!(of_pod(json!({ "flexVolume": { "driver": "v.io/d" } })), "volumes/v.io~d/data");

        let claimed = || json!({ "persistentVolumeClaim": { "claimName": "c" } });
        let csi = bound(json!({ "csi": { "driver": "d", "volumeHandle": "h" } }), json!({}));
        assert_eq!(place(claimed(), Some(&csi), false).unwrap(), "volumes/kubernetes.io~csi/pv-1/mount");
        let local = bound(json!({ "local": { "path": "/disk" } }), json!({}));
        assert_eq!(place(claimed(), Some(&local), false).unwrap(), "volumes/kubernetes.io~local-volume/pv-1");
        let flex = bound(json!({ "flexVolume": { "driver": "v.io/d" } }), json!({}));
        assert_eq!(place(claimed(), Some(&flex), false).unwrap(), "volumes/v.io~d/pv-1");
    }

    /// What Kubernetes serves itself: the source, the folder of its plugin, and whether pods name it themselves and volumes do.
    const IN_TREE: [(&str, &str, bool, bool); 20] = [
        ("awsElasticBlockStore", "aws-ebs", true, true),
        ("azureDisk", "azure-disk", true, true),
        ("azureFile", "azure-file", true, true),
        ("cephfs", "cephfs", true, true),
        ("cinder", "cinder", true, true),
        ("emptyDir", "empty-dir", true, false),
        ("fc", "fc", true, true),
        ("gcePersistentDisk", "gce-pd", true, true),
        ("gitRepo", "git-repo", true, false),
        ("glusterfs", "glusterfs", true, true),
        ("iscsi", "iscsi", true, true),
        ("local", "local-volume", false, true),
        ("nfs", "nfs", true, true),
        ("photonPersistentDisk", "photon-pd", true, true),
        ("portworxVolume", "portworx-volume", true, true),
        ("quobyte", "quobyte", true, true),
        ("rbd", "rbd", true, true),
        ("scaleIO", "scaleio", true, true),
        ("storageos", "storageos", true, true),
        ("vsphereVolume", "vsphere-volume", true, true),
    ];

    #[test]
    fn a_volume_of_each_plugin_of_kubernetes_is_in_the_folder_of_that_plugin() {
        for (source, folder, by_pods, by_volumes) in IN_TREE {
            let folder = format!("volumes/kubernetes.io~{folder}");
            if by_pods {
                assert_eq!(place(json!({ source: {} }), None, false).unwrap(), format!("{folder}/data"));
            }
            if by_volumes {
                let claimed = json!({ "persistentVolumeClaim": { "claimName": "c" } });
                let volume = bound(json!({ source: {} }), json!({}));
                assert_eq!(place(claimed, Some(&volume), false).unwrap(), format!("{folder}/pv-1"));
            }
        }
        let known = PLUGINS.map(|(source, _)| source);
        assert_eq!(known, IN_TREE.map(|(source, ..)| source), "each has its row");
    }

    /// Kubernetes has drivers serve volumes of sources that it used to serve itself.
    #[test]
    fn a_volume_that_a_driver_has_taken_over_is_where_the_driver_shows_it() {
        let source = json!({ "awsElasticBlockStore": { "volumeID": "v" } });
        let moved = bound(source, json!({ "pv.kubernetes.io/migrated-to": "ebs.csi.aws.com" }));
        assert_eq!(possible_drivers(&moved).collect::<Vec<_>>(), ["ebs.csi.aws.com"]);
        let claimed = json!({ "persistentVolumeClaim": { "claimName": "c" } });
        assert_eq!(
            place(claimed.clone(), Some(&moved), true).unwrap(),
            "volumes/kubernetes.io~csi/pv-1/mount"
        );
        assert_eq!(place(claimed, Some(&moved), false).unwrap(), "volumes/kubernetes.io~aws-ebs/pv-1");
        let csi = json!({ "csi": { "driver": "d", "volumeHandle": "h" } });
        assert_eq!(possible_drivers(&bound(csi, json!({ SERVED_BY[1]: "d" }))).count(), 0);
    }

    #[test]
    fn what_has_no_folder_or_is_a_device_is_refused_with_a_way_out() {
        for source in
            [json!({ "hostPath": { "path": "/" } }), json!({ "secret": {} }), json!({ "projected": {} })]
        {
            let refused = place(source, None, false).unwrap_err().to_string();
            assert!(
                refused.contains("volume data of pod shop/web") && refused.contains("excludes"),
                "{refused}"
            );
        }
        let device =
            bound(json!({ "csi": { "driver": "d", "volumeHandle": "h" }, "volumeMode": "Block" }), json!({}));
        let claimed = json!({ "persistentVolumeClaim": { "claimName": "c" } });
        let refused = place(claimed, Some(&device), false).unwrap_err().to_string();
        assert!(refused.contains("is a device") && refused.contains("--snapshot-move-data"), "{refused}");
        let pod = pod(json!({ "emptyDir": {} }));
        assert!(volume(&pod, "gone").unwrap_err().to_string().contains("no volume gone"));
    }

    #[test]
    fn claims_are_named_by_the_pod_or_made_for_it() {
        let name = |source| {
            let pod = pod(source);
            claim_name(&pod, volume(&pod, "data").unwrap())
        };
        assert_eq!(name(json!({ "persistentVolumeClaim": { "claimName": "c" } })).as_deref(), Some("c"));
        assert_eq!(name(json!({ "ephemeral": {} })).as_deref(), Some("web-data"));
        assert_eq!(name(json!({ "emptyDir": {} })), None);
    }

    #[test]
    fn a_pod_has_given_up_once_its_helper_has_said_why() {
        let of = |state: Value, last: Value| {
            let status = json!([{
                "name": RESTORE_WAIT, "image": "", "imageID": "", "ready": false, "restartCount": 1, "state": state,
                "lastState": last,
            }]);
            let mut pod = pod(json!({ "emptyDir": {} }));
            pod.status = serde_json::from_value(json!({ "initContainerStatuses": status })).unwrap();
            has_given_up(&pod)
        };
        let ended = |code: i32, words: &str| json!({ "terminated": { "exitCode": code, "message": words } });
        assert!(of(ended(1, "the volume data was not restored"), json!({})));
        let restarting = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        assert!(of(restarting.clone(), ended(1, "the volume data was not restored")));
        assert!(!of(json!({ "running": {} }), json!({})));
        assert!(!of(restarting, ended(137, "")), "it will wait again");
    }

    #[test]
    fn paths_are_written_as_the_system_of_the_node_writes_them() {
        let surroundings =
            Surroundings { pods_folder: "/kubelet/pods/".to_owned(), ..Surroundings::default() };
        let pod = pod(json!({ "emptyDir": {} }));
        let on = |os| {
            let placement = Placement { os: Some(os), ..Placement::default() };
            host_path(&pod, "volumes/x/data", &placement, &surroundings)
        };
        assert_eq!(on(NodeOs::Linux), "/kubelet/pods/p-1/volumes/x/data");
        assert_eq!(on(NodeOs::Windows), r"\kubelet\pods\p-1\volumes\x\data");
    }

    #[test]
    fn a_restored_pod_waits_once_its_init_container_runs() {
        let with = |name: &str, state: Value| -> Pod {
            let status = json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
            serde_json::from_value(json!({ "status": { "initContainerStatuses": [status] } })).unwrap()
        };
        assert!(waits_for_volumes(&with(RESTORE_WAIT, json!({ "running": {} }))));
        assert!(!waits_for_volumes(&with(RESTORE_WAIT, json!({ "waiting": {} }))));
        assert!(!waits_for_volumes(&with("migrate", json!({ "running": {} }))));
    }
}
