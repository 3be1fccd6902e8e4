//! `openai:URL`: servers with OpenAI's Images API.
//!
//! A prompt is always sent as a JSON value or as a separate part, never inside other text. Closing its connection
//! cancels a call.

mod answer;
mod dialect;
mod pictures;
mod server_error;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::CONTENT_TYPE;
use reqwest::multipart::Form;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use tintype_engine::{
    Brief, CancellationToken, Engine, EngineError, EngineInfo, LoraSource, Picture, Progress, RenderSettings, Setting,
    Stage,
};
use url::Url;

use self::answer::File;
use self::dialect::{Dialect, References};
use self::server_error::ServerError;
use super::endpoint::{Endpoint, Fault};
use super::results::{Downloads, MAX_FILE_BYTES, Results, mask_to_png, png_part, to_pngs};
use super::servers::{BriefHash, Server, Servers};
use super::{EngineChoice, EngineContext, TYPICAL_DURATION, sizes};
use tintype_config::{EngineProfile, EngineSettings};
use tintype_domain::images_api::GenerationRequest;
use tintype_outbound::asked_wait;

/// Fields that every call sets itself.
const RESERVED: [&str; 13] = [
    "prompt",
    "model",
    "n",
    "size",
    "response_format",
    "output_format",
    "stream",
    "seed",
    "image",
    "image[]",
    "mask",
    "mask_image",
    "ref_images",
];
/// Time limit for the list of models.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Largest list of models, in bytes.
const MAX_MODELS: usize = 4 * 1024 * 1024;
/// Most model names in an error, and most characters in each.
const MAX_NAMES: usize = 5;
const MAX_NAME: usize = 100;
/// Bytes of an answer in addition to its files.
const MAX_REST: usize = 1024 * 1024;

/// Describes the engine without connecting.
pub(super) fn choose(urls: &[Url], settings: &EngineSettings) -> Result<EngineChoice, String> {
    let dialect = Dialect::new(settings, urls);
    let model = dialect.model.as_deref().map_or_else(String::new, |model| format!("{model} at "));
    let (target, profile) = (settings.target(), dialect.profile);
    let description = format!("{model}{target}, by the Images API of OpenAI as {profile} speaks it");
    let info = EngineInfo {
        sizes: sizes(settings, dialect.sizes()),
        max_references: settings.engine_references.unwrap_or_else(|| dialect.max_references()),
        masks: dialect.mask_part().is_some(),
        settings: dialect.settings(),
        loras: if dialect.takes_lora() { LoraSource::Server } else { LoraSource::Nowhere },
        quality: dialect.takes_quality(),
        slots: urls.len() * dialect.calls_per_server(),
        ..EngineInfo::new("openai", description, TYPICAL_DURATION)
    };
    let extra = settings.engine_extra.clone().unwrap_or_default().without(&RESERVED)?;
    let (urls, settings) = (urls.to_vec(), settings.clone());
    let build = move |context: EngineContext| {
        let endpoints = Endpoint::all(&urls, &settings, &context)?;
        let (results, downloads) = (Results::new(context.decoder.clone()), Downloads::new()?);
        let servers = endpoints.into_iter().map(|endpoint| ImagesServer::new(endpoint, &dialect));
        let servers = Servers::new(servers, dialect.calls_per_server());
        let api = ImagesApi { servers, dialect: dialect.clone(), extra: extra.clone(), results, downloads };
        Ok(Arc::new(api) as Arc<dyn Engine>)
    };
    Ok(EngineChoice::new(info, build))
}

#[derive(Debug)]
struct ImagesApi {
    servers: Servers<ImagesServer>,
    dialect: Dialect,
    /// The operator's fields for every call.
    extra: Map<String, Value>,
    results: Results,
    downloads: Downloads,
}

#[derive(Debug, Clone)]
struct Call {
    work: BriefHash,
    prompt: String,
    size: String,
    seeds: Vec<u64>,
    settings: RenderSettings,
    references: Vec<Bytes>,
    mask: Option<Bytes>,
    limit: Duration,
}

#[async_trait]
impl Engine for ImagesApi {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        cancel.run_until_cancelled(self.paint(brief, &progress)).await.unwrap_or_else(|| Err(EngineError::cancelled()))
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.servers.probe().await
    }

    async fn check(&self) -> Result<(), EngineError> {
        self.servers.check().await
    }
}

impl ImagesApi {
    async fn paint(&self, brief: Brief, progress: &Progress) -> Result<Vec<Picture>, EngineError> {
        let count = brief.seeds.len();
        let negative = brief.settings.negative_prompt.as_deref();
        let (prompt, size) =
            (self.dialect.prompt(&brief.prompt, negative)?, format!("{}x{}", brief.width, brief.height));
        let work = BriefHash::from(&brief);
        let (references, mask) = (to_pngs(brief.references).await?, mask_to_png(brief.mask).await?);
        let call = |seeds: &[u64]| {
            let call = Call {
                work,
                prompt: prompt.clone(),
                size: size.clone(),
                seeds: seeds.to_vec(),
                settings: brief.settings.clone(),
                references: references.clone(),
                mask: mask.clone(),
                limit: brief.time_limit,
            };
            self.pictures(call)
        };
        let calls: Vec<_> = brief.seeds.chunks(self.dialect.pictures_per_call()).map(call).collect();
        let mut rendered = Vec::with_capacity(count);
        // As many of a task's calls at a time as there are servers. If one fails, the others are dropped.
        let mut finished = stream::iter(calls).buffered(self.servers.count());
        while let Some(pictures) = finished.try_next().await? {
            rendered.extend(pictures);
            progress.report(Stage::Fraction(rendered.len() as f32 / count as f32));
        }
        Ok(rendered)
    }

    /// A call's pictures.
    async fn pictures(&self, call: Call) -> Result<Vec<Picture>, EngineError> {
        let pictures = async |server| {
            let files = self.files(server, &call).await?;
            Ok(try_join_all(files.iter().map(|file| self.results.picture(file))).await?)
        };
        self.servers.call(call.work, pictures).await
    }

    async fn files(&self, server: Arc<ImagesServer>, call: &Call) -> Result<Vec<Vec<u8>>, Fault> {
        let endpoint = &server.endpoint;
        let request = self.request(endpoint, call)?;
        // Base64 takes four bytes for three.
        let max_bytes = call.seeds.len() * (MAX_FILE_BYTES / 3 * 4) + MAX_REST;
        let answer = endpoint.send(request, max_bytes, call.limit).await?;
        let mut files = Vec::with_capacity(call.seeds.len());
        for file in answer::files(endpoint, &answer, call.seeds.len())? {
            files.push(match file {
                File::Bytes(bytes) => bytes,
                File::At(url) => self.downloads.download(endpoint, &url, call.limit).await?,
            });
        }
        Ok(files)
    }

    fn request(&self, endpoint: &Endpoint, call: &Call) -> Result<RequestBuilder, EngineError> {
        let taken = self.dialect.settings();
        let takes = |setting| taken.contains(&setting);
        let RenderSettings { negative_prompt, steps, guidance_scale, quality, .. } = call.settings.clone();
        let by_field = |setting| takes(setting) && self.dialect.profile != EngineProfile::LocalAi;
        let mut body = GenerationRequest {
            prompt: call.prompt.clone(),
            model: self.dialect.model.clone(),
            n: Some(call.seeds.len() as u32),
            size: Some(call.size.clone()),
            quality: quality.filter(|_| self.dialect.takes_quality()),
            response_format: self.dialect.knows_response_format().then(|| "b64_json".to_owned()),
            output_format: None,
            seed: call.seeds.first().copied().filter(|_| takes(Setting::Seed)),
            negative_prompt: negative_prompt.filter(|_| by_field(Setting::NegativePrompt)),
            num_inference_steps: steps.filter(|_| by_field(Setting::Steps)),
            guidance_scale: guidance_scale.filter(|_| takes(Setting::GuidanceScale)),
            step: steps.filter(|_| self.dialect.profile == EngineProfile::LocalAi),
            lora: self.dialect.lora(&call.settings.loras)?,
            ref_images: None,
        };
        match (call.references.is_empty(), self.dialect.references()) {
            (false, References::Parts(name)) => {
                let request = endpoint.request(Method::POST, "images/edits")?;
                let mut form = edit_form(body, name, &call.references, &self.extra)?;
                if let (Some(part), Some(mask)) = (self.dialect.mask_part(), &call.mask) {
                    form = form.part(part, png_part(mask, "mask.png".into())?);
                }
                return Ok(request.multipart(form));
            }
            (false, References::Json) => {
                body.ref_images = Some(call.references.iter().map(|png| BASE64_STANDARD.encode(png)).collect());
            }
            (true, _) => {}
        }
        let failed = |error: serde_json::Error| EngineError::Permanent(error.to_string());
        let mut fields = self.extra.clone();
        // A task's own fields override the operator's.
        if let Value::Object(own) = serde_json::to_value(&body).map_err(failed)? {
            fields.extend(own);
        }
        let json = serde_json::to_vec(&fields).map_err(failed)?;
        let request = endpoint.request(Method::POST, "images/generations")?;
        Ok(request.header(CONTENT_TYPE, "application/json").body(json))
    }
}

/// An edit's form: a generation's fields, and the references as parts with this name.
fn edit_form(
    body: GenerationRequest,
    name: &'static str,
    references: &[Bytes],
    extra: &Map<String, Value>,
) -> Result<Form, EngineError> {
    let fields = [
        ("model", body.model),
        ("n", body.n.map(|n| n.to_string())),
        ("size", body.size),
        ("quality", body.quality),
        ("response_format", body.response_format),
        ("seed", body.seed.map(|seed| seed.to_string())),
        ("negative_prompt", body.negative_prompt),
        ("num_inference_steps", body.num_inference_steps.map(|steps| steps.to_string())),
        ("guidance_scale", body.guidance_scale.map(|scale| scale.to_string())),
        ("step", body.step.map(|steps| steps.to_string())),
        ("lora", body.lora.and_then(|lora| serde_json::to_string(&lora).ok())),
    ];
    let form = Form::new().text("prompt", body.prompt);
    let given: Vec<_> = fields.into_iter().filter_map(|(field, value)| value.map(|value| (field, value))).collect();
    let added = extra.iter().filter(|(field, _)| !given.iter().any(|(own, _)| own == field));
    let form = added.fold(form, |form, (field, value)| {
        form.text(field.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    });
    let form = given.into_iter().fold(form, |form, (field, value)| form.text(field, value));
    references.iter().enumerate().try_fold(form, |form, (index, png)| {
        Ok(form.part(name, png_part(png, format!("reference-{}.png", index + 1))?))
    })
}

/// A server with OpenAI's Images API. It is accepting work if it lists its models, including the one to use.
#[derive(Debug)]
struct ImagesServer {
    endpoint: Endpoint,
    /// Whether it has a fixed set of models and reports its health at `/health`: a data centre server.
    has_health: bool,
    model: Option<String>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

impl ImagesServer {
    fn new(endpoint: Endpoint, dialect: &Dialect) -> Self {
        let has_health = matches!(dialect.profile, EngineProfile::VllmOmni | EngineProfile::Sglang);
        Self { endpoint, has_health, model: dialect.model.clone() }
    }

    /// Asks the server for its health. A server without this route counts as healthy.
    async fn ask_health(&self) -> Result<(), Fault> {
        let endpoint = &self.endpoint;
        // Next to `v1`: at the root, unless a proxy has moved the server elsewhere.
        let url = endpoint.resolve("../health");
        let request = url.and_then(|url| Some((endpoint.request_for(Method::GET, &url)?, url)));
        let Some((request, url)) = request else { return Ok(()) };
        let answer = endpoint.send(request, MAX_REST, ANSWER_LIMIT).await?;
        if answer.status.is_server_error() {
            let status = answer.status.as_u16();
            let cause = format!("{url} answered {status}: the server is starting, or its model has failed");
            return Err(Fault { pause: asked_wait(&answer.headers), ..EngineError::NotAvailable(cause).into() });
        }
        Ok(())
    }

    /// Checks that a server that rejects unknown models has the one to use.
    fn check_model(&self, list: &[u8]) -> Result<(), EngineError> {
        let (true, Some(model)) = (self.has_health, &self.model) else { return Ok(()) };
        let Ok(Models { data }) = serde_json::from_slice(list) else { return Ok(()) };
        if data.is_empty() || data.iter().any(|listed| listed.id == *model) {
            return Ok(());
        }
        let shown =
            |listed: &Model| listed.id.chars().filter(char::is_ascii_graphic).take(MAX_NAME).collect::<String>();
        let names: Vec<_> = data.iter().take(MAX_NAMES).map(shown).collect();
        Err(EngineError::NotAvailable(format!(
            "{} does not have the model {model}: give --model one of its names ({}), or leave --model out",
            self.endpoint.name(),
            names.join(", ")
        )))
    }
}

#[async_trait]
impl Server for ImagesServer {
    fn name(&self) -> &str {
        self.endpoint.name()
    }

    async fn probe(&self) -> Result<(), Fault> {
        let endpoint = &self.endpoint;
        if self.has_health {
            self.ask_health().await?;
        }
        let request = endpoint.request(Method::GET, "models")?;
        let answer = endpoint.send(request, MAX_MODELS, ANSWER_LIMIT).await?;
        if answer.status.is_success() && serde_json::from_slice::<IgnoredAny>(&answer.body).is_ok() {
            return Ok(self.check_model(&answer.body)?);
        }
        if answer.status.is_success() || answer.status.as_u16() == 404 {
            let name = endpoint.name();
            let hint = if name.ends_with("/v1") { "does it speak OpenAI's API" } else { "does its URL end in /v1" };
            let cause = format!("{name} does not list models at {name}/models: {hint}?");
            return Err(EngineError::NotAvailable(cause).into());
        }
        let server_error = ServerError::read(&answer.body).unwrap_or_default();
        Err(endpoint.failure(&answer, &server_error.words))
    }
}
