//! The list of tools with their versions: the one place to change a pin or to add a program.
//!
//! A Go program needs a wrapper module in `testbed/modules/<folder>`: a `go.mod` with `tool <package>`, `require
//! <module> <version>` and a copy of upstream's own `replace` lines (they do not apply to the module that requires
//! it), and the `go.sum` that `go list -mod=mod -deps <package>` writes beside it. Several commands of one module are
//! several entries with the same folder; Go's build cache shares the work between them.
//!
//! A program that does not compile with the Go of today names the one it was written for (`OldGoBuild`); its `go.mod` must
//! not say `tool`, which old releases do not know.

use crate::{Group, Recipe, Tool};

/// Every tool, in the order in which they are installed: those that Cargo builds come first, so that beside them Go's
/// own library is compiled once, by the programs of the cluster (see `cargo xtask tools`).
pub const TOOLS: &[Tool] = &[
    // Checkers of the source.
    Tool {
        name: "cargo-deny",
        version: "0.20.2",
        group: Group::Lint,
        recipe: Recipe::Cargo { package: "cargo-deny", profile: "dev" },
    },
    Tool {
        name: "cargo-fuzz",
        version: "0.13.2",
        group: Group::Lint,
        recipe: Recipe::Cargo { package: "cargo-fuzz", profile: "dev" },
    },
    // Peers.
    kopia("kopia", "0.22.3", Group::Peers, "kopia", &[(KOPIA_VERSION, "0.22.3")]),
    Tool {
        name: "minio",
        version: "2026-02-12",
        group: Group::Peers,
        recipe: Recipe::GoBuild { module: "minio", package: "github.com/minio/minio", stamps: &[] },
    },
    Tool {
        name: "fake-gcs-server",
        version: "1.56.1",
        group: Group::Peers,
        recipe: Recipe::GoBuild {
            module: "fakegcs",
            package: "github.com/fsouza/fake-gcs-server",
            stamps: &[],
        },
    },
    Tool {
        name: "azurite-blob",
        version: "3.37.0",
        group: Group::Peers,
        recipe: Recipe::Npm { folder: "azurite", command: "azurite-blob" },
    },
    Tool {
        name: "fio",
        version: "of the Debian release",
        group: Group::Peers,
        recipe: Recipe::Debian { packages: &["fio"], program: "/usr/bin/fio" },
    },
    kopia_suite("kopia-suite-runner", "github.com/kopia/kopia/tests/tools/kopiarunner"),
    kopia_suite("kopia-suite-recovery", "github.com/kopia/kopia/tests/recovery/recovery_test"),
    kopia_suite("kopia-suite-compat", "github.com/kopia/kopia/tests/compat_test"),
    kopia_suite("kopia-suite-robustness", "github.com/kopia/kopia/tests/robustness/robustness_test"),
    Tool {
        name: "kopia-0.8.4",
        version: "0.8.4",
        group: Group::Peers,
        recipe: Recipe::OldGoBuild {
            toolchain: "go1.17.13",
            module: "kopia-0.8.4",
            package: "github.com/kopia/kopia",
            stamps: &[(KOPIA_VERSION, "0.8.4")],
        },
    },
    Tool {
        name: "restic",
        version: "0.18.1",
        group: Group::Peers,
        recipe: Recipe::GoBuild {
            module: "restic",
            package: "github.com/restic/restic/cmd/restic",
            stamps: &[("main.version", "0.18.1")],
        },
    },
    // Windows: a linker for what is built for it, and something to run it on.
    Tool {
        name: "mingw",
        version: "of the Debian release",
        group: Group::Peers,
        recipe: Recipe::Debian {
            packages: &["gcc-mingw-w64-x86-64-win32"],
            program: "/usr/bin/x86_64-w64-mingw32-gcc-win32",
        },
    },
    Tool {
        name: "wine",
        version: "of the Debian release",
        group: Group::Peers,
        recipe: Recipe::Debian { packages: &["wine64"], program: "/usr/lib/wine/wine64" },
    },
    // Further releases of peers, and peers of benchmarks.
    kopia("kopia-0.21.1", "0.21.1", Group::Long, "kopia-0.21.1", &[(KOPIA_VERSION, "0.21.1")]),
    kopia("kopia-0.19.0", "0.19.0", Group::Long, "kopia-0.19.0", &[(KOPIA_VERSION, "0.19.0")]),
    kopia("kopia-velero", "0.16.0 of Velero 1.18", Group::Long, "kopia-velero", &[(KOPIA_VERSION, "velero")]),
    Tool {
        name: "rustic",
        version: "0.11.4",
        group: Group::Long,
        recipe: Recipe::Cargo { package: "rustic-rs", profile: "release" },
    },
    // The cluster.
    kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    in_cluster("coredns", "1.12.3", "k8s", "./coredns", &[]),
    in_cluster(
        "hostpathplugin",
        "1.7.2",
        "hostpath",
        "github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin",
        &[("main.version", "v1.7.2")],
    ),
    in_cluster(
        "csi-provisioner",
        "5.1.0",
        "provisioner",
        "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner",
        &[("main.version", "v5.1.0")],
    ),
    in_cluster(
        "csi-snapshotter",
        "8.3.0",
        "k8s",
        "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
        &[("main.version", "v8.3.0")],
    ),
    in_cluster(
        "snapshot-controller",
        "8.3.0",
        "k8s",
        "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
        &[("main.version", "v8.3.0")],
    ),
    in_cluster("csi-sanity", "5.3.1", "k8s", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", &[]),
    in_cluster(
        "velero",
        "1.18.3",
        "velero",
        "github.com/vmware-tanzu/velero/cmd/velero",
        &[("github.com/vmware-tanzu/velero/pkg/buildinfo.Version", "v1.18.3")],
    ),
    in_cluster(
        "velero-restore-helper",
        "1.18.3",
        "velero",
        "github.com/vmware-tanzu/velero/cmd/velero-restore-helper",
        &[],
    ),
    in_cluster("velero-helper", "1.18.3", "velero", "github.com/vmware-tanzu/velero/cmd/velero-helper", &[]),
    in_cluster(
        "velero-plugin-for-aws",
        "1.14.3",
        "velero",
        "github.com/vmware-tanzu/velero-plugin-for-aws/velero-plugin-for-aws",
        &[],
    ),
    in_cluster(
        "cp-plugin",
        "1.14.3",
        "velero",
        "github.com/vmware-tanzu/velero-plugin-for-aws/hack/cp-plugin",
        &[],
    ),
    debian("etcd", &["etcd-server"], "/usr/bin/etcd"),
    debian("containerd", &["containerd", "runc", "containernetworking-plugins"], "/usr/bin/containerd"),
    debian("busybox", &["busybox-static"], "/usr/bin/busybox"),
    debian("iptables", &["iptables", "conntrack", "iproute2", "e2fsprogs"], "/usr/sbin/iptables"),
];

/// A command of Kubernetes itself, stamped with the version that it reports to clients.
const fn kubernetes(name: &'static str, package: &'static str) -> Tool {
    const STAMPS: &[(&str, &str)] = &[
        ("k8s.io/component-base/version.gitVersion", "v1.34.1"),
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "34"),
    ];
    in_cluster(name, "1.34.1", "k8s", package, STAMPS)
}

/// A Go program that a cluster runs.
const fn in_cluster(
    name: &'static str,
    version: &'static str,
    module: &'static str,
    package: &'static str,
    stamps: &'static [(&'static str, &'static str)],
) -> Tool {
    Tool { name, version, group: Group::Cluster, recipe: Recipe::GoBuild { module, package, stamps } }
}

/// Packages of which a cluster takes programs.
const fn debian(name: &'static str, packages: &'static [&'static str], program: &'static str) -> Tool {
    let recipe = Recipe::Debian { packages, program };
    Tool { name, version: "of the Debian release", group: Group::Cluster, recipe }
}

/// The variable that `kopia --version` and the repository's own record of its creator show.
const KOPIA_VERSION: &str = "github.com/kopia/kopia/repo.BuildVersion";

/// One of kopia's own test suites, which run any program that behaves like kopia (`KOPIA_EXE`).
const fn kopia_suite(name: &'static str, package: &'static str) -> Tool {
    let recipe = Recipe::GoTest { module: "kopia", package };
    Tool { name, version: "0.22.3", group: Group::Peers, recipe }
}

/// A release of kopia's command line.
const fn kopia(
    name: &'static str,
    version: &'static str,
    group: Group,
    module: &'static str,
    stamps: &'static [(&'static str, &'static str)],
) -> Tool {
    Tool {
        name,
        version,
        group,
        recipe: Recipe::GoBuild { module, package: "github.com/kopia/kopia", stamps },
    }
}
