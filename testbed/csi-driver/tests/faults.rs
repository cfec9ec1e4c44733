//! Knobs: what tests ask for is what callers see.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Testbed, block, from_snapshot, mount, volume};
use lifeboat_testbed_csi::proto::volume_capability::access_mode::Mode;
use std::time::Duration;
use tonic::Code;

#[tokio::test]
async fn a_call_fails_as_often_as_asked_and_then_works() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    testbed.set_knobs(
        r#"{"method": "CreateVolume", "match": {"name": "pvc-"}, "times": 2, "fail": "UNAVAILABLE: try later"}"#,
    );
    let request = |name: &str| volume(name, 8, mount(Mode::SingleNodeWriter), &[]);
    client.create(request("other")).await.unwrap();
    for _ in 0..2 {
        let refused = client.create(request("pvc-1")).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "try later"));
    }
    client.create(request("pvc-1")).await.unwrap();
}

#[tokio::test]
async fn a_lost_answer_leaves_the_work_done() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    testbed.set_knobs(
        r#"{"method": "CreateSnapshot", "times": 1, "when": "after", "fail": "DEADLINE_EXCEEDED: lost"}"#,
    );
    let source =
        client.create(volume("source", 8, mount(Mode::SingleNodeWriter), &[])).await.unwrap().volume_id;
    assert_eq!(client.snapshot(&source, "one").await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(client.snapshots("").await.unwrap().len(), 1);
    client.snapshot(&source, "one").await.unwrap();
    assert_eq!(client.snapshots("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_by_id_is_recognised_by_the_name_and_parameters_of_its_object() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let parameters = ["csi.storage.k8s.io/pvc/name=data", "csi.storage.k8s.io/pvc/namespace=shop"];
    let id = client
        .create(volume("pvc-1", 8, mount(Mode::SingleNodeWriter), &parameters))
        .await
        .unwrap()
        .volume_id;
    for condition in [
        r#"{"name": "pvc-1"}"#.to_owned(),
        r#"{"parameters": {"csi.storage.k8s.io/pvc/name": "data"}}"#.to_owned(),
        format!(r#"{{"id": "{id}"}}"#),
    ] {
        testbed.set_knobs(&format!(
            r#"{{"method": "DeleteVolume", "match": {condition}, "times": 1, "fail": "INTERNAL: stuck"}}"#
        ));
        assert_eq!(client.delete(&id).await.unwrap_err().code(), Code::Internal, "{condition}");
    }
    testbed.set_knobs(r#"{"method": "DeleteVolume", "match": {"name": "pvc-2"}, "fail": "INTERNAL: stuck"}"#);
    client.delete(&id).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_gets_ready_late_or_never() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    let source =
        client.create(volume("source", 8, mount(Mode::SingleNodeWriter), &[])).await.unwrap().volume_id;
    testbed.set_knobs(
        r#"{"method": "CreateSnapshot", "match": {"name": "late"}, "times": 1, "not_ready": true},
           {"method": "ListSnapshots", "match": {"name": "late"}, "times": 2, "not_ready": true},
           {"method": "ListSnapshots", "match": {"name": "never"}, "not_ready": true}"#,
    );
    let late = client.snapshot(&source, "late").await.unwrap();
    assert!(!late.ready_to_use);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(client.snapshots(&late.snapshot_id).await.unwrap()[0].ready_to_use);
    }
    assert_eq!(seen, [false, false, true]);
    let never = client.snapshot(&source, "never").await.unwrap();
    for _ in 0..5 {
        assert!(!client.snapshots(&never.snapshot_id).await.unwrap()[0].ready_to_use);
    }
}

#[tokio::test]
async fn a_snapshot_is_lost_when_a_volume_is_to_be_made_from_it() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    for (kind, usage) in [("files", mount(Mode::SingleNodeWriter)), ("disk", block(Mode::SingleNodeWriter))] {
        let source = client.create(volume(kind, 8, usage.clone(), &[])).await.unwrap().volume_id;
        let snapshot = client.snapshot(&source, kind).await.unwrap().snapshot_id;
        let mut restore = volume(&format!("restored-{kind}"), 8, usage, &[]);
        restore.volume_content_source = from_snapshot(&snapshot);

        let rule = |loss: &str| {
            format!(r#"{{"method": "CreateVolume", "match": {{"source": "{snapshot}"}}, "lose": "{loss}"}}"#)
        };
        testbed.set_knobs(&rule("content"));
        assert_eq!(client.create(restore.clone()).await.unwrap_err().code(), Code::DataLoss);
        testbed.set_knobs("");
        assert!(client.snapshots(&snapshot).await.unwrap()[0].ready_to_use, "the driver does not know");
        assert_eq!(client.create(restore.clone()).await.unwrap_err().code(), Code::DataLoss);
        testbed.set_knobs(&rule("snapshot"));
        assert_eq!(client.create(restore).await.unwrap_err().code(), Code::NotFound);
        assert!(client.snapshots(&snapshot).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_call_that_hangs_holds_up_nobody_else() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    testbed.set_knobs(r#"{"method": "NodePublishVolume", "delay_ms": 60000}"#);
    let usage = mount(Mode::SingleNodeWriter);
    let id = client.create(volume("slow", 8, usage.clone(), &[])).await.unwrap().volume_id;
    let at = testbed.path("slow");
    let mut patient = client.clone();
    let slow = tokio::time::timeout(Duration::from_millis(300), patient.attach(&id, &at, &usage)).await;
    assert!(slow.is_err(), "the call must hang");
    // Other calls are not held up, and without the knob the same call works.
    testbed.set_knobs("");
    client.attach(&id, &at, &usage).await.unwrap();
    client.detach(&id, &at).await.unwrap();
}

#[tokio::test]
async fn a_mistake_in_the_knobs_is_an_error_of_every_call() {
    let testbed = Testbed::start(&[]);
    let mut client = testbed.connect().await;
    testbed.set_knobs(r#"{"method": "CreateVolumes"}"#);
    let refused = client.create(volume("any", 8, mount(Mode::SingleNodeWriter), &[])).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(refused.message().contains("CreateVolumes"), "{}", refused.message());
}
