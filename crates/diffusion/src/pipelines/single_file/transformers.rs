//! FLUX.2 klein and Z-Image in the files that ComfyUI reads: the transformer in one file under its original names, text
//! encoder and autoencoder in the same file or in others, in folders for ComfyUI or `diffusers`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use super::tensors::Tensors;
use super::{MAX_ENTRIES, beside, config, configs, part, vae};
use crate::config::Config;
use crate::pipelines::encoders::QwenParts;
use crate::pipelines::part_config;
use crate::variants::Layout;
use crate::weights::{BLOCK_SCALE_SUFFIXES, Weights};
use crate::{Error, Result};

/// Prefixes of a transformer's names: on its own, or as part of a checkpoint.
const PREFIXES: [&str; 3] = ["", "model.diffusion_model.", "diffusion_model."];

/// A part's folder names, and the stem of its files in a `diffusers` folder.
type Folders = (&'static [&'static str], &'static str);
const TEXT_ENCODERS: Folders = (&["text_encoders", "text_encoder", "clip"], "model");
const VAES: Folders = (&["vae"], "diffusion_pytorch_model");

/// How many folders, from the file's own upwards, are searched for its parts' folders.
const LEVELS: usize = 3;

/// Names that identify the parts. Whatever precedes them is the part's prefix.
const FIRST_NORM: &str = "layers.0.self_attn.q_norm.weight";
const FIRST_KERNEL: &str = "decoder.conv_in.weight";

/// Only in text encoders that resemble Qwen 3, but aren't.
const OTHER_ENCODERS: [&str; 2] = ["feedforward_layernorm", "visual."];

/// Files that can lie beside the parts.
const INDEX: &str = "model_index.json";
const SCHEDULER: &str = "scheduler/scheduler_config.json";
const VAE: &str = "vae/config.json";
const TOKENIZER: &str = "tokenizer/tokenizer_config.json";

/// Latent pixels per pixel of the transformer.
const SQUARE: usize = 4;

/// Text encoder layers whose states FLUX.2 takes.
const STATES: usize = 3;

/// The scaling factor of Z-Image's latents, and the shift subtracted before scaling.
const SCALING: f32 = 0.3611;
const SHIFT: f32 = 0.1159;

/// Layers by their original names, with their `diffusers` names. `#` stands for whatever precedes a block, or for its
/// number. If several `diffusers` layers are listed, each has an equal share of the original layer's rows, in this
/// order. One FLUX.2 layer keeps its original name, because the halves of its rows are swapped
/// ([`crate::models::flux2`]).
type Layers = [(&'static str, &'static [&'static str])];

const FLUX2: &Layers = &[
    ("img_in", &["x_embedder"]),
    ("txt_in", &["context_embedder"]),
    ("time_in.in_layer", &["time_guidance_embed.timestep_embedder.linear_1"]),
    ("time_in.out_layer", &["time_guidance_embed.timestep_embedder.linear_2"]),
    ("final_layer.linear", &["proj_out"]),
    ("#_stream_modulation.lin", &["#_stream_modulation.linear"]),
    ("#_stream_modulation_img.lin", &["#_stream_modulation_img.linear"]),
    ("#_stream_modulation_txt.lin", &["#_stream_modulation_txt.linear"]),
    (
        "double_blocks.#.img_attn.qkv",
        &["transformer_blocks.#.attn.to_q", "transformer_blocks.#.attn.to_k", "transformer_blocks.#.attn.to_v"],
    ),
    (
        "double_blocks.#.txt_attn.qkv",
        &[
            "transformer_blocks.#.attn.add_q_proj",
            "transformer_blocks.#.attn.add_k_proj",
            "transformer_blocks.#.attn.add_v_proj",
        ],
    ),
    ("double_blocks.#.img_attn.norm.query_norm", &["transformer_blocks.#.attn.norm_q"]),
    ("double_blocks.#.img_attn.norm.key_norm", &["transformer_blocks.#.attn.norm_k"]),
    ("double_blocks.#.txt_attn.norm.query_norm", &["transformer_blocks.#.attn.norm_added_q"]),
    ("double_blocks.#.txt_attn.norm.key_norm", &["transformer_blocks.#.attn.norm_added_k"]),
    ("double_blocks.#.img_attn.proj", &["transformer_blocks.#.attn.to_out.0"]),
    ("double_blocks.#.txt_attn.proj", &["transformer_blocks.#.attn.to_add_out"]),
    ("double_blocks.#.img_mlp.0", &["transformer_blocks.#.ff.linear_in"]),
    ("double_blocks.#.img_mlp.2", &["transformer_blocks.#.ff.linear_out"]),
    ("double_blocks.#.txt_mlp.0", &["transformer_blocks.#.ff_context.linear_in"]),
    ("double_blocks.#.txt_mlp.2", &["transformer_blocks.#.ff_context.linear_out"]),
    ("single_blocks.#.linear1", &["single_transformer_blocks.#.attn.to_qkv_mlp_proj"]),
    ("single_blocks.#.linear2", &["single_transformer_blocks.#.attn.to_out"]),
    ("single_blocks.#.norm.query_norm", &["single_transformer_blocks.#.attn.norm_q"]),
    ("single_blocks.#.norm.key_norm", &["single_transformer_blocks.#.attn.norm_k"]),
];

const Z_IMAGE: &Layers = &[
    ("x_embedder", &["all_x_embedder.2-1"]),
    ("final_layer.linear", &["all_final_layer.2-1.linear"]),
    ("final_layer.adaLN_modulation.1", &["all_final_layer.2-1.adaLN_modulation.1"]),
    ("#.attention.qkv", &["#.attention.to_q", "#.attention.to_k", "#.attention.to_v"]),
    ("#.attention.out", &["#.attention.to_out.0"]),
    ("#.attention.q_norm", &["#.attention.norm_q"]),
    ("#.attention.k_norm", &["#.attention.norm_k"]),
];

/// The `diffusers` names for a FLUX.2 or Z-Image layer with this original name, in which dots can be written as
/// underscores.
pub(crate) fn transformer_layers(layer: &str, dot: &str) -> impl Iterator<Item = Vec<String>> {
    [FLUX2, Z_IMAGE].into_iter().filter_map(move |layers| renamed(layers, layer, dot))
}

fn renamed(layers: &Layers, layer: &str, dot: &str) -> Option<Vec<String>> {
    layers.iter().find_map(|(there, here)| {
        let there = there.replace('.', dot);
        let number = match there.split_once('#') {
            Some((before, after)) => layer.strip_prefix(before)?.strip_suffix(after)?,
            None => (layer == there).then_some("")?,
        };
        Some(here.iter().map(|name| name.replace('.', dot).replace('#', number)).collect())
    })
}

/// A model family whose transformer is read from a single file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Klein,
    ZImage,
}

/// A transformer file, and where its model's other parts are: in files, or in `diffusers` folders.
#[derive(Debug)]
pub(super) struct Found {
    pub family: Family,
    /// Prefix of its tensors' names.
    prefix: &'static str,
    path: PathBuf,
    encoder: PathBuf,
    vae: PathBuf,
    /// The folder that contains all of these, directly or in subfolders.
    pub folder: PathBuf,
}

/// A transformer's family, and its name prefix.
fn identify(tensors: &Tensors) -> Option<(Family, &'static str)> {
    let has = |prefix: &str, name: &str| tensors.shape(&format!("{prefix}{name}")).is_some();
    PREFIXES.into_iter().find_map(|prefix| {
        let is_klein = ["lin", "linear"].map(|layer| format!("double_stream_modulation_img.{layer}.weight"));
        if is_klein.iter().any(|name| has(prefix, name)) {
            return Some((Family::Klein, prefix));
        }
        // Similar models have no padding row.
        let is_z_image = has(prefix, "x_pad_token") && tensors.has(&format!("{prefix}noise_refiner."));
        is_z_image.then_some((Family::ZImage, prefix))
    })
}

impl Found {
    /// The transformer in a file; `None` if it isn't a known one.
    pub(super) fn of(path: &Path, tensors: &Tensors) -> Result<Option<Self>> {
        let Some((family, prefix)) = identify(tensors) else { return Ok(None) };
        let is = |what: String| Error::Unusable(format!("{} is {what}", tensors.path));
        if tensors.mentions(&["guidance_in.", "guidance_embedder."]) {
            return Err(is("FLUX.2 dev or a model like it, which is not supported: use FLUX.2 klein".into()));
        }
        let inputs = |names: &[&str]| {
            let shape = names.iter().find_map(|name| tensors.shape(&format!("{prefix}{name}.weight")));
            shape.and_then(|shape| shape.get(1).copied()).unwrap_or(0)
        };
        let (name, width, channels, example) = match family {
            Family::Klein => {
                let (text, image) = (inputs(&["txt_in", "context_embedder"]), inputs(&["img_in", "x_embedder"]));
                ("FLUX.2 klein", text / STATES, image / SQUARE, "flux2-vae")
            }
            Family::ZImage => {
                let image = inputs(&["x_embedder", "all_x_embedder.2-1"]);
                ("Z-Image", inputs(&["cap_embedder.1"]), image / SQUARE, "ae")
            }
        };
        let is_encoder = |tensors: &Tensors| {
            let words = tensors.before(FIRST_NORM).map(|prefix| format!("{prefix}embed_tokens.weight"));
            let shape = words.and_then(|words| tensors.shape(&words));
            shape.is_some_and(|shape| shape.get(1) == Some(&width)) && !tensors.mentions(&OTHER_ENCODERS)
        };
        let is_vae = |tensors: &Tensors| {
            let kernel = tensors.before(FIRST_KERNEL).map(|prefix| format!("{prefix}{FIRST_KERNEL}"));
            kernel.and_then(|kernel| tensors.shape(&kernel)).is_some_and(|shape| shape.get(1) == Some(&channels))
        };
        let goes_up = path.components().any(|component| component == Component::ParentDir);
        let whole = if goes_up { path.canonicalize() } else { std::path::absolute(path) };
        let whole = whole.map_err(|error| Error::Files(format!("{}: {error}", tensors.path)))?;
        let find = |folders, fits: &dyn Fn(&Tensors) -> bool| match fits(tensors) {
            true => Ok(whole.clone()),
            false => find(&whole, folders, fits),
        };
        let without = |part: &str, like: &str, folder: &str, unread: &[Error]| {
            let unread = unread.first().map_or_else(String::new, |error| format!(" ({error})"));
            is(format!(
                "the transformer of {name} alone, and no {part} of this model lies beside it: put one, such as \
                 {like}.safetensors, into its folder, or into a folder {folder} beside that, as ComfyUI does{unread}"
            ))
        };
        let text = format!("text encoder (Qwen 3 with {width} numbers a token)");
        let encoder = find(TEXT_ENCODERS, &is_encoder);
        let encoder = encoder.map_err(|unread| without(&text, "qwen_3_4b", "text_encoders", &unread))?;
        let vae = format!("VAE (with {channels} channels)");
        let vae = find(VAES, &is_vae).map_err(|unread| without(&vae, example, "vae", &unread))?;
        let holds = |folder: &&Path| [&encoder, &vae].iter().all(|part| part.starts_with(folder));
        let folder = whole.ancestors().skip(1).find(holds).unwrap_or(Path::new("/")).to_owned();
        Ok(Some(Self { family, prefix, path: whole, encoder, vae, folder }))
    }

    /// A file that can lie beside the parts.
    fn beside(&self, name: &str) -> Option<PathBuf> {
        beside(&self.folder.join(INDEX), name)
    }

    /// The folder of a tokenizer that replaces the built-in one.
    fn tokenizer(&self) -> Option<PathBuf> {
        self.folder.join(TOKENIZER).parent().filter(|_| self.folder.join(TOKENIZER).is_file()).map(Path::to_owned)
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut all = vec![self.path.clone()];
        for (part, (_, stem)) in [(&self.encoder, TEXT_ENCODERS), (&self.vae, VAES)] {
            match Layout::choose(stem, |name| part.join(name).is_file()) {
                Some(layout) => {
                    all.extend(entries(part, |name| name == "config.json" || layout.holds(name)));
                }
                None => all.push(part.clone()),
            }
        }
        all.extend(self.tokenizer().into_iter().flat_map(|folder| entries(&folder, |name| !name.starts_with('.'))));
        all.extend([INDEX, SCHEDULER].into_iter().filter_map(|name| self.beside(name)));
        all.extend(self.beside(VAE).filter(|_| !self.vae.is_dir()));
        let mut seen = BTreeSet::new();
        all.retain(|file| seen.insert(file.clone()));
        all
    }

    /// The model's parts.
    pub(super) fn parts(&self) -> Result<QwenParts> {
        let Self { family, prefix, path, encoder, vae, .. } = self;
        let config = |name: &str, fields: Value| match self.beside(name) {
            Some(path) => Config::read(&path),
            None => Ok(config(path, name, fields)),
        };
        let vae = match vae.is_dir() {
            true => of_folder(vae, VAES)?,
            false => {
                let (fields, weights) = autoencoder(*family, vae)?;
                (config(VAE, fields)?, weights)
            }
        };
        let is_distilled = is_distilled(path);
        let (shift, is_fitted) = match family {
            Family::Klein => (3.0, true),
            Family::ZImage => (if is_distilled { 3.0 } else { 6.0 }, false),
        };
        Ok(QwenParts {
            transformer: transformer(*family, path, prefix)?,
            encoder: if encoder.is_dir() { of_folder(encoder, TEXT_ENCODERS)? } else { qwen(encoder)? },
            vae,
            tokenizer: self.tokenizer(),
            index: config(INDEX, json!({ "is_distilled": is_distilled }))?,
            scheduler: config(SCHEDULER, scheduler(shift, is_fitted))?,
        })
    }
}

/// A folder's files whose names `fits` accepts, sorted by name.
fn entries(folder: &Path, fits: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| fits(name));
    let mut files: Vec<_> = names.map(|name| folder.join(name)).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// A model's part: in a folder named after the part, beside the file or above, or in the file's own folder. It is a
/// `diffusers` folder, or the first suitable file by name.
///
/// # Errors
/// The errors of unreadable files, any of which could be the part.
fn find(
    path: &Path,
    (names, stem): Folders,
    fits: &dyn Fn(&Tensors) -> bool,
) -> std::result::Result<PathBuf, Vec<Error>> {
    let own = path.parent().unwrap_or(Path::new(""));
    let mut unread = Vec::new();
    for folder in own.ancestors().take(LEVELS).flat_map(|folder| names.iter().map(|name| folder.join(name))) {
        let layout = Layout::choose(stem, |name| folder.join(name).is_file());
        if folder.join("config.json").is_file()
            && let Some(layout) = layout
        {
            let weights = entries(&folder, |name| layout.holds(name) && name.ends_with(".safetensors"));
            match weights.iter().map(|file| Tensors::read(file)).reduce(|one, other| Ok(one?.with(other?))) {
                Some(Ok(tensors)) if fits(&tensors) => return Ok(folder),
                Some(Err(error)) => unread.push(error),
                // A missing file may be the reason why the others don't fit.
                _ => unread.extend(Weights::open_part(&folder, stem).err()),
            }
        }
        if let Some(file) = whole_file(&folder, path, fits, &mut unread) {
            return Ok(file);
        }
    }
    whole_file(own, path, fits, &mut unread).ok_or(unread)
}

/// A folder's first file, except `path`, that contains a whole part. Files with block scales, which are unsupported,
/// come last.
fn whole_file(folder: &Path, path: &Path, fits: &dyn Fn(&Tensors) -> bool, unread: &mut Vec<Error>) -> Option<PathBuf> {
    let mut scales_blocks = None;
    // A shard isn't a whole part.
    let files = entries(folder, |name| name.ends_with(".safetensors") && !name.contains("-of-"));
    for file in files.into_iter().filter(|file| file != path) {
        match Tensors::read(&file) {
            Ok(tensors) if !fits(&tensors) => {}
            Ok(tensors) if !tensors.mentions(&BLOCK_SCALE_SUFFIXES) => return Some(file),
            Ok(_) => scales_blocks = scales_blocks.or(Some(file)),
            Err(error) => unread.push(error),
        }
    }
    scales_blocks
}

/// Whether a model was distilled and so needs few steps. Nothing inside a file says so, but its name may.
fn is_distilled(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase().replace('-', "_");
    let is_turbo = name.contains("turbo") && !name.contains("de_turbo");
    // Nothing else marks the published file of Z-Image's base model.
    is_turbo || !(name.contains("base") || name.contains("de_turbo") || name.starts_with("z_image"))
}

/// The scheduler from the published folders.
fn scheduler(shift: f64, is_fitted: bool) -> Value {
    json!({
        "_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": shift,
        "use_dynamic_shifting": is_fitted, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
        "max_image_seq_len": 4096, "time_shift_type": "exponential",
    })
}

fn of_folder(folder: &Path, (_, stem): Folders) -> Result<(Config, Weights)> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let config = part_config(folder.parent().unwrap_or(folder), &name)?;
    Ok((config, Weights::open_part(folder, stem)?))
}

fn transformer(family: Family, path: &Path, prefix: &str) -> Result<(Config, Weights)> {
    let layers = if family == Family::Klein { FLUX2 } else { Z_IMAGE };
    let new = |name: &str| {
        let (layer, kind) = name.rsplit_once('.')?;
        let kind = if kind == "scale" && layer.ends_with("_norm") { "weight" } else { kind };
        let names = renamed(layers, layer, ".")?;
        Some(names.into_iter().map(|name| format!("{name}.{kind}")).collect::<Vec<_>>())
    };
    let weights = part(&Weights::open(path)?, prefix, |name| {
        // Z-Image files contain a norm that isn't used.
        if family == Family::ZImage && name == "norm_final.weight" {
            return None;
        }
        let one = new(name).filter(|names| names.len() == 1).and_then(|mut names| names.pop());
        // An unknown name stays, so that the graph rejects it.
        Some(one.unwrap_or_else(|| name.to_owned()))
    });
    let inputs = |name: &str| new(name).and_then(|names| <[String; 3]>::try_from(names).ok());
    let weights = weights.cut(inputs);
    if let Some(whole) = weights.names().find(|name| inputs(name).is_some()) {
        let path = weights.path();
        return Err(Error::Model(format!(
            "{path}: the tensor {whole:?} cannot be shared out to queries, keys and values"
        )));
    }
    let tensors = Tensors::of(&weights);
    let fields = if family == Family::Klein { configs::flux2(&tensors)? } else { configs::z_image(&tensors)? };
    Ok((config(path, "transformer", fields), weights))
}

fn qwen(path: &Path) -> Result<(Config, Weights)> {
    let weights = Weights::open(path)?;
    let tensors = Tensors::of(&weights);
    let weights = part(&weights, tensors.before(FIRST_NORM).unwrap_or_default(), |name| Some(name.to_owned()));
    Ok((config(path, "text encoder", configs::qwen(&Tensors::of(&weights))?), weights))
}

fn autoencoder(family: Family, path: &Path) -> Result<(Value, Weights)> {
    let weights = Weights::open(path)?;
    let tensors = Tensors::of(&weights);
    let prefix = tensors.before(FIRST_KERNEL).unwrap_or_default();
    let (mut fields, weights) = vae::autoencoder(&weights, prefix, SCALING)?;
    let has = |name: &str| weights.get(name).is_some();
    fields["use_quant_conv"] = json!(has("quant_conv.weight"));
    fields["use_post_quant_conv"] = json!(has("post_quant_conv.weight"));
    fields["shift_factor"] = json!(SHIFT);
    if family == Family::Klein {
        fields["_class_name"] = json!("AutoencoderKLFlux2");
        fields["patch_size"] = json!([2, 2]);
    }
    Ok((fields, weights))
}
