//! A look at an operation: everything that the machine decides by.

use crate::agent::Agent;
use crate::exposing::{Exposed, Gate, resource_timeout};
use crate::hosting::{Hosted, hosted};
use crate::machine::{Hosting, Observation, Responsible, Suitable};
use crate::operation::notes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use lifeboat_api::Phase;
use lifeboat_datapath::observe;
use lifeboat_datapath::wire::Ending;
use lifeboat_exposer::{Next, Operation, Waiting};
use std::sync::Arc;

/// How long a mover may take to stop before its pod is removed.
pub(crate) const CANCEL_GRACE: SignedDuration = SignedDuration::from_secs(10);
/// As many movers are tried.
const MOVERS: u32 = 3;
/// After so long an operation falls to another agent, should the one it falls to not see it.
const TURN: SignedDuration = SignedDuration::from_secs(30);
/// So long a hand-over gets at least: others take moments for their part, whoever was not there before.
const MOMENT: SignedDuration = SignedDuration::from_secs(30);

/// What was seen of an operation.
pub(crate) struct Look<K: Exposed> {
    pub(crate) observation: Observation,
    pub(crate) pod: Option<Arc<Pod>>,
    /// Whether that pod is one whose loss is noted, so that it has to go.
    pub(crate) known_lost: bool,
    pub(crate) hosted: Hosted,
    /// Its hosting, if that had to be looked at.
    pub(crate) seen: Option<K::Seen>,
    /// What has to be so before it can be taken.
    pub(crate) gate: Gate,
    /// Why it cannot be done, if that is so.
    pub(crate) hopeless: Option<String>,
    /// How long handing a volume over may take, if that is over.
    late: Option<SignedDuration>,
    /// What handing it over waits for, once that is known.
    pub(crate) halted: Option<String>,
}

/// Looks at an operation. Most looks cost nothing but memory: only what decides about the next step is asked for.
pub(crate) async fn look<K: Exposed>(agent: &Agent, object: &K) -> Result<Look<K>, kube::Error> {
    let phase = object.phase();
    let operation = object.operation();
    let replacing = time(object.note(notes::REPLACING_SINCE));
    let finalizer = object.finalizers().iter().any(|one| one == K::FINALIZER);
    let gate = if phase.is_final() { Gate::default() } else { object.gate(agent).await? };
    let suitable = suitable(agent, object, &gate);
    let mut pod = if phase == Phase::New { None } else { known_pod(agent, object) };
    let whose = |pod: Option<&Pod>| responsible(agent, object, pod, gate.home.as_deref());
    let is_ours = |responsible| suitable != Suitable::Foreign && responsible != Responsible::Other;
    // Whose turn it is is told from memory: only that one asks the cluster.
    let mut responsible = whose(pod.as_deref());
    if is_ours(responsible) && !matches!(phase, Phase::New) {
        pod = current_pod(agent, object, pod, replacing.is_some()).await?;
        responsible = whose(pod.as_deref());
    }
    let ours = is_ours(responsible);
    // Before data moves there is nothing to lose: a pod that goes is made again.
    let wanted = replacing.is_some() || matches!(phase, Phase::Accepted | Phase::Prepared);
    let known_lost = pod.as_deref().is_some_and(|pod| is_known_lost(object, pod));
    let mut hosted = hosted(&operation, pod.as_deref(), wanted, known_lost);
    if ours
        && !known_lost
        && let Some(node) = lost_host(agent, object, pod.as_deref(), hosted.state).await?
    {
        hosted = hosted.on_lost_node(&node);
    }
    let moved = object.note(notes::MOVED).is_some();
    if ours
        && !moved
        && hosted.state == Hosting::Running
        && agent.says_all_moved(&operation.uid)
        && let Some(ending) = result_in_log(agent, &operation).await
    {
        hosted = Hosted::succeeded(ending);
    }
    // Hosting objects exist only under the finalizer, so operations that have long been over cost nothing.
    let over = phase.is_final() && finalizer && ours;
    let in_vain = over && matches!(phase, Phase::Failed | Phase::Canceled);
    let untold = in_vain && object.note(notes::TOLD).is_none() && object.is_awaited(agent).await?;
    let moving = K::HANDS_OVER && matches!(phase, Phase::InProgress | Phase::Canceling) && moved && ours;
    let seen = if over || moving { Some(object.look(agent, true).await?) } else { None };
    let unclaimable = seen.as_ref().filter(|_| moving).and_then(|seen| object.unclaimable(seen));
    let now = agent.now();
    let passed = |since: Option<Timestamp>, limit: SignedDuration| {
        since.is_some_and(|since| now.duration_since(since) >= limit)
    };
    let prepare_limit =
        SignedDuration::try_from(agent.options.prepare_timeout).unwrap_or(SignedDuration::MAX);
    let preparing_since = match phase {
        // A pod that is being deleted is waited for no longer than one that is being made.
        Phase::InProgress => {
            replacing.or_else(|| Some(pod.as_ref()?.metadata.deletion_timestamp.as_ref()?.0))
        }
        _ => object.accepted_at().map(|time| time.0),
    };
    let observation = Observation {
        kind: K::KIND,
        phase,
        suitable,
        responsible,
        finalizer,
        cancel: object.cancel(),
        deleting: object.meta().deletion_timestamp.is_some(),
        hosting: hosted.state,
        elsewhere: phase == Phase::Prepared && is_elsewhere(object, pod.as_deref()),
        untold,
        leftovers: seen.as_ref().filter(|_| over).is_some_and(|seen| object.clean(seen) != Next::Done),
        moved,
        handed_over: seen
            .as_ref()
            .filter(|_| moving)
            .is_some_and(|seen| object.hand_over(seen) == Next::Done),
        unclaimable: unclaimable.is_some(),
        // However late it is, what can be done is done: whether it does not get on is known only then.
        hand_over_overdue: false,
        kept: seen.as_ref().filter(|_| moving).is_some_and(|seen| object.keep(seen) == Next::Done),
        not_yet: gate.waiting.is_some(),
        queue_full: ours && phase == Phase::New && agent.queue_full(),
        // Slots are a node's own: nobody else gives them away.
        slots_full: ours
            && phase == Phase::Prepared
            && (object.node() != agent.options.node || agent.slots_full(object)),
        prepare_overdue: passed(preparing_since, prepare_limit),
        cancel_overdue: passed(time(object.note(notes::CANCELING_SINCE)), CANCEL_GRACE),
        attempts_exhausted: movers_lost(object) + 1 >= MOVERS,
    };
    let hand_over_limit =
        SignedDuration::try_from(resource_timeout(agent, object.operation_timeout()).to_std());
    let hand_over_limit = hand_over_limit.unwrap_or(SignedDuration::MAX);
    let moved_at = time(object.note(notes::MOVED_AT)).or_else(|| object.accepted_at().map(|time| time.0));
    let late = passed(moved_at, hand_over_limit).then_some(hand_over_limit);
    // What nobody could do comes before what this pod does not allow: another pod would not help.
    let hopeless = unclaimable.or_else(|| object.impossible()).or_else(|| gate.hopeless.clone());
    Ok(Look { observation, pod, known_lost, hosted, seen, gate, hopeless, late, halted: None })
}

/// Whether an operation may be this agent's to see to, told from memory alone. All agents hear of every change, and most
/// changes are none of their business.
pub(crate) fn may_be_ours<K: Exposed>(agent: &Agent, object: &K) -> bool {
    let pod = if object.phase() == Phase::New { None } else { known_pod(agent, object) };
    let home = object.home(agent);
    !is_foreign(agent, object)
        && responsible(agent, object, pod.as_deref(), home.as_deref()) != Responsible::Other
}

/// The node that an operation depends on, if that is lost: then its pod says what it last said, for ever.
async fn lost_host<K: Exposed>(
    agent: &Agent,
    object: &K,
    pod: Option<&Pod>,
    state: Hosting,
) -> Result<Option<String>, kube::Error> {
    let host = match (object.phase(), pod) {
        (Phase::Accepted | Phase::Prepared | Phase::InProgress, Some(pod)) => host(pod),
        // Only the agent of that node could go on with it.
        (Phase::Prepared, None) => Some(object.node()),
        _ => None,
    };
    let open = matches!(state, Hosting::Preparing | Hosting::Running | Hosting::Ending | Hosting::Absent);
    let Some(host) = host.filter(|_| open) else { return Ok(None) };
    Ok(agent.is_lost(host).await?.then(|| host.to_owned()))
}

/// The result in the log of a mover that says that all has moved, whatever its pod still says. Without it, the end of the pod
/// is waited for.
async fn result_in_log(agent: &Agent, operation: &Operation) -> Option<Ending> {
    let found = observe::result_in_log(agent.client.clone(), operation).await;
    found.inspect_err(|error| tracing::debug!(name = operation.name, %error, "no log to read")).ok()?
}

/// Whether a pod is that of a mover whose loss is noted.
fn is_known_lost<K: Exposed>(object: &K, pod: &Pod) -> bool {
    object.note(notes::REPLACING_SINCE).is_some()
        && object.note(notes::LOST_POD).is_some_and(|lost| pod.metadata.uid.as_deref() == Some(lost))
}

/// Whether the hosting pod is on another node than its operation says. One of a pod's volume cannot be.
fn is_elsewhere<K: Exposed>(object: &K, pod: Option<&Pod>) -> bool {
    !K::KIND.is_pod_volume() && pod.and_then(host).is_some_and(|host| host != object.node())
}

/// The node of a pod, once it has one.
pub(crate) fn host(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// How many movers of an operation were lost.
pub(crate) fn movers_lost<K: Exposed>(object: &K) -> u32 {
    object.note(notes::MOVERS_LOST).and_then(|count| count.parse().ok()).unwrap_or(0)
}

pub(crate) fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// The hosting pod, as it was last seen.
fn known_pod<K: Exposed>(agent: &Agent, object: &K) -> Option<Arc<Pod>> {
    agent.pod(&object.name_any()).filter(|pod| serves(pod, object))
}

/// The hosting pod: from memory, and only if it is not there from the cluster, so that a pod that was just made is not
/// taken for one that is gone. While a lost one is replaced memory is not trusted: it may still have that, which would then
/// be lost twice.
async fn current_pod<K: Exposed>(
    agent: &Agent,
    object: &K,
    known: Option<Arc<Pod>>,
    replacing: bool,
) -> Result<Option<Arc<Pod>>, kube::Error> {
    if known.is_some() && !replacing {
        return Ok(known);
    }
    if object.phase().is_final() {
        return Ok(None);
    }
    let pods: Api<Pod> = Api::namespaced(agent.client.clone(), &agent.options.namespace);
    Ok(pods.get_opt(&object.name_any()).await?.filter(|pod| serves(pod, object)).map(Arc::new))
}

fn serves<K: Exposed>(pod: &Pod, object: &K) -> bool {
    let uid = object.uid().unwrap_or_default();
    pod.owner_references().iter().any(|owner| owner.uid == uid)
}

/// Whether an operation names another mover.
fn is_foreign<K: Exposed>(agent: &Agent, object: &K) -> bool {
    let mover = object.data_mover();
    let built_in = agent.options.data_mover.is_empty() && matches!(mover, "" | "velero");
    !built_in && (mover.is_empty() || mover != agent.options.data_mover)
}

fn suitable<K: Exposed>(agent: &Agent, object: &K, gate: &Gate) -> Suitable {
    if is_foreign(agent, object) {
        Suitable::Foreign
    } else if gate.hopeless.is_some() || object.impossible().is_some() {
        Suitable::Impossible
    } else {
        Suitable::Yes
    }
}

/// Who has to act: the agent of the node that has the pod, before that the one that took the operation or has to, and if there
/// is none or it is not at work, whomever it falls to.
fn responsible<K: Exposed>(agent: &Agent, object: &K, pod: Option<&Pod>, home: Option<&str>) -> Responsible {
    let peers = agent.peers();
    let own = agent.options.node.as_str();
    let host = pod.and_then(host);
    let accepted = Some(object.accepted_by());
    let node = Some(object.node());
    let candidates = match object.phase() {
        Phase::New => [home, None],
        Phase::Accepted => [host, accepted],
        _ => [node, accepted],
    };
    let candidate = candidates.into_iter().flatten().find(|node| peers.contains(node));
    match candidate {
        Some(node) if node == own => Responsible::Us,
        Some(_) => Responsible::Other,
        None => {
            // A queue is kept by one, or it would overflow by as many as look at the same time.
            let queued = object.phase() == Phase::New
                && !K::KIND.is_pod_volume()
                && agent.settings().config.load_concurrency.prepare_queue_length > 0;
            let matter = if queued { "prepare queue".to_owned() } else { object.uid().unwrap_or_default() };
            let turn = if queued || K::KIND.is_pod_volume() { 0 } else { turn(agent, object) };
            let matter = if turn == 0 { matter } else { format!("{matter} {turn}") };
            if agent.is_appointed(&matter) { Responsible::Nobody } else { Responsible::Other }
        }
    }
}

/// How often an operation has fallen to another agent, should the one it fell to not see it: there is always one, and never
/// all at once. What is tied to a node does not wander, because the others could do no more than one of them.
fn turn<K: Exposed>(agent: &Agent, object: &K) -> i64 {
    let age = object.creation_timestamp().map(|made| agent.now().duration_since(made.0));
    age.map_or(0, |age| age.as_secs() / TURN.as_secs())
}

impl<K: Exposed> Look<K> {
    /// The same, now that it is known that handing the volume over does not get on by itself, and has not for `time`.
    pub(crate) fn halted(mut self, waiting: &Waiting, time: SignedDuration) -> Self {
        self.observation.hand_over_overdue = self.late.is_some_and(|limit| time >= limit.min(MOMENT));
        self.halted = Some(waiting.for_what.clone());
        self
    }

    /// The same, now that it is known that its hosting cannot come up.
    pub(crate) fn broken(mut self, reason: String) -> Self {
        self.observation.hosting = Hosting::Broken;
        self.hosted.words = Some(reason);
        self
    }
}
