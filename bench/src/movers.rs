//! Volumes moved by Velero's node-agent and by ours on the same cluster, with times, processor time and memory of the movers.

use crate::datasets::Dataset;
use crate::memory::{MEMORY, Supply};
use crate::plot::{self, Bars};
use crate::stage::{Agent, Stage, wait};
use crate::table::{Table, ratio};
use crate::watch::{Cost, measure};
use anyhow::{Context, Result, ensure};
use lifeboat_testbed::objects::{
    self, claim, list, owner_reference, pod, pod_backup, pod_restore, ready_to_use, reference, snapshot,
    waiting, waiting_pod,
};
use lifeboat_testbed::testing::{TestNamespace, condition};
use lifeboat_testbed::{BUSYBOX, TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long storage may take for a copy of a volume.
const COPY: Duration = Duration::from_secs(1800);
/// What users of volumes do.
const WAIT: &str = "touch /data/.done; sleep 86400";
/// The volume that the first upload of an agent is of, which is not measured: it has the repository made.
const NOTES: &str = "notes";

/// A volume that is moved.
#[derive(Debug, Clone, Copy)]
pub enum Volume {
    /// A file system with this in it.
    Files(&'static str, Dataset),
    /// A device, full of data that cannot be compressed.
    Device {
        /// Its size in MiB.
        mebibytes: u64,
    },
}

impl Volume {
    fn name(self) -> &'static str {
        match self {
            Volume::Files(name, _) => name,
            Volume::Device { .. } => "device",
        }
    }

    /// About how much data it has.
    fn bytes(self) -> u64 {
        match self {
            Volume::Files(_, dataset) => dataset.bytes(),
            Volume::Device { mebibytes } => mebibytes << 20,
        }
    }

    fn describe(self) -> String {
        match self {
            Volume::Files(_, dataset) => dataset.describe(),
            Volume::Device { mebibytes } => format!("device of {mebibytes} MiB"),
        }
    }

    /// A claim that it fits into.
    fn claim(self, name: &str) -> Value {
        match self {
            Volume::Files(..) => claim(name, TEST_CLASS_ANYWHERE, "Filesystem", "64Mi", None),
            Volume::Device { mebibytes } => {
                claim(name, TEST_CLASS_ANYWHERE, "Block", &format!("{mebibytes}Mi"), None)
            }
        }
    }
}

/// A row: what was done, and what it took by either agent.
struct Row {
    what: String,
    costs: [Cost; 2],
}

/// Measures both agents, and writes and prints one table, and a plot.
pub fn run(volumes: &[Volume], output: &Path) -> Result<()> {
    let stage = Stage::new(&json!({ "loadConcurrency": { "globalConfig": 4 } }))?;
    let space = TestNamespace::new(&stage.cluster, "bench")?;
    let mut runs = Vec::new();
    let mut supply = Supply::new(MEMORY.as_ref())?;
    let bytes = volumes.iter().map(|volume| volume.bytes()).max().unwrap_or_default();
    let fingerprints = fill(&stage, &space, volumes)?;
    for (number, agent) in Agent::ALL.into_iter().enumerate() {
        // There is not always memory for what both store.
        if let Some(former) = number.checked_sub(1).and_then(|number| Agent::ALL.get(number)) {
            stage.cluster.remove_location(former.name())?;
        }
        stage.put_to_work(agent)?;
        let mut run = Run { stage: &stage, space: &space, agent, supply: &mut supply, bytes };
        runs.push(run.measure(volumes, &fingerprints).with_context(|| format!("by {}", agent.name()))?);
    }
    let pairs = runs[0].iter().zip(&runs[1]);
    let rows: Vec<Row> = pairs
        .map(|((what, theirs), (_, ours))| Row { what: what.clone(), costs: [*theirs, *ours] })
        .collect();
    write(&rows, output)?;
    print!("{}", table(&rows));
    Ok(())
}

/// Makes the volumes, each in use by a pod of its name, and says what is in them.
fn fill(stage: &Stage, space: &TestNamespace<'_>, volumes: &[Volume]) -> Result<Vec<String>> {
    let notes = claim(NOTES, TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None);
    space.apply(&list(&[notes, pod(NOTES, WAIT, NOTES, None)]))?;
    space.wait_for_pod(NOTES)?;
    volumes
        .iter()
        .map(|volume| {
            let name = volume.name();
            space.apply(&volume.claim(name).to_string())?;
            use_volume(space, *volume, name)?;
            match volume {
                Volume::Files(_, dataset) => dataset.grow(&folder_of(stage, space, name)?)?,
                Volume::Device { mebibytes } => {
                    let line = format!(
                        "dd if=/dev/urandom of=/dev/raw bs=1M count={mebibytes} conv=fsync 2>/dev/null"
                    );
                    space.shell(name, "c", &line)?;
                }
            }
            fingerprint(space, *volume, name)
        })
        .collect()
}

/// Starts a pod that uses the claim of its name, and waits for it.
fn use_volume(space: &TestNamespace<'_>, volume: Volume, name: &str) -> Result<()> {
    let user = match volume {
        Volume::Files(..) => pod(name, WAIT, name, None),
        Volume::Device { .. } => pod(name, WAIT, NOTES, Some(name)),
    };
    space.apply(&user.to_string())?;
    Ok(space.wait_for_pod(name)?)
}

/// Where this machine finds the volume of a claim that a pod of its name uses.
fn folder_of(stage: &Stage, space: &TestNamespace<'_>, name: &str) -> Result<PathBuf> {
    let uid = space.get("pod", name)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let volume = space.get("pvc", name)?["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
    let folder = format!(
        "/proc/{}/root/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount",
        stage.cluster.node(1)?.pid()
    );
    ensure!(Path::new(&folder).is_dir(), "the volume of {name} is not at {folder}");
    Ok(folder.into())
}

/// Names and contents of all that is in the volume of a pod.
fn fingerprint(space: &TestNamespace<'_>, volume: Volume, pod: &str) -> Result<String> {
    let line = match volume {
        Volume::Files(..) => {
            "cd /data; find . -type f ! -name .done ! -path './.velero/*' | sort | xargs md5sum | md5sum"
        }
        Volume::Device { .. } => "md5sum < /dev/raw",
    };
    Ok(space.shell(pod, "c", line)?)
}

/// All operations by one agent.
struct Run<'a> {
    stage: &'a Stage,
    space: &'a TestNamespace<'a>,
    agent: Agent,
    supply: &'a mut Supply,
    /// As much as the largest volume has.
    bytes: u64,
}

impl Run<'_> {
    fn measure(&mut self, volumes: &[Volume], fingerprints: &[String]) -> Result<Vec<(String, Cost)>> {
        self.upload(NOTES, "first")?;
        let (agent, mut costs) = (self.agent.name(), Vec::new());
        for (volume, before) in volumes.iter().zip(fingerprints) {
            let mut note = |what: &str, cost: Cost| {
                let what = format!("{what}: {}", volume.describe());
                eprintln!("{agent}, {what}: {cost:.2?}");
                costs.push((what, cost));
            };
            let (backup, snapshot) = self.upload(volume.name(), "backup")?;
            note("backup", backup);
            note("no change", self.upload(volume.name(), "again")?.0);
            note("restore", self.download(*volume, &snapshot, before)?);
            if let Volume::Files(_, Dataset::LargeFile { .. }) = volume {
                let (backup, snapshot) = self.back_up_in_pod(volume.name())?;
                note("fs-backup", backup);
                note("fs-restore", self.restore_in_pod(*volume, &snapshot, before)?);
            }
        }
        Ok(costs)
    }

    fn name(&self, volume: &str, what: &str) -> String {
        format!("{}-{volume}-{what}", self.agent.name())
    }

    fn upload(&mut self, claim: &str, what: &str) -> Result<(Cost, String)> {
        let name = self.name(claim, what);
        self.space.apply(&snapshot(&name, TEST_SNAPSHOT_CLASS, claim).to_string())?;
        self.space.wait_within(COPY, "volumesnapshot", &name, "being ready", ready_to_use)?;
        self.have_done(objects::upload(self.space.name(), &name, claim))
    }

    fn download(&mut self, volume: Volume, snapshot: &str, before: &str) -> Result<Cost> {
        let name = self.name(volume.name(), "restore");
        self.space.apply(&waiting(volume.claim(&name)).to_string())?;
        let (cost, _) = self.have_done(objects::download(self.space.name(), &name, &name, snapshot))?;
        use_volume(self.space, volume, &name)?;
        self.compare(volume, &name, before)?;
        self.space.kubectl(["delete", "pvc", &name, "--wait=false"])?;
        Ok(cost)
    }

    fn back_up_in_pod(&mut self, user: &str) -> Result<(Cost, String)> {
        let user_of = reference(&self.space.get("pod", user)?);
        self.have_done(pod_backup(&self.name(user, "fs-backup"), &user_of))
    }

    fn restore_in_pod(&mut self, volume: Volume, snapshot: &str, before: &str) -> Result<Cost> {
        let name = self.name(volume.name(), "fs-restore");
        // The location stands for the restore that it would be part of, whose UID is the mark that the pod waits for.
        let location = ["-n", "velero", "backupstoragelocation", self.agent.name()];
        let owner = self.stage.cluster.kubectl().get(location)?;
        let mark = owner["metadata"]["uid"].as_str().unwrap_or_default();
        let line = format!("until [ -f /restores/data/.velero/{mark} ]; do sleep 1; done");
        let helper = json!({ "image": BUSYBOX, "command": ["sh", "-c", line] });
        self.space.apply(&waiting_pod(&name, helper).to_string())?;
        let waits = |pod: &Value| !pod["status"]["initContainerStatuses"][0]["state"]["running"].is_null();
        let user = self.space.wait("pod", &name, "waiting for its volume", waits)?;
        let mut restore = pod_restore(&name, &reference(&user), snapshot);
        restore["metadata"]["ownerReferences"] = json!([owner_reference(&owner)]);
        let (cost, _) = self.have_done(restore)?;
        self.space.wait("pod", &name, "having its volume", |pod| condition(pod, "Ready"))?;
        self.compare(volume, &name, before)?;
        Ok(cost)
    }

    /// Has an operation done in the location of this agent; what it is of comes with it.
    fn have_done(&mut self, mut operation: Value) -> Result<(Cost, String)> {
        operation["spec"]["backupStorageLocation"] = json!(self.agent.name());
        self.settle()?;
        self.supply.hold(self.bytes)?;
        let (cost, ended) = self.supply.during(|| measure(&self.stage.cluster, &operation))??;
        Ok((cost, ended["status"]["snapshotID"].as_str().unwrap_or_default().to_owned()))
    }

    /// Waits until storage has nothing left to do for an earlier operation. It copies and deletes whole volumes, and a copy that
    /// takes longer than ten seconds is asked for again only after pauses that double.
    fn settle(&self) -> Result<()> {
        wait(
            "storage has nothing left to do",
            || {
                let volumes = self.stage.cluster.kubectl().get(["persistentvolumes"])?;
                let mut all = volumes["items"].as_array().into_iter().flatten();
                let idle = |it: &Value| {
                    it["status"]["phase"] == "Bound" && it["spec"]["claimRef"]["namespace"] != "velero"
                };
                Ok(usize::from(all.all(idle)))
            },
            1,
        )?;
        rustix::fs::sync();
        Ok(())
    }

    /// What was restored is what was backed up; then its user goes.
    fn compare(&self, volume: Volume, user: &str, before: &str) -> Result<()> {
        let after = fingerprint(self.space, volume, user)?;
        ensure!(after == before, "{user} has {after}, not {before}");
        self.space.kubectl(["delete", "pod", user, "--wait=true"])?;
        Ok(())
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "operation: whole s, data path s, processor s of mover + store (own MiB)",
        "velero",
        "lifeboat",
        "× whole",
        "× data path",
        "× processor",
        "× memory",
    ]);
    let mebibytes = |bytes: u64| u32::try_from(bytes >> 20).map_or(f64::NAN, f64::from);
    for Row { what, costs: [theirs, ours] } in rows {
        let shown = |cost: &Cost| {
            let Cost { whole, data_path, processor, memory, store } = cost;
            format!("{whole:.1}, {data_path:.1}, {processor:.1} + {store:.1} ({})", memory >> 20)
        };
        let ratios = [
            ratio(theirs.whole, ours.whole),
            ratio(theirs.data_path, ours.data_path),
            ratio(theirs.processor, ours.processor),
            ratio(mebibytes(theirs.memory), mebibytes(ours.memory)),
        ];
        table.row([what.clone(), shown(theirs), shown(ours)].into_iter().chain(ratios));
    }
    table
}

fn write(rows: &[Row], output: &Path) -> Result<()> {
    std::fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text = format!("`cargo xtask bench {}`\n\n{}", words.join(" "), table(rows));
    std::fs::write(output.join("movers.md"), text).context("write the table")?;
    let bars = rows.iter().flat_map(|Row { what, costs: [theirs, ours] }| {
        let row = |which: &str, seconds: [f64; 2]| Bars {
            what: format!("{what}, {which}"),
            seconds: seconds.map(Some).to_vec(),
        };
        [row("whole", [ours.whole, theirs.whole]), row("data path", [ours.data_path, theirs.data_path])]
    });
    plot::draw(&["lifeboat", "velero"], &bars.collect::<Vec<_>>(), &output.join("movers.svg"))
}
