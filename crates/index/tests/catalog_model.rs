//! The catalogue against a model: random blobs, removals, compactions, watermarks, restarts and damage.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{Model, eager_options, entry, files, id};
use lifeboat_index::{Catalog, CatalogOptions, IndexBlobName, IndexEntry};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

#[derive(Debug, Clone)]
enum Step {
    Upload(Vec<IndexEntry>),
    Remove(Index),
    /// Replaces several blobs by one with their merged entries.
    Compact(Vec<Index>),
    Watermark(i64),
    Restart,
    Damage(Index, Damage),
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Truncate(Index),
    Delete,
    Swap(Index),
}

fn any_entry() -> impl Strategy<Value = IndexEntry> {
    let content = (prop_oneof![Just(0), Just(b'k'), Just(b'm'), Just(b'z')], 0_u8..12, 0_u8..4);
    (content, 0_i64..5, any::<bool>(), 0_u8..4, 0_u32..3).prop_map(
        |((prefix, first, last), timestamp, deleted, pack, offset)| IndexEntry {
            pack_offset: offset,
            deleted,
            ..entry(id(prefix, &[first, 0, 0, 0, 0, 0, 0, 0, last]), timestamp, &format!("p{pack}"))
        },
    )
}

/// The entries of a blob; a few have hashes of another length than the rest.
fn any_blob() -> impl Strategy<Value = Vec<IndexEntry>> {
    (prop::collection::vec(any_entry(), 0..40), prop::bool::weighted(0.1)).prop_map(|(mut entries, short)| {
        if short {
            for entry in &mut entries {
                entry.id = id(entry.id.prefix().byte(), &entry.id.hash()[..2]);
            }
        }
        entries
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let damage = prop_oneof![
        4 => (any::<Index>(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        1 => any::<Index>().prop_map(Damage::Truncate),
        1 => Just(Damage::Delete),
        1 => any::<Index>().prop_map(Damage::Swap),
    ];
    prop_oneof![
        6 => any_blob().prop_map(Step::Upload),
        1 => any::<Index>().prop_map(Step::Remove),
        1 => prop::collection::vec(any::<Index>(), 1..5).prop_map(Step::Compact),
        1 => (-1_i64..5).prop_map(Step::Watermark),
        1 => Just(Step::Restart),
        4 => (any::<Index>(), damage).prop_map(|(file, damage)| Step::Damage(file, damage)),
    ]
}

fn options() -> impl Strategy<Value = CatalogOptions> {
    (1_usize..5, prop_oneof![Just(0), Just(u64::MAX)]).prop_map(|(max_segments, check_limit)| {
        CatalogOptions { max_segments, check_limit, ..eager_options() }
    })
}

fn pick(model: &Model, index: &Index) -> Option<IndexBlobName> {
    (!model.active.is_empty())
        .then(|| model.active.iter().nth(index.index(model.active.len())).unwrap().clone())
}

fn apply(step: Step, number: usize, model: &mut Model, directory: &Path) {
    match step {
        Step::Upload(entries) => model.upload(&format!("xn0_{number}"), entries),
        Step::Remove(which) => {
            if let Some(name) = pick(model, &which) {
                model.active.remove(&name);
            }
        }
        Step::Compact(which) => {
            let names: Vec<_> = which.iter().filter_map(|index| pick(model, index)).collect();
            let entries: Vec<_> = names.iter().flat_map(|name| model.entries[name].clone()).collect();
            let uniform = entries.windows(2).all(|pair| pair[0].id.hash().len() == pair[1].id.hash().len());
            if uniform {
                names.iter().for_each(|name| _ = model.active.remove(name));
                model.upload(&format!("xs0_{number}"), entries);
            }
        }
        Step::Watermark(watermark) => model.watermark = watermark,
        Step::Restart => {}
        Step::Damage(file, damage) => apply_damage(directory, &file, &damage),
    }
}

/// No snapshot is alive when this is called: a mapped file that is cut short would end the process.
fn apply_damage(directory: &Path, which: &Index, damage: &Damage) {
    let names = files(directory);
    if names.is_empty() {
        return;
    }
    let path = directory.join(&names[which.index(names.len())]);
    let len = fs::metadata(&path).unwrap().len() as usize;
    match damage {
        Damage::Flip(at, bits) if len > 0 => {
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let (at, mut byte) = (at.index(len) as u64, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ bits], at).unwrap();
        }
        Damage::Flip(..) => {}
        Damage::Truncate(at) => {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(at.index(len + 1) as u64).unwrap();
        }
        Damage::Delete => fs::remove_file(&path).unwrap(),
        Damage::Swap(other) => {
            let other = directory.join(&names[other.index(names.len())]);
            fs::copy(&path, directory.join("between")).unwrap();
            fs::copy(&other, &path).unwrap();
            fs::rename(directory.join("between"), &other).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_catalogue_always_says_what_the_active_blobs_say(
        options in options(), steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let open = || Catalog::open(directory.path(), options.clone()).unwrap();
        let mut catalog = open();
        let mut model = Model::new();
        for (number, step) in steps.into_iter().enumerate() {
            if matches!(step, Step::Restart) {
                catalog = open();
            }
            apply(step, number, &mut model, directory.path());
            model.check(&catalog);
        }
    }
}
