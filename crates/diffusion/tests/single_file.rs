//! Stable Diffusion in one file: the tiny model, under the names of the first program, gives the same picture.

use std::path::{Path, PathBuf};

use serde_json::{Map, json};
use tempfile::TempDir;
use tintype_diffusion::weights::Weights;
use tintype_diffusion::{Error, Options, Order, Pipeline};
use tintype_engine::{CancellationToken, Picture};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/sd15")
}

/// Layers of the tiny model's blocks, and levels of it.
const LAYERS: usize = 2;
const LEVELS: usize = 4;

fn replace(name: &str, pairs: &[(&str, &str)]) -> String {
    let found = pairs.iter().find_map(|(here, there)| name.strip_prefix(here).map(|rest| format!("{there}{rest}")));
    found.unwrap_or_else(|| name.to_owned())
}

/// The old name of a weight in a block of the UNet: in a residual block or in a transformer.
fn old_layer(rest: &str) -> String {
    replace(
        rest,
        &[
            ("norm1.", "in_layers.0."),
            ("conv1.", "in_layers.2."),
            ("time_emb_proj.", "emb_layers.1."),
            ("norm2.", "out_layers.0."),
            ("conv2.", "out_layers.3."),
            ("conv_shortcut.", "skip_connection."),
        ],
    )
}

fn old_unet(name: &str, attends: impl Fn(usize) -> bool) -> String {
    let parts: Vec<&str> = name.splitn(5, '.').collect();
    let number = |at: usize| parts[at].parse::<usize>().expect("a number");
    match parts.as_slice() {
        ["down_blocks", _, "downsamplers", _, rest] => {
            format!("input_blocks.{}.0.op.{}", (number(1) + 1) * (LAYERS + 1), &rest["conv.".len()..])
        }
        ["down_blocks", _, kind, _, rest] => {
            let place = usize::from(*kind == "attentions");
            format!("input_blocks.{}.{place}.{}", 1 + number(1) * (LAYERS + 1) + number(3), old_layer(rest))
        }
        ["up_blocks", _, "upsamplers", _, rest] => {
            let place = if attends(number(1)) { 2 } else { 1 };
            format!("output_blocks.{}.{place}.{rest}", number(1) * (LAYERS + 1) + LAYERS)
        }
        ["up_blocks", _, kind, _, rest] => {
            let place = usize::from(*kind == "attentions");
            format!("output_blocks.{}.{place}.{}", number(1) * (LAYERS + 1) + number(3), old_layer(rest))
        }
        ["mid_block", "attentions", ..] => format!("middle_block.1.{}", parts[3..].join(".")),
        ["mid_block", "resnets", at, ..] => {
            format!("middle_block.{}.{}", at.parse::<usize>().expect("a number") * 2, old_layer(&parts[3..].join(".")))
        }
        _ => replace(
            name,
            &[
                ("time_embedding.linear_1.", "time_embed.0."),
                ("time_embedding.linear_2.", "time_embed.2."),
                ("conv_in.", "input_blocks.0.0."),
                ("conv_norm_out.", "out.0."),
                ("conv_out.", "out.2."),
            ],
        ),
    }
}

fn old_vae(name: &str) -> String {
    let Some((side, rest)) = name.split_once('.') else { return name.into() };
    if !["encoder", "decoder"].contains(&side) {
        return name.into();
    }
    let parts: Vec<&str> = rest.splitn(4, '.').collect();
    let level = |head: &str| {
        let level: usize = parts[1].parse().expect("a number");
        if head == "up" { LEVELS - 1 - level } else { level }
    };
    let shortcut = |rest: &str| rest.replace("conv_shortcut.", "nin_shortcut.");
    let rest = match parts.as_slice() {
        ["conv_norm_out", ..] => rest.replace("conv_norm_out", "norm_out"),
        ["mid_block", "resnets", "0", rest] => format!("mid.block_1.{rest}"),
        ["mid_block", "resnets", _, rest] => format!("mid.block_2.{rest}"),
        ["mid_block", _, _, rest] => {
            // The tiny model has the names that diffusers gave before the present ones.
            let names = [
                ("group_norm.", "norm."),
                ("query.", "q."),
                ("key.", "k."),
                ("value.", "v."),
                ("proj_attn.", "proj_out."),
            ];
            format!("mid.attn_1.{}", replace(rest, &names))
        }
        ["up_blocks", _, "resnets", rest] => format!("up.{}.block.{}", level("up"), shortcut(rest)),
        ["down_blocks", _, "resnets", rest] => format!("down.{}.block.{}", level("down"), shortcut(rest)),
        ["up_blocks", _, _, rest] => format!("up.{}.upsample.{}", level("up"), &rest["0.".len()..]),
        ["down_blocks", _, _, rest] => format!("down.{}.downsample.{}", level("down"), &rest["0.".len()..]),
        _ => rest.to_owned(),
    };
    format!("{side}.{rest}")
}

/// The tiny model in one file, with its configurations and its tokenizer beside it.
fn single(change: impl Fn(String) -> String) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for part in ["unet/config.json", "vae/config.json", "text_encoder/config.json", "scheduler/scheduler_config.json"]
        .into_iter()
        .chain(["tokenizer/vocab.json", "tokenizer/merges.txt", "tokenizer/tokenizer_config.json"])
    {
        let to = folder.path().join(part);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::fs::copy(tiny().join(part), to).expect("a copy");
    }
    let mut header = Map::new();
    let mut data = Vec::new();
    let attends = |block: usize| block > 0;
    for (part, stem) in
        [("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model"), ("text_encoder", "model")]
    {
        let weights = Weights::open_part(&tiny().join(part), stem).expect("weights");
        let mut names: Vec<&str> = weights.names().collect();
        names.sort_unstable();
        for name in names {
            let entry = weights.get(name).expect("a tensor");
            let mut shape = entry.shape.clone();
            let old = match part {
                "unet" => format!("model.diffusion_model.{}", old_unet(name, attends)),
                "vae" => format!("first_stage_model.{}", old_vae(name)),
                _ if name.starts_with("text_model.") => format!("cond_stage_model.transformer.{name}"),
                _ => format!("cond_stage_model.transformer.text_model.{name}"),
            };
            if part == "vae" && old.contains(".attn_1.") && shape.len() == 2 {
                shape.extend([1, 1]);
            }
            let begin = data.len();
            data.extend(weights.bytes(entry));
            let entry =
                json!({"dtype": format!("{:?}", entry.dtype), "shape": shape, "data_offsets": [begin, data.len()]});
            assert!(header.insert(change(old.clone()), entry).is_none(), "{old}");
        }
    }
    // Such files hold more than the model.
    header.insert(
        "alphas_cumprod".into(),
        json!({"dtype": "F32", "shape": [1], "data_offsets": [data.len(), data.len() + 4]}),
    );
    data.extend([0; 4]);
    let text = serde_json::Value::Object(header).to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.as_bytes());
    file.extend(data);
    std::fs::write(folder.path().join("model.safetensors"), file).expect("a file");
    folder
}

fn render(path: &Path) -> Result<Picture, Error> {
    let mut pipeline = Pipeline::open(path, &Options::default())?;
    let order = Order { prompt: "a fox", width: 64, height: 64, seed: 3, references: &[] };
    let settings = pipeline.traits().settings();
    pipeline.render(&order, &settings, |_| {}, &CancellationToken::new())
}

#[test]
fn a_single_file_gives_the_picture_of_the_folder() {
    let folder = single(|name| name);
    let picture = render(&folder.path().join("model.safetensors")).expect("a picture");
    assert_eq!(picture, render(&tiny()).expect("a picture"));
}

#[test]
fn a_file_of_another_kind_is_refused_by_its_cause() {
    let refused = |folder: &TempDir, word: &str| match render(&folder.path().join("model.safetensors")) {
        Err(Error::Model(text)) => assert!(text.contains(word), "{text:?} lacks {word:?}"),
        other => panic!("{word}: {other:?}"),
    };
    refused(&single(|name| name.replace("first_stage_model.", "vae.")), "first_stage_model.");
    refused(&single(|name| name.replace("middle_block.1.norm", "middle_block.1.nrom")), "mid_block.attentions.0.norm");
    refused(&single(|name| name.replace("time_embed.2.", "time_embed.7.")), "time_embedding.linear_2");
    let folder = single(|name| name);
    std::fs::remove_dir_all(folder.path().join("tokenizer")).expect("a folder");
    refused(&folder, "vocab.json");
    // Without configurations the file must be Stable Diffusion 1.5.
    let folder = single(|name| name);
    std::fs::remove_dir_all(folder.path().join("unet")).expect("a folder");
    refused(&folder, "768");
}
