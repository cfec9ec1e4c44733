//! `lifeboat install`: our node-agent in the place of Velero's.

use crate::args::Place;
use crate::client::client;
use crate::manifests::{NODE_AGENT, NodeAgent, daemon_set_name, kubelet_root, replacement};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;
use std::num::NonZeroU32;
use tokio::runtime::Runtime;

/// Who applies.
const MANAGER: &str = "lifeboat-install";

/// What to install.
#[derive(Debug, Args)]
pub struct Install {
    /// Replace the node-agent of an existing Velero; its server stays.
    #[arg(long, required = true)]
    node_agent_only: bool,
    /// Leave Velero's node-agent as it is and run ours beside it, for backups that ask for this data mover.
    #[arg(long)]
    data_mover: Option<String>,
    /// Run hosting pods as this user without any capability instead of as root: it reads devices, if the container runtime
    /// gives it the ones of its pod, and files that this user may read.
    #[arg(long)]
    mover_user: Option<NonZeroU32>,
    /// The folder of the kubelet on every node, if it is neither the usual one nor named by the node-agent that is there.
    #[arg(long)]
    kubelet_root_dir: Option<String>,
    /// The image.
    #[arg(long)]
    image: String,
    /// The secret with the credentials of locations that have none of their own.
    #[arg(long, default_value = "cloud-credentials", conflicts_with = "no_secret")]
    secret: String,
    /// There is no such secret: every location has its own credentials, or pods have an identity.
    #[arg(long)]
    no_secret: bool,
    /// The config map of the node-agent.
    #[arg(long)]
    node_agent_configmap: Option<String>,
    /// The config map of repositories.
    #[arg(long)]
    backup_repository_configmap: Option<String>,
    /// Print what would be applied, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

/// Prints or applies.
pub fn run(args: &Install) -> Result<()> {
    if args.dry_run {
        print!("{}", args.printed()?);
        return Ok(());
    }
    Runtime::new()?.block_on(async { args.apply(client().await?).await })
}

impl Install {
    fn node_agent(&self, existing: Option<&DaemonSet>) -> NodeAgent {
        NodeAgent {
            namespace: self.place.namespace.clone(),
            image: self.image.clone(),
            // An agent that is there has its credentials where they are.
            secret: (!self.no_secret && existing.is_none()).then(|| self.secret.clone()),
            mover_user: self.mover_user,
            kubelet_root: self.kubelet_root_dir.clone().or_else(|| existing.and_then(kubelet_root)),
            beside: self.data_mover.is_some(),
            args: existing.and_then(args_of).unwrap_or_else(|| self.agent_args()),
        }
    }

    fn agent_args(&self) -> Vec<String> {
        let beside = self.data_mover.is_some().then(|| daemon_set_name(true).to_owned());
        let flags = [
            ("--daemonset", &beside),
            ("--data-mover", &self.data_mover),
            ("--node-agent-configmap", &self.node_agent_configmap),
            ("--backup-repository-configmap", &self.backup_repository_configmap),
        ];
        let given =
            flags.iter().filter_map(|(flag, value)| value.as_ref().map(|value| format!("{flag}={value}")));
        [NODE_AGENT, "server"].map(str::to_owned).into_iter().chain(given).collect()
    }

    fn printed(&self) -> Result<String> {
        let objects = self.node_agent(None).objects();
        match self.output {
            Output::Json => Ok(format!(
                "{:#}\n",
                serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": objects })
            )),
            Output::Yaml => {
                let documents: Result<Vec<String>, _> = objects.iter().map(serde_norway::to_string).collect();
                Ok(documents?.join("---\n"))
            }
        }
    }

    /// Applies what there is to apply. What others set on the DaemonSet (variables, volumes, tolerations) stays.
    async fn apply(&self, client: Client) -> Result<()> {
        let namespace = &self.place.namespace;
        let namespaces = Api::<Namespace>::all(client.clone());
        if namespaces.get_opt(namespace).await.context("cannot ask for namespaces")?.is_none() {
            bail!(
                "there is no namespace {namespace}: install Velero first, or name its namespace with --namespace"
            );
        }
        let daemon_sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
        let daemon_set = daemon_set_name(self.data_mover.is_some());
        let existing = daemon_sets.get_opt(daemon_set).await.context("cannot ask for the node-agent")?;
        if existing.is_some()
            && (self.node_agent_configmap.is_some() || self.backup_repository_configmap.is_some())
        {
            bail!(
                "the node-agent that is there keeps its arguments; change them with `kubectl edit daemonset {daemon_set}`"
            );
        }
        for object in self.node_agent(existing.as_ref()).objects() {
            let name = match existing.as_ref().filter(|_| object["kind"] == "DaemonSet") {
                Some(existing) => {
                    // One write, so that one step back undoes it.
                    let change = Patch::Strategic(replacement(object, existing));
                    let params =
                        PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                    let patched = daemon_sets.patch(daemon_set, &params, &change).await;
                    patched.with_context(|| format!("cannot change daemonset/{daemon_set}"))?;
                    format!("daemonset/{daemon_set}")
                }
                None => apply(&client, namespace, &object).await?,
            };
            println!("{name} applied");
        }
        Ok(())
    }
}

/// The words that the container of an existing agent is started with.
fn args_of(existing: &DaemonSet) -> Option<Vec<String>> {
    let pod = existing.spec.as_ref()?.template.spec.as_ref()?;
    pod.containers.iter().find(|container| container.name == NODE_AGENT)?.args.clone()
}

async fn apply(client: &Client, namespace: &str, object: &Value) -> Result<String> {
    let dynamic: DynamicObject =
        serde_json::from_value(object.clone()).context("an object of ours is not one")?;
    let types = dynamic.types.clone().unwrap_or_default();
    let name = dynamic.metadata.name.clone().unwrap_or_default();
    let shown = format!("{}/{name}", types.kind.to_lowercase());
    let kind = GroupVersionKind::try_from(&types).context("an object of ours has no kind")?;
    let (resource, capabilities) =
        pinned_kind(client, &kind).await.with_context(|| format!("the cluster does not know {shown}"))?;
    let objects: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let params = PatchParams::apply(MANAGER).force();
    objects
        .patch(&name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot apply {shown}"))?;
    Ok(shown)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn install(words: &[&str]) -> Install {
        let all =
            [&["lifeboat", "install", "--node-agent-only", "--image", "registry.example/lifeboat:1"], words]
                .concat();
        match Cli::try_parse_from(all).unwrap().command {
            Command::Install(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_printed_is_what_was_agreed_on() {
        let printed = install(&["--dry-run", "-o", "yaml", "--namespace", "velero"]).printed().unwrap();
        let expected = include_str!("../tests/expected/node-agent.yaml");
        assert_eq!(
            printed, expected,
            "if this is meant, write the printed text to crates/cli/tests/expected/node-agent.yaml"
        );
    }

    #[test]
    fn nobody_may_do_everything_and_only_movers_read_secrets() {
        for object in install(&[]).node_agent(None).objects() {
            for rule in object["rules"].as_array().into_iter().flatten() {
                let text = rule.to_string();
                assert!(!text.contains("\"*\""), "{text}");
                let secrets =
                    rule["resources"].as_array().unwrap().iter().any(|resource| resource == "secrets");
                assert!(!secrets || object["metadata"]["name"] == "lifeboat-mover", "{object}");
            }
        }
    }

    #[test]
    fn an_agent_that_is_there_keeps_its_arguments_and_credentials() {
        let existing: DaemonSet = serde_json::from_value(serde_json::json!({
            "spec": { "selector": {}, "template": { "spec": { "containers": [
                { "name": "node-agent", "args": ["node-agent", "server", "--features=EnableCSI", "--node-agent-configmap=c"] },
            ] } } },
        }))
        .unwrap();
        let agent = install(&[]).node_agent(Some(&existing));
        assert_eq!(agent.args[3], "--node-agent-configmap=c");
        assert_eq!((agent.secret, agent.kubelet_root), (None, None));
    }

    /// Its folder of the kubelet's pods goes, but not what it says about where that is.
    #[test]
    fn the_folder_of_the_kubelet_is_given_or_taken_over_from_the_agent_that_is_there() {
        let existing: DaemonSet = serde_json::from_value(serde_json::json!({
            "spec": { "selector": {}, "template": { "spec": {
                "containers": [],
                "volumes": [{ "name": "host-pods", "hostPath": { "path": "/data/kubelet/pods" } }],
            } } },
        }))
        .unwrap();
        let root = |words: &[&str], existing| install(words).node_agent(existing).kubelet_root;
        assert_eq!(root(&[], None), None);
        assert_eq!(root(&[], Some(&existing)).as_deref(), Some("/data/kubelet"));
        assert_eq!(root(&["--kubelet-root-dir=/k"], Some(&existing)).as_deref(), Some("/k"));
        let text = serde_json::to_string(&install(&["--kubelet-root-dir=/k"]).node_agent(None).objects());
        assert!(text.unwrap().contains(r#"{"name":"LIFEBOAT_KUBELET_ROOT","value":"/k"}"#));
    }

    #[test]
    fn settings_reach_the_agent() {
        let agent = install(&["--no-secret", "--node-agent-configmap=c", "-n", "backup"]).node_agent(None);
        assert_eq!(agent.args, ["node-agent", "server", "--node-agent-configmap=c"]);
        let text = serde_json::to_string(&agent.objects()).unwrap();
        assert!(
            !text.contains("credentials")
                && !text.contains(r#""namespace":"velero""#)
                && text.contains("\"backup\""),
            "{text}"
        );
    }

    #[test]
    fn an_agent_beside_veleros_has_a_name_and_operations_of_its_own() {
        let agent = install(&["--data-mover=lifeboat", "--mover-user=1000"]).node_agent(None);
        assert_eq!(
            agent.args,
            ["node-agent", "server", "--daemonset=lifeboat-node-agent", "--data-mover=lifeboat"]
        );
        let set = agent.objects().pop().unwrap();
        assert_eq!(set["metadata"]["name"], "lifeboat-node-agent");
        // Velero's server counts pods of this role as its own.
        assert_ne!(set["spec"]["template"]["metadata"]["labels"]["role"], "node-agent");
        assert!(set.to_string().contains(r#"{"name":"LIFEBOAT_MOVER_USER","value":"1000"}"#), "{set}");
        assert!(
            Cli::try_parse_from(["lifeboat", "install", "--node-agent-only", "--image=i", "--mover-user=0"])
                .is_err()
        );
    }

    #[test]
    fn it_takes_the_word_that_says_how_much_is_installed() {
        assert!(Cli::try_parse_from(["lifeboat", "install", "--image", "i"]).is_err());
    }
}
