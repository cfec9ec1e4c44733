//! The pages for users: every block of commands in them is run, each page in a shell of its own.
#![allow(clippy::unwrap_used)]

use anyhow::Result;
use lifeboat_testkit::process;
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::workspace_root;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(900);

/// The commands of a page, from top to bottom.
fn commands(page: &str) -> String {
    let text = std::fs::read_to_string(workspace_root().join("docs/repo").join(page)).unwrap();
    let mut script = String::from("set -eu\n");
    let mut inside = false;
    for line in text.lines() {
        match line.trim() {
            "```sh" => inside = true,
            "```" => inside = false,
            command if inside => script.push_str(&format!("{command}\n")),
            _ => {}
        }
    }
    script
}

fn run(page: &str, folder: &Path, variables: &[(&str, String)]) -> Result<String> {
    run_script(&commands(page), folder, variables)
}

/// What a script has mounted goes when it ends, however it does.
const UNMOUNT: &str =
    r#"trap 'sed -n "s|^[^ ]* \($PWD/[^ ]*\) fuse.*|\1|p" /proc/mounts | xargs -r umount -l' EXIT"#;

fn run_script(script: &str, folder: &Path, variables: &[(&str, String)]) -> Result<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_lifeboat-repo"));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .current_dir(folder)
        .args(["-c", &format!("{UNMOUNT}\n{script}")])
        .env_clear()
        .env("HOME", folder)
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()))
        .envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    let output = process::run_ok(shell, LIMIT)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_page_is_run() {
    let run_here = ["coming-from.md", "commands.md", "memory.md", "quick-start.md", "recovery.md", "s3.md"]
        .map(str::to_owned);
    let pages = std::fs::read_dir(workspace_root().join("docs/repo")).unwrap();
    let mut pages: Vec<String> =
        pages.map(|page| page.unwrap().file_name().to_string_lossy().into_owned()).collect();
    pages.sort();
    assert_eq!(pages, run_here);
}

#[test]
fn the_quick_start_works_as_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = run("quick-start.md", folder.path(), &[])?;
    assert!(out.contains("do not lose me"), "{out}");
    Ok(())
}

#[test]
fn every_command_has_an_example_that_works() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = run("commands.md", folder.path(), &[])?;
    assert!(out.contains("All checks passed") && out.contains("archive@elsewhere"), "{out}");
    Ok(())
}

#[test]
fn the_ways_from_other_programs_work_as_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The page calls the restic that its readers have.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin)?;
    std::os::unix::fs::symlink(lifeboat_tools::path("restic")?, bin.join("restic"))?;
    let script = format!("PATH=\"$PWD/bin:$PATH\"\n{}", commands("coming-from.md"));
    let out = run_script(&script, folder.path(), &[])?;
    assert!(out.contains("Restored 1 files"), "{out}");
    Ok(())
}

#[test]
fn memory_and_recovery_work_as_written() -> Result<()> {
    for page in ["memory.md", "recovery.md"] {
        let folder = tempfile::tempdir()?;
        run(page, folder.path(), &[])?;
    }
    Ok(())
}

#[test]
fn buckets_work_as_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Minio::start()?;
    server.create_bucket("docs")?;
    let out = run("s3.md", folder.path(), &bucket(&server))?;
    assert!(out.contains("All checks passed"), "{out}");
    Ok(())
}

/// How the bucket `docs` of a server is reached.
fn bucket(server: &Minio) -> [(&'static str, String); 5] {
    [
        ("BUCKET", "docs".to_owned()),
        ("ENDPOINT", server.address()),
        ("TLS", "--disable-tls".to_owned()),
        ("AWS_ACCESS_KEY_ID", server.access_key().to_owned()),
        ("AWS_SECRET_ACCESS_KEY", server.secret_key().to_owned()),
    ]
}

/// What somebody does who has never seen the program: from the README's first command to a repository in a bucket
/// whose password was changed.
const STRANGER: &str = r#"
set -eu
lifeboat-repo quickstart --folder first-look
export LIFEBOAT_PASSWORD=first
lifeboat-repo repository create s3 --bucket "$BUCKET" --prefix stranger/ --endpoint "$ENDPOINT" $TLS
mkdir -p volume/deep/below && head -c 3000000 /dev/urandom > volume/noise && echo precious > volume/deep/below/note.txt
lifeboat-repo snapshot create volume
cp -r volume before
rm volume/deep/below/note.txt
lifeboat-repo snapshot create volume
found=$(lifeboat-repo find note.txt | sed -n 's/.*lifeboat-repo restore \(.*\) TARGET/\1/p')
mkdir seen
lifeboat-repo mount "${found%%/*}" seen &
until [ -e seen/deep/below/note.txt ]; do kill -0 $!; sleep 0.1; done
diff -r seen before
umount seen
wait $!
lifeboat-repo restore "$found" volume/deep/below/note.txt
diff -r volume before
LIFEBOAT_NEW_PASSWORD=second lifeboat-repo repository change-password
export LIFEBOAT_PASSWORD=second
lifeboat-repo maintenance run --full
lifeboat-repo snapshot verify --verify-files-percent 100
lifeboat-repo restore "${found%%/*}" everything
diff -r everything before
lifeboat-repo repository disconnect
if LIFEBOAT_PASSWORD=first lifeboat-repo repository connect s3 --bucket "$BUCKET" --prefix stranger/ --endpoint "$ENDPOINT" $TLS
then echo 'the old password still works' && exit 1; fi
echo arrived
"#;

#[test]
fn a_stranger_finds_the_way() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Minio::start()?;
    server.create_bucket("docs")?;
    let out = run_script(STRANGER, folder.path(), &bucket(&server))?;
    assert!(out.ends_with("arrived\n"), "{out}");
    Ok(())
}
