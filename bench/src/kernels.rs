//! What one core computes: ours beside `kopia benchmark` of the same run.

use crate::table::{Table, ratio};
use anyhow::Result;
use lifeboat_primitives::aead::{Cipher, CipherAlgorithm, OVERHEAD};
use lifeboat_primitives::hash::{Digest, HashAlgorithm, Hasher};
use lifeboat_primitives::random::{OsRandom, Random, SeededRandom};
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm};
use lifeboat_testkit::kopia::Kopia;
use std::collections::BTreeMap;
use std::hint::black_box;

const CHUNK: usize = 4 << 20;
/// Larger than any cache, so that memory is part of what is measured.
const DATA: usize = 128 << 20;
const RUNS: usize = 5;
/// `kopia benchmark hashing` of 0.22 hashes each block once for every byte of its output buffer and counts the block
/// once: what it prints is this many times too low. (`kopia benchmark crypto` agrees with the corrected figure.)
const KOPIA_HASHES_PER_BLOCK: f64 = 32.0;

/// Measures everything and prints one table.
pub fn run() -> Result<()> {
    let kopia = Kopia::new("unused")?;
    let mut data = vec![0; DATA];
    SeededRandom::new(1).fill(&mut data)?;
    let mut table = Table::new(&["kernel, one core", "ours GB/s", "kopia GB/s", "ratio"]);
    let mut theirs =
        of_kopia(&kopia, &["benchmark", "hashing", "--block-size=4MB", "--repeat=5", "--parallel=1"])?;
    theirs.values_mut().for_each(|speed| *speed *= KOPIA_HASHES_PER_BLOCK);
    for algorithm in HashAlgorithm::ALL {
        let hasher = Hasher::new(algorithm, &[7; 32])?;
        let inputs: Vec<&[u8]> = data.chunks(CHUNK).collect();
        let mut digests = vec![Digest::default(); inputs.len()];
        let ours = speed(|| hasher.hash_many(black_box(&inputs), &mut digests));
        add(&mut table, "hash", algorithm.name(), ours, &theirs);
    }
    let theirs =
        of_kopia(&kopia, &["benchmark", "encryption", "--block-size=4MB", "--repeat=100", "--parallel=1"])?;
    for algorithm in CipherAlgorithm::ALL {
        let cipher = Cipher::new(algorithm, &[9; 32])?;
        let mut sealed = vec![0; CHUNK + OVERHEAD];
        let ours = speed(|| {
            for (number, chunk) in data.chunks(CHUNK).enumerate() {
                let id = [number as u8; 16];
                _ = black_box(cipher.seal_to(&OsRandom, &id, chunk, &mut sealed));
            }
        });
        add(&mut table, "seal", algorithm.name(), ours, &theirs);
    }
    let theirs =
        of_kopia(&kopia, &["benchmark", "splitter", "--data-size=64MB", "--block-count=4", "--parallel=1"])?;
    for name in ["DYNAMIC-4M-BUZHASH", "DYNAMIC-1M-BUZHASH", "DYNAMIC-4M-RABINKARP"] {
        let algorithm = SplitterAlgorithm::from_name(name)?;
        let ours = speed(|| {
            let mut splitter = Splitter::new(algorithm);
            let mut rest = &data[..];
            while let Some(cut) = splitter.next_cut(rest) {
                rest = &rest[cut..];
            }
        });
        add(&mut table, "split", name, ours, &theirs);
    }
    table.print();
    Ok(())
}

fn add(table: &mut Table, kind: &str, name: &str, ours: f64, theirs: &BTreeMap<String, f64>) {
    let (peer, times) = match theirs.get(name) {
        Some(peer) => (format!("{peer:.2}"), ratio(ours, *peer)),
        None => ("not reported".to_owned(), String::new()),
    };
    table.row([format!("{kind} {name}"), format!("{ours:.2}"), peer, times]);
}

/// The best of several runs over all data, in GB/s.
fn speed(mut work: impl FnMut()) -> f64 {
    let best = (0..RUNS)
        .map(|_| {
            let start = processor_time();
            work();
            processor_time() - start
        })
        .fold(f64::INFINITY, f64::min);
    DATA as f64 / best / 1e9
}

/// Processor time of this thread: what a core does, whatever else runs on the machine.
pub fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The ranked list that `kopia benchmark` ends with: ` 0. NAME   1.1 GB / second`.
fn of_kopia(kopia: &Kopia, args: &[&str]) -> Result<BTreeMap<String, f64>> {
    let output = kopia.run(args)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let speeds: BTreeMap<String, f64> = text.lines().filter_map(ranked).collect();
    anyhow::ensure!(!speeds.is_empty(), "kopia {} printed no speeds: {text}", args.join(" "));
    Ok(speeds)
}

fn ranked(line: &str) -> Option<(String, f64)> {
    let mut words = line.split_whitespace();
    words.next()?.strip_suffix('.')?.parse::<u32>().ok()?;
    let name = words.next()?.to_owned();
    let value: f64 = words.next()?.parse().ok()?;
    let scale = match words.next()?.split('/').next()? {
        "KB" => 1e-6,
        "MB" => 1e-3,
        "GB" => 1.0,
        "TB" => 1e3,
        _ => return None,
    };
    Some((name, value * scale))
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_of_kopias_list_are_understood() {
        let line = "  1. AES256-GCM-HMAC-SHA256         1.1 GB / second";
        assert_eq!(super::ranked(line), Some(("AES256-GCM-HMAC-SHA256".to_owned(), 1.1)));
        let line = "  8. DYNAMIC-4M-BUZHASH        297.9 MB    /s count:51 min:1927505";
        assert_eq!(
            super::ranked(line).map(|(name, speed)| (name, (speed * 1e4).round())),
            Some(("DYNAMIC-4M-BUZHASH".to_owned(), 2979.0))
        );
        assert_eq!(
            super::ranked("Benchmarking hash 'BLAKE2B-256' (20 x 4194304 bytes, parallelism 1)"),
            None
        );
    }
}
