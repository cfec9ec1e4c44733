#![allow(clippy::unwrap_used)]

use super::*;
use crate::format::{CreateOptions, Password};
use lifeboat_blobs::{MemoryStore, PutOptions};
use lifeboat_primitives::kdf::KeyAlgorithm;
use proptest::prelude::*;

/// What Kopia 0.22.3 stores in a new repository.
const KOPIA_PARAMS: &str = r#"{"owner":"u@h","quick":{"enabled":true,"interval":3600000000000},"full":{"enabled":true,"interval":86400000000000},"logRetention":{"maxTotalSize":1073741824,"maxCount":10000,"maxAge":2592000000000000},"extendObjectLocks":false,"listParallelism":0}"#;

fn key() -> Secret {
    Secret::from(&[7; 32][..])
}

#[test]
fn parameters_are_what_kopia_stores() {
    let params = Params { owner: "u@h".into(), ..Params::default() };
    assert_eq!(gojson::to_string(&params).unwrap(), KOPIA_PARAMS);
    assert_eq!(serde_json::from_str::<Params>(KOPIA_PARAMS).unwrap(), params);
    assert_eq!(LogRetention::default().or_default(), LogRetention::kopia_default());
    let few = LogRetention { max_count: 5, ..LogRetention::default() };
    assert_eq!(few.or_default(), few);
}

#[test]
fn a_schedule_is_written_as_specified_and_unknown_fields_survive() {
    let json = r#"{"nextFullMaintenance":"2026-11-17T00:30:21Z","nextQuickMaintenance":"0001-01-01T00:00:00Z","runs":{"advance-epoch":[{"start":"2026-11-16T00:30:21.5Z","end":"2026-11-16T00:30:21.6Z","success":true,"extra":[{"kind":"advanceEpochStats","data":{"currentEpoch":0,"wasAdvanced":false}}]}],"future-task":[{"start":"2026-11-16T00:30:21Z","end":"2026-11-16T00:30:21Z","error":"no","new":1}]},"future":[]}"#;
    let schedule: Schedule = serde_json::from_str(json).unwrap();
    assert_eq!(gojson::to_string(&schedule).unwrap(), json);
    assert_eq!(schedule.runs_of(Task::AdvanceEpoch).len(), 1);
    assert!(schedule.runs_of(Task::SnapshotGc).is_empty());
    assert_eq!(schedule.next_quick.get(), None);
    let empty = gojson::to_string(&Schedule::default()).unwrap();
    assert_eq!(
        empty,
        r#"{"nextFullMaintenance":"0001-01-01T00:00:00Z","nextQuickMaintenance":"0001-01-01T00:00:00Z","runs":null}"#
    );
}

#[test]
fn the_schedule_remembers_the_last_fifty_runs() {
    let mut schedule = Schedule::default();
    for i in 0..60 {
        schedule.report(Task::CleanupLogs, Run { error: i.to_string(), ..Run::default() });
    }
    let runs = schedule.runs_of(Task::CleanupLogs);
    assert_eq!((runs.len(), runs[0].error.as_str(), runs[49].error.as_str()), (MAX_RUNS, "59", "10"));
}

#[test]
fn a_sealed_schedule_opens_with_its_key_only() {
    let env = Environment::default();
    let mut schedule = Schedule::default();
    schedule.report(Task::SnapshotGc, Run { success: true, ..Run::default() });
    let sealed = schedule.seal(&key(), &env).unwrap();
    assert_ne!(sealed, schedule.seal(&key(), &env).unwrap(), "a nonce is used once");
    let opened = Schedule::open(&key(), &sealed).unwrap();
    assert_eq!(gojson::to_vec(&opened).unwrap(), gojson::to_vec(&schedule).unwrap());
    let damaged = |bytes: &[u8], key: &Secret| matches!(Schedule::open(key, bytes), Err(Error::DamagedBlob { blob, .. }) if blob == SCHEDULE_BLOB);
    assert!(damaged(&sealed, &Secret::from(&[8; 32][..])));
    assert!(damaged(&sealed[..sealed.len() - 1], &key()));
    assert!(damaged(&sealed[..5], &key()));
    assert!(damaged(&[], &key()));
    let mut flipped = sealed.clone();
    flipped[20] ^= 1;
    assert!(damaged(&flipped, &key()));
}

#[tokio::test]
async fn a_schedule_is_kept_in_the_store() {
    let (store, env) = (MemoryStore::new(), Environment::default());
    let options = CreateOptions { key_algorithm: KeyAlgorithm::Pbkdf2, ..CreateOptions::default() };
    let format = Format::create(&store, &Password::new("p"), &options, &env).await.unwrap();
    let mut schedule = Schedule::load(&store, &format).await.unwrap();
    assert!(schedule.runs.is_none());
    schedule.report(Task::CompactSingleEpoch, Run::default());
    schedule.save(&store, &format, &env).await.unwrap();
    let loaded = Schedule::load(&store, &format).await.unwrap();
    assert_eq!(loaded.runs_of(Task::CompactSingleEpoch).len(), 1);
    let id = BlobId::new(SCHEDULE_BLOB).unwrap();
    store.put(&id, b"short".to_vec().into(), &PutOptions::default()).await.unwrap();
    assert!(matches!(Schedule::load(&store, &format).await, Err(Error::DamagedBlob { .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_no_schedule_but_never_a_panic(bytes: Vec<u8>) {
        prop_assert!(Schedule::open(&key(), &bytes).is_err());
        let _ = serde_json::from_slice::<Schedule>(&bytes);
        let _ = serde_json::from_slice::<Params>(&bytes);
    }
}
