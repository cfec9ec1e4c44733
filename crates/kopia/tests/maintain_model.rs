//! Random histories of backups, deletions and maintenance against a model: what is alive stays whole at every step, and
//! what is dead is freed in the end.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use lifeboat_kopia::maintain::{Mode, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::Repository;
use maintain_common::*;
use std::collections::BTreeMap;

/// A small generator, so that a seed is all that it takes to repeat a history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Two clients and what there should be.
struct History {
    world: World,
    dice: Dice,
    clients: [Repository; 2],
    alive: BTreeMap<ManifestId, Files>,
    log: Vec<String>,
}

impl History {
    async fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let world = World::new();
        let version = [1, 2, 3, 3][dice.roll(4) as usize];
        let clients = [world.create(version).await, world.open().await];
        History { world, dice, clients, alive: BTreeMap::new(), log: vec![format!("version {version}")] }
    }

    /// Files from a small pool: most snapshots share most of theirs with others, dead ones included.
    fn files(&mut self) -> Files {
        let count = 1 + self.dice.roll(6);
        (0..count)
            .map(|_| {
                let number = self.dice.roll(25);
                let folder = ["", "one/", "two/"][self.dice.roll(3) as usize];
                (format!("{folder}{number}"), noise(number, 500 + number as usize * 9000))
            })
            .collect()
    }

    async fn step(&mut self) {
        let client = self.clients[self.dice.roll(2) as usize].clone();
        match self.dice.roll(12) {
            0..=3 => {
                let files = self.files();
                let id = take_snapshot(&client, &files).await;
                self.log.push(format!("snapshot {id} with {:?}", files.keys()));
                self.alive.insert(id, files);
            }
            4..=5 if !self.alive.is_empty() => {
                let place = self.dice.roll(self.alive.len() as u64) as usize;
                let id = self.alive.keys().nth(place).unwrap().clone();
                client.refresh().await.unwrap();
                delete_snapshot(&client, &id).await;
                self.log.push(format!("delete {id}"));
                self.alive.remove(&id);
            }
            6..=8 => {
                let by = [1, 2, 5, 13, 24, 40][self.dice.roll(6) as usize];
                self.world.clock.advance(hours(by));
                self.log.push(format!("{by} hours pass"));
            }
            9..=10 => {
                let mode = [Mode::Auto, Mode::Full, Mode::Full, Mode::Quick][self.dice.roll(4) as usize];
                let report = run(&client, mode, &Safety::FULL).await;
                self.log.push(format!("{mode:?}: {report}"));
                assert!(report.is_clean(), "{}", self.log.join("\n"));
                self.check(&client).await;
            }
            _ => {
                let place = self.dice.roll(2) as usize;
                self.clients[place] = self.world.open().await;
                self.log.push(format!("client {place} starts again"));
            }
        }
    }

    /// Every living snapshot is whole, in the eyes of a client that knows nothing yet and of one that knows much.
    async fn check(&self, client: &Repository) {
        client.refresh().await.unwrap();
        for (id, files) in &self.alive {
            assert!(restore(client, id).await == *files, "{id} differs after\n{}", self.log.join("\n"));
        }
    }

    async fn end(mut self) {
        let fresh = self.world.open().await;
        assert_whole(&fresh, &self.alive).await;
        for id in std::mem::take(&mut self.alive).into_keys() {
            delete_snapshot(&fresh, &id).await;
        }
        for _ in 0..8 {
            self.world.clock.advance(hours(24));
            let report = full(&fresh).await;
            assert!(report.is_clean(), "{}\n{report}", self.log.join("\n"));
        }
        assert_eq!(self.world.names("p").await, Vec::<String>::new(), "{}", self.log.join("\n"));
        assert!(self.world.names("s").await.is_empty());
        assert_sound(&self.world.open().await).await;
    }
}

/// How many histories are played; a longer run sets `LIFEBOAT_MAINTAIN_SEEDS`.
fn seeds() -> u64 {
    std::env::var("LIFEBOAT_MAINTAIN_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

#[tokio::test(flavor = "multi_thread")]
async fn living_snapshots_survive_random_histories_and_dead_ones_are_freed() {
    for seed in 0..seeds() {
        let mut history = History::new(seed).await;
        for _ in 0..40 {
            history.step().await;
        }
        history.end().await;
    }
}
