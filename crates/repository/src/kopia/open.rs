//! An open Kopia repository as movers see it.

use super::object::{Reader, Waiter, new_region_writer, new_writer, object_id, writer_options};
use super::scatter;
use crate::traits::whole_objects;
use crate::{
    AccessMode, Error, ErrorKind, Features, Id, Manifest, ManifestFilter, ManifestMetadata, ObjectInBuffer,
    ObjectReader, ObjectWriteOptions, ObjectWriter, RegionWriter, Repository, Result, ScatterOptions,
    ScatterTotals, Wanted, WholeObject, WrittenBytes,
};
use jiff::Timestamp;
use lifeboat_budget::{Buffer, Loan, Reservation};
use lifeboat_kopia::manifest::{self, ManifestId, TYPE_LABEL};
use lifeboat_kopia::repo;
use lifeboat_primitives::compress::Compressor;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// A Kopia repository behind the Unified Repository Interface.
#[derive(Debug, Clone)]
pub struct KopiaRepository {
    inner: repo::Repository,
    interrupted: CancellationToken,
}

impl KopiaRepository {
    /// Offers an open repository through the interface.
    pub fn new(inner: repo::Repository) -> Self {
        KopiaRepository { inner, interrupted: CancellationToken::new() }
    }

    fn waiter(&self) -> Waiter {
        Waiter { runtime: self.runtime().clone(), interrupted: self.interrupted.clone() }
    }

    fn runtime(&self) -> &Handle {
        self.inner.runtime()
    }
}

impl Repository for KopiaRepository {
    fn open_object(&self, id: &Id) -> Result<Box<dyn ObjectReader>> {
        let waiter = self.waiter();
        let reader = waiter.wait(self.inner.objects().open(object_id(id)?))?;
        Ok(Box::new(Reader::new(reader, waiter)))
    }

    fn read_scattered<'a>(
        &self,
        wanted: &mut dyn Iterator<Item = Wanted<'a>>,
        options: ScatterOptions<'_>,
    ) -> Result<ScatterTotals> {
        scatter::read(self.inner.objects(), wanted, options)
    }

    fn new_object(&self, options: &ObjectWriteOptions) -> Result<Box<dyn ObjectWriter>> {
        new_writer(self.inner.objects(), self.runtime(), options)
    }

    fn write_objects(&self, objects: &[WholeObject<'_>]) -> Result<Vec<Id>> {
        // The engine writes objects of one kind together: what is next to each other with the same options is a run.
        let mut ids = Vec::with_capacity(objects.len());
        for run in objects.chunk_by(|a, b| same_kind(a.options, b.options)) {
            let Some(first) = run.first() else { continue };
            if first.options.access_mode == AccessMode::Block {
                return Err(Error::new(ErrorKind::InvalidInput, "whole objects are not written at offsets"));
            }
            let data: Vec<&[u8]> = run.iter().map(|object| object.data).collect();
            let written = self.inner.objects().write_many(&data, &writer_options(first.options)?)?;
            ids.extend(written.into_iter().map(|id| Id::new(id.to_string())));
        }
        Ok(ids)
    }

    fn take_buffer(&self, len: usize) -> Result<Buffer> {
        Ok(self.inner.contents().take_buffer(len)?)
    }

    fn lend(&self, memory: Reservation) -> Result<Loan> {
        Ok(self.inner.contents().lend(memory)?)
    }

    fn write_objects_of(&self, buffer: Buffer, objects: &[ObjectInBuffer<'_>]) -> Result<Vec<Id>> {
        let is_one_run = objects.windows(2).all(|pair| match pair {
            [one, next] => same_kind(one.options, next.options),
            _ => true,
        });
        match objects.first() {
            Some(first) if is_one_run && first.options.access_mode != AccessMode::Block => {
                let ranges: Vec<_> = objects.iter().map(|object| object.range.clone()).collect();
                let options = writer_options(first.options)?;
                let written = self.inner.objects().write_many_of(buffer, &ranges, &options)?;
                Ok(written.into_iter().map(|id| Id::new(id.to_string())).collect())
            }
            // Several kinds: rare, so they may be copied.
            _ => self.write_objects(&whole_objects(buffer.as_ref(), objects)?),
        }
    }

    fn new_object_by_regions(&self, options: &ObjectWriteOptions) -> Result<Box<dyn RegionWriter>> {
        new_region_writer(self.inner.objects(), options)
    }

    fn is_whole(&self, id: &Id) -> Result<bool> {
        let id = object_id(id)?;
        match id.levels() {
            // Nearly all objects are; it takes a look-up.
            0 => Ok(self.inner.contents().has(&id.content())?),
            _ => Ok(self.runtime().block_on(self.inner.objects().is_whole(id))?),
        }
    }

    fn concatenate(&self, parts: &[Id]) -> Result<Id> {
        let parts = parts.iter().map(object_id).collect::<Result<Vec<_>>>()?;
        let objects = self.inner.objects();
        let joined = self.runtime().block_on(objects.concatenate(&parts, Some(Compressor::ZstdFastest)))?;
        Ok(Id::new(joined.to_string()))
    }

    fn manifest(&self, id: &Id) -> Result<Manifest> {
        let manifest = self.runtime().block_on(self.inner.manifests().get(&manifest_id(id)))?;
        Ok(Manifest { payload: manifest.data().as_bytes().to_vec(), metadata: metadata(&manifest) })
    }

    fn find_manifests(&self, filter: &ManifestFilter) -> Result<Vec<ManifestMetadata>> {
        let found = self.runtime().block_on(self.inner.manifests().find(&filter.labels))?;
        Ok(found.iter().map(metadata).collect())
    }

    fn put_manifest(&self, labels: BTreeMap<String, String>, payload: &[u8]) -> Result<Id> {
        if labels.get(TYPE_LABEL).is_none_or(String::is_empty) {
            return Err(Error::new(ErrorKind::InvalidInput, "a manifest needs a label \"type\""));
        }
        let payload: &RawValue = serde_json::from_slice(payload).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, format!("a manifest's payload is not JSON: {e}"))
        })?;
        let id = self.runtime().block_on(self.inner.manifests().put(labels, payload))?;
        Ok(Id::new(id.as_str()))
    }

    fn delete_manifest(&self, id: &Id) -> Result<()> {
        Ok(self.runtime().block_on(self.inner.manifests().delete(&manifest_id(id)))?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.runtime().block_on(self.inner.flush())?)
    }

    fn written(&self) -> WrittenBytes {
        let totals = self.inner.contents().totals();
        WrittenBytes { new: totals.new_bytes, stored: totals.uploaded_bytes }
    }

    fn features(&self) -> Features {
        Features { concatenate: true, concurrent_write_at: true, clone_parent_ranges: true, checkpoint: true }
    }

    fn now(&self) -> Timestamp {
        self.inner.environment().clock.now()
    }

    fn interrupt_reads(&self) {
        self.interrupted.cancel();
    }

    fn interrupt_writes(&self) {
        self.inner.contents().interrupt_writes();
    }

    fn close(&self) -> Result<()> {
        Ok(self.runtime().block_on(self.inner.clone().close())?)
    }
}

fn same_kind(a: &ObjectWriteOptions, b: &ObjectWriteOptions) -> bool {
    (a.prefix, &a.compressor, &a.splitter, a.access_mode)
        == (b.prefix, &b.compressor, &b.splitter, b.access_mode)
}

fn manifest_id(id: &Id) -> ManifestId {
    ManifestId::from(id.as_str())
}

fn metadata(manifest: &manifest::Manifest) -> ManifestMetadata {
    ManifestMetadata {
        id: Id::new(manifest.id().as_str()),
        length: manifest.data().len() as u64,
        labels: manifest.labels().clone(),
        modified: manifest.modified(),
    }
}
