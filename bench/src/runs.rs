//! Whole backups and restores, each as its own process, with time and peak memory.

use crate::table::{Table, ratio};
use anyhow::{Context, Result, ensure};
use lifeboat_testkit::cgroup::run_limited;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::Random;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Of all repositories that are measured.
pub const PASSWORD: &str = "benchmark";
/// Far more than either side needs: the group is there to measure, not to limit.
const NO_LIMIT: u64 = 8 << 30;

/// Measures all rows and prints one table.
pub fn run(large_mib: u64, small_files: u64, repeat: usize) -> Result<()> {
    // Memory, so that the disk is not what is measured.
    let folder = tempfile::Builder::new().prefix("lifeboat-bench-").tempdir_in("/dev/shm")?;
    let large = folder.path().join("large");
    std::fs::create_dir(&large)?;
    write_noise(&large.join("file"), large_mib << 20)?;
    let small = folder.path().join("small");
    write_small(&small, small_files)?;
    let mut table = Table::new(&["run", "ours s", "kopia s", "ratio", "ours MiB", "kopia MiB"]);
    for (name, source) in
        [(format!("one file of {large_mib} MiB"), &large), (format!("{small_files} small files"), &small)]
    {
        for measured in compare(folder.path(), source, repeat)? {
            let (ours, theirs) = (measured.ours, measured.theirs);
            table.row([
                format!("{}: {name}", measured.what),
                format!("{:.2}", ours.seconds),
                format!("{:.2}", theirs.seconds),
                ratio(theirs.seconds, ours.seconds),
                (ours.peak >> 20).to_string(),
                (theirs.peak >> 20).to_string(),
            ]);
        }
    }
    table.print();
    Ok(())
}

struct Measured {
    what: &'static str,
    ours: Cost,
    theirs: Cost,
}

#[derive(Clone, Copy)]
/// What a command took.
pub struct Cost {
    /// By the clock.
    pub seconds: f64,
    /// The most memory of its own, in bytes.
    pub peak: u64,
}

fn compare(folder: &Path, source: &Path, repeat: usize) -> Result<Vec<Measured>> {
    let mut costs: [Vec<(Cost, Cost)>; 2] = Default::default();
    for _ in 0..repeat.max(1) {
        let place = tempfile::tempdir_in(folder)?;
        let (ours, theirs) = (Ours::new(&place.path().join("home"))?, Kopia::new(PASSWORD)?);
        let repositories = [place.path().join("ours"), place.path().join("theirs")];
        let targets = [place.path().join("ours-restored"), place.path().join("theirs-restored")];
        std::fs::create_dir(&repositories[1])?;
        finish(ours.command(&["repository", "create", "filesystem", "--path"], &repositories[0]))?;
        theirs.create_filesystem(&repositories[1], &[])?;
        let backup = (
            finish(ours.command(&["snapshot", "create"], source))?,
            finish(theirs.command([
                as_str("snapshot"),
                as_str("create"),
                as_str("--no-progress"),
                source.as_os_str(),
            ]))?,
        );
        let mut restore_ours = ours.command(&["restore", &ours.latest()?], &targets[0]);
        restore_ours.arg("--skip-owners");
        let id = theirs.snapshots()?.pop().context("kopia made no snapshot")?.id;
        let restore_theirs = theirs.command([
            as_str("snapshot"),
            as_str("restore"),
            as_str("--no-progress"),
            as_str(&id),
            targets[1].as_os_str(),
        ]);
        let restore = (finish(restore_ours)?, finish(restore_theirs)?);
        costs[0].push(backup);
        costs[1].push(restore);
    }
    let [backups, restores] = costs.map(|mut pairs| {
        let ours = median(pairs.iter().map(|pair| pair.0).collect());
        let theirs = median(pairs.drain(..).map(|pair| pair.1).collect());
        (ours, theirs)
    });
    Ok(vec![
        Measured { what: "backup", ours: backups.0, theirs: backups.1 },
        Measured { what: "restore", ours: restores.0, theirs: restores.1 },
    ])
}

fn as_str(text: &str) -> &std::ffi::OsStr {
    text.as_ref()
}

fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    costs[costs.len() / 2]
}

/// Runs a command that must succeed.
pub fn finish(command: Command) -> Result<Cost> {
    let started = Instant::now();
    let limited = run_limited(command, NO_LIMIT, Duration::from_secs(1800))?;
    let seconds = started.elapsed().as_secs_f64();
    let errors = String::from_utf8_lossy(&limited.output.stderr);
    ensure!(limited.output.status.success(), "a measured command failed: {errors}");
    Ok(Cost { seconds, peak: limited.peak_own_bytes })
}

/// Our program, built beside this one.
struct Ours {
    program: PathBuf,
    home: PathBuf,
}

impl Ours {
    fn new(home: &Path) -> Result<Ours> {
        let program = std::env::current_exe()?.with_file_name("lifeboat-repo");
        ensure!(program.exists(), "{} is missing: run `cargo xtask bench`", program.display());
        std::fs::create_dir(home)?;
        Ok(Ours { program, home: home.to_path_buf() })
    }

    fn command(&self, words: &[&str], path: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("LIFEBOAT_PASSWORD", PASSWORD)
            .env("LIFEBOAT_CONFIG_PATH", self.home.join("config"))
            .args(words)
            .arg(path);
        command
    }

    fn latest(&self) -> Result<String> {
        let output = self.command(&["snapshot", "list", "--json"], Path::new("--all")).output()?;
        let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let last = list.as_array().and_then(|list| list.last()).and_then(|snapshot| snapshot["id"].as_str());
        Ok(last.context("we made no snapshot")?.to_owned())
    }
}

/// A file that cannot be compressed.
pub fn write_noise(path: &Path, length: u64) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut random = Random::new(length);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..length >> 20 {
        random.fill(&mut buffer);
        std::io::Write::write_all(&mut file, &buffer)?;
    }
    Ok(std::io::Write::flush(&mut file)?)
}

/// Files of 100 bytes to 4 KiB, twenty in a directory.
fn write_small(folder: &Path, count: u64) -> Result<()> {
    let mut random = Random::new(count);
    for number in 0..count {
        let directory = folder.join(format!("{}", number / 20));
        if number % 20 == 0 {
            std::fs::create_dir_all(&directory)?;
        }
        let length = 100 + random.below(3996) as usize;
        std::fs::write(directory.join(format!("{number}")), random.bytes(length))?;
    }
    Ok(())
}
