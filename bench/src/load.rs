//! Many uploads of small volumes on one node, by Velero's node-agent and by ours: how long they take, what they ask the API
//! server for, and whether the node-agent's memory grows.

use crate::stage::{Agent, Stage, wait};
use crate::table::Table;
use anyhow::{Context, Result, bail, ensure};
use lifeboat_testbed::objects::{claim, list, pod, ready_to_use, snapshot, upload};
use lifeboat_testbed::testing::TestNamespace;
use lifeboat_testbed::{TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use std::time::Instant;

/// As many volumes the uploads are of.
const VOLUMES: usize = 10;
/// What each has: little, but not the same.
const FILL: &str =
    "[ -f /data/.done ] || head -c 1000000 /dev/urandom > /data/file; touch /data/.done; sleep 86400";
/// Where the API server notes the pod that asks.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// So much more memory than at half time our agent may have at the end, in bytes.
const GROWTH: u64 = 4 << 20;

/// What all uploads took.
struct Outcome {
    seconds: f64,
    /// Requests of the node-agent, by verb.
    agent: BTreeMap<String, usize>,
    /// Requests of movers, by verb.
    movers: BTreeMap<String, usize>,
    /// The node-agent's own memory before the first, at half time, and after the last, in bytes.
    memory: [u64; 3],
}

impl Outcome {
    /// All requests, of the node-agent and of movers.
    fn requests(&self) -> usize {
        self.agent.values().chain(self.movers.values()).sum()
    }
}

/// Measures both agents, and writes and prints one table.
pub fn run(uploads: usize, at_once: usize, output: &Path) -> Result<()> {
    // Hosting pods that wait for a slot would otherwise be as many as there are uploads, more than a node may have.
    let concurrency = json!({ "globalConfig": at_once, "prepareQueueLength": 2 * at_once });
    let stage = Stage::new(&json!({ "loadConcurrency": concurrency }))?;
    let space = TestNamespace::new(&stage.cluster, "bench")?;
    for number in 0..VOLUMES {
        let name = volume(number);
        let of = claim(&name, TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None);
        space.apply(&list(&[of, pod(&name, FILL, &name, None)]))?;
    }
    for number in 0..VOLUMES {
        space.wait_for_pod(&volume(number))?;
    }
    let mut outcomes = Vec::new();
    for agent in Agent::ALL {
        stage.put_to_work(agent)?;
        // The first has the repository made.
        load(&stage, &space, agent, "first", 1)?;
        let outcome = load(&stage, &space, agent, "load", uploads)?;
        eprintln!("{}: {:?}, {:?}", agent.name(), outcome.agent, outcome.movers);
        outcomes.push(outcome);
    }
    let table = table(uploads, &outcomes);
    std::fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    std::fs::write(output.join("load.md"), table.to_string()).context("write the table")?;
    print!("{table}");
    // In the order in which they were measured.
    let [veleros, ours] = outcomes.as_slice() else { bail!("not both agents were measured") };
    check(veleros, ours)
}

/// Whether our agent keeps its memory to itself once half is over, and asks for no more than Velero's.
fn check(veleros: &Outcome, ours: &Outcome) -> Result<()> {
    let [_, half, last] = ours.memory.map(|bytes| bytes >> 10);
    ensure!(
        ours.memory[2] <= ours.memory[1] + GROWTH,
        "the node-agent's memory grows with what is over: {half} KiB at half time, {last} KiB at the end"
    );
    let (theirs, our) = (veleros.requests(), ours.requests());
    ensure!(our <= theirs, "ours makes {our} requests for what Velero's makes {theirs} for");
    Ok(())
}

fn volume(number: usize) -> String {
    format!("volume-{}", number % VOLUMES)
}

/// Has so many uploads done, and waits until nothing is left of their hosting.
fn load(stage: &Stage, space: &TestNamespace<'_>, agent: Agent, what: &str, count: usize) -> Result<Outcome> {
    let cluster = &stage.cluster;
    let name = |number: usize| format!("{}-{what}-{number}", agent.name());
    let snapshots: Vec<Value> =
        (0..count).map(|number| snapshot(&name(number), TEST_SNAPSHOT_CLASS, &volume(number))).collect();
    space.apply(&list(&snapshots))?;
    wait(
        "all snapshots are ready",
        || {
            let all = cluster.kubectl().get(["-n", space.name(), "volumesnapshots"])?;
            Ok(items(&all).filter(|it| ready_to_use(it)).count())
        },
        count,
    )?;

    let groups = cluster.pod_groups(&stage.agent_pod()?)?;
    let first = groups.own_memory()?;
    let mut log =
        File::open(cluster.layout().audit_log()).context("open the API server's log of requests")?;
    log.seek(SeekFrom::End(0))?;
    let uploads: Vec<Value> = (0..count)
        .map(|number| {
            let mut one = upload(space.name(), &name(number), &volume(number));
            one["spec"]["backupStorageLocation"] = json!(agent.name());
            one["metadata"]["labels"]["bench"] = json!(what);
            one
        })
        .collect();
    let began = Instant::now();
    cluster.kubectl().apply(&list(&uploads))?;
    let label = format!("bench={what}");
    let mut half = None;
    wait(
        "all uploads are over",
        || {
            let all = cluster.kubectl().get(["-n", "velero", "datauploads", "-l", &label])?;
            let mut over = 0;
            for one in items(&all) {
                let (name, status) = (&one["metadata"]["name"], &one["status"]);
                let failed = ["Failed", "Canceled"].iter().any(|phase| status["phase"] == *phase);
                ensure!(!failed, "{name} did not complete: {status:#}");
                over += usize::from(status["phase"] == "Completed");
            }
            if half.is_none() && over * 2 >= count {
                half = Some(groups.own_memory()?);
            }
            Ok(over)
        },
        count,
    )?;
    let seconds = began.elapsed().as_secs_f64();
    let prefix = format!("{}-{what}-", agent.name());
    wait(
        "nothing is left of their hosting",
        || {
            let pods = cluster.kubectl().get(["-n", "velero", "pods"])?;
            let hosts =
                |pod: &&Value| pod["metadata"]["name"].as_str().is_some_and(|it| it.starts_with(&prefix));
            Ok(usize::from(items(&pods).filter(hosts).count() == 0))
        },
        1,
    )?;
    let last = groups.own_memory()?;
    let [agent, movers] = requests(log, &prefix)?;
    cluster.kubectl().run(["-n", "velero", "delete", "datauploads", "-l", &label, "--wait=true"])?;
    Ok(Outcome { seconds, agent, movers, memory: [first, half.unwrap_or(first), last] })
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// What the node-agent and the movers whose pods' names begin so have asked for, by verb, from here in the API server's log on.
fn requests(log: File, movers: &str) -> Result<[BTreeMap<String, usize>; 2]> {
    let mut counts = [BTreeMap::new(), BTreeMap::new()];
    let mut seen = HashSet::new();
    for line in BufReader::new(log).lines() {
        let request: Value = serde_json::from_str(&line?).context("read the API server's log of requests")?;
        let pod = request["user"]["extra"][POD_NAME][0].as_str().unwrap_or_default();
        let who = match pod {
            pod if pod.starts_with("node-agent-") => 0,
            pod if pod.starts_with(movers) => 1,
            _ => continue,
        };
        // A request that takes long is told more than once.
        if seen.insert(request["auditID"].as_str().unwrap_or_default().to_owned()) {
            let verb = request["verb"].as_str().unwrap_or_default().to_owned();
            *counts[who].entry(verb).or_default() += 1;
        }
    }
    Ok(counts)
}

fn table(uploads: usize, outcomes: &[Outcome]) -> Table {
    let heads =
        ["node-agent", "uploads", "seconds", "requests for each", "of the agent", "of the mover", "MiB"];
    let mut table = Table::new(&heads);
    for (agent, outcome) in Agent::ALL.into_iter().zip(outcomes) {
        let each = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>() as f64 / uploads as f64;
        let by_verb = |counts: &BTreeMap<String, usize>| {
            let verbs: Vec<String> = counts
                .iter()
                .map(|(verb, count)| format!("{verb} {:.1}", *count as f64 / uploads as f64))
                .collect();
            format!("{:.1} ({})", each(counts), verbs.join(", "))
        };
        let memory: Vec<String> = outcome.memory.iter().map(|bytes| (bytes >> 20).to_string()).collect();
        table.row([
            agent.name().to_owned(),
            uploads.to_string(),
            format!("{:.0}", outcome.seconds),
            format!("{:.1}", each(&outcome.agent) + each(&outcome.movers)),
            by_verb(&outcome.agent),
            by_verb(&outcome.movers),
            memory.join(", "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(requests: usize, half: u64, last: u64) -> Outcome {
        let agent = BTreeMap::from([("get".to_owned(), requests - 10)]);
        let movers = BTreeMap::from([("list".to_owned(), 10)]);
        Outcome { seconds: 1.0, agent, movers, memory: [1 << 20, half << 20, last << 20] }
    }

    #[test]
    fn an_agent_that_grows_or_asks_for_more_than_veleros_is_told_of() {
        // That Velero's grows is not ours to see to.
        let veleros = outcome(100, 20, 60);
        let said = |ours: &Outcome| check(&veleros, ours).map_err(|error| error.to_string());
        assert_eq!(said(&outcome(100, 8, 12)), Ok(()));
        assert!(said(&outcome(101, 8, 8)).is_err_and(|said| said.contains("101 requests")));
        assert!(said(&outcome(50, 8, 13)).is_err_and(|said| said.contains("13312 KiB at the end")));
    }
}
