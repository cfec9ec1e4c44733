//! The Kopia engine keeps the contract of the Unified Repository Interface, on its own and behind a decorator.

#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use lifeboat_budget::Budget;
use lifeboat_repository::conformance::{self, Harness};
use lifeboat_repository::kopia::KopiaService;
use lifeboat_repository::{
    Features, Id, MaintenanceMode, MaintenanceOutcome, Manifest, ManifestFilter, ManifestMetadata,
    ObjectReader, ObjectWriteOptions, ObjectWriter, Readiness, Repository, RepositoryOptions,
    RepositoryService, Result, Secret, StorageOptions,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Room for two packs and the chunks of a few writers: what a small mover pod gets.
const BUDGET: u64 = 96 << 20;

struct Folders<S> {
    service: S,
    folder: tempfile::TempDir,
    places: Cell<u32>,
}

impl<S: RepositoryService> Folders<S> {
    fn new(service: S) -> Self {
        Folders { service, folder: tempfile::tempdir().unwrap(), places: Cell::new(0) }
    }
}

impl<S: RepositoryService> Harness for Folders<S> {
    fn service(&self) -> &dyn RepositoryService {
        &self.service
    }

    fn empty_place(&self) -> RepositoryOptions {
        let number = self.places.replace(self.places.get() + 1);
        let folder = self.folder.path().join(number.to_string());
        let path = folder.join("repository").to_str().unwrap().to_owned();
        RepositoryOptions {
            storage_type: "filesystem".to_owned(),
            password: Secret::new("a good password"),
            config_file: folder.join("repo.conf"),
            storage_options: StorageOptions(BTreeMap::from([("fspath".to_owned(), path)])),
            ..RepositoryOptions::default()
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

#[test]
fn the_kopia_engine_keeps_the_contract() {
    let runtime = runtime();
    conformance::run(&Folders::new(KopiaService::new(runtime.handle().clone(), Budget::new(BUDGET))));
}

/// A layer between movers and engine: here it only counts.
struct Counting {
    inner: KopiaService,
    opened: AtomicU64,
}

impl RepositoryService for Counting {
    fn create(&self, options: &RepositoryOptions) -> Result<()> {
        self.inner.create(options)
    }
    fn connect(&self, options: &RepositoryOptions) -> Result<()> {
        self.inner.connect(options)
    }
    fn readiness(&self, options: &RepositoryOptions) -> Result<Readiness> {
        self.inner.readiness(options)
    }
    fn open(&self, options: &RepositoryOptions) -> Result<Arc<dyn Repository>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.inner.open(options)
    }
    fn maintain(&self, options: &RepositoryOptions, mode: MaintenanceMode) -> Result<MaintenanceOutcome> {
        self.inner.maintain(options, mode)
    }
    fn default_maintenance_frequency(&self) -> Duration {
        self.inner.default_maintenance_frequency()
    }
}

#[test]
fn a_layer_can_be_put_in_between_without_touching_movers() {
    let runtime = runtime();
    let service = KopiaService::new(runtime.handle().clone(), Budget::new(BUDGET));
    let harness = Folders::new(Counting { inner: service, opened: AtomicU64::new(0) });
    let options = harness.empty_place();
    harness.service().create(&options).unwrap();
    harness.service().open(&options).unwrap().close().unwrap();
    assert_eq!(harness.service.opened.load(Ordering::Relaxed), 1);
}

/// An engine that offers nothing beyond what the interface asks of every engine.
struct Minimal(KopiaService);

struct MinimalRepository(Arc<dyn Repository>);

impl RepositoryService for Minimal {
    fn create(&self, options: &RepositoryOptions) -> Result<()> {
        self.0.create(options)
    }
    fn connect(&self, options: &RepositoryOptions) -> Result<()> {
        self.0.connect(options)
    }
    fn readiness(&self, options: &RepositoryOptions) -> Result<Readiness> {
        self.0.readiness(options)
    }
    fn open(&self, options: &RepositoryOptions) -> Result<Arc<dyn Repository>> {
        Ok(Arc::new(MinimalRepository(self.0.open(options)?)))
    }
    fn maintain(&self, options: &RepositoryOptions, mode: MaintenanceMode) -> Result<MaintenanceOutcome> {
        self.0.maintain(options, mode)
    }
    fn default_maintenance_frequency(&self) -> Duration {
        self.0.default_maintenance_frequency()
    }
}

impl Repository for MinimalRepository {
    fn open_object(&self, id: &Id) -> Result<Box<dyn ObjectReader>> {
        self.0.open_object(id)
    }
    fn new_object(&self, options: &ObjectWriteOptions) -> Result<Box<dyn ObjectWriter>> {
        self.0.new_object(options)
    }
    fn concatenate(&self, parts: &[Id]) -> Result<Id> {
        self.0.concatenate(parts)
    }
    fn manifest(&self, id: &Id) -> Result<Manifest> {
        self.0.manifest(id)
    }
    fn find_manifests(&self, filter: &ManifestFilter) -> Result<Vec<ManifestMetadata>> {
        self.0.find_manifests(filter)
    }
    fn put_manifest(&self, labels: BTreeMap<String, String>, payload: &[u8]) -> Result<Id> {
        self.0.put_manifest(labels, payload)
    }
    fn delete_manifest(&self, id: &Id) -> Result<()> {
        self.0.delete_manifest(id)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn features(&self) -> Features {
        self.0.features()
    }
    fn now(&self) -> Timestamp {
        self.0.now()
    }
    fn close(&self) -> Result<()> {
        self.0.close()
    }
}

#[test]
fn what_the_interface_does_by_itself_keeps_the_contract() {
    let runtime = runtime();
    let service = KopiaService::new(runtime.handle().clone(), Budget::new(BUDGET));
    let harness = Folders::new(Minimal(service));
    let own = |name: &str| name.contains("together") || name.contains("destination");
    conformance::SCENARIOS.iter().filter(|(name, _)| own(name)).for_each(|(_, scenario)| scenario(&harness));
}

#[test]
fn a_small_budget_is_kept_and_suffices() {
    let runtime = runtime();
    let budget = Budget::new(BUDGET);
    let harness = Folders::new(KopiaService::new(runtime.handle().clone(), budget.clone()));
    let options = harness.empty_place();
    harness.service().create(&options).unwrap();
    let repository = harness.service().open(&options).unwrap();
    let ids: Vec<_> = (0..4u64)
        .map(|seed| {
            let mut writer = repository.new_object(&Default::default()).unwrap();
            for piece in conformance::noise(seed, 60 << 20).chunks(4 << 20) {
                writer.write(piece).unwrap();
            }
            writer.result().unwrap()
        })
        .collect();
    repository.flush().unwrap();
    for (seed, id) in ids.iter().enumerate() {
        let mut data = Vec::new();
        std::io::Read::read_to_end(&mut repository.open_object(id).unwrap(), &mut data).unwrap();
        assert!(data == conformance::noise(seed as u64, 60 << 20));
    }
    assert!(budget.peak() <= BUDGET, "{} bytes were reserved", budget.peak());
}
