//! One operation on a volume from its making to its end: when it came to which phase, and what its mover used meanwhile.

use anyhow::{Context, Result, bail, ensure};
use lifeboat_testbed::{Cluster, PodGroups};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any operation takes.
const LIMIT: Duration = Duration::from_secs(3600);
/// Short beside the life of any buffer worth measuring.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Until a watch has begun; whether it had is checked.
const HEAD_START: Duration = Duration::from_secs(2);
/// As much later than the answer to its making an operation may be seen.
const LATENESS: Duration = Duration::from_millis(500);

/// What one operation took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// From its making to its end, in seconds.
    pub whole: f64,
    /// From the moment its mover was told to begin to its end, in seconds.
    pub data_path: f64,
    /// What its mover took of the processors, in seconds.
    pub processor: f64,
    /// The most memory of its mover's own, in bytes; sampled, so a lower bound.
    pub memory: u64,
    /// What the object store took of the processors meanwhile, in seconds.
    pub store: f64,
}

/// Something that was seen, and when.
type Seen = (Instant, Value);

/// Has an operation done and measures it; one that does not complete is an error.
pub fn measure(cluster: &Cluster, operation: &Value) -> Result<(Cost, Value)> {
    let name = operation["metadata"]["name"].as_str().context("an operation has a name")?;
    let kind = operation["kind"].as_str().unwrap_or_default().to_lowercase();
    let version = operation["apiVersion"].as_str().unwrap_or_default();
    let (tell, seen) = channel();
    let _operations = Watch::start(cluster, &format!("/apis/{version}"), &format!("{kind}s"), name, &tell)?;
    let _pods = Watch::start(cluster, "/api/v1", "pods", name, &tell)?;
    thread::sleep(HEAD_START);
    let store_before = cluster.object_store_time()?;
    cluster.kubectl().apply(&operation.to_string())?;
    let answered = Instant::now();
    let (timeline, mover) = follow(cluster, &seen).with_context(|| format!("{kind} {name}"))?;
    ensure!(timeline.made <= answered + LATENESS, "{kind} {name} was seen too late to be measured");
    ensure!(mover.groups.is_some(), "the mover of {kind} {name} was not seen, so that it cannot be measured");
    let since = |start: Instant| timeline.ended.duration_since(start).as_secs_f64();
    let cost = Cost {
        whole: since(timeline.made),
        data_path: since(timeline.began),
        processor: mover.processor.as_secs_f64(),
        memory: mover.memory,
        store: cluster.object_store_time()?.saturating_sub(store_before).as_secs_f64(),
    };
    Ok((cost, timeline.operation))
}

/// When an operation was made, began to move data, and came to its end.
struct Timeline {
    made: Instant,
    began: Instant,
    ended: Instant,
    operation: Value,
}

/// What a mover has used so far.
#[derive(Default)]
struct Mover {
    groups: Option<PodGroups>,
    processor: Duration,
    memory: u64,
}

impl Mover {
    /// Its groups go with it, and what was last seen counts.
    fn sample(&mut self) {
        let Some(groups) = &self.groups else { return };
        if let (Ok(processor), Ok(memory)) = (groups.processor_time(), groups.own_memory()) {
            self.processor = self.processor.max(processor);
            self.memory = self.memory.max(memory);
        }
    }
}

fn follow(cluster: &Cluster, seen: &Receiver<Seen>) -> Result<(Timeline, Mover)> {
    let deadline = Instant::now() + LIMIT;
    let (mut made, mut began) = (None, None);
    let (mut pod, mut mover) = (Value::Null, Mover::default());
    loop {
        match seen.recv_timeout(SAMPLE_EVERY) {
            Ok((_, object)) if object["kind"] == "Pod" => pod = object,
            Ok((when, object)) => {
                let made = *made.get_or_insert(when);
                match object["status"]["phase"].as_str() {
                    Some("InProgress") => began = began.or(Some(when)),
                    Some("Completed") => {
                        let began = began.context("it was not seen to move data")?;
                        return Ok((Timeline { made, began, ended: when, operation: object }, mover));
                    }
                    Some("Failed" | "Canceled") => bail!("it did not complete: {:#}", object["status"]),
                    _ => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("nothing is told any more"),
        }
        if mover.groups.is_none() && !pod["spec"]["nodeName"].is_null() {
            // They are made a moment after the pod has its node.
            mover.groups = cluster.pod_groups(&pod).ok();
        }
        mover.sample();
        ensure!(Instant::now() < deadline, "it does not end");
    }
}

/// A watch of one object of Velero's namespace, by a `kubectl` that lives as long as this.
struct Watch(Child);

impl Watch {
    fn start(cluster: &Cluster, api: &str, plural: &str, name: &str, tell: &Sender<Seen>) -> Result<Self> {
        // From what the API server has in memory: to wait for something newer may fail when nothing happens.
        let path = format!(
            "{api}/namespaces/velero/{plural}?watch=true&resourceVersion=0&fieldSelector=metadata.name%3D{name}"
        );
        let mut command = cluster.kubectl().command(["get", "--raw", &path])?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("a watch has an output")?).lines();
        let tell = tell.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let when = Instant::now();
                let Ok(mut event) = serde_json::from_str::<Value>(&line) else { return };
                if event["type"] == "ERROR" {
                    eprintln!("a watch has ended: {}", event["object"]["message"]);
                    return;
                }
                // Nobody listens any more when all is over.
                if event["type"] != "DELETED" && tell.send((when, event["object"].take())).is_err() {
                    return;
                }
            }
        });
        Ok(Self(child))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
