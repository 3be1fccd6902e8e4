//! The engine.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tintype_engine::{Lora, PromptSyntax};
use url::Url;

use super::engines::NamedEngine;
use super::environment::{authorities_in, secret_in};

/// The program that `--engine sd-server` runs, unless `--engine-program` names another.
pub(super) const DEFAULT_PROGRAM: &str = "sd-server";
const MAX_SERVERS: usize = 64;

/// The engine that renders the images.
#[derive(Clone, Args)]
pub struct EngineSettings {
    /// Engine that renders the images: diffusion, sketch, openai:URL, sd-server:URL or comfyui:URL; several servers of the
    /// same kind and model as URL,URL; sd-server without a URL runs --engine-program itself; NAME alone is a table
    /// [engine.NAME] of the config file [default: all tables of the config file, or else diffusion if --model is given or
    /// a model is installed, or else sketch]
    #[arg(long, env = "TINTYPE_ENGINE", value_name = "NAME[:URL]")]
    pub engine: Option<EngineTarget>,
    /// Kind of server behind openai:URL [default: openai for api.openai.com, localai for others]
    #[arg(long, env = "TINTYPE_ENGINE_PROFILE", value_name = "PROFILE", value_enum)]
    pub engine_profile: Option<EngineProfile>,
    /// Model to render with. For diffusion: an installed model, a folder in the diffusers layout, or a .safetensors file.
    /// For servers: the model name in requests [default: the server's own, and gpt-image-1 at OpenAI]
    #[arg(long, env = "TINTYPE_MODEL", value_name = "NAME|PATH", alias = "engine-model")]
    pub model: Option<String>,
    /// Memory limit of the diffusion engine's process, not counting the model's files, such as 6GiB [default: four
    /// fifths of this machine's or container's]
    #[arg(long, env = "TINTYPE_ENGINE_MEMORY", value_name = "SIZE")]
    pub engine_memory: Option<ByteSize>,
    /// GPU memory for the diffusion engine, such as 10GiB; parts of the model that do not fit together are loaded for each
    /// use [default: all that nvidia-smi reports]
    #[arg(long, env = "TINTYPE_ENGINE_DEVICE_MEMORY", value_name = "SIZE")]
    pub engine_device_memory: Option<ByteSize>,
    /// Steps per image of the diffusion engine [default: as many as the model was trained for]
    #[arg(long, env = "TINTYPE_ENGINE_STEPS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub engine_steps: Option<u32>,
    /// Precision of the diffusion engine: w8a8 needs an installed model, f16 and bf16 need --engine-runtime
    /// [default: on a CPU w8a8 for FLUX.2 and Z-Image, else f32; on a GPU bf16 for these, else f16]
    #[arg(long, env = "TINTYPE_ENGINE_PRECISION", value_name = "PRECISION", value_enum)]
    pub engine_precision: Option<EnginePrecision>,
    /// Runtime and device of the diffusion engine: rten is built in; the others need the library that `tintype engine
    /// library` downloads [default: rten]
    #[arg(long, env = "TINTYPE_ENGINE_RUNTIME", value_name = "RUNTIME[:DEVICE]", value_enum)]
    pub engine_runtime: Option<EngineRuntime>,
    /// Batch size of the diffusion engine in images of 512x512, from one or several tasks; a larger image counts as
    /// several [default: 1 on a CPU, 4 on a GPU]
    #[arg(long, env = "TINTYPE_ENGINE_BATCH", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub engine_batch: Option<u32>,
    /// LoRA file that the diffusion engine merges into its model, with a weight from -10 to 10; several as FILE,FILE
    /// [default weight: 1]
    #[arg(long, env = "TINTYPE_ENGINE_LORA", value_name = "FILE[:WEIGHT]", value_delimiter = ',')]
    pub engine_lora: Vec<Lora>,
    /// Textual-inversion embedding for the diffusion engine, with the word that stands for it in prompts; several as
    /// FILE,FILE [default word: the name in the file if it has angle brackets, or else the file's name]
    #[arg(long, env = "TINTYPE_ENGINE_EMBEDDING", value_name = "FILE[=WORD]", value_delimiter = ',')]
    pub engine_embedding: Vec<EngineEmbedding>,
    /// File or folder of the VAE that the diffusion engine uses [default: the model's own]
    #[arg(long, env = "TINTYPE_ENGINE_VAE", value_name = "FILE|FOLDER")]
    pub engine_vae: Option<PathBuf>,
    /// How the diffusion engine reads prompts: plain, or weighted with emphasis such as (word:1.3) and in chunks of 75
    /// tokens [default: plain]
    #[arg(long, env = "TINTYPE_ENGINE_PROMPT", value_name = "SYNTAX", value_parser = prompt_syntax())]
    pub engine_prompt: Option<PromptSyntax>,
    /// API key for the engine; never sent to another host
    #[arg(long, env = "TINTYPE_ENGINE_KEY", hide_env_values = true, value_name = "KEY")]
    pub engine_key: Option<String>,
    /// File that holds --engine-key
    #[arg(long, env = "TINTYPE_ENGINE_KEY_FILE", value_name = "FILE")]
    pub engine_key_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust for the engine, in addition to the public ones
    #[arg(long, env = "TINTYPE_ENGINE_CA", value_name = "FILE")]
    pub engine_ca: Option<PathBuf>,
    /// Sizes that the model renders well; other sizes are scaled from the nearest [default: any, or those of OpenAI's model]
    #[arg(long, env = "TINTYPE_ENGINE_SIZES", value_name = "WxH", value_delimiter = ',', value_parser = picture_size)]
    pub engine_sizes: Vec<(u32, u32)>,
    /// Maximum number of reference images; 0 for a text-only model [default: 0 with the
    /// profile localai, those of OpenAI's model, as many as the workflow has nodes for, or 4]
    #[arg(long, env = "TINTYPE_ENGINE_REFERENCES", value_name = "N")]
    pub engine_references: Option<usize>,
    /// Workflow in ComfyUI's API format, for --engine comfyui:URL
    #[arg(long, env = "TINTYPE_ENGINE_WORKFLOW", value_name = "FILE")]
    pub engine_workflow: Option<PathBuf>,
    /// Nodes of that workflow that receive the prompt, the seed and so on: a list of {type, key, node_ids} as in Open WebUI
    /// [default: those that `tintype engine nodes` finds]
    #[arg(long, env = "TINTYPE_ENGINE_WORKFLOW_NODES", value_name = "FILE")]
    pub engine_workflow_nodes: Option<PathBuf>,
    /// Program that --engine sd-server runs: stable-diffusion.cpp's server
    #[arg(long, env = "TINTYPE_ENGINE_PROGRAM", default_value = DEFAULT_PROGRAM, value_name = "FILE")]
    pub engine_program: PathBuf,
    /// Arguments of that program in the syntax of a shell, such as "--diffusion-model model.gguf --vae vae.safetensors";
    /// without --listen-ip, --listen-port and --verbose
    #[arg(long, env = "TINTYPE_ENGINE_ARGS", default_value = "", value_name = "ARGS", allow_hyphen_values = true)]
    pub engine_args: String,
    /// Devices to run that program on, one process each, such as 0,1 [default: one process, on a device it chooses]
    #[arg(long, env = "TINTYPE_ENGINE_DEVICES", value_name = "DEVICE", value_delimiter = ',', value_parser = device)]
    pub engine_devices: Vec<String>,
    /// Fields of every request, of a table of the config file
    #[arg(long, hide = true, value_name = "JSON")]
    pub engine_extra: Option<EngineExtra>,
    /// The tables of the config file, as the layers of settings pass them on
    #[arg(long, hide = true, value_name = "JSON")]
    pub engine_table: Vec<NamedEngine>,
}

/// A textual inversion embedding for the diffusion engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineEmbedding {
    /// The safetensors file.
    pub path: PathBuf,
    /// The word that stands for it, unless it is the file's.
    pub word: Option<String>,
}

impl FromStr for EngineEmbedding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // File names can contain an equals sign, too.
        let split = text.rsplit_once('=').filter(|(_, word)| !word.trim().ends_with(".safetensors"));
        let (path, word) = split.map_or((text, None), |(path, word)| (path, Some(word.trim())));
        let path = path.trim();
        if path.is_empty() || word.is_some_and(str::is_empty) {
            return Err(format!("{text:?} is not a file with a word, such as badhands.safetensors=badhands"));
        }
        Ok(Self { path: path.into(), word: word.map(str::to_owned) })
    }
}

/// Fields that an operator adds to every request to a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineExtra(pub Map<String, Value>);

impl FromStr for EngineExtra {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|error| error.to_string())
    }
}

impl EngineExtra {
    /// These fields, unless one of them is reserved for the service.
    pub fn without(&self, reserved: &[&str]) -> Result<Map<String, Value>, String> {
        match self.0.keys().find(|name| reserved.contains(&name.as_str())) {
            Some(name) => Err(format!("extra must not set {name}, which every task sets itself")),
            None => Ok(self.0.clone()),
        }
    }
}

tintype_domain::opaque_debug!(EngineSettings);

impl EngineSettings {
    /// The key to send to the engine.
    ///
    /// # Errors
    /// A message for the operator: the file cannot be read, or is empty.
    pub fn key(&self) -> Result<Option<String>, String> {
        let (None, Some(path)) = (&self.engine_key, &self.engine_key_file) else { return Ok(self.engine_key.clone()) };
        match secret_in(path, "--engine-key-file")? {
            key if key.is_empty() => Err(format!("{} (from --engine-key-file) is empty", path.display())),
            key => Ok(Some(key)),
        }
    }

    /// PEM of certificate authorities to trust in addition to the public ones.
    pub fn authorities(&self) -> Result<Option<Vec<u8>>, String> {
        authorities_in(self.engine_ca.as_deref(), "--engine-ca")
    }

    /// The arguments of the program that this process runs.
    ///
    /// # Errors
    /// A message for the operator: there are none, or they cannot be read.
    pub fn arguments(&self) -> Result<Vec<String>, String> {
        let arguments = shlex::split(&self.engine_args).ok_or("--engine-args has a quote without an end")?;
        let reserved = |argument: &&String| {
            let name = argument.split('=').next().unwrap_or_default();
            ["-l", "--listen-ip", "--listen-port", "-v", "--verbose"].contains(&name)
        };
        match arguments.iter().find(reserved).map(String::as_str) {
            None if arguments.is_empty() => {
                Err("--engine sd-server needs --engine-args with at least a model, such as --engine-args \"--model v1-5.gguf\"; to use a server that runs already, give its URL".into())
            }
            None => Ok(arguments),
            Some(name @ ("-v" | "--verbose")) => {
                Err(format!("--engine-args must not have {name}: the program would print the prompts of callers"))
            }
            Some(name) => Err(format!("--engine-args must not have {name}: the program listens on a free port of this machine")),
        }
    }

    /// The devices to run the program on; `None` lets the program choose.
    pub fn devices(&self) -> Vec<Option<String>> {
        if self.engine_devices.is_empty() {
            vec![None]
        } else {
            self.engine_devices.iter().cloned().map(Some).collect()
        }
    }
}

/// An engine as `--engine` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineTarget {
    /// A table of the config file.
    Named(String),
    /// The built-in sketch engine.
    Sketch,
    /// The built-in diffusion engine.
    Diffusion,
    /// Servers run elsewhere, all of the same kind and with the same model.
    Servers(ServerKind, Vec<Url>),
    /// stable-diffusion.cpp's server, as a child of this process on each device.
    OwnSdServer,
}

/// The protocol of a rendering server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// OpenAI's Images API.
    #[value(name = "openai")]
    OpenAi,
    /// The server of stable-diffusion.cpp.
    #[value(name = "sd-server")]
    SdServer,
    /// ComfyUI.
    #[value(name = "comfyui")]
    ComfyUi,
}

/// A server's dialect of OpenAI's Images API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineProfile {
    /// OpenAI itself
    #[value(name = "openai")]
    OpenAi,
    /// vLLM-Omni
    VllmOmni,
    /// SGLang-Diffusion
    Sglang,
    /// LocalAI and servers without a profile of their own
    #[value(name = "localai")]
    LocalAi,
}

/// The diffusion engine's runtime and device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum EngineRuntime {
    /// This program itself, on the CPU
    #[default]
    #[value(name = "rten")]
    Rten,
    /// ONNX Runtime on the CPU
    #[value(name = "onnxruntime")]
    OnnxRuntime,
    /// ONNX Runtime on an NVIDIA GPU
    #[value(name = "onnxruntime:cuda")]
    Cuda,
    /// ONNX Runtime with TensorRT on an NVIDIA GPU
    #[value(name = "onnxruntime:tensorrt")]
    TensorRt,
    /// ONNX Runtime on Apple's accelerators; hidden, because releases are for Linux
    #[value(name = "onnxruntime:coreml", hide = true)]
    CoreMl,
    /// ONNX Runtime on a GPU under Windows; hidden, because releases are for Linux
    #[value(name = "onnxruntime:directml", hide = true)]
    DirectMl,
}

/// The precision of the diffusion engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum EnginePrecision {
    /// 32 bits
    F32,
    /// 16 bits, on ONNX Runtime
    F16,
    /// 16 bits with the range of 32, on ONNX Runtime and a GPU
    Bf16,
    /// 8 bits in the large layers, 32 bits elsewhere
    W8a8,
}

fn prompt_syntax() -> impl TypedValueParser<Value = PromptSyntax> {
    PossibleValuesParser::new(PromptSyntax::NAMES).try_map(|name| name.parse())
}

/// Displays a value by its name on the command line.
macro_rules! displayed {
    ($($name:ident),+) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
            }
        })+
    };
}

displayed!(EngineRuntime, EnginePrecision, ServerKind, EngineProfile);

impl fmt::Display for EngineTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Sketch => f.write_str("sketch"),
            Self::Diffusion => f.write_str("diffusion"),
            Self::OwnSdServer => f.write_str("sd-server"),
            Self::Servers(kind, urls) => {
                let urls: Vec<&str> = urls.iter().map(|url| url.as_str().trim_end_matches('/')).collect();
                write!(f, "{kind}:{}", urls.join(","))
            }
        }
    }
}

impl FromStr for EngineTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, urls) = text.split_once(':').map_or((text, None), |(name, urls)| (name, Some(urls)));
        match (name, ServerKind::from_str(name, false), urls) {
            ("sketch", _, None) => Ok(Self::Sketch),
            ("diffusion", _, None) => Ok(Self::Diffusion),
            ("sketch" | "diffusion", _, Some(_)) => Err(format!("the {name} engine is built in and takes no URL")),
            (_, Ok(kind), Some(urls)) => {
                let urls = urls.split(',').map(|url| server_url(url.trim())).collect::<Result<Vec<_>, _>>()?;
                match urls.len() {
                    ..=MAX_SERVERS => Ok(Self::Servers(kind, urls)),
                    more => Err(format!("{more} servers are too many: give at most {MAX_SERVERS}")),
                }
            }
            (_, Ok(ServerKind::SdServer), None) => Ok(Self::OwnSdServer),
            (_, _, None) => Ok(Self::Named(engine_name(name)?)),
            (_, Err(_), _) => Err(format!("there is no kind of engine {name:?}; {KINDS}")),
        }
    }
}

/// The engines that need no table.
const KINDS: &str = "this release has: sketch, diffusion, openai:URL, sd-server:URL, sd-server, comfyui:URL";
const MAX_NAME: usize = 64;

/// Checks an engine's name, which appears in logs and metrics.
pub(super) fn engine_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match begins && text.len() <= MAX_NAME && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not the name of an engine: up to {MAX_NAME} letters, digits, - and _, beginning with a letter or digit"
        )),
    }
}

pub(super) fn unknown_engine(name: &str) -> String {
    match ServerKind::from_str(name, false) {
        Ok(kind) => format!("{kind} needs the URL of its server, such as {}", example(kind)),
        Err(_) => format!("there is no engine {name:?}: the config file has no table [engine.{name}], and {KINDS}"),
    }
}

fn example(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::OpenAi => "openai:http://127.0.0.1:8000/v1",
        ServerKind::SdServer => "sd-server:http://127.0.0.1:1234",
        ServerKind::ComfyUi => "comfyui:http://127.0.0.1:8188",
    }
}

/// Parses a server's base URL. Its path ends with a slash, so that relative paths can be joined to it. Errors don't
/// repeat the URL, which can contain a password.
pub(super) fn server_url(text: &str) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => {
            "the engine's URL begins with neither http:// nor https://".to_owned()
        }
        error => format!("the engine's URL is not valid: {error}"),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the engine's URL begins with {}:// instead of http:// or https://", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "the engine's URL holds a user name or a password, which would show in logs: give a key as --engine-key-file"
                .into(),
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(
            "the engine's URL has a query or a fragment: give the base URL alone, such as http://127.0.0.1:8000/v1"
                .into(),
        );
    }
    let path = format!("{}/", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

/// Parses a device name, which becomes an environment variable's value.
fn device(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-:".contains(&byte);
    match (1..=64).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a device such as 0 or GPU-8932f937")),
    }
}

/// Parses `1024x768`.
fn picture_size(text: &str) -> Result<(u32, u32), String> {
    let side = |side: &str| side.parse().ok().filter(|side| (64..=4_096).contains(side));
    text.split_once('x')
        .and_then(|(width, height)| Some((side(width)?, side(height)?)))
        .ok_or_else(|| format!("{text:?} is not a size such as 1024x768, with sides from 64 to 4096 pixels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_a_name_with_the_urls_of_its_servers() {
        for (text, shown) in [
            ("sketch", "sketch"),
            ("diffusion", "diffusion"),
            ("sd-server", "sd-server"),
            ("openai:https://api.openai.com/v1/", "openai:https://api.openai.com/v1"),
            ("sd-server:http://[::1]:1234", "sd-server:http://[::1]:1234"),
            ("comfyui:http://10.0.0.5:8188,http://10.0.0.6:8188", "comfyui:http://10.0.0.5:8188,http://10.0.0.6:8188"),
        ] {
            assert_eq!(text.parse::<EngineTarget>().expect(text).to_string(), shown);
        }
    }

    #[test]
    fn an_engine_that_cannot_be_used_is_refused_with_the_reason() {
        for (text, reason) in [
            ("sketch:http://a.example", "takes no URL"),
            ("diffusion:klein-4b", "takes no URL"),
            ("openai:", "begins with neither"),
            ("openai:api.example.com", "begins with neither"),
            ("comfyui:ws://a.example", "begins with ws://"),
            ("openai:http://ada:hunter2@a.example", "user name or a password"),
            ("openai:http://a.example/v1?key=hunter2", "query or a fragment"),
            ("openai:http://a.example,", "begins with neither"),
            (&format!("openai:{}", vec!["http://a.example"; 65].join(",")), "too many"),
        ] {
            let refusal = text.parse::<EngineTarget>().expect_err(text);
            assert!(refusal.contains(reason) && !refusal.contains("hunter2"), "{text}: {refusal}");
        }
    }

    #[test]
    fn a_lora_is_a_file_with_a_weight() {
        for (text, path, weight) in [
            ("detail.safetensors", "detail.safetensors", 1.0),
            ("/srv/loras/detail.safetensors:0.8", "/srv/loras/detail.safetensors", 0.8),
            ("a:b.safetensors:-1.5", "a:b.safetensors", -1.5),
            ("a:b.safetensors", "a:b.safetensors", 1.0),
            ("a: 0", "a", 0.0),
        ] {
            assert_eq!(text.parse(), Ok(Lora { path: path.into(), weight }), "{text}");
        }
        for text in ["", " ", ":0.8", "a:10.5", "a:-11", "a:inf", "a:NaN"] {
            assert!(text.parse::<Lora>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_embedding_is_a_file_with_a_word() {
        for (text, path, word) in [
            ("hands.safetensors", "hands.safetensors", None),
            ("/srv/hands.safetensors=bad hands", "/srv/hands.safetensors", Some("bad hands")),
            ("cat.safetensors=<cat>", "cat.safetensors", Some("<cat>")),
            ("a=b.safetensors", "a=b.safetensors", None),
            ("a=b.safetensors = c", "a=b.safetensors", Some("c")),
        ] {
            let word = word.map(str::to_owned);
            assert_eq!(text.parse(), Ok(EngineEmbedding { path: path.into(), word }), "{text}");
        }
        for text in ["", " ", "=word", "a.safetensors=", "a.safetensors= "] {
            assert!(text.parse::<EngineEmbedding>().is_err(), "{text}");
        }
    }

    #[test]
    fn loras_belong_to_the_built_in_engine() {
        let table = |kind: &str| {
            let flags = [format!("--kind={kind}"), "--engine-lora=a:0.5,b".into(), "--engine-lora=c:-2".into()];
            NamedEngine::from_table("painter", &flags)
        };
        let loras = table("diffusion").expect("an engine").settings.engine_lora;
        let found: Vec<_> = loras.iter().map(|lora| (lora.path.as_str(), lora.weight)).collect();
        assert_eq!(found, [("a", 0.5), ("b", 1.0), ("c", -2.0)]);
        assert!(table("sketch").expect_err("another engine").contains("set kind to diffusion"));
    }

    #[test]
    fn a_size_has_two_sides_within_limits() {
        assert_eq!(picture_size("512x768"), Ok((512, 768)));
        for text in ["512", "512x", "x512", "512x0", "63x512", "4097x512", "-512x512", "512x512x512", "512X512"] {
            assert!(picture_size(text).is_err(), "{text}");
        }
    }
}
