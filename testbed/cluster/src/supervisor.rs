//! The first process of a node: it makes the node's file system view, starts the node's processes on order, and
//! reaps everything that ends. Killing it ends the node: the kernel ends every process of its pid namespace, and
//! the mounts go with the mount namespace.

use crate::control::{Process, ProcessState, Reply, Request};
use crate::spec::NodeLayout;
use crate::{Error, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, wait, waitid};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Settings of the whole machine that the kubelet overwrites when it starts. A node gets files of its own in their
/// place, so that the machine keeps its values.
const SHIELDED_SETTINGS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
];

/// The most an order may weigh; orders are a command line and an environment.
const LARGEST_REQUEST: u64 = 1 << 20;

/// Where the node's processes look for the programs they call; nothing else of the caller's environment is passed on.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The argument that marks a node's first process; with the folder it identifies the node among all processes.
pub(crate) const ROLE: &str = "init";

/// Runs a node's first process. Must be process 1 of new mount, pid and network namespaces; returns only on failure.
pub fn run(folder: &Path) -> Result<()> {
    let layout = NodeLayout::at(folder.to_owned());
    if std::process::id() != 1 {
        return Err(Error::Invalid(
            "a node's first process must start a pid namespace of its own; use `cargo xtask cluster up`"
                .to_owned(),
        ));
    }
    make_view(&layout)?;
    let socket = layout.control_socket();
    let listener = UnixListener::bind(&socket).map_err(Error::io("listen on", &socket))?;
    let table = Arc::new(Mutex::new(Table::default()));
    let reaped = Arc::clone(&table);
    thread::spawn(move || reap_forever(&reaped));
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => answer(stream, &table),
            Err(problem) => eprintln!("control socket: {problem}"),
        }
    }
    Ok(())
}

/// Own `/run`, `/var/lib` and `/var/log` at their usual paths: every default path of Kubernetes works unchanged,
/// and the machine's own folders stay untouched.
fn make_view(layout: &NodeLayout) -> Result<()> {
    let step = |path: &str, result: rustix::io::Result<()>| {
        result.map_err(|errno| Error::io("mount", path)(errno.into()))
    };
    step("/run", mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None))?;
    for folder in ["/run/netns", "/run/lock", "/run/shield"] {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    step("/var/lib", mount_bind(layout.var_lib(), "/var/lib"))?;
    // Pods that ask for it (Velero's node agent does) see mounts made below /var/lib later on.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    step("/var/lib", mount_change("/var/lib", shared))?;
    step("/var/log", mount_bind(layout.var_log(), "/var/log"))?;
    for setting in SHIELDED_SETTINGS {
        let Ok(value) = fs::read(setting) else { continue };
        let copy = format!("/run/shield/{}", setting.replace('/', "_"));
        fs::write(&copy, value).map_err(Error::io("write", &copy))?;
        step(setting, mount_bind(&copy, setting))?;
    }
    let forwarding = "/proc/sys/net/ipv4/ip_forward";
    fs::write(forwarding, "1").map_err(Error::io("write", forwarding))
}

/// The processes of the node by name.
#[derive(Default)]
struct Table {
    processes: BTreeMap<String, ProcessState>,
}

impl Table {
    fn start(&mut self, process: &Process) -> io::Result<()> {
        if self.processes.get(&process.name).is_some_and(|known| known.ended.is_none()) {
            return Err(io::Error::other(format!("{} is already running", process.name)));
        }
        let log = OpenOptions::new().create(true).append(true).open(&process.log)?;
        let child = Command::new(&process.program)
            .args(&process.args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .envs(&process.env)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let state = ProcessState { name: process.name.clone(), pid, ended: None };
        self.processes.insert(process.name.clone(), state);
        Ok(())
    }

    fn signal(&self, name: &str, signal: i32) -> io::Result<()> {
        let running = self.processes.get(name).filter(|process| process.ended.is_none());
        let process = running.ok_or_else(|| io::Error::other(format!("{name} is not running")))?;
        let pid = Pid::from_raw(process.pid).ok_or(Errno::SRCH)?;
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        Ok(kill_process(pid, signal)?)
    }
}

fn answer(mut stream: UnixStream, table: &Mutex<Table>) {
    let reply = match read_request(&mut stream) {
        Ok(Request::Start(process)) => done(table.lock().start(&process)),
        Ok(Request::Signal { name, signal }) => done(table.lock().signal(&name, signal)),
        Ok(Request::List) => Reply::Processes(table.lock().processes.values().cloned().collect()),
        Err(problem) => Reply::Failed(problem.to_string()),
    };
    let sent =
        serde_json::to_vec(&reply).map_err(io::Error::other).and_then(|bytes| stream.write_all(&bytes));
    if let Err(problem) = sent {
        eprintln!("control socket: {problem}");
    }
}

fn read_request(stream: &mut UnixStream) -> io::Result<Request> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut bytes = Vec::new();
    stream.take(LARGEST_REQUEST).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn done(result: io::Result<()>) -> Reply {
    match result {
        Ok(()) => Reply::Done,
        Err(problem) => Reply::Failed(problem.to_string()),
    }
}

/// Reaps children and orphans for ever.
///
/// A child is first looked at, then reaped under the table's lock: a child that is just being started is so never
/// taken away from the code that starts it.
fn reap_forever(table: &Mutex<Table>) {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => reap_one(&mut table.lock()),
            Err(Errno::INTR) => {}
            // No child at all yet.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn reap_one(table: &mut Table) {
    // Any child, of whatever process group: each component has one of its own.
    if let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        let pid = pid.as_raw_nonzero().get();
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => return,
        };
        if let Some(process) =
            table.processes.values_mut().find(|process| process.ended.is_none() && process.pid == pid)
        {
            process.ended = Some(how);
        }
    }
}
