//! A driver process of its own for each test, with everything it mounted taken away at the end.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use lifeboat_testbed_csi::proto::controller_client::ControllerClient;
use lifeboat_testbed_csi::proto::node_client::NodeClient;
use lifeboat_testbed_csi::proto::snapshot_metadata_client::SnapshotMetadataClient;
use lifeboat_testbed_csi::proto::volume_capability::{self as capability, access_mode::Mode};
use lifeboat_testbed_csi::proto::{self, volume_content_source as from};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub const MIB: u64 = 1 << 20;
pub const BINARY: &str = env!("CARGO_BIN_EXE_lifeboat-testbed-csi");

/// A process that does not outlive the test.
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Asks the process to end and returns whether it did so without complaint.
    pub fn terminate(mut self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A driver with its own state, socket, knobs and paths to publish at.
pub struct Testbed {
    folder: TempDir,
    options: Vec<String>,
    process: Option<Process>,
}

impl Testbed {
    pub fn start(options: &[&str]) -> Testbed {
        assert!(rustix::process::geteuid().is_root(), "these tests mount filesystems: run them as root");
        let folder = tempfile::Builder::new().prefix("lifeboat-csi-").tempdir().unwrap();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut testbed = Testbed { folder, options, process: None };
        testbed.restart();
        testbed
    }

    /// Starts the driver, killing the one that runs without giving it a chance to tidy up.
    pub fn restart(&mut self) {
        self.kill();
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(BINARY);
        command
            .arg("serve")
            .args(["--node-id", "node1", "--driver-name", "csi.lifeboat.test"])
            .arg("--endpoint")
            .arg(self.endpoint())
            .arg("--state-dir")
            .arg(self.state())
            .arg("--knobs")
            .arg(self.path("knobs.json"))
            .args(&self.options)
            .stderr(log);
        self.process = Some(Process::spawn(&mut command));
        wait_for("the driver to listen", || {
            std::os::unix::net::UnixStream::connect(self.path("csi.sock")).is_ok()
        });
    }

    pub fn kill(&mut self) {
        self.process = None;
        let _ = fs::remove_file(self.path("csi.sock"));
    }

    /// Asks the driver to end and returns whether it did so without complaint.
    pub fn terminate(&mut self) -> bool {
        self.process.take().unwrap().terminate()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path("csi.sock").display())
    }

    pub fn set_knobs(&self, rules: &str) {
        let draft = self.path("knobs.new");
        fs::write(&draft, format!("{{\"rules\": [{rules}]}}")).unwrap();
        fs::rename(draft, self.path("knobs.json")).unwrap();
    }

    pub async fn connect(&self) -> Client {
        Client::connect(&self.path("csi.sock")).await
    }

    /// The image of a volume or snapshot.
    pub fn image(&self, id: &str) -> PathBuf {
        let kind = if id.starts_with("snap-") { "snapshots" } else { "volumes" };
        self.state().join(kind).join(id).join("image")
    }

    /// The loop devices whose backing file is in the state folder.
    pub fn loop_devices(&self) -> Vec<String> {
        let listing =
            Command::new("losetup").args(["--noheadings", "--output", "NAME,BACK-FILE"]).output().unwrap();
        let folder = self.folder.path().to_string_lossy().into_owned();
        let lines = String::from_utf8(listing.stdout).unwrap();
        lines.lines().filter(|line| line.contains(&folder)).map(str::to_owned).collect()
    }

    /// The mounts in the test's folder.
    pub fn mounts(&self) -> Vec<String> {
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mut points: Vec<String> = fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .filter_map(|line| line.split(' ').nth(4).map(str::to_owned))
            .filter(|point| point.starts_with(&folder))
            .collect();
        points.sort();
        points
    }

    /// Fails if anything is still mounted or attached, or if objects or litter are left in the state folder.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        wait_for("loop devices to detach", || self.loop_devices().is_empty());
        for folder in ["volumes", "snapshots"] {
            assert_eq!(fs::read_dir(self.state().join(folder)).unwrap().count(), 0, "{folder}");
        }
        for work in fs::read_dir(self.state().join("work")).unwrap() {
            assert_eq!(fs::read_dir(work.unwrap().path()).unwrap().count(), 0, "work");
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.kill();
        for point in self.mounts().iter().rev() {
            let _ = Command::new("fsfreeze").arg("--unfreeze").arg(point).stderr(Stdio::null()).status();
            let _ = Command::new("umount").arg(point).status();
        }
        let _ = Command::new(BINARY).arg("cleanup").arg("--state-dir").arg(self.state()).status();
        if std::thread::panicking() {
            eprintln!("--- log of the driver\n{}", self.log());
        }
    }
}

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("waited in vain for {what}");
}

/// Calls to a driver with the boring parts filled in.
#[derive(Clone)]
pub struct Client {
    pub controller: ControllerClient<Channel>,
    pub node: NodeClient<Channel>,
    pub metadata: SnapshotMetadataClient<Channel>,
}

pub fn block(mode: Mode) -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_mode: Some(capability::AccessMode { mode: mode.into() }),
        access_type: Some(capability::AccessType::Block(capability::BlockVolume {})),
    }
}

pub fn mount(mode: Mode) -> proto::VolumeCapability {
    let mount = capability::MountVolume { fs_type: String::new(), mount_flags: Vec::new() };
    proto::VolumeCapability {
        access_mode: Some(capability::AccessMode { mode: mode.into() }),
        access_type: Some(capability::AccessType::Mount(mount)),
    }
}

pub fn from_snapshot(id: &str) -> Option<proto::VolumeContentSource> {
    let source = from::Type::Snapshot(from::SnapshotSource { snapshot_id: id.to_owned() });
    Some(proto::VolumeContentSource { r#type: Some(source) })
}

pub fn from_volume(id: &str) -> Option<proto::VolumeContentSource> {
    let source = from::Type::Volume(from::VolumeSource { volume_id: id.to_owned() });
    Some(proto::VolumeContentSource { r#type: Some(source) })
}

/// A request for a volume of some MiB; parameters are written as `key=value`.
pub fn volume(
    name: &str,
    mib: u64,
    usage: proto::VolumeCapability,
    parameters: &[&str],
) -> proto::CreateVolumeRequest {
    proto::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(proto::CapacityRange { required_bytes: (mib * MIB) as i64, limit_bytes: 0 }),
        volume_capabilities: vec![usage],
        parameters: parameters
            .iter()
            .filter_map(|parameter| parameter.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        volume_content_source: None,
        accessibility_requirements: None,
    }
}

impl Client {
    pub async fn connect(socket: &Path) -> Client {
        let channel =
            Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap();
        Client {
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel.clone()),
            metadata: SnapshotMetadataClient::new(channel),
        }
    }

    pub async fn create(&mut self, request: proto::CreateVolumeRequest) -> Result<proto::Volume, Status> {
        Ok(self.controller.create_volume(request).await?.into_inner().volume.unwrap())
    }

    pub async fn delete(&mut self, volume_id: &str) -> Result<(), Status> {
        let request = proto::DeleteVolumeRequest { volume_id: volume_id.to_owned() };
        self.controller.delete_volume(request).await.map(drop)
    }

    pub async fn snapshot(&mut self, volume: &str, name: &str) -> Result<proto::Snapshot, Status> {
        let request = proto::CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: name.to_owned(),
            parameters: [].into(),
        };
        Ok(self.controller.create_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    pub async fn delete_snapshot(&mut self, snapshot_id: &str) -> Result<(), Status> {
        let request = proto::DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned() };
        self.controller.delete_snapshot(request).await.map(drop)
    }

    pub async fn snapshots(&mut self, snapshot_id: &str) -> Result<Vec<proto::Snapshot>, Status> {
        let request =
            proto::ListSnapshotsRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
        let entries = self.controller.list_snapshots(request).await?.into_inner().entries;
        Ok(entries.into_iter().filter_map(|entry| entry.snapshot).collect())
    }

    pub async fn stage(
        &mut self,
        id: &str,
        at: &Path,
        usage: &proto::VolumeCapability,
    ) -> Result<(), Status> {
        let request = proto::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: at.to_string_lossy().into_owned(),
            volume_capability: Some(usage.clone()),
        };
        self.node.node_stage_volume(request).await.map(drop)
    }

    pub async fn publish(
        &mut self,
        id: &str,
        staged: &Path,
        at: &Path,
        usage: &proto::VolumeCapability,
        readonly: bool,
    ) -> Result<(), Status> {
        let request = proto::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staged.to_string_lossy().into_owned(),
            target_path: at.to_string_lossy().into_owned(),
            volume_capability: Some(usage.clone()),
            readonly,
        };
        self.node.node_publish_volume(request).await.map(drop)
    }

    pub async fn unpublish(&mut self, id: &str, at: &Path) -> Result<(), Status> {
        let request = proto::NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: at.to_string_lossy().into_owned(),
        };
        self.node.node_unpublish_volume(request).await.map(drop)
    }

    pub async fn unstage(&mut self, id: &str, at: &Path) -> Result<(), Status> {
        let request = proto::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: at.to_string_lossy().into_owned(),
        };
        self.node.node_unstage_volume(request).await.map(drop)
    }

    /// Stages and publishes in one go; the staging path is `at` with `.staged` added.
    pub async fn attach(
        &mut self,
        id: &str,
        at: &Path,
        usage: &proto::VolumeCapability,
    ) -> Result<(), Status> {
        self.stage(id, &staging(at), usage).await?;
        self.publish(id, &staging(at), at, usage, false).await
    }

    pub async fn detach(&mut self, id: &str, at: &Path) -> Result<(), Status> {
        self.unpublish(id, at).await?;
        self.unstage(id, &staging(at)).await
    }
}

pub fn staging(at: &Path) -> PathBuf {
    at.with_extension("staged")
}

/// Writes through a path and makes sure it has arrived.
pub fn write_at(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

pub fn device_number(path: &Path) -> u64 {
    fs::metadata(path).unwrap().rdev()
}
