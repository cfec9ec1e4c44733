//! Agents of the model's nodes: real ones, which can be stopped, killed and started again.

use super::api::{Api, Place};
use super::http::Line;
use super::objects::{DAEMON_SET, VELERO, agent_pod};
use lifeboat_node_agent::{Error, Options, run};
use serde_json::json;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The agent of one node.
pub struct Agent {
    api: Arc<Api>,
    node: String,
    pod: Place,
    at_work: Option<AtWork>,
    starts: u32,
}

struct AtWork {
    line: Line,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Agent {
    /// An agent that is not at work yet.
    pub fn new(api: &Arc<Api>, node: &str) -> Self {
        Self {
            api: Arc::clone(api),
            node: node.to_owned(),
            pod: agent_pod(api, node),
            at_work: None,
            starts: 0,
        }
    }

    pub fn start(&mut self) {
        self.start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    }

    /// Starts it, and tells where its metrics are.
    pub fn start_with_metrics(&mut self) -> SocketAddr {
        // An agent that was killed in the middle still holds its port, so each start has one of its own, at an address of
        // the machine itself that no other process uses.
        static PORTS: AtomicU16 = AtomicU16::new(20_000);
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let port = PORTS.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from((Ipv4Addr::new(127, a, b, c), port));
        self.start_at(address);
        address
    }

    fn start_at(&mut self, metrics: SocketAddr) {
        self.starts += 1;
        let line = Line::new(&self.api, &format!("{}#{}", self.node, self.starts));
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let task = tokio::spawn(run(line.client(), options(&self.node, metrics), stopped));
        self.at_work = Some(AtWork { line, stop, task });
        self.set_ready("True");
    }

    /// Lets it end what it does.
    pub async fn stop(&mut self) {
        let Some(AtWork { line, stop, task }) = self.at_work.take() else { return };
        let _ = stop.send(());
        let ended = tokio::time::timeout(Duration::from_secs(30), task).await;
        assert!(matches!(ended, Ok(Ok(Ok(())))), "the agent of {} ends in {ended:?}", self.node);
        line.cut();
        self.set_ready("False");
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(&mut self) {
        let Some(AtWork { line, task, .. }) = self.at_work.take() else { return };
        line.cut();
        task.abort();
        self.set_ready("False");
    }

    fn set_ready(&self, ready: &str) {
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        let known = self.api.patch("kubelet", &self.pod, &ready);
        assert!(known.is_ok(), "the pod of {}'s agent: {known:?}", self.node);
    }
}

/// What an agent counts, by the names of its metrics, summed up over their labels.
pub async fn metrics(address: SocketAddr) -> HashMap<String, f64> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(30), ask).await.unwrap().unwrap();
    let (_, page) = answer.split_once("\r\n\r\n").unwrap();
    let mut sums = HashMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.split('{').next().unwrap_or(name);
        *sums.entry(name.to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    sums
}

fn options(node: &str, metrics_address: SocketAddr) -> Options {
    Options {
        namespace: VELERO.to_owned(),
        node: node.to_owned(),
        daemon_set: DAEMON_SET.to_owned(),
        data_mover: String::new(),
        prepare_timeout: Duration::from_secs(1800),
        resource_timeout: lifeboat_api::Duration::from_secs(600),
        metrics_address,
        node_agent_config_map: String::new(),
        repository_config_map: String::new(),
    }
}
