//! `benchmark`: how fast hashes, ciphers, error correction, splitters and compressors are on this machine.

use crate::output::{self, bytes};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lifeboat_kopia::Environment;
use lifeboat_kopia::sealer::{Sealer, SealerKeys};
use lifeboat_primitives::aead::CipherAlgorithm;
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::ecc;
use lifeboat_primitives::hash::HashAlgorithm;
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm};
use std::path::PathBuf;
use std::time::Instant;

/// Verbs of `benchmark`.
#[derive(Debug, Subcommand)]
pub enum BenchmarkCommand {
    /// Hash and encrypt blocks, with each pair of algorithms
    Crypto(BlockArgs),
    /// Encrypt blocks
    Encryption(BlockArgs),
    /// Add error correction to blocks, and read them again
    Ecc(BlockArgs),
    /// Hash blocks
    Hashing(BlockArgs),
    /// Cut data into pieces
    Splitter(BlockArgs),
    /// Compress a file
    Compression {
        /// The file
        #[arg(long)]
        data_file: PathBuf,
        /// How often
        #[arg(long, default_value_t = 3)]
        repeat: u32,
    },
}

/// What is measured.
#[derive(Debug, Args)]
pub struct BlockArgs {
    /// MiB in one block
    #[arg(long, default_value_t = 1, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub block_size_mb: u32,
    /// How many blocks
    #[arg(long, default_value_t = 50)]
    pub repeat: u32,
}

pub fn run(command: &BenchmarkCommand) -> Result<()> {
    let mut results = match command {
        BenchmarkCommand::Crypto(args) => crypto(args)?,
        BenchmarkCommand::Encryption(args) => encryption(args)?,
        BenchmarkCommand::Ecc(args) => error_correction(args)?,
        BenchmarkCommand::Hashing(args) => hashing(args)?,
        BenchmarkCommand::Splitter(args) => splitters(args)?,
        BenchmarkCommand::Compression { data_file, repeat } => {
            let data =
                std::fs::read(data_file).with_context(|| format!("cannot read {}", data_file.display()))?;
            compression(&data, *repeat)?
        }
    };
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, rate, note) in results {
        output::line(&format!("{name:<48} {:>10}/s {note}", bytes(rate as u64)))?;
    }
    Ok(())
}

/// Name, bytes per second, remark.
type Measured = (String, f64, String);

/// Runs `work` so often and returns the bytes per second.
fn measure(length: usize, repeat: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let started = Instant::now();
    for _ in 0..repeat.max(1) {
        work()?;
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    Ok(length as f64 * f64::from(repeat.max(1)) / seconds)
}

/// Bytes that no compressor and no cache makes easy.
fn noise(args: &BlockArgs) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take((args.block_size_mb as usize) << 20).collect()
}

fn sealer(hash: HashAlgorithm, cipher: CipherAlgorithm) -> Result<Sealer> {
    let keys =
        SealerKeys { hash, hash_secret: &[7; 32], cipher, master_key: &[8; 32], ecc_overhead_percent: None };
    Ok(Sealer::new(&keys, &Environment::default())?)
}

fn crypto(args: &BlockArgs) -> Result<Vec<Measured>> {
    let data = noise(args);
    let mut results = Vec::new();
    for cipher in CipherAlgorithm::ALL {
        for hash in HashAlgorithm::ALL {
            let sealer = sealer(hash, cipher)?;
            let rate = measure(data.len(), args.repeat, || {
                let id = sealer.hash(&data);
                sealer.seal_with_id(id.as_slice(), &data)?;
                Ok(())
            })?;
            results.push((format!("{} {}", hash.name(), cipher.name()), rate, String::new()));
        }
    }
    Ok(results)
}

fn encryption(args: &BlockArgs) -> Result<Vec<Measured>> {
    let data = noise(args);
    let mut results = Vec::new();
    for cipher in CipherAlgorithm::ALL {
        let sealer = sealer(HashAlgorithm::ALL[0], cipher)?;
        let id = sealer.hash(&data);
        let rate = measure(data.len(), args.repeat, || {
            std::hint::black_box(sealer.seal_with_id(id.as_slice(), &data)?);
            Ok(())
        })?;
        results.push((cipher.name().to_owned(), rate, String::new()));
    }
    Ok(results)
}

/// The overheads that Kopia measures.
const OVERHEADS: [u32; 5] = [1, 2, 5, 10, 20];

fn error_correction(args: &BlockArgs) -> Result<Vec<Measured>> {
    let data = noise(args);
    let mut results = Vec::new();
    for percent in OVERHEADS {
        let codec = ecc::Codec::new(percent)?;
        let mut stored = Vec::new();
        let encoding = measure(data.len(), args.repeat, || {
            stored.clear();
            Ok(codec.encode(&data, &mut stored)?)
        })?;
        let decoding = measure(data.len(), args.repeat, || {
            std::hint::black_box(codec.decode(&stored)?);
            Ok(())
        })?;
        let (name, length) = (format!("{} {percent}%", ecc::NAME), bytes(stored.len() as u64));
        results.push((
            name,
            encoding,
            format!("to write, {}/s to read, {length} stored", bytes(decoding as u64)),
        ));
    }
    Ok(results)
}

fn hashing(args: &BlockArgs) -> Result<Vec<Measured>> {
    let data = noise(args);
    let mut results = Vec::new();
    for hash in HashAlgorithm::ALL {
        let sealer = sealer(hash, CipherAlgorithm::ALL[0])?;
        let rate = measure(data.len(), args.repeat, || {
            std::hint::black_box(sealer.hash(&data));
            Ok(())
        })?;
        results.push((hash.name().to_owned(), rate, String::new()));
    }
    Ok(results)
}

fn splitters(args: &BlockArgs) -> Result<Vec<Measured>> {
    let data = noise(args);
    let mut results = Vec::new();
    for algorithm in SplitterAlgorithm::all() {
        let mut pieces = 0u64;
        let rate = measure(data.len(), args.repeat, || {
            let mut splitter = Splitter::new(algorithm);
            let mut rest = &data[..];
            while let Some(cut) = splitter.next_cut(rest) {
                rest = &rest[cut..];
                pieces += 1;
            }
            Ok(())
        })?;
        results.push((algorithm.name(), rate, format!("{pieces} pieces")));
    }
    Ok(results)
}

fn compression(data: &[u8], repeat: u32) -> Result<Vec<Measured>> {
    let mut results = Vec::new();
    for compressor in Compressor::ALL {
        let mut out = Vec::new();
        let rate = measure(data.len(), repeat, || {
            out.clear();
            Ok(compressor.compress(data, &mut out)?)
        })?;
        let percent = out.len() as f64 * 100.0 / data.len().max(1) as f64;
        results.push((compressor.name().to_owned(), rate, format!("{percent:.1}% of its size")));
    }
    Ok(results)
}
