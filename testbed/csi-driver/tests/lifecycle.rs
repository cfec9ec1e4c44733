//! Volumes in use: data is kept, copies are equal, access modes hold, and nothing survives that should not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{
    BINARY, Client, MIB, Process, Testbed, block, device_number, from_snapshot, from_volume, mount, staging,
    volume, wait_for, write_at,
};
use lifeboat_testbed_csi::proto::volume_capability::access_mode::Mode;
use lifeboat_testbed_csi::proto::{self, Topology, TopologyRequirement};
use lifeboat_testbed_csi::registration_proto::registration_client::RegistrationClient;
use lifeboat_testbed_csi::registration_proto::{InfoRequest, RegistrationStatus};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

const BACKINGS: [&str; 2] = ["backing=directory", "backing=image"];

async fn expand(client: &mut Client, id: &str, at: &Path, mib: u64) -> Result<(), Status> {
    let range = Some(proto::CapacityRange { required_bytes: (mib * MIB) as i64, limit_bytes: 0 });
    let request = proto::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range,
        volume_capability: None,
    };
    let answer = client.controller.controller_expand_volume(request).await?.into_inner();
    assert_eq!(answer.capacity_bytes, (mib * MIB) as i64);
    assert!(answer.node_expansion_required);
    let request = proto::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: at.to_string_lossy().into_owned(),
        capacity_range: range,
    };
    let answer = client.node.node_expand_volume(request).await?.into_inner();
    assert_eq!(answer.capacity_bytes, (mib * MIB) as i64);
    Ok(())
}

/// Whether the kernel lets this process, and so the driver, grow a mounted ext4.
fn may_grow_mounted_filesystems() -> bool {
    const SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned();
    u64::from_str_radix(&effective, 16).unwrap() & 1 << SYS_RESOURCE != 0
}

/// Checks the filesystem in a copy of an image. Files that were deleted while open may be there to be cleared
/// (exit code 1); anything that needs a decision is damage.
fn assert_sound(image: &Path) {
    let copy = image.with_extension("checked");
    fs::copy(image, &copy).unwrap();
    let check = Command::new("e2fsck").arg("-fp").arg(&copy).output().unwrap();
    fs::remove_file(&copy).unwrap();
    assert!(matches!(check.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&check.stdout));
}

#[tokio::test]
async fn snapshots_and_clones_have_the_files_of_their_moment() {
    for backing in BACKINGS {
        let testbed = Testbed::start(&[]);
        let mut client = testbed.connect().await;
        let usage = mount(Mode::SingleNodeMultiWriter);
        let source = client.create(volume("source", 32, usage.clone(), &[backing])).await.unwrap().volume_id;
        let here = testbed.path("source");
        client.attach(&source, &here, &usage).await.unwrap();
        fs::write(here.join("file"), "before").unwrap();
        fs::hard_link(here.join("file"), here.join("link")).unwrap();
        std::os::unix::fs::symlink("file", here.join("symlink")).unwrap();
        let snapshot = client.snapshot(&source, "snapshot").await.unwrap();
        assert!(snapshot.ready_to_use && snapshot.size_bytes == 32 * MIB as i64);
        fs::write(here.join("file"), "after").unwrap();

        let mut wanted = volume("restored", 64, usage.clone(), &[backing]);
        wanted.volume_content_source = from_snapshot(&snapshot.snapshot_id);
        let restored = client.create(wanted).await.unwrap().volume_id;
        let mut wanted = volume("clone", 32, usage.clone(), &[backing]);
        wanted.volume_content_source = from_volume(&source);
        let clone = client.create(wanted).await.unwrap().volume_id;
        for (id, name, content) in [(&restored, "restored", "before"), (&clone, "clone", "after")] {
            let at = testbed.path(name);
            client.attach(id, &at, &usage).await.unwrap();
            assert_eq!(fs::read_to_string(at.join("symlink")).unwrap(), content, "{backing} {name}");
            assert_eq!(fs::read_to_string(at.join("link")).unwrap(), content, "{backing} {name}");
            fs::write(at.join("own"), "x").unwrap();
            assert!(!here.join("own").exists());
        }
        if backing == "backing=image" {
            // The restored volume is larger than its source, and so is its filesystem.
            let size = rustix::fs::statvfs(testbed.path("restored")).unwrap();
            assert!(size.f_blocks * size.f_frsize > 48 * MIB);
        }
        for (id, name) in [(&source, "source"), (&restored, "restored"), (&clone, "clone")] {
            client.detach(id, &testbed.path(name)).await.unwrap();
            client.delete(id).await.unwrap();
        }
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        testbed.assert_nothing_left();
    }
}

#[tokio::test]
async fn a_snapshot_of_a_busy_filesystem_is_a_clean_filesystem() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let usage = mount(Mode::SingleNodeMultiWriter);
    let source =
        client.create(volume("source", 64, usage.clone(), &["backing=image"])).await.unwrap().volume_id;
    let here = testbed.path("source");
    client.attach(&source, &here, &usage).await.unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (here, stop) = (here.clone(), std::sync::Arc::clone(&stop));
        move || {
            for round in 0..100_000 {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let mut file = fs::File::create(here.join(format!("file-{}", round % 50))).unwrap();
                file.write_all(&[round as u8; 20_000]).unwrap();
                let _ = fs::rename(here.join(format!("file-{}", round % 7)), here.join("renamed"));
            }
        }
    });
    for round in 0..3 {
        let snapshot = client.snapshot(&source, &format!("busy-{round}")).await.unwrap();
        assert_sound(&testbed.image(&snapshot.snapshot_id));
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    client.detach(&source, &here).await.unwrap();
}

#[tokio::test]
async fn a_read_only_volume_shows_the_snapshot_itself() {
    for (backing, usage, reader) in [
        ("backing=directory", mount(Mode::SingleNodeWriter), mount(Mode::MultiNodeReaderOnly)),
        ("backing=image", mount(Mode::SingleNodeWriter), mount(Mode::MultiNodeReaderOnly)),
        ("changedBlocks=fixed", block(Mode::SingleNodeWriter), block(Mode::MultiNodeReaderOnly)),
    ] {
        let testbed = Testbed::start(&[]);
        let mut client = testbed.connect().await;
        let source = client.create(volume("source", 32, usage.clone(), &[backing])).await.unwrap().volume_id;
        let here = testbed.path("source");
        client.attach(&source, &here, &usage).await.unwrap();
        let file = if here.is_dir() { here.join("file") } else { here.clone() };
        if here.is_dir() {
            fs::write(&file, "").unwrap();
        }
        write_at(&file, 0, b"content");
        let snapshot = client.snapshot(&source, "snapshot").await.unwrap().snapshot_id;

        let mut views = Vec::new();
        for name in ["view-1", "view-2"] {
            let mut wanted = volume(name, 32, reader.clone(), &[backing]);
            wanted.volume_content_source = from_snapshot(&snapshot);
            let id = client.create(wanted).await.unwrap().volume_id;
            assert!(!testbed.image(&id).exists(), "nothing is copied");
            let at = testbed.path(name);
            client.attach(&id, &at, &reader).await.unwrap();
            let inside = if at.is_dir() { at.join("file") } else { at.clone() };
            assert!(fs::read(&inside).unwrap().starts_with(b"content"));
            let refused = fs::File::options().write(true).open(&inside).and_then(|mut file| {
                file.write_all(b"changed")?;
                file.sync_all()
            });
            assert!(refused.is_err(), "{backing}: a snapshot must not be written to");
            views.push((id, at));
        }
        assert_eq!(client.delete_snapshot(&snapshot).await.unwrap_err().code(), Code::FailedPrecondition);
        // The first view going away leaves the second one intact.
        let (second, at) = views.pop().unwrap();
        let (first, gone) = views.pop().unwrap();
        client.detach(&first, &gone).await.unwrap();
        client.delete(&first).await.unwrap();
        let inside = if at.is_dir() { at.join("file") } else { at.clone() };
        assert!(fs::read(&inside).unwrap().starts_with(b"content"), "{backing}");
        client.detach(&second, &at).await.unwrap();
        client.delete(&second).await.unwrap();
        client.delete_snapshot(&snapshot).await.unwrap();
        client.detach(&source, &here).await.unwrap();
        client.delete(&source).await.unwrap();
        testbed.assert_nothing_left();
    }
}

#[tokio::test]
async fn access_modes_are_enforced_where_the_volume_is_published() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (once, often) = (mount(Mode::SingleNodeSingleWriter), mount(Mode::SingleNodeMultiWriter));
    let id = client.create(volume("data", 8, often.clone(), &[])).await.unwrap().volume_id;
    let (first, second) = (testbed.path("first"), testbed.path("second"));

    client.attach(&id, &first, &once).await.unwrap();
    let refused = client.publish(&id, &staging(&second), &second, &once, false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(!second.exists());
    let changed = client.publish(&id, &staging(&first), &first, &once, true).await.unwrap_err();
    assert_eq!(changed.code(), Code::AlreadyExists);
    assert_eq!(client.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition);
    client.detach(&id, &first).await.unwrap();

    client.attach(&id, &first, &often).await.unwrap();
    client.publish(&id, &staging(&second), &second, &often, true).await.unwrap();
    fs::write(first.join("file"), "x").unwrap();
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "x");
    assert!(fs::write(second.join("file"), "y").is_err(), "published read only");
    let block_usage = block(Mode::SingleNodeMultiWriter);
    let wrong = client.publish(&id, &staging(&second), &second, &block_usage, false).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    for at in [&first, &second] {
        client.detach(&id, at).await.unwrap();
        assert!(!at.exists());
    }
    client.delete(&id).await.unwrap();
    testbed.assert_nothing_left();
}

#[tokio::test]
async fn volumes_are_placed_on_the_node_of_their_first_consumer() {
    let testbed = Testbed::start(&["--topology-key", "example.test/host"]);
    let mut client = testbed.connect().await;
    let place =
        |node: &str| Topology { segments: [("example.test/host".to_owned(), node.to_owned())].into() };
    let usage = mount(Mode::SingleNodeWriter);
    let mut wanted = volume("away", 8, usage.clone(), &[]);
    let (node1, node2) = (place("node1"), place("node2"));
    wanted.accessibility_requirements = Some(TopologyRequirement {
        requisite: vec![node1.clone(), node2.clone()],
        preferred: vec![node2.clone()],
    });
    let away = client.create(wanted.clone()).await.unwrap();
    assert_eq!(away.accessible_topology, [node2]);
    let refused = client.attach(&away.volume_id, &testbed.path("away"), &usage).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    let home = client.create(volume("home", 8, usage.clone(), &[])).await.unwrap();
    assert_eq!(home.accessible_topology, [node1]);
    let anywhere =
        client.create(volume("anywhere", 8, usage.clone(), &["placement=anywhere"])).await.unwrap();
    assert_eq!(anywhere.accessible_topology, []);

    let elsewhere = Topology { segments: [("zone".to_owned(), "z".to_owned())].into() };
    wanted.name = "nowhere".to_owned();
    wanted.accessibility_requirements =
        Some(TopologyRequirement { requisite: vec![elsewhere], preferred: vec![] });
    assert_eq!(client.create(wanted).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn volumes_grow_in_use_or_as_soon_as_they_are_staged_again() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (files, disk) = (mount(Mode::SingleNodeWriter), block(Mode::SingleNodeWriter));
    let image =
        client.create(volume("image", 32, files.clone(), &["backing=image"])).await.unwrap().volume_id;
    let raw = client.create(volume("raw", 32, disk.clone(), &[])).await.unwrap().volume_id;
    let (files_at, disk_at) = (testbed.path("files"), testbed.path("disk"));
    client.attach(&image, &files_at, &files).await.unwrap();
    client.attach(&raw, &disk_at, &disk).await.unwrap();

    let grown = expand(&mut client, &image, &files_at, 96).await;
    if may_grow_mounted_filesystems() {
        grown.unwrap();
    } else {
        assert_eq!(grown.unwrap_err().code(), Code::FailedPrecondition);
        client.detach(&image, &files_at).await.unwrap();
        client.attach(&image, &files_at, &files).await.unwrap();
        expand(&mut client, &image, &files_at, 96).await.unwrap();
    }
    let size = rustix::fs::statvfs(&files_at).unwrap();
    assert!(size.f_blocks * size.f_frsize > 80 * MIB);
    let request = proto::NodeGetVolumeStatsRequest {
        volume_id: image.clone(),
        volume_path: files_at.to_string_lossy().into_owned(),
    };
    let stats = client.node.node_get_volume_stats(request).await.unwrap().into_inner();
    assert_eq!(stats.usage[0].total as u64, size.f_blocks * size.f_frsize);
    assert_eq!(stats.usage.len(), 2);

    expand(&mut client, &raw, &disk_at, 64).await.unwrap();
    write_at(&disk_at, 64 * MIB - 4096, &[1; 4096]);
    client.detach(&image, &files_at).await.unwrap();
    client.detach(&raw, &disk_at).await.unwrap();
}

#[tokio::test]
async fn a_killed_driver_finds_its_volumes_again() {
    let mut testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let (files, disk) = (mount(Mode::SingleNodeWriter), block(Mode::SingleNodeWriter));
    let image =
        client.create(volume("image", 32, files.clone(), &["backing=image"])).await.unwrap().volume_id;
    let raw = client.create(volume("raw", 32, disk.clone(), &[])).await.unwrap().volume_id;
    let (files_at, disk_at) = (testbed.path("files"), testbed.path("disk"));
    client.attach(&image, &files_at, &files).await.unwrap();
    client.attach(&raw, &disk_at, &disk).await.unwrap();
    let device = device_number(&disk_at);

    testbed.restart();
    let mut client = testbed.connect().await;
    fs::write(files_at.join("file"), "alive").unwrap();
    write_at(&disk_at, 4096, b"alive");
    client.attach(&image, &files_at, &files).await.unwrap();
    client.attach(&raw, &disk_at, &disk).await.unwrap();
    assert_eq!(device_number(&disk_at), device, "a published device stays the same");
    assert_eq!(testbed.mounts().len(), 3, "{:?}", testbed.mounts());
    assert_eq!(testbed.loop_devices().len(), 2);

    // As after a restart of the machine: the mounts are gone, the records are not.
    testbed.kill();
    for point in testbed.mounts().iter().rev() {
        assert!(Command::new("umount").arg(point).status().unwrap().success());
    }
    testbed.restart();
    wait_for("devices without a publication to detach", || testbed.loop_devices().is_empty());
    let mut client = testbed.connect().await;
    client.attach(&image, &files_at, &files).await.unwrap();
    client.attach(&raw, &disk_at, &disk).await.unwrap();
    assert_eq!(fs::read_to_string(files_at.join("file")).unwrap(), "alive");
    assert_eq!(&fs::read(&disk_at).unwrap()[4096..4101], b"alive");
    for (id, at) in [(&image, &files_at), (&raw, &disk_at)] {
        client.detach(id, at).await.unwrap();
        client.detach(id, at).await.unwrap();
        client.delete(id).await.unwrap();
        client.delete(id).await.unwrap();
    }
    testbed.assert_nothing_left();
}

#[tokio::test]
async fn a_driver_killed_half_way_through_leaves_whole_objects_only() {
    let mut testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let usage = mount(Mode::SingleNodeWriter);
    let id = client.create(volume("source", 128, usage.clone(), &["backing=image"])).await.unwrap().volume_id;
    let at = testbed.path("source");
    client.attach(&id, &at, &usage).await.unwrap();
    fs::write(at.join("large"), vec![3; 80 << 20]).unwrap();

    for round in 0..6 {
        let mut background = testbed.connect().await;
        let name = format!("snapshot-{round}");
        let call = tokio::spawn({
            let (id, name) = (id.clone(), name.clone());
            async move { background.snapshot(&id, &name).await }
        });
        tokio::time::sleep(std::time::Duration::from_millis(15 * round)).await;
        testbed.restart();
        let _ = call.await.unwrap();
        // Whatever the moment, the filesystem is usable again and the same call succeeds.
        fs::write(at.join("file"), name.as_bytes()).unwrap();
        let mut client = testbed.connect().await;
        let snapshot = client.snapshot(&id, &name).await.unwrap();
        assert_sound(&testbed.image(&snapshot.snapshot_id));
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    }
    let mut client = testbed.connect().await;
    client.detach(&id, &at).await.unwrap();
    client.delete(&id).await.unwrap();
    testbed.assert_nothing_left();
}

#[tokio::test]
async fn impossible_requests_are_refused_and_change_nothing() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let usage = mount(Mode::SingleNodeWriter);
    let directory = client.create(volume("directory", 8, usage.clone(), &[])).await.unwrap().volume_id;
    let snapshot = client.snapshot(&directory, "snapshot").await.unwrap().snapshot_id;
    let mut typed = mount(Mode::SingleNodeWriter);
    if let Some(proto::volume_capability::AccessType::Mount(mount)) = &mut typed.access_type {
        mount.fs_type = "xfs".to_owned();
    }
    let mut as_block = volume("a", 8, block(Mode::SingleNodeWriter), &[]);
    as_block.volume_content_source = from_snapshot(&snapshot);
    let mut as_image = volume("b", 8, usage.clone(), &["backing=image"]);
    as_image.volume_content_source = from_snapshot(&snapshot);
    let mut too_small = volume("c", 0, usage.clone(), &[]);
    too_small.volume_content_source = from_snapshot(&snapshot);
    too_small.capacity_range = Some(proto::CapacityRange { required_bytes: 0, limit_bytes: 4 * MIB as i64 });
    let mut both = volume("d", 8, usage.clone(), &[]);
    both.volume_capabilities.push(block(Mode::SingleNodeWriter));
    let traversal = format!("vol-{}", "../".repeat(10));
    for (request, code) in [
        (as_block, Code::InvalidArgument),
        (as_image, Code::InvalidArgument),
        (too_small, Code::OutOfRange),
        (both, Code::InvalidArgument),
        (volume("e", 8, typed, &["backing=image"]), Code::InvalidArgument),
        (volume("f", 8, usage.clone(), &["colour=red"]), Code::InvalidArgument),
        (volume("g", 9 << 20, usage.clone(), &[]), Code::OutOfRange),
        (volume("directory", 8, block(Mode::SingleNodeWriter), &[]), Code::AlreadyExists),
    ] {
        let name = request.name.clone();
        assert_eq!(client.create(request).await.unwrap_err().code(), code, "{name}");
    }
    let strange = client.attach(&traversal, &testbed.path("x"), &usage).await.unwrap_err();
    assert_eq!(strange.code(), Code::NotFound);
    let early = client.create(volume("late", 8, usage.clone(), &["backing=image"])).await.unwrap().volume_id;
    let at = testbed.path("late");
    let unstaged = client.publish(&early, &staging(&at), &at, &usage, false).await.unwrap_err();
    assert_eq!(unstaged.code(), Code::FailedPrecondition);
    for id in [&early, &directory] {
        client.delete(id).await.unwrap();
    }
    client.delete_snapshot(&snapshot).await.unwrap();
    testbed.assert_nothing_left();
}

#[tokio::test]
async fn drivers_of_two_nodes_share_volumes_and_one_device_for_each() {
    let testbed = Testbed::start(&[]);
    let socket = testbed.path("node2.sock");
    let mut serve = Command::new(BINARY);
    serve
        .args(["serve", "--node-id", "node2", "--endpoint"])
        .arg(&socket)
        .arg("--state-dir")
        .arg(testbed.state());
    let _second = Process::spawn(&mut serve);
    wait_for("the second driver", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let (mut here, mut there) = (testbed.connect().await, Client::connect(&socket).await);

    for (kind, usage) in
        [("files", mount(Mode::MultiNodeMultiWriter)), ("disk", block(Mode::MultiNodeMultiWriter))]
    {
        let parameters = ["backing=image", "placement=anywhere"];
        let id = here.create(volume(kind, 32, usage.clone(), &parameters)).await.unwrap().volume_id;
        let (at_1, at_2) = (testbed.path(&format!("{kind}-1")), testbed.path(&format!("{kind}-2")));
        here.attach(&id, &at_1, &usage).await.unwrap();
        there.attach(&id, &at_2, &usage).await.unwrap();
        assert_eq!(testbed.loop_devices().len(), 1, "{kind}");
        let inside = |at: &Path| if at.is_dir() { at.join("file") } else { at.to_owned() };
        fs::File::options().create(true).write(true).truncate(false).open(inside(&at_2)).unwrap();
        write_at(&inside(&at_2), 0, b"written there");
        assert!(fs::read(inside(&at_1)).unwrap().starts_with(b"written there"), "{kind}");
        // The filesystem is frozen and thawed for both nodes, whoever takes the snapshot.
        here.snapshot(&id, kind).await.unwrap();
        write_at(&inside(&at_2), 0, b"WRITTEN");
        here.detach(&id, &at_1).await.unwrap();
        assert!(fs::read(inside(&at_2)).unwrap().starts_with(b"WRITTEN there"), "{kind}");
        assert_eq!(here.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition, "{kind}");
        there.detach(&id, &at_2).await.unwrap();
        wait_for("the device to detach", || testbed.loop_devices().is_empty());
        here.delete(&id).await.unwrap();
    }
}

#[tokio::test]
async fn cleanup_detaches_what_a_vanished_cluster_left_attached() {
    let mut testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let usage = block(Mode::SingleNodeWriter);
    let raw = client.create(volume("raw", 8, usage.clone(), &[])).await.unwrap().volume_id;
    client.attach(&raw, &testbed.path("disk"), &usage).await.unwrap();
    assert_eq!(testbed.loop_devices().len(), 1);
    testbed.kill();
    assert!(Command::new("umount").arg(testbed.path("disk")).status().unwrap().success());
    let cleanup = Command::new(BINARY).arg("cleanup").arg("--state-dir").arg(testbed.state()).status();
    assert!(cleanup.unwrap().success());
    wait_for("the device to detach", || testbed.loop_devices().is_empty());
}

#[tokio::test]
async fn the_kubelet_learns_about_this_driver_and_about_others() {
    let testbed = Testbed::start(&[]);
    let own = testbed.path("registry/own-reg.sock");
    let other = testbed.path("registry/other-reg.sock");
    let csi = testbed.path("second.sock");
    let mut serve = Command::new(BINARY);
    serve
        .args(["serve", "--node-id", "node2", "--endpoint"])
        .arg(&csi)
        .arg("--state-dir")
        .arg(testbed.state());
    let driver = Process::spawn(serve.arg("--registration-socket").arg(&own));
    let mut register = Command::new(BINARY);
    register.args([
        "register",
        "--driver-name",
        "hostpath.csi.k8s.io",
        "--csi-address",
        "unix:///plugins/csi.sock",
    ]);
    let registrar = Process::spawn(register.arg("--registration-socket").arg(&other));
    let mut answers = Vec::new();
    for socket in [&own, &other] {
        wait_for("the socket", || std::os::unix::net::UnixStream::connect(socket).is_ok());
        let channel =
            Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap();
        let mut client = RegistrationClient::new(channel);
        answers.push(client.get_info(InfoRequest {}).await.unwrap().into_inner());
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.unwrap();
    }
    assert!(driver.terminate() && registrar.terminate());
    let endpoint = csi.to_string_lossy().into_owned();
    let told = answers.iter().map(|info| (info.name.as_str(), info.endpoint.as_str())).collect::<Vec<_>>();
    assert_eq!(
        told,
        [("csi.lifeboat.test", endpoint.as_str()), ("hostpath.csi.k8s.io", "/plugins/csi.sock")]
    );
    assert!(answers.iter().all(|info| info.r#type == "CSIPlugin" && info.supported_versions == ["1.0.0"]));
    assert!(!own.exists() && !other.exists(), "sockets go with their process");
}
