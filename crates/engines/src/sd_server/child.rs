//! stable-diffusion.cpp's server as a program for the supervisor.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tintype_engine::EngineError;
use url::Url;

use super::api::Api;
use super::checked_extra;
use super::server::Server;
use crate::EngineContext;
use crate::endpoint::Endpoint;
use crate::results::Results;
use crate::supervisor::{Next, Program, Start, answer, free_port};
use tintype_config::{EngineSettings, environment_of_engine};

/// Variables that select a device, for CUDA, ROCm and Vulkan.
const DEVICE_VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"];

const ASK_WHILE_STARTING: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct SdServerProgram {
    arguments: Vec<OsString>,
    settings: EngineSettings,
    context: EngineContext,
}

impl SdServerProgram {
    /// The configured program, on one device.
    ///
    /// # Errors
    /// A message for the operator: the arguments cannot be read.
    pub(super) fn new(
        device: Option<String>,
        settings: &EngineSettings,
        context: &EngineContext,
    ) -> Result<(Self, Start), String> {
        let mut environment = environment_of_engine();
        if let Some(device) = device {
            environment.retain(|(name, _)| !DEVICE_VARIABLES.iter().any(|variable| name == variable));
            environment.extend(DEVICE_VARIABLES.map(|variable| (variable.into(), device.clone().into())));
        }
        let start = Start {
            launcher: context.decoder.program().to_owned(),
            program: settings.engine_program.clone(),
            name: settings.engine_program.display().to_string(),
            environment,
            has_input: false,
        };
        let arguments = settings.arguments()?.into_iter().map(OsString::from).collect();
        Ok((Self { arguments, settings: settings.clone(), context: context.clone() }, start))
    }

    fn arguments(&self, port: u16) -> Vec<OsString> {
        // For every job, the server lists all files below its LoRA folder, which defaults to the working directory. If
        // arguments are repeated, the last one counts.
        let before = ["--lora-model-dir", "/dev/null"].map(OsString::from);
        let after = ["--listen-ip", "127.0.0.1", "--listen-port"].map(OsString::from);
        let port = OsString::from(port.to_string());
        before.into_iter().chain(self.arguments.iter().cloned()).chain(after).chain([port]).collect()
    }

    fn link(&self, port: u16) -> Result<Arc<Server>, String> {
        let url = Url::parse(&format!("http://127.0.0.1:{port}/")).map_err(|error| error.to_string())?;
        let endpoints = Endpoint::all(&[url], &self.settings, &self.context)?;
        let endpoint = endpoints.into_iter().next().ok_or("no endpoint")?;
        let results = Results::new(self.context.decoder.clone());
        Ok(Arc::new(Server::new(Api::new(endpoint), results, checked_extra(&self.settings)?)))
    }
}

#[async_trait]
impl Program for SdServerProgram {
    type Link = Arc<Server>;

    fn next(&self) -> Result<Next<Arc<Server>>, String> {
        let port = free_port()?;
        let link = self.link(port);
        Ok(Next { arguments: self.arguments(port), link: Box::new(|_| link) })
    }

    async fn begin(&self, link: &Arc<Server>) -> Result<(), EngineError> {
        while answer(self.ask(link)).await.is_err() {
            tokio::time::sleep(ASK_WHILE_STARTING).await;
        }
        link.warm_up().await
    }

    async fn ask(&self, link: &Arc<Server>) -> Result<(), EngineError> {
        link.api().capabilities().await.map(drop)
    }
}
