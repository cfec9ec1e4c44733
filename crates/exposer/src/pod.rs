//! The hosting pod: one container that sees one volume and runs one mover.

use crate::affinity::spread;
use crate::{Direction, Operation, Placement, Surroundings, ledger};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolumeClaimVolumeSource,
    Pod, PodOS, PodSecurityContext, PodSpec, ResourceRequirements, SELinuxOptions, SeccompProfile,
    SecurityContext, Toleration, Volume, VolumeDevice, VolumeMount, WindowsSecurityContextOptions,
};
use lifeboat_api::{Duration, NodeOs, labels};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Where the cache volume is in the hosting pod.
pub const CACHE_PATH: &str = "/cachedir";
const CACHE_VOLUME: &str = "cachedir";
/// A folder that can be written though the root cannot.
const TEMPORARY_VOLUME: &str = "tmp";
const TEMPORARY_PATH: &str = "/tmp";

/// What a mover may do beyond what every process may. All of these are allowed where the `baseline` standard is enforced.
const TO_READ_FILES: &[&str] = &["DAC_OVERRIDE"];
const TO_WRITE_FILES: &[&str] = &["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"];

/// Where the volume comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A claim that carries the operation's name.
    Claim {
        /// Whether the volume is a device.
        block: bool,
        /// Whether it is only read.
        read_only: bool,
    },
    /// A folder of the node.
    Host {
        /// The folder.
        path: String,
        /// Whether the container is privileged, for file systems that need it.
        privileged: bool,
    },
}

/// What a hosting pod is for.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedVolume {
    /// Where the volume comes from.
    pub source: VolumeSource,
    /// Whether there is a cache volume.
    pub cache: bool,
    /// How long the mover waits for objects of Kubernetes.
    pub resource_timeout: Duration,
    /// Whether SELinux labels of the volume are left alone.
    pub no_relabeling: bool,
    /// The program, as the image calls it.
    pub program: String,
    /// Labels that people want; without any, those of the surroundings.
    pub labels: BTreeMap<String, String>,
    /// Annotations that people want; without any, those of the surroundings.
    pub annotations: BTreeMap<String, String>,
    /// What it may use.
    pub resources: ResourceRequirements,
    /// Its priority.
    pub priority_class: Option<String>,
    /// Whether Velero's own node-agent is at work too: it takes every pod with its label for one of its own.
    pub beside_velero: bool,
}

/// The pod that moves the operation's volume.
#[must_use]
pub fn hosting_pod(
    operation: &Operation,
    volume: &HostedVolume,
    placement: &Placement,
    surroundings: &Surroundings,
) -> Pod {
    let mut metadata = operation.object(&operation.name);
    let windows = placement.windows();
    let (labels, annotations) = marks(operation, volume, surroundings);
    metadata.labels = Some(labels);
    metadata.annotations = Some(annotations);
    let group = operation.kind.pod_group();
    let pinned = operation.kind.is_pod_volume();
    let mut tolerations = surroundings.tolerations.clone();
    if windows {
        tolerations.extend(["NoSchedule", "NoExecute"].map(windows_taint));
    }
    Pod {
        metadata,
        spec: Some(PodSpec {
            containers: vec![container(operation, volume, windows, surroundings)],
            volumes: Some(volumes(operation, volume, surroundings)),
            node_name: placement.node.clone().filter(|_| pinned),
            node_selector: placement.node_selector().filter(|_| !pinned),
            affinity: Some(placement.affinity()),
            topology_spread_constraints: group.map(|group| vec![spread(labels::EXPOSER_POD_GROUP, group)]),
            tolerations: Some(tolerations).filter(|tolerations| !tolerations.is_empty()),
            os: Some(PodOS { name: if windows { NodeOs::Windows } else { NodeOs::Linux }.to_string() }),
            security_context: Some(pod_security(operation, volume, windows, surroundings.user)),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(0),
            service_account_name: surroundings.service_account.clone(),
            image_pull_secrets: Some(surroundings.image_pull_secrets.clone())
                .filter(|secrets| !secrets.is_empty()),
            dns_policy: surroundings.dns_policy.clone(),
            dns_config: surroundings.dns_config.clone(),
            priority_class_name: volume.priority_class.clone(),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn marks(
    operation: &Operation,
    volume: &HostedVolume,
    surroundings: &Surroundings,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let chosen = |wanted: &BTreeMap<String, String>, inherited: &BTreeMap<String, String>| {
        if wanted.is_empty() { inherited.clone() } else { wanted.clone() }
    };
    let mut labels = chosen(&volume.labels, &surroundings.labels);
    // Ours last: it is by these that the node-agent finds the pod again.
    labels.extend(ledger::labels(operation));
    if volume.beside_velero {
        labels.remove(operation.kind.label());
    } else {
        labels.insert(operation.kind.label().to_owned(), operation.name.clone());
    }
    if let Some(group) = operation.kind.pod_group() {
        labels.insert(labels::EXPOSER_POD_GROUP.to_owned(), group.to_owned());
    }
    let mut annotations = chosen(&volume.annotations, &surroundings.annotations);
    annotations.extend(ledger::annotations(operation));
    (labels, annotations)
}

fn container(
    operation: &Operation,
    volume: &HostedVolume,
    windows: bool,
    surroundings: &Surroundings,
) -> Container {
    let block = matches!(volume.source, VolumeSource::Claim { block: true, .. });
    let (words, _) = operation.kind.command();
    let path = operation.volume_path();
    let device = block.then(|| vec![VolumeDevice { name: operation.uid.clone(), device_path: path.clone() }]);
    let mut mounts = Vec::new();
    if !block {
        let from_host = matches!(volume.source, VolumeSource::Host { .. });
        let read_only = match volume.source {
            VolumeSource::Claim { read_only, .. } => read_only,
            VolumeSource::Host { .. } => operation.kind.direction() == Direction::Backup,
        };
        mounts.push(VolumeMount {
            name: operation.uid.clone(),
            mount_path: path,
            read_only: read_only.then_some(true),
            mount_propagation: from_host.then(|| "HostToContainer".to_owned()),
            ..VolumeMount::default()
        });
    }
    if volume.cache {
        mounts.push(mount(CACHE_VOLUME, CACHE_PATH));
    }
    mounts.extend(surroundings.volume_mounts.iter().cloned());
    if !windows && needs_temporary(surroundings) {
        mounts.push(mount(TEMPORARY_VOLUME, TEMPORARY_PATH));
    }
    Container {
        name: operation.uid.clone(),
        image: Some(surroundings.image.clone()),
        // The image is that of the node-agent, but its copy on this node may be gone by now.
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some([volume.program.as_str(), words[0], words[1]].map(str::to_owned).to_vec()),
        args: Some(arguments(operation, volume, surroundings)),
        env: Some(surroundings.env.clone()).filter(|env| !env.is_empty()),
        env_from: Some(surroundings.env_from.clone()).filter(|env| !env.is_empty()),
        volume_mounts: Some(mounts),
        volume_devices: device,
        resources: Some(volume.resources.clone())
            .filter(|resources| *resources != ResourceRequirements::default()),
        security_context: (!windows).then(|| container_security(operation, volume, surroundings.user)),
        ..Container::default()
    }
}

fn arguments(operation: &Operation, volume: &HostedVolume, surroundings: &Surroundings) -> Vec<String> {
    let (_, flag) = operation.kind.command();
    let own = format!("{flag}={}", operation.name);
    let timeout = format!("--resource-timeout={}", volume.resource_timeout);
    let mut arguments = vec![format!("--volume-path={}", operation.volume_path())];
    match volume.source {
        VolumeSource::Claim { block, .. } => {
            arguments.push(format!("--volume-mode={}", if block { "Block" } else { "Filesystem" }));
            arguments.extend([own, timeout]);
        }
        VolumeSource::Host { .. } => arguments.extend([timeout, own]),
    }
    if operation.kind.direction() == Direction::Restore {
        arguments.push(format!("--cache-volume-path={}", if volume.cache { CACHE_PATH } else { "" }));
    }
    arguments.extend(surroundings.log_args.iter().cloned());
    arguments
}

fn volumes(operation: &Operation, volume: &HostedVolume, surroundings: &Surroundings) -> Vec<Volume> {
    let mut own = Volume { name: operation.uid.clone(), ..Volume::default() };
    match &volume.source {
        VolumeSource::Claim { read_only, .. } => {
            own.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                claim_name: operation.name.clone(),
                read_only: read_only.then_some(true),
            });
        }
        VolumeSource::Host { path, .. } => {
            // A folder that is not there must not be made: it would pass for an empty volume.
            let type_ = Some("Directory".to_owned());
            own.host_path = Some(HostPathVolumeSource { path: path.clone(), type_ });
        }
    }
    let cache = volume.cache.then(|| Volume {
        name: CACHE_VOLUME.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: operation.cache_claim_name(),
            read_only: None,
        }),
        ..Volume::default()
    });
    let temporary = needs_temporary(surroundings).then(|| Volume {
        name: TEMPORARY_VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
    let inherited = surroundings.volumes.iter().cloned();
    std::iter::once(own).chain(cache).chain(inherited).chain(temporary).collect()
}

/// Whether the node-agent does not bring a folder for temporary files along.
fn needs_temporary(surroundings: &Surroundings) -> bool {
    !surroundings.volume_mounts.iter().any(|mount| mount.mount_path == TEMPORARY_PATH)
}

fn pod_security(
    operation: &Operation,
    volume: &HostedVolume,
    windows: bool,
    user: Option<NonZeroU32>,
) -> PodSecurityContext {
    if windows {
        return PodSecurityContext {
            windows_options: Some(WindowsSecurityContextOptions {
                run_as_user_name: Some("ContainerAdministrator".to_owned()),
                ..WindowsSecurityContextOptions::default()
            }),
            ..PodSecurityContext::default()
        };
    }
    let id = user.map(|user| i64::from(user.get()));
    PodSecurityContext {
        // Files belong to whomever they belong to: only root can read them all and give them back.
        run_as_user: id.or(Some(0)),
        run_as_group: id,
        run_as_non_root: id.map(|_| true),
        // An empty volume has to be opened for such a user; a copy that is read has to stay as it is.
        fs_group: id.filter(|_| operation.kind.direction() == Direction::Restore),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        se_linux_options: volume
            .no_relabeling
            .then(|| SELinuxOptions { type_: Some("spc_t".to_owned()), ..SELinuxOptions::default() }),
        ..PodSecurityContext::default()
    }
}

fn container_security(
    operation: &Operation,
    volume: &HostedVolume,
    user: Option<NonZeroU32>,
) -> SecurityContext {
    if matches!(volume.source, VolumeSource::Host { privileged: true, .. }) {
        return SecurityContext { privileged: Some(true), ..SecurityContext::default() };
    }
    let needed: &[&str] = match (&volume.source, operation.kind.direction()) {
        // Capabilities are of no use to another user than root.
        _ if user.is_some() => &[],
        // A device node belongs to root, as the mover does.
        (VolumeSource::Claim { block: true, .. }, _) => &[],
        (_, Direction::Backup) => TO_READ_FILES,
        (_, Direction::Restore) => TO_WRITE_FILES,
    };
    let added: Vec<String> = needed.iter().map(|capability| (*capability).to_owned()).collect();
    SecurityContext {
        privileged: Some(false),
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: Some(added).filter(|added| !added.is_empty()),
        }),
        ..SecurityContext::default()
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn windows_taint(effect: &str) -> Toleration {
    Toleration {
        key: Some("os".to_owned()),
        operator: Some("Equal".to_owned()),
        value: Some("windows".to_owned()),
        effect: Some(effect.to_owned()),
        ..Toleration::default()
    }
}
