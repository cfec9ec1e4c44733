//! The command line of the testbed: clusters and the images they run. `cargo xtask cluster` and `cargo xtask image`
//! build what is needed and then run this.
#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use lifeboat_testbed::{Cluster, ClusterName, Error, IMAGE_NAMES, Image, Result, Spec, image_archive};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Real Kubernetes clusters for tests")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start, look at and end clusters.
    #[command(subcommand)]
    Cluster(ClusterTask),
    /// Make images without a registry, and load them into a cluster.
    Image(ImageTask),
}

#[derive(Subcommand)]
enum ClusterTask {
    /// Bring a cluster up, or find it up already.
    Up(Up),
    /// End a cluster and everything of it; works on any half-started state too.
    Down(Named),
    /// Show all clusters, or the components and the memory of one.
    Status {
        /// The cluster to show in detail.
        #[arg(long)]
        name: Option<String>,
    },
    /// Run kubectl as the cluster's administrator.
    Kubectl(Foreign),
    /// Run Velero's own command line.
    Velero(Foreign),
    /// Run any program in the cluster's network, with KUBECONFIG set.
    Run(Foreign),
    /// Show the log of a component; without one, the names of all.
    Logs {
        #[command(flatten)]
        named: Named,
        /// The node.
        #[arg(long, default_value_t = 1)]
        node: u8,
        /// Keep showing what is added.
        #[arg(long, short)]
        follow: bool,
        /// The component.
        component: Option<String>,
    },
    /// Write everything worth knowing about a namespace and the cluster into a folder.
    Bundle {
        #[command(flatten)]
        named: Named,
        /// The namespace.
        #[arg(default_value = "default")]
        namespace: String,
    },
}

#[derive(Args)]
struct Named {
    /// The cluster's name.
    #[arg(long, default_value = "dev")]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    named: Named,
    /// How many nodes; the first also runs the control plane.
    #[arg(long, default_value_t = 1)]
    nodes: u8,
    /// Install Velero.
    #[arg(long)]
    velero: bool,
    /// Let the object store speak TLS, with a certificate of the cluster's own authority.
    #[arg(long)]
    tls: bool,
    /// Run our own CSI driver, which can misbehave on demand, beside the hostpath driver.
    #[arg(long)]
    test_driver: bool,
    /// Keep a log of what the pods of Velero's namespace ask the API server for.
    #[arg(long)]
    audit: bool,
    /// Let the object store keep its data in memory.
    #[arg(long)]
    store_in_memory: bool,
}

#[derive(Args)]
struct Foreign {
    #[command(flatten)]
    named: Named,
    /// What to run.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[derive(Args)]
struct ImageTask {
    /// Images of the testbed by name; all of them if neither a name nor a program is given.
    names: Vec<String>,
    /// Make an image of this static program instead; `--bin NAME` builds one of the workspace first and takes that.
    #[arg(long, requires = "reference", conflicts_with = "names")]
    program: Option<PathBuf>,
    /// The full name of that image, with its tag.
    #[arg(long)]
    reference: Option<String>,
    /// Where to write that image; beside the program if not given.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Load what was made into every node of this cluster.
    #[arg(long)]
    load: Option<String>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Cluster(task) => cluster(task),
        Task::Image(task) => image(&task),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn cluster(task: ClusterTask) -> Result<()> {
    match task {
        ClusterTask::Up(up) => bring_up(&up),
        ClusterTask::Down(named) => Cluster::down(&ClusterName::new(&named.name)?),
        ClusterTask::Status { name: Some(name) } => show(&open(&name)?),
        ClusterTask::Status { name: None } => list(),
        ClusterTask::Kubectl(foreign) => {
            become_program(open(&foreign.named.name)?.kubectl().command(foreign.words)?)
        }
        ClusterTask::Velero(foreign) => {
            let words = foreign.words.iter().map(String::as_str);
            become_program(open(&foreign.named.name)?.velero(words)?)
        }
        ClusterTask::Run(foreign) => {
            let [program, args @ ..] = foreign.words.as_slice() else {
                return Err(Error::Invalid("no program given".to_owned()));
            };
            let mut command = open(&foreign.named.name)?.kubectl().in_network(program)?;
            command.args(args);
            become_program(command)
        }
        ClusterTask::Logs { named, node, follow, component } => {
            logs(&named.name, node, follow, component.as_deref())
        }
        ClusterTask::Bundle { named, namespace } => {
            let folder = lifeboat_testbed::testing::debug_bundle(&open(&named.name)?, &namespace)?;
            println!("{}", folder.display());
            Ok(())
        }
    }
}

fn open(name: &str) -> Result<Cluster> {
    Cluster::open(&ClusterName::new(name)?)
}

fn bring_up(up: &Up) -> Result<()> {
    let name = ClusterName::new(&up.named.name)?;
    let spec = Spec {
        name,
        nodes: up.nodes,
        velero: up.velero,
        tls: up.tls,
        test_driver: up.test_driver,
        audit: up.audit,
        store_in_memory: up.store_in_memory,
    };
    let start = Instant::now();
    let cluster = Cluster::up(&spec, &|elapsed, step| eprintln!("{:6.1} s  {step}", elapsed.as_secs_f32()))?;
    let name = &spec.name;
    println!(
        "{name} is up after {:.1} s: cargo xtask cluster kubectl --name {name} get pods -A",
        start.elapsed().as_secs_f32()
    );
    println!(
        "object store {} (credentials in {})",
        cluster.object_store().endpoint,
        cluster.layout().folder().display()
    );
    Ok(())
}

fn list() -> Result<()> {
    let names = Cluster::names()?;
    if names.is_empty() {
        println!("no clusters");
    }
    for name in names {
        match Cluster::open(&name) {
            Ok(cluster) => {
                let memory = cluster.memory()?.proportional >> 20;
                let velero = if cluster.spec().velero { ", Velero" } else { "" };
                println!("{name}: up, {} node(s){velero}, {memory} MiB", cluster.spec().nodes);
            }
            Err(_) => {
                println!("{name}: not complete; `cargo xtask cluster down --name {name}` clears it away");
            }
        }
    }
    Ok(())
}

fn show(cluster: &Cluster) -> Result<()> {
    println!("kubeconfig {}", cluster.layout().kubeconfig().display());
    println!("object store {}", cluster.object_store().endpoint);
    for node in cluster.status()? {
        println!(
            "{}: {} MiB ({} MiB as a plain sum)",
            node.name,
            node.memory.proportional >> 20,
            node.memory.resident >> 20
        );
        for component in node.components {
            let state = component.ended.map_or_else(|| "running".to_owned(), |how| format!("ended: {how}"));
            println!("  {:32} {state}", component.name);
        }
    }
    Ok(())
}

fn logs(name: &str, node: u8, follow: bool, component: Option<&str>) -> Result<()> {
    let layout = lifeboat_testbed::Layout::of(&ClusterName::new(name)?)?;
    let logs = layout.logs(node)?;
    match component.map(|component| logs.iter().find(|(name, _)| name == component)) {
        Some(Some((_, path))) => {
            let mut tail = Command::new("tail");
            tail.args(["-n", "+1"]).args(follow.then_some("-F")).arg(path);
            become_program(tail)
        }
        Some(None) => {
            Err(Error::Invalid("there is no such component; `logs` without one shows all".to_owned()))
        }
        None => {
            for (name, _) in logs {
                println!("{name}");
            }
            Ok(())
        }
    }
}

/// Replaces this process, so that terminal, signals and exit code are the program's own.
fn become_program(mut command: Command) -> Result<()> {
    let problem = command.exec();
    Err(Error::Invalid(format!("cannot run {}: {problem}", Path::new(command.get_program()).display())))
}

fn image(task: &ImageTask) -> Result<()> {
    let mut archives = Vec::new();
    if let (Some(program), Some(reference)) = (&task.program, &task.reference) {
        let path = task.output.clone().unwrap_or_else(|| program.with_extension("tar"));
        // Ours has two names and talks to clouds; any other program is all there is in its image.
        let image = match program.file_name().and_then(|name| name.to_str()) {
            Some("lifeboat") => Image::of_lifeboat(reference, program)?,
            _ => Image::of_program(reference, program)?,
        };
        let digest = image.write(&path)?;
        println!("{reference} {digest} {}", path.display());
        archives.push(path);
    } else {
        let all: Vec<String> = IMAGE_NAMES.iter().map(|&name| name.to_owned()).collect();
        for name in if task.names.is_empty() { &all } else { &task.names } {
            let archive = image_archive(name)?;
            println!("{} {} {}", archive.reference, archive.digest, archive.path.display());
            archives.push(archive.path);
        }
    }
    if let Some(name) = &task.load {
        let cluster = open(name)?;
        for node in cluster.spec().node_ids() {
            for archive in &archives {
                cluster.node(node.number())?.load_image(archive)?;
            }
        }
    }
    Ok(())
}
