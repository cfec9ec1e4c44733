//! The gRPC side of the driver: asks the knobs, runs the operation off the async threads, answers.

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::knobs::{Knobs, Loss, Moment, Rule, Subject};
use crate::metadata::{Message, Window};
use crate::proto::controller_service_capability::{self as controller_can, rpc::Type as ControllerCan};
use crate::proto::node_service_capability::{self as node_can, rpc::Type as NodeCan};
use crate::proto::plugin_capability::{self as plugin_can, service::Type as Offers};
use crate::proto::{self, controller_server::Controller, identity_server::Identity, node_server::Node};
use crate::proto::{snapshot_metadata_server::SnapshotMetadata, volume_content_source as from};
use crate::store::{Id, Record, Snapshot, Volume};
use crate::{content, store};
use futures::stream::{self, BoxStream, StreamExt};
use std::collections::HashMap;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// A driver that answers calls.
#[derive(Debug, Clone)]
pub struct Service {
    driver: Arc<Driver>,
    knobs: Arc<Knobs>,
}

type Answer<T> = std::result::Result<Response<T>, Status>;

/// A request that knobs can act on.
trait Call: Send + 'static {
    const METHOD: &'static str;

    /// What the call is about, as far as the request itself says.
    fn subject(&self) -> Subject;
}

impl Service {
    /// Serves `driver` with the faults of `knobs`.
    pub fn new(driver: Driver, knobs: Knobs) -> Service {
        Service { driver: Arc::new(driver), knobs: Arc::new(knobs) }
    }

    /// Whether the driver knows about blocks.
    pub(crate) fn offers_snapshot_metadata(&self) -> bool {
        self.driver.settings.snapshot_metadata
    }

    async fn call<Q: Call, A: Send + 'static>(
        &self,
        request: Request<Q>,
        operation: impl FnOnce(&Driver, &Q, &Rule) -> Result<A> + Send + 'static,
    ) -> Answer<A> {
        let request = request.into_inner();
        let subject = complete(&self.driver, request.subject());
        let outcome = self.carry_out(request, &subject, operation).await;
        match &outcome {
            Ok(_) => tracing::info!(method = Q::METHOD, name = subject.name, id = subject.id, "done"),
            Err(status) => {
                tracing::warn!(method = Q::METHOD, name = subject.name, id = subject.id, code = ?status.code(),
                    "{}", status.message());
            }
        }
        outcome.map(Response::new)
    }

    async fn carry_out<Q: Call, A: Send + 'static>(
        &self,
        request: Q,
        subject: &Subject,
        operation: impl FnOnce(&Driver, &Q, &Rule) -> Result<A> + Send + 'static,
    ) -> std::result::Result<A, Status> {
        let rule = self.knobs.consult(Q::METHOD, subject)?;
        tokio::time::sleep(rule.delay()).await;
        rule.failure(Moment::Before)?;
        let (driver, subject) = (Arc::clone(&self.driver), subject.clone());
        let work = move || {
            if let Some(loss) = rule.lose {
                lose(&driver, &subject, loss)?;
            }
            let answer = operation(&driver, &request, &rule)?;
            rule.failure(Moment::After).map(|()| answer)
        };
        // If the caller gives up, the operation goes on; a repeated call is told that it is under way.
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.map_err(|error| Status::internal(format!("{} broke down: {error}", Q::METHOD)))??)
    }
}

/// Adds the name and the parameters of an object that the request only names by its id.
fn complete(driver: &Driver, mut subject: Subject) -> Subject {
    fn known<R: Record>(driver: &Driver, subject: &mut Subject) {
        if let Ok((_, record)) = driver.store.get::<R>(&subject.id) {
            subject.name = record.name().to_owned();
            subject.parameters = record.parameters().clone();
        }
    }
    if subject.name.is_empty() {
        known::<Volume>(driver, &mut subject);
        known::<Snapshot>(driver, &mut subject);
    }
    subject
}

/// Deletes the snapshot that a call is about, or its content, as a failing storage system would.
fn lose(driver: &Driver, subject: &Subject, loss: Loss) -> Result<()> {
    let Some(id) = [&subject.id, &subject.source].into_iter().find_map(|id| Id::parse::<Snapshot>(id)) else {
        return Ok(());
    };
    let folder = driver.store.folder::<Snapshot>(&id);
    match (loss, driver.store.find::<Snapshot>(&id)?) {
        (_, None) => Ok(()),
        (Loss::Snapshot, Some(_)) => driver.store.remove::<Snapshot>(&id),
        (Loss::Content, Some(snapshot)) => {
            let path = content::path_in(&folder, snapshot.backing);
            if path.is_dir() {
                return store::remove_tree(&path);
            }
            std::fs::remove_file(&path).map_err(Error::io("delete", &path))
        }
    }
}

/// Implements [`Call`] for requests that name one object by an id.
macro_rules! calls_about {
    ($($request:ident . $id:ident => $method:literal,)*) => {$(
        impl Call for proto::$request {
            const METHOD: &'static str = $method;
            fn subject(&self) -> Subject {
                Subject { id: self.$id.clone(), ..Subject::default() }
            }
        }
    )*};
}

calls_about! {
    DeleteVolumeRequest.volume_id => "DeleteVolume",
    ValidateVolumeCapabilitiesRequest.volume_id => "ValidateVolumeCapabilities",
    ControllerExpandVolumeRequest.volume_id => "ControllerExpandVolume",
    DeleteSnapshotRequest.snapshot_id => "DeleteSnapshot",
    ListSnapshotsRequest.snapshot_id => "ListSnapshots",
    NodeStageVolumeRequest.volume_id => "NodeStageVolume",
    NodeUnstageVolumeRequest.volume_id => "NodeUnstageVolume",
    NodePublishVolumeRequest.volume_id => "NodePublishVolume",
    NodeUnpublishVolumeRequest.volume_id => "NodeUnpublishVolume",
    NodeGetVolumeStatsRequest.volume_id => "NodeGetVolumeStats",
    NodeExpandVolumeRequest.volume_id => "NodeExpandVolume",
    GetMetadataAllocatedRequest.snapshot_id => "GetMetadataAllocated",
}

fn created<R: Record>(name: &str, source: &str, parameters: &HashMap<String, String>) -> Subject {
    Subject {
        name: name.to_owned(),
        id: Id::of_name::<R>(name).to_string(),
        source: source.to_owned(),
        parameters: parameters.clone().into_iter().collect(),
    }
}

impl Call for proto::CreateVolumeRequest {
    const METHOD: &'static str = "CreateVolume";
    fn subject(&self) -> Subject {
        let source = match self.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref()) {
            Some(from::Type::Snapshot(source)) => source.snapshot_id.as_str(),
            Some(from::Type::Volume(source)) => source.volume_id.as_str(),
            None => "",
        };
        created::<Volume>(&self.name, source, &self.parameters)
    }
}

impl Call for proto::CreateSnapshotRequest {
    const METHOD: &'static str = "CreateSnapshot";
    fn subject(&self) -> Subject {
        created::<Snapshot>(&self.name, &self.source_volume_id, &self.parameters)
    }
}

impl Call for proto::GetMetadataDeltaRequest {
    const METHOD: &'static str = "GetMetadataDelta";
    fn subject(&self) -> Subject {
        let (id, source) = (self.target_snapshot_id.clone(), self.base_snapshot_id.clone());
        Subject { id, source, ..Subject::default() }
    }
}

impl Call for proto::ListVolumesRequest {
    const METHOD: &'static str = "ListVolumes";
    fn subject(&self) -> Subject {
        Subject::default()
    }
}

impl Call for proto::GetCapacityRequest {
    const METHOD: &'static str = "GetCapacity";
    fn subject(&self) -> Subject {
        Subject::default()
    }
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<proto::GetPluginInfoRequest>,
    ) -> Answer<proto::GetPluginInfoResponse> {
        Ok(Response::new(proto::GetPluginInfoResponse {
            name: self.driver.settings.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<proto::GetPluginCapabilitiesRequest>,
    ) -> Answer<proto::GetPluginCapabilitiesResponse> {
        let mut offers = vec![Offers::ControllerService, Offers::VolumeAccessibilityConstraints];
        offers.extend(self.driver.settings.snapshot_metadata.then_some(Offers::SnapshotMetadataService));
        let services = offers
            .into_iter()
            .map(|service| plugin_can::Type::Service(plugin_can::Service { r#type: service.into() }));
        let online =
            plugin_can::VolumeExpansion { r#type: plugin_can::volume_expansion::Type::Online.into() };
        Ok(Response::new(proto::GetPluginCapabilitiesResponse {
            capabilities: services
                .chain([plugin_can::Type::VolumeExpansion(online)])
                .map(|capability| proto::PluginCapability { r#type: Some(capability) })
                .collect(),
        }))
    }

    async fn probe(&self, _: Request<proto::ProbeRequest>) -> Answer<proto::ProbeResponse> {
        Ok(Response::new(proto::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<proto::CreateVolumeRequest>,
    ) -> Answer<proto::CreateVolumeResponse> {
        self.call(request, |driver, request, _| driver.create_volume(request)).await
    }

    async fn delete_volume(
        &self,
        request: Request<proto::DeleteVolumeRequest>,
    ) -> Answer<proto::DeleteVolumeResponse> {
        self.call(request, |driver, request, _| driver.delete_volume(request)).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<proto::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<proto::ValidateVolumeCapabilitiesResponse> {
        self.call(request, |driver, request, _| driver.validate_volume_capabilities(request)).await
    }

    async fn list_volumes(
        &self,
        request: Request<proto::ListVolumesRequest>,
    ) -> Answer<proto::ListVolumesResponse> {
        self.call(request, |driver, request, _| driver.list_volumes(request)).await
    }

    async fn get_capacity(
        &self,
        request: Request<proto::GetCapacityRequest>,
    ) -> Answer<proto::GetCapacityResponse> {
        self.call(request, |driver, request, _| driver.get_capacity(request)).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<proto::ControllerGetCapabilitiesRequest>,
    ) -> Answer<proto::ControllerGetCapabilitiesResponse> {
        let able = [
            ControllerCan::CreateDeleteVolume,
            ControllerCan::ListVolumes,
            ControllerCan::GetCapacity,
            ControllerCan::CreateDeleteSnapshot,
            ControllerCan::ListSnapshots,
            ControllerCan::CloneVolume,
            ControllerCan::ExpandVolume,
            ControllerCan::SingleNodeMultiWriter,
        ];
        let capability = |able: ControllerCan| proto::ControllerServiceCapability {
            r#type: Some(controller_can::Type::Rpc(controller_can::Rpc { r#type: able.into() })),
        };
        Ok(Response::new(proto::ControllerGetCapabilitiesResponse {
            capabilities: able.into_iter().map(capability).collect(),
        }))
    }

    async fn create_snapshot(
        &self,
        request: Request<proto::CreateSnapshotRequest>,
    ) -> Answer<proto::CreateSnapshotResponse> {
        self.call(request, |driver, request, rule| {
            let mut answer = driver.create_snapshot(request)?;
            if let Some(snapshot) = &mut answer.snapshot {
                snapshot.ready_to_use = !rule.not_ready;
            }
            Ok(answer)
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<proto::DeleteSnapshotRequest>,
    ) -> Answer<proto::DeleteSnapshotResponse> {
        self.call(request, |driver, request, _| driver.delete_snapshot(request)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<proto::ListSnapshotsRequest>,
    ) -> Answer<proto::ListSnapshotsResponse> {
        self.call(request, |driver, request, rule| {
            let mut answer = driver.list_snapshots(request)?;
            for snapshot in answer.entries.iter_mut().filter_map(|entry| entry.snapshot.as_mut()) {
                snapshot.ready_to_use = !rule.not_ready;
            }
            Ok(answer)
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<proto::ControllerExpandVolumeRequest>,
    ) -> Answer<proto::ControllerExpandVolumeResponse> {
        self.call(request, |driver, request, _| driver.expand_volume(request)).await
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<proto::NodeStageVolumeRequest>,
    ) -> Answer<proto::NodeStageVolumeResponse> {
        self.call(request, |driver, request, _| driver.stage(request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<proto::NodeUnstageVolumeRequest>,
    ) -> Answer<proto::NodeUnstageVolumeResponse> {
        self.call(request, |driver, request, _| driver.unstage(request)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<proto::NodePublishVolumeRequest>,
    ) -> Answer<proto::NodePublishVolumeResponse> {
        self.call(request, |driver, request, _| driver.publish(request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<proto::NodeUnpublishVolumeRequest>,
    ) -> Answer<proto::NodeUnpublishVolumeResponse> {
        self.call(request, |driver, request, _| driver.unpublish(request)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<proto::NodeGetVolumeStatsRequest>,
    ) -> Answer<proto::NodeGetVolumeStatsResponse> {
        self.call(request, |driver, request, _| driver.stats(request)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<proto::NodeExpandVolumeRequest>,
    ) -> Answer<proto::NodeExpandVolumeResponse> {
        self.call(request, |driver, request, _| driver.expand_on_node(request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<proto::NodeGetCapabilitiesRequest>,
    ) -> Answer<proto::NodeGetCapabilitiesResponse> {
        let able = [
            NodeCan::StageUnstageVolume,
            NodeCan::GetVolumeStats,
            NodeCan::ExpandVolume,
            NodeCan::SingleNodeMultiWriter,
        ];
        let capability = |able: NodeCan| proto::NodeServiceCapability {
            r#type: Some(node_can::Type::Rpc(node_can::Rpc { r#type: able.into() })),
        };
        Ok(Response::new(proto::NodeGetCapabilitiesResponse {
            capabilities: able.into_iter().map(capability).collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<proto::NodeGetInfoRequest>,
    ) -> Answer<proto::NodeGetInfoResponse> {
        let node = &self.driver.settings.node_id;
        Ok(Response::new(proto::NodeGetInfoResponse {
            node_id: node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.driver.topology(node)),
        }))
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Service {
    type GetMetadataAllocatedStream =
        BoxStream<'static, std::result::Result<proto::GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = BoxStream<'static, Message>;

    async fn get_metadata_allocated(
        &self,
        request: Request<proto::GetMetadataAllocatedRequest>,
    ) -> Answer<Self::GetMetadataAllocatedStream> {
        let answer = self
            .call(request, |driver, request, rule| {
                let window =
                    Window { starting_offset: request.starting_offset, max_results: request.max_results };
                driver.allocated_blocks(&request.snapshot_id, window, rule.blocks)
            })
            .await?;
        let messages = answer.into_inner().into_iter().map(|message| {
            message.map(|message| proto::GetMetadataAllocatedResponse {
                block_metadata_type: message.block_metadata_type,
                volume_capacity_bytes: message.volume_capacity_bytes,
                block_metadata: message.block_metadata,
            })
        });
        Ok(Response::new(stream::iter(messages).boxed()))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<proto::GetMetadataDeltaRequest>,
    ) -> Answer<Self::GetMetadataDeltaStream> {
        let answer = self
            .call(request, |driver, request, rule| {
                let window =
                    Window { starting_offset: request.starting_offset, max_results: request.max_results };
                let (base, target) = (&request.base_snapshot_id, &request.target_snapshot_id);
                driver.changed_blocks(base, target, window, rule.blocks)
            })
            .await?;
        Ok(Response::new(stream::iter(answer.into_inner()).boxed()))
    }
}
