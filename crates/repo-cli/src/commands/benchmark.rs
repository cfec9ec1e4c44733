//! `benchmark`: how fast hashes, ciphers, error correction, splitters and compressors are on this machine.

use crate::output::{self, bytes};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use lifeboat_kopia::Environment;
use lifeboat_kopia::sealer::{Sealer, SealerKeys};
use lifeboat_primitives::aead::CipherAlgorithm;
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::ecc;
use lifeboat_primitives::hash::HashAlgorithm;
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

/// Blocks are not longer than this: each thread has some.
const LONGEST: u64 = 256 << 20;
/// So much of a file is compressed, and so much in all if nobody says how often.
const COMPRESSED: u64 = 128 << 20;
/// The overheads of error correction that Kopia measures.
const OVERHEADS: [u32; 5] = [1, 2, 5, 10, 20];
/// Compressors that nobody should begin with.
const DEPRECATED: [Compressor; 2] = [Compressor::Lz4, Compressor::ZstdBestCompression];

/// Verbs of `benchmark`.
#[derive(Debug, Subcommand)]
pub enum BenchmarkCommand {
    /// Hash and encrypt blocks, with each pair of algorithms
    Crypto {
        /// Of which blocks.
        #[command(flatten)]
        blocks: BlockArgs,
        /// How many blocks
        #[arg(long, default_value_t = 50)]
        repeat: u32,
    },
    /// Encrypt blocks
    Encryption {
        /// Of which blocks.
        #[command(flatten)]
        blocks: BlockArgs,
        /// How many blocks
        #[arg(long, default_value_t = 50)]
        repeat: u32,
    },
    /// Add error correction to blocks, and read them again
    Ecc {
        /// Of which blocks.
        #[command(flatten)]
        blocks: BlockArgs,
        /// How many blocks
        #[arg(long, default_value_t = 50)]
        repeat: u32,
    },
    /// Hash blocks
    #[command(visible_alias = "hash")]
    Hashing {
        /// Of which blocks.
        #[command(flatten)]
        blocks: BlockArgs,
        /// How many blocks
        #[arg(long, default_value_t = 50)]
        repeat: u32,
    },
    /// Cut data into pieces
    Splitter(SplitterArgs),
    /// Compress a file
    Compression(CompressionArgs),
}

/// What every benchmark is told.
#[derive(Debug, Clone, Args)]
pub struct CommonArgs {
    /// How many threads do it at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: u16,
    /// Print the options that choose each algorithm for a new repository
    #[arg(long)]
    pub print_options: bool,
}

/// Blocks of data.
#[derive(Debug, Args)]
pub struct BlockArgs {
    /// The size of a block, such as 512KB or 10MB
    #[arg(long, default_value = "1MB", value_name = "SIZE", value_parser = parse_size)]
    pub block_size: u64,
    /// How.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Data to be cut.
#[derive(Debug, Args)]
pub struct SplitterArgs {
    /// What the data is made from: the same number makes the same data
    #[arg(long, default_value_t = 42, value_name = "NUMBER")]
    pub rand_seed: u64,
    /// The size of a block, such as 512KB or 10MB
    #[arg(long, default_value = "32MB", value_name = "SIZE", value_parser = parse_size)]
    pub data_size: u64,
    /// How many blocks; all are in memory
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_count: u32,
    /// How.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A file to be compressed.
#[derive(Debug, Args)]
pub struct CompressionArgs {
    /// The file, of which at most 128 MiB are taken
    #[arg(long)]
    pub data_file: PathBuf,
    /// How often; 0 makes it about 128 MiB in all
    #[arg(long, default_value_t = 0)]
    pub repeat: u32,
    /// Sort by size, not by speed
    #[arg(long)]
    pub by_size: bool,
    /// What is measured
    #[arg(long, default_value = "both")]
    pub operations: Operations,
    /// Fail if a compressor does not make the same of the same data each time
    #[arg(long)]
    pub verify_stable: bool,
    /// Also those that nobody should begin with
    #[arg(long)]
    pub deprecated: bool,
    /// Only those whose names begin so, with commas between them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub algorithms: Vec<String>,
    /// How.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What is done with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Operations {
    /// It is compressed
    Compress,
    /// It is decompressed
    Decompress,
    /// One after the other
    Both,
}

/// A size with a unit; as with Kopia 1KB are 1024 bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err("a size is a number and B, KB, MB or GB".to_owned()),
    };
    let size = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match size {
        Some(size) if (1..=LONGEST).contains(&size) => Ok(size),
        _ => Err("a size is from 1 byte to 256MB".to_owned()),
    }
}

/// What was measured of one algorithm.
#[derive(Debug)]
struct Measured {
    name: String,
    /// The flags that choose it for a new repository.
    option: String,
    bytes_per_second: f64,
    /// What is left of the data.
    size: u64,
    remark: String,
}

pub fn run(command: &BenchmarkCommand) -> Result<()> {
    match command {
        BenchmarkCommand::Crypto { blocks, repeat } => print(crypto(blocks, *repeat)?, &blocks.common),
        BenchmarkCommand::Encryption { blocks, repeat } => {
            print(encryption(blocks, *repeat)?, &blocks.common)
        }
        BenchmarkCommand::Ecc { blocks, repeat } => print(error_correction(blocks, *repeat)?, &blocks.common),
        BenchmarkCommand::Hashing { blocks, repeat } => print(hashing(blocks, *repeat)?, &blocks.common),
        BenchmarkCommand::Splitter(args) => {
            let results = fastest_first(splitters(args)?);
            print_in_order(&results, &args.common)?;
            // Those of fixed length are fast, and find nothing again behind what was inserted.
            let best = results.iter().find(|result| !result.name.starts_with("FIXED"));
            print_best(best.filter(|_| args.common.print_options))
        }
        BenchmarkCommand::Compression(args) => compression(args),
    }
}

/// Prints the fastest first, and which that is.
fn print(results: Vec<Measured>, common: &CommonArgs) -> Result<()> {
    let results = fastest_first(results);
    print_in_order(&results, common)?;
    print_best(results.first())
}

fn fastest_first(mut results: Vec<Measured>) -> Vec<Measured> {
    results.sort_by(|a, b| b.bytes_per_second.total_cmp(&a.bytes_per_second));
    results
}

fn print_best(best: Option<&Measured>) -> Result<()> {
    match best {
        Some(best) => output::line(&format!("Fastest option for this machine is: {}", best.option)),
        None => Ok(()),
    }
}

fn print_in_order(results: &[Measured], common: &CommonArgs) -> Result<()> {
    for (place, result) in results.iter().enumerate() {
        let Measured { name, option, bytes_per_second, remark, .. } = result;
        let rate = bytes(*bytes_per_second as u64);
        let option = if common.print_options { format!(",   {option}") } else { String::new() };
        let line = format!("{place:>3}. {name:<48} {rate:>10} / second {remark}");
        output::line(&format!("{}{option}", line.trim_end()))?;
    }
    Ok(())
}

/// Runs `work` so often on each thread, after a first time that does not count; returns the bytes per second of all.
fn measure(
    length: usize,
    repeat: u32,
    common: &CommonArgs,
    work: impl Fn() -> Result<()> + Sync,
) -> Result<f64> {
    work()?;
    let (repeat, threads) = (repeat.max(1), common.parallel);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let run = || (0..repeat).try_for_each(|_| work());
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = run();
        let joined = others.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a thread of the benchmark panicked"),
        });
        joined.chain([own]).collect::<Result<()>>()
    })?;
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    Ok(length as f64 * f64::from(repeat) * f64::from(threads) / seconds)
}

/// Bytes that no compressor and no cache makes easy.
fn noise(length: u64, seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed | 1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length as usize).collect()
}

fn sealer(hash: HashAlgorithm, cipher: CipherAlgorithm) -> Result<Sealer> {
    let keys =
        SealerKeys { hash, hash_secret: &[7; 32], cipher, master_key: &[8; 32], ecc_overhead_percent: None };
    Ok(Sealer::new(&keys, &Environment::default())?)
}

fn crypto(args: &BlockArgs, repeat: u32) -> Result<Vec<Measured>> {
    let data = noise(args.block_size, 1);
    let mut results = Vec::new();
    for cipher in CipherAlgorithm::ALL {
        for hash in HashAlgorithm::ALL {
            let sealer = sealer(hash, cipher)?;
            let bytes_per_second = measure(data.len(), repeat, &args.common, || {
                let id = sealer.hash(&data);
                sealer.seal_with_id(id.as_slice(), &data)?;
                Ok(())
            })?;
            let (hash, cipher) = (hash.name(), cipher.name());
            results.push(Measured {
                name: format!("{hash} {cipher}"),
                option: format!("--block-hash={hash} --encryption={cipher}"),
                bytes_per_second,
                size: args.block_size,
                remark: String::new(),
            });
        }
    }
    Ok(results)
}

fn encryption(args: &BlockArgs, repeat: u32) -> Result<Vec<Measured>> {
    let data = noise(args.block_size, 1);
    let mut results = Vec::new();
    for cipher in CipherAlgorithm::ALL {
        let sealer = sealer(HashAlgorithm::ALL[0], cipher)?;
        let id = sealer.hash(&data);
        let bytes_per_second = measure(data.len(), repeat, &args.common, || {
            std::hint::black_box(sealer.seal_with_id(id.as_slice(), &data)?);
            Ok(())
        })?;
        results.push(Measured {
            name: cipher.name().to_owned(),
            option: format!("--encryption={}", cipher.name()),
            bytes_per_second,
            size: args.block_size,
            remark: String::new(),
        });
    }
    Ok(results)
}

fn error_correction(args: &BlockArgs, repeat: u32) -> Result<Vec<Measured>> {
    let data = noise(args.block_size, 1);
    let mut results = Vec::new();
    for percent in OVERHEADS {
        let codec = ecc::Codec::new(percent)?;
        let mut stored = Vec::new();
        codec.encode(&data, &mut stored)?;
        let bytes_per_second = measure(data.len(), repeat, &args.common, || {
            let mut out = Vec::with_capacity(stored.len());
            Ok(codec.encode(&data, &mut out)?)
        })?;
        let decoding = measure(data.len(), repeat, &args.common, || {
            std::hint::black_box(codec.decode(&stored)?);
            Ok(())
        })?;
        let (read, length) = (bytes(decoding as u64), bytes(stored.len() as u64));
        results.push(Measured {
            name: format!("{} {percent}%", ecc::NAME),
            option: format!("--ecc={} --ecc-overhead-percent={percent}", ecc::NAME),
            bytes_per_second,
            size: stored.len() as u64,
            remark: format!("to write, {read}/s to read, {length} stored"),
        });
    }
    Ok(results)
}

fn hashing(args: &BlockArgs, repeat: u32) -> Result<Vec<Measured>> {
    let data = noise(args.block_size, 1);
    let mut results = Vec::new();
    for hash in HashAlgorithm::ALL {
        let sealer = sealer(hash, CipherAlgorithm::ALL[0])?;
        let bytes_per_second = measure(data.len(), repeat, &args.common, || {
            std::hint::black_box(sealer.hash(&data));
            Ok(())
        })?;
        results.push(Measured {
            name: hash.name().to_owned(),
            option: format!("--block-hash={}", hash.name()),
            bytes_per_second,
            size: args.block_size,
            remark: String::new(),
        });
    }
    Ok(results)
}

fn splitters(args: &SplitterArgs) -> Result<Vec<Measured>> {
    let seeds = (0..u64::from(args.block_count)).map(|block| args.rand_seed.wrapping_add(2 * block));
    let blocks: Vec<Vec<u8>> = seeds.map(|seed| noise(args.data_size, seed)).collect();
    let length = blocks.iter().map(Vec::len).sum();
    let mut results = Vec::new();
    for algorithm in SplitterAlgorithm::all() {
        let bytes_per_second = measure(length, 1, &args.common, || {
            std::hint::black_box(pieces(algorithm, &blocks));
            Ok(())
        })?;
        let mut pieces = pieces(algorithm, &blocks);
        pieces.sort_unstable();
        let part = |percent: usize| pieces.get(pieces.len() * percent / 100).copied().unwrap_or_default();
        let (least, most) = (part(0), pieces.last().copied().unwrap_or_default());
        results.push(Measured {
            name: algorithm.name(),
            option: format!("--object-splitter={}", algorithm.name()),
            bytes_per_second,
            size: args.data_size,
            remark: format!(
                "count:{} min:{least} 10th:{} 25th:{} 50th:{} 75th:{} 90th:{} max:{most}",
                pieces.len(),
                part(10),
                part(25),
                part(50),
                part(75),
                part(90)
            ),
        });
    }
    Ok(results)
}

/// The lengths of the pieces that blocks are cut into.
fn pieces(algorithm: SplitterAlgorithm, blocks: &[Vec<u8>]) -> Vec<usize> {
    let mut pieces = Vec::new();
    for block in blocks {
        let mut splitter = Splitter::new(algorithm);
        let mut rest = &block[..];
        while let Some(cut) = splitter.next_cut(rest) {
            pieces.push(cut);
            rest = &rest[cut..];
        }
        if !rest.is_empty() {
            pieces.push(rest.len());
        }
    }
    pieces
}

fn compression(args: &CompressionArgs) -> Result<()> {
    let failed = || format!("cannot read {}", args.data_file.display());
    let mut data = Vec::new();
    File::open(&args.data_file)
        .with_context(failed)?
        .take(COMPRESSED)
        .read_to_end(&mut data)
        .with_context(failed)?;
    ensure!(!data.is_empty(), "{} is empty; there is nothing to compress", args.data_file.display());
    let repeat = match args.repeat {
        0 => u32::try_from(COMPRESSED / data.len() as u64).unwrap_or(u32::MAX).max(1),
        count => count,
    };
    let is_wanted = |compressor: &Compressor| match args.algorithms.is_empty() {
        true => args.deprecated || !DEPRECATED.contains(compressor),
        false => args.algorithms.iter().any(|start| compressor.name().starts_with(start)),
    };
    let chosen: Vec<Compressor> = Compressor::ALL.into_iter().filter(is_wanted).collect();
    ensure!(!chosen.is_empty(), "no compressor has a name that begins with {}", args.algorithms.join(" or "));
    for (operation, name) in
        [(Operations::Compress, "Compressing"), (Operations::Decompress, "Decompressing")]
    {
        if args.operations != operation && args.operations != Operations::Both {
            continue;
        }
        output::line(&format!("{name} {}:", bytes(data.len() as u64)))?;
        let measured = chosen.iter().map(|compressor| one(*compressor, operation, &data, repeat, args));
        let mut results = measured.collect::<Result<Vec<_>>>()?;
        match args.by_size {
            true => results.sort_by_key(|result| result.size),
            false => results = fastest_first(results),
        }
        print_in_order(&results, &args.common)?;
    }
    Ok(())
}

/// Measures one compressor.
fn one(
    compressor: Compressor,
    operation: Operations,
    data: &[u8],
    repeat: u32,
    args: &CompressionArgs,
) -> Result<Measured> {
    let mut compressed = Vec::new();
    compressor.compress(data, &mut compressed)?;
    let bytes_per_second = measure(data.len(), repeat, &args.common, || {
        if operation == Operations::Decompress {
            std::hint::black_box(compressor.decompress(&compressed, data.len())?);
            return Ok(());
        }
        let mut out = Vec::with_capacity(compressed.len());
        compressor.compress(data, &mut out)?;
        let is_stable = !args.verify_stable || out == compressed;
        ensure!(is_stable, "{} does not make the same of the same data each time", compressor.name());
        Ok(())
    })?;
    let percent = compressed.len() as f64 * 100.0 / data.len().max(1) as f64;
    let deprecated = if DEPRECATED.contains(&compressor) { " (deprecated)" } else { "" };
    Ok(Measured {
        name: compressor.name().to_owned(),
        option: format!("--compression={}", compressor.name()),
        bytes_per_second,
        size: compressed.len() as u64,
        remark: format!("{}, {percent:.1}% of its size{deprecated}", bytes(compressed.len() as u64)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("1MB"), Ok(1 << 20));
        assert_eq!(parse_size("512k"), Ok(512 << 10));
        assert_eq!(parse_size("7"), Ok(7));
        for wrong in ["", "0", "MB", "1TB", "1GB", "-1MB", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pieces_are_all_of_the_data() {
        let blocks = [noise(3 << 20, 42), noise(1, 44)];
        for algorithm in SplitterAlgorithm::all() {
            assert_eq!(
                pieces(algorithm, &blocks).iter().sum::<usize>(),
                (3 << 20) + 1,
                "{}",
                algorithm.name()
            );
        }
    }
}
