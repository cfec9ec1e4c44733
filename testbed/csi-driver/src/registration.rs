//! Presents a driver to the kubelet, which looks for sockets in its `plugins_registry` folder.

use crate::registration_proto::registration_server::{Registration, RegistrationServer};
use crate::registration_proto::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::server::{self, ServeError};
use std::path::{Path, PathBuf};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Who is presented.
#[derive(Debug, Clone)]
pub struct Registrar {
    /// The name of the driver.
    pub driver_name: String,
    /// The socket of the driver, as the kubelet sees it.
    pub csi_address: PathBuf,
}

impl Registrar {
    /// Answers the kubelet on `socket` until `stop` completes.
    pub async fn serve<S>(self, socket: &Path, stop: S) -> Result<(), ServeError>
    where
        S: Future<Output = ()> + Clone,
    {
        server::serve(socket, Server::builder().add_service(RegistrationServer::new(self)), stop).await
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.driver_name.clone(),
            endpoint: self.csi_address.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.driver_name, "registered with the kubelet");
        } else {
            // The kubelet tries again for as long as the socket is there.
            tracing::error!(driver = self.driver_name, "the kubelet refused the driver: {}", status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
