//! The cluster's own network: a bridge without a way out, one port per further node, routes between the pods' ranges.

use crate::spec::{NodeId, Spec};
use crate::{Result, command, tools};
use rustix::process::Pid;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// Sets up the first node's network: the bridge that the other nodes are plugged into.
///
/// The default route makes packets to service addresses travel as far as the address translation; nothing
/// leads out of the namespace.
pub(crate) fn set_up_first(pid: Pid) -> Result<()> {
    let address = NodeId::FIRST.address();
    batch(
        pid,
        &format!(
            "link set lo up\n\
             link add node0 type bridge\n\
             addr add {address}/24 dev node0\n\
             link set node0 up\n\
             route add default dev node0 src {address}\n"
        ),
    )
}

/// Plugs a further node into the bridge of the first and lays the routes between their pods.
pub(crate) fn plug_in(first: Pid, node: NodeId, pid: Pid, spec: &Spec) -> Result<()> {
    let port = format!("port{}", node.number());
    let address = node.address();
    let gateway = NodeId::FIRST.address();
    batch(
        first,
        &format!(
            "link add {port} type veth peer name eth0 netns {pid}\n\
             link set {port} master node0 up\n\
             route replace {} via {address}\n",
            node.pod_range()
        ),
    )?;
    let mut commands = format!(
        "link set lo up\n\
         addr add {address}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {gateway} src {address}\n"
    );
    for other in spec.node_ids().filter(|other| *other != node) {
        // Writing to a string cannot fail.
        let _ = writeln!(commands, "route replace {} via {}", other.pod_range(), other.address());
    }
    batch(pid, &commands)
}

fn batch(pid: Pid, commands: &str) -> Result<()> {
    let mut ip = Command::new(tools::system("nsenter")?);
    ip.args(["-t", &pid.to_string(), "-n"]).arg(tools::system("ip")?).args(["-batch", "-"]);
    command::run(&mut ip, commands.as_bytes(), Duration::from_secs(60)).map(drop)
}
