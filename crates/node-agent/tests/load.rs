//! Many operations on many nodes: the real agents, one for each node, against a model of everything else.
//!
//! The default run is short. `LIFEBOAT_LONG=1` is ten thousand operations on five hundred nodes, which only a build with
//! optimisation gets done: a test without has one made and run. `LIFEBOAT_LOAD=NODES,OPERATIONS` chooses any other size.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;

use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use model::agents::Agent;
use model::api::{Api, Change, Selector};
use model::objects::{
    CLAIMS, CONFIG_MAPS, CONTENTS, EVENTS, PODS, SNAPSHOTS, VOLUMES, foundations, node, operation, operations,
};
use model::world::{World, text};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As many volumes a node moves at once.
const SLOTS: usize = 2;
/// As many operations are open at once for each node: the server makes them as it takes snapshots, not all before the first.
const OPEN: usize = 4;
/// How long a mover takes.
const WORK: Duration = Duration::from_millis(20);
/// As many watches an agent has.
const WATCHES: u64 = 11;
/// An operation costs the API no more requests than this, however many there are and on however many nodes.
const REQUESTS: f64 = 100.0;
/// No more of them are changes of objects.
const PATCHES: f64 = 15.0;
/// How often the ledger is gone through, which lists what is in it.
const SWEEP: Duration = Duration::from_secs(60);
/// The one test of this file.
const TEST: &str = "thousands_of_operations_on_hundreds_of_nodes_all_complete_at_a_bounded_cost";
/// The long run.
const LONG: (usize, usize) = (500, 10_000);
/// After so long without any change of any operation, those that are open are stuck.
const STUCK: Duration = Duration::from_secs(120);
/// Whoever changes more often than this goes round in circles.
const CHANGES: usize = 50;

/// What can be told about operations from who wrote what.
#[derive(Default)]
struct Books {
    /// The clients that began to move an operation.
    starts: HashMap<String, Vec<String>>,
    /// Operations that a node moves.
    busy: HashMap<String, HashSet<String>>,
    /// The most that any node has moved at once.
    most: usize,
    /// Operations that are over and held by nobody.
    settled: usize,
    /// How often any operation has changed.
    changes: usize,
}

impl Books {
    fn take_down(&mut self, change: &Change) {
        let Some(after) = change.after.as_deref().filter(|_| change.place.kind.starts_with("velero.io/"))
        else {
            return;
        };
        self.changes += 1;
        let phase = |object: &Value| object["status"]["phase"].as_str().map(str::to_owned);
        let uid = text(&after["metadata"]["uid"]).to_owned();
        let before = change.before.as_deref();
        if phase(after).as_deref() == Some("InProgress") && before.and_then(phase) != phase(after) {
            self.starts.entry(uid.clone()).or_default().push(change.by.clone());
        }
        let moved = after["metadata"]["annotations"].get("lifeboat.io/moved").is_some();
        let moving = matches!(phase(after).as_deref(), Some("InProgress" | "Canceling")) && !moved;
        let busy = self.busy.entry(mover(after)).or_default();
        if moving {
            busy.insert(uid);
        } else {
            busy.remove(&uid);
        }
        self.most = self.most.max(busy.len());
        self.settled += usize::from(settled(after) && !before.is_some_and(settled));
    }
}

/// The node that moves the data of an operation.
fn mover(operation: &Value) -> String {
    let node = operation["status"]["node"].as_str().or_else(|| operation["spec"]["node"].as_str());
    node.unwrap_or_default().to_owned()
}

fn settled(operation: &Value) -> bool {
    let held = operation["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
    let phase = operation["status"]["phase"].as_str();
    !held && Phase::ALL.iter().any(|it| it.is_final() && Some(it.as_str()) == phase)
}

/// How many nodes and operations.
fn size() -> (usize, usize) {
    if let Ok(size) = std::env::var("LIFEBOAT_LOAD") {
        let (nodes, operations) = size.split_once(',').expect("LIFEBOAT_LOAD is NODES,OPERATIONS");
        return (nodes.parse().unwrap(), operations.parse().unwrap());
    }
    if is_long() { LONG } else { (20, 300) }
}

fn is_long() -> bool {
    std::env::var_os("LIFEBOAT_LONG").is_some() && std::env::var_os("LIFEBOAT_LOAD").is_none()
}

/// Has the long run made by a build with optimisation.
fn run_with_optimisation() {
    let mut command = Command::new(std::env::var_os("CARGO").expect("cargo runs this test"));
    command.args(["test", "--release", "--package", env!("CARGO_PKG_NAME"), "--test", "load", "--"]);
    let ended = command.args([TEST, "--exact", "--nocapture"]).output().expect("cargo can be run");
    // Its results are not taken for those of another test, as they would be if it printed them itself.
    let [said, why] = [&ended.stdout, &ended.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(ended.status.success(), "the build with optimisation, or its run, failed:\n{why}\n{said}");
    println!("{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_operations_on_hundreds_of_nodes_all_complete_at_a_bounded_cost() {
    if is_long() && cfg!(debug_assertions) {
        return run_with_optimisation();
    }
    let (nodes, count) = size();
    let books = Arc::new(Mutex::new(Books::default()));
    let taken_down = Arc::clone(&books);
    let api = Api::new(move |change| taken_down.lock().take_down(change));
    let world = World::new(Arc::clone(&api));
    world.turn(|weather| weather.work = WORK);
    foundations(&api, SLOTS, 0);
    let names: Vec<String> = (0..nodes).map(|number| format!("node-{number}")).collect();
    names.iter().for_each(|name| node(&api, name));
    let mut agents: Vec<Agent> = names.iter().map(|name| Agent::new(&api, name)).collect();
    agents.iter_mut().for_each(Agent::start);
    let watches = u64::try_from(nodes).unwrap() * WATCHES;
    until("all agents are at work", || {
        sum(&api.requests(), |request| request.starts_with("watch")) >= watches
    })
    .await;

    let before = requests(&api);
    let began = Instant::now();
    let mut memory = Vec::new();
    let mut made = 0;
    let mut last = (0, Instant::now());
    loop {
        let Books { settled, changes, .. } = *books.lock();
        while made < count && made < settled + OPEN * nodes {
            let kind = Kind::ALL[made % Kind::ALL.len()];
            operation(&api, kind, &format!("operation-{made}"), &names[made / Kind::ALL.len() % nodes]);
            made += 1;
        }
        if settled * 10 >= count * (memory.len() + 1) {
            memory.push(resident_mib());
        }
        if settled == count {
            break;
        }
        if changes > last.0 {
            last = (changes, Instant::now());
        }
        assert!(changes <= count * CHANGES, "operations change {changes} times:\n{}", stuck(&api));
        assert!(last.1.elapsed() < STUCK, "{settled} of {count} are over; stuck:\n{}", stuck(&api));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();

    let mut totals = requests(&api);
    totals.iter_mut().for_each(|(request, times)| *times -= before.get(request).copied().unwrap_or(0));
    let of_each = |requests: u64| requests as f64 / count as f64;
    let each = of_each(totals.values().sum());
    println!(
        "{count} operations on {nodes} nodes took {took:.1?}, which are {:.1} in a second, and {each:.1} requests each; MiB: {memory:?}",
        count as f64 / took.as_secs_f64()
    );
    for (request, times) in &totals {
        println!("{times:>8} {request}");
    }
    let books = books.lock();
    for kind in Kind::ALL {
        for object in api.list(&operations(kind), &Selector::default()).0 {
            let name = text(&object["metadata"]["name"]);
            assert_eq!(object["status"]["phase"], "Completed", "{name}: {}", object["status"]["message"]);
            assert!(world.is_exact(kind, &object), "{name} has not what its mover moved: {object}");
            let starts = &books.starts[text(&object["metadata"]["uid"])];
            assert_eq!(*starts, [format!("{}#1", mover(&object))], "{name} was not moved by one agent");
        }
    }
    assert_eq!(books.most, SLOTS, "a node moved more volumes at once than it may, or never as many");
    assert!(each <= REQUESTS, "an operation costs {each:.1} requests");
    let patches = of_each(sum(&totals, |request| request.starts_with("patch ")));
    assert!(patches <= PATCHES, "an operation costs {patches:.1} patches");
    // Events are listed once for each diagnosis of a long wait, and how many wait long is up to the machine.
    let lists = sum(&totals, |request| request.starts_with("list ") && request != "list /events");
    assert!(lists <= u64::try_from(count / 2).unwrap(), "{lists} lists for {count} operations: {totals:?}");
    // Whoever is told of every change has no need to list; the ledger is gone through by one agent.
    let sweeps = began.elapsed().as_secs() / SWEEP.as_secs() + 1;
    let listed = sum(&totals, |request| request == "list /pods");
    assert!(listed <= sweeps, "pods are listed {listed} times, beside {sweeps} times for the ledger");
    // Every agent hears of every operation, but of objects of others only of those that it made or that are on its node.
    let all_of = api.unselected();
    for kind in [PODS, CLAIMS, VOLUMES, SNAPSHOTS, CONTENTS, EVENTS, CONFIG_MAPS] {
        assert!(!all_of.contains(kind), "somebody lists or watches all objects of {kind}");
    }
    assert_eq!(world.leftovers(), Vec::<String>::new());
    let (early, late) = (memory[memory.len() / 2], memory[memory.len() - 1]);
    assert!(late <= early + early / 4 + 64, "memory grows with what is over: {memory:?} MiB");
}

fn requests(api: &Api) -> BTreeMap<String, u64> {
    let mut all = api.requests();
    all.retain(|request, _| !request.starts_with("watch"));
    all
}

fn sum(requests: &BTreeMap<String, u64>, of: impl Fn(&str) -> bool) -> u64 {
    requests.iter().filter(|(request, _)| of(request)).map(|(_, times)| times).sum()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it does not come about that {what}");
}

/// What open operations say of themselves, a few of them.
fn stuck(api: &Api) -> String {
    let all = Kind::ALL.into_iter().flat_map(|kind| api.list(&operations(kind), &Selector::default()).0);
    let open = all.filter(|object| !settled(object)).take(10);
    open.map(|object| {
        let name = text(&object["metadata"]["name"]);
        let notes = &object["metadata"]["annotations"];
        // Whatever was made for it has its name, or says whom it belongs to.
        let related = [PODS, CLAIMS, VOLUMES].map(|kind| {
            let found = api.list(kind, &Selector::default()).0;
            let found = found.into_iter().filter(|it| it.to_string().contains(&format!("{name}\"")));
            found
                .map(|it| format!("\n  {kind} {} {} {}", it["metadata"], it["spec"], it["status"]))
                .collect::<String>()
        });
        format!("{name}: {} {notes}{}\n", object["status"], related.concat())
    })
    .collect()
}

fn resident_mib() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * 4 / 1024
}
