//! The conditional UNet of Stable Diffusion 1, 2 and XL.

use serde_json::json;

use super::resnet::{Norm, residual};
use super::time::waves;
use crate::config::Config;
use crate::graph::attention::AttentionMask;
use crate::graph::blocks::{Activation, Heads};
use crate::graph::{Builder, Graph, Node};
use crate::weights::Weights;
use crate::{Error, Result};

/// Most layers of one block, and of one transformer.
const MAX_LAYERS: usize = 64;

/// The blocks if a configuration names none.
const DOWN: [&str; 4] = ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"];
const UP: [&str; 4] = ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"];

/// Group normalisation before a transformer has its own constant.
const TRANSFORMER_EPSILON: f64 = 1e-6;

/// The UNet as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct Unet {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Input channels: a latent picture, and for inpainting models also a mask and another latent picture.
    pub inputs: usize,
    /// Latent pixels of the pictures that it was trained on; 0 if its configuration doesn't say.
    pub area: usize,
    /// Size of a token's embedding.
    pub context: usize,
    /// Size of the guidance embedding, for models with distilled guidance (LCM).
    pub guidance: Option<usize>,
    /// Additional inputs besides prompt and time (Stable Diffusion XL).
    pub addition: Option<Addition>,
    blocks: Vec<Level>,
    layers: usize,
    norm: Norm,
    linear_projection: bool,
    /// Small UNets have no middle block.
    has_middle: bool,
    middle_attends: bool,
    flip: bool,
    frequency_shift: f64,
}

/// An embedding of the whole prompt, and picture sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addition {
    /// Length of the input.
    pub size: usize,
    /// Size of one picture size's embedding.
    waves: usize,
}

/// One resolution of the UNet.
#[derive(Debug, Clone, Copy)]
struct Level {
    channels: usize,
    heads: Heads,
    depth: usize,
    down_attends: bool,
    up_attends: bool,
}

impl Unet {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If the configuration isn't for a Stable Diffusion 1, 2 or XL UNet.
    pub fn read(config: &Config) -> Result<Self> {
        refuse_variants(config)?;
        let down = config.names_or("down_block_types", &DOWN)?;
        let up = config.names_or("up_block_types", &UP)?;
        let levels = down.len();
        if up.len() != levels {
            return Err(config.wrong("up_block_types", "as many as in down_block_types are needed"));
        }
        let channels = config.numbers("block_out_channels", levels)?;
        // Because of an old mistake in `diffusers`, the field named after the head size holds the number of heads.
        let heads = config.numbers_or("attention_head_dim", &vec![8; levels])?;
        let depth = config.numbers_or("transformer_layers_per_block", &vec![1; levels])?;
        let attends = |key: &str, name: &str, with: &str, without: &str| match name {
            _ if name == with => Ok(true),
            _ if name == without => Ok(false),
            _ => Err(config.wrong(key, &format!("{with} and {without} are supported"))),
        };
        let mut blocks = Vec::new();
        for at in 0..levels {
            let uneven = |_| {
                let (channels, heads) = (channels[at], heads[at]);
                config.wrong("attention_head_dim", &format!("{channels} channels cannot be split into {heads} heads"))
            };
            let heads = Heads::split(channels[at], heads[at]).map_err(uneven)?;
            let down_attends = attends("down_block_types", &down[at], "CrossAttnDownBlock2D", "DownBlock2D")?;
            let up_attends = attends("up_block_types", &up[levels - 1 - at], "CrossAttnUpBlock2D", "UpBlock2D")?;
            blocks.push(Level { channels: channels[at], heads, depth: depth[at], down_attends, up_attends });
        }
        let layers = config.number_or("layers_per_block", 2)?;
        if layers > MAX_LAYERS || depth.iter().any(|depth| *depth > MAX_LAYERS) {
            return Err(config.wrong("layers_per_block", "at most 64 layers are supported"));
        }
        let norm =
            Norm { groups: config.number_or("norm_num_groups", 32)?, epsilon: config.fraction("norm_eps", 1e-5)? };
        let addition = match config.text("addition_embed_type", "")? {
            "" => None,
            "text_time" => {
                let size = config.number("projection_class_embeddings_input_dim")?;
                Some(Addition { size, waves: config.number("addition_time_embed_dim")? })
            }
            _ => return Err(config.wrong("addition_embed_type", "only text_time is supported")),
        };
        let [latent_channels, inputs] = channels_of(config)?;
        Ok(Self {
            addition,
            channels: latent_channels,
            inputs,
            // Either one side, or height and width.
            area: config.numbers_or("sample_size", &[0, 0])?.iter().product(),
            context: config.number_or("cross_attention_dim", 1280)?,
            guidance: config.get("time_cond_proj_dim").map(|_| config.number("time_cond_proj_dim")).transpose()?,
            blocks,
            layers,
            norm,
            linear_projection: config.flag("use_linear_projection", false)?,
            has_middle: !config.is_null("mid_block_type"),
            middle_attends: config.text("mid_block_type", "UNetMidBlock2DCrossAttn")? == "UNetMidBlock2DCrossAttn",
            flip: config.flag("flip_sin_to_cos", true)?,
            frequency_shift: config.fraction("freq_shift", 0.0)?,
        })
    }

    /// Whether it sees a mask and the kept part of the picture (inpainting models).
    pub fn sees_masks(&self) -> bool {
        self.inputs > self.channels
    }

    /// The time step embedding that the graph takes.
    pub fn embed_time(&self, step: f32) -> Vec<f32> {
        self.embed(step, self.blocks[0].channels)
    }

    fn embed(&self, number: f32, size: usize) -> Vec<f32> {
        let mut numbers = waves(number, size, self.frequency_shift);
        if !self.flip {
            numbers.rotate_left(size / 2);
        }
        numbers
    }

    /// The graph's input `addition`: embeddings of the whole prompt and of sizes in pixels.
    pub fn embed_addition(&self, addition: Addition, pooled: &[f32], sizes: &[usize]) -> Result<Vec<f32>> {
        let sizes = sizes.iter().flat_map(|size| self.embed(*size as f32, addition.waves));
        let numbers: Vec<f32> = pooled.iter().copied().chain(sizes).collect();
        let (found, taken) = (numbers.len(), addition.size);
        if found != taken {
            return Err(Error::Model(format!(
                "the text encoder and six sizes give {found} numbers, but the UNet takes {taken}"
            )));
        }
        Ok(numbers)
    }

    /// Writes the graph for a batch of latent pictures of the given size, which share time and guidance.
    ///
    /// Inputs: `latent`, `time` (see [`Unet::embed_time`]), `context` with a row for each of the `tokens` of each
    /// picture, and, if the model takes them, `guidance` and `addition`, with a row for each picture (see
    /// [`Unet::embed_addition`]). Output: `noise`, with the shape of the latent pictures, which are the first channels
    /// of `latent`.
    pub fn graph(&self, weights: &Weights, batch: usize, [height, width]: [usize; 2], tokens: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "").batch(batch);
        let first = self.blocks[0].channels;
        let latent = b.input("latent", &[batch, self.inputs, height, width]);
        let mut time = b.input("time", &[1, first]);
        let context = b.input("context", &[batch * tokens, self.context]);
        if let Some(size) = self.guidance {
            let guidance = b.input("guidance", &[1, size]);
            let guidance = b.linear_wide(&guidance, "time_embedding.cond_proj", first, false)?;
            time = b.add(&time, &guidance);
        }
        let time = b.linear_wide(&time, "time_embedding.linear_1", first * 4, true)?;
        let time = b.activation(&time, Activation::Silu);
        let time = b.linear_wide(&time, "time_embedding.linear_2", first * 4, true)?;
        let time = match self.addition {
            None => time,
            Some(addition) => {
                let more = b.input("addition", &[batch, addition.size]);
                let more = b.linear_wide(&more, "add_embedding.linear_1", first * 4, true)?;
                let more = b.activation(&more, Activation::Silu);
                let more = b.linear_wide(&more, "add_embedding.linear_2", first * 4, true)?;
                b.add(&more, &time)
            }
        };
        // Every residual block starts with this activation.
        let time = b.activation(&time, Activation::Silu);
        let mut part = Part { unet: self, b, time, context };
        let x = part.b.conv(&latent, "conv_in", first, 3, 1)?;
        let (x, skips) = part.down(x)?;
        let x = part.middle(x)?;
        let x = part.up(x, skips)?;
        let Part { mut b, .. } = part;
        let x = b.group_norm(&x, "conv_norm_out", self.norm.groups, self.norm.epsilon)?;
        let x = b.activation(&x, Activation::Silu);
        let x = b.conv(&x, "conv_out", self.channels, 3, 1)?;
        b.output("noise", &x);
        b.finish(|_| false)
    }
}

/// Rejects configurations that would make wrong pictures, because they need something that the graph lacks.
fn refuse_variants(config: &Config) -> Result<()> {
    config.only("_class_name", &json!("UNet2DConditionModel"))?;
    let no = json!(false);
    for key in ["center_input_sample", "dual_cross_attention", "only_cross_attention", "resnet_skip_time_act"] {
        config.only(key, &no)?;
    }
    for key in ["class_embeddings_concat", "mid_block_only_cross_attention"] {
        config.only(key, &no)?;
    }
    for key in [
        "class_embed_type",
        "num_class_embeds",
        "encoder_hid_dim",
        "encoder_hid_dim_type",
        "time_embedding_dim",
        "time_embedding_act_fn",
        "timestep_post_act",
        "reverse_transformer_layers_per_block",
        "num_attention_heads",
        "cross_attention_norm",
    ] {
        config.only(key, &serde_json::Value::Null)?;
    }
    for key in ["mid_block_scale_factor", "resnet_out_scale_factor"] {
        if (config.fraction(key, 1.0)? - 1.0).abs() > 0.0 {
            return Err(config.wrong(key, "only 1 is supported"));
        }
    }
    for (key, only) in [
        ("act_fn", "silu"),
        ("resnet_time_scale_shift", "default"),
        ("time_embedding_type", "positional"),
        ("attention_type", "default"),
    ] {
        config.only(key, &json!(only))?;
    }
    for (key, only) in [("conv_in_kernel", 3), ("conv_out_kernel", 3), ("downsample_padding", 1)] {
        config.only(key, &json!(only))?;
    }
    let middle = config.text("mid_block_type", "UNetMidBlock2DCrossAttn")?;
    if !["UNetMidBlock2DCrossAttn", "UNetMidBlock2D"].contains(&middle) {
        return Err(config.wrong("mid_block_type", "only UNetMidBlock2DCrossAttn is supported"));
    }
    Ok(())
}

/// The channels of the latent picture and of the input.
fn channels_of(config: &Config) -> Result<[usize; 2]> {
    let (inputs, outputs) = (config.number_or("in_channels", 4)?, config.number_or("out_channels", 4)?);
    if inputs != outputs && inputs != 2 * outputs + 1 {
        return Err(Error::Model(format!(
            "the UNet takes {inputs} channels and gives {outputs}: of the models that take more than they give, only \
             those for inpainting are supported"
        )));
    }
    Ok([outputs, inputs])
}

/// A graph under construction, with what all of its blocks need.
struct Part<'a, 'w> {
    unet: &'a Unet,
    b: Builder<'w>,
    time: Node,
    context: Node,
}

impl Part<'_, '_> {
    fn residual(&mut self, x: &Node, name: &str, channels: usize) -> Result<Node> {
        residual(&mut self.b, x, Some(&self.time), name, channels, self.unet.norm)
    }

    /// Returns the result and everything that the way up needs.
    fn down(&mut self, mut x: Node) -> Result<(Node, Vec<Node>)> {
        let unet = self.unet;
        let mut skips = vec![x.clone()];
        for (at, level) in unet.blocks.iter().enumerate() {
            for layer in 0..unet.layers {
                x = self.residual(&x, &format!("down_blocks.{at}.resnets.{layer}"), level.channels)?;
                if level.down_attends {
                    x = self.transformer(&x, &format!("down_blocks.{at}.attentions.{layer}"), level)?;
                }
                skips.push(x.clone());
            }
            if at + 1 < unet.blocks.len() {
                let name = format!("down_blocks.{at}.downsamplers.0.conv");
                x = self.b.conv(&x, &name, level.channels, 3, 2)?;
                skips.push(x.clone());
            }
            self.b.output_of_block(&format!("down.{at}"), &x);
        }
        Ok((x, skips))
    }

    fn middle(&mut self, x: Node) -> Result<Node> {
        if !self.unet.has_middle {
            return Ok(x);
        }
        let last = self.unet.blocks[self.unet.blocks.len() - 1];
        let mut x = self.residual(&x, "mid_block.resnets.0", last.channels)?;
        if self.unet.middle_attends {
            x = self.transformer(&x, "mid_block.attentions.0", &last)?;
        }
        let x = self.residual(&x, "mid_block.resnets.1", last.channels)?;
        self.b.output_of_block("mid", &x);
        Ok(x)
    }

    fn up(&mut self, mut x: Node, mut skips: Vec<Node>) -> Result<Node> {
        let unet = self.unet;
        for (at, level) in unet.blocks.iter().rev().enumerate() {
            for layer in 0..=unet.layers {
                let skip = skips
                    .pop()
                    .expect("one for each layer of the way down, one for each change of size, and the first");
                x = self.b.concat_channels(&x, &skip);
                x = self.residual(&x, &format!("up_blocks.{at}.resnets.{layer}"), level.channels)?;
                if level.up_attends {
                    x = self.transformer(&x, &format!("up_blocks.{at}.attentions.{layer}"), level)?;
                }
            }
            if at + 1 < unet.blocks.len() {
                // The size on the way down. Doubling would be wrong where a side was odd.
                let [.., height, width] = skips.last().expect("more levels follow").map();
                x = self.b.enlarge(&x, height, width);
                x = self.b.conv(&x, &format!("up_blocks.{at}.upsamplers.0.conv"), level.channels, 3, 1)?;
            }
            self.b.output_of_block(&format!("up.{at}"), &x);
        }
        Ok(x)
    }

    fn transformer(&mut self, x: &Node, name: &str, level: &Level) -> Result<Node> {
        let [_, channels, height, width] = x.map();
        let h = self.b.group_norm(x, &format!("{name}.norm"), self.unet.norm.groups, TRANSFORMER_EPSILON)?;
        let mut rows = if self.unet.linear_projection {
            let rows = self.b.to_rows(&h);
            self.b.linear(&rows, &format!("{name}.proj_in"), channels, true)?
        } else {
            let h = self.b.conv(&h, &format!("{name}.proj_in"), channels, 1, 1)?;
            self.b.to_rows(&h)
        };
        for layer in 0..level.depth {
            rows = self.transformer_layer(&rows, &format!("{name}.transformer_blocks.{layer}"), level.heads)?;
        }
        let h = if self.unet.linear_projection {
            let rows = self.b.linear(&rows, &format!("{name}.proj_out"), channels, true)?;
            self.b.to_map(&rows, height, width)
        } else {
            let h = self.b.to_map(&rows, height, width);
            self.b.conv(&h, &format!("{name}.proj_out"), channels, 1, 1)?
        };
        Ok(self.b.add(x, &h))
    }

    fn transformer_layer(&mut self, x: &Node, name: &str, heads: Heads) -> Result<Node> {
        let h = self.b.layer_norm(x, &format!("{name}.norm1"), 1e-5)?;
        let h = self.attend(&h, &h.clone(), &format!("{name}.attn1"), heads)?;
        let x = self.b.add(x, &h);
        let h = self.b.layer_norm(&x, &format!("{name}.norm2"), 1e-5)?;
        let context = self.context.clone();
        let h = self.attend(&h, &context, &format!("{name}.attn2"), heads)?;
        let x = self.b.add(&x, &h);
        let h = self.b.layer_norm(&x, &format!("{name}.norm3"), 1e-5)?;
        let [_, width] = h.matrix();
        let inner = width * 4;
        let [value, gate] = self.b.linears(&h, &format!("{name}.ff.net.0.proj"), [inner, inner], true)?;
        let gate = self.b.activation(&gate, Activation::Gelu);
        let h = self.b.mul(&value, &gate);
        let h = self.b.linear(&h, &format!("{name}.ff.net.2"), width, true)?;
        Ok(self.b.add(&x, &h))
    }

    fn attend(&mut self, x: &Node, seen: &Node, name: &str, heads: Heads) -> Result<Node> {
        let [_, width] = x.matrix();
        let query = self.b.linear(x, &format!("{name}.to_q"), width, false)?;
        let key = self.b.linear(seen, &format!("{name}.to_k"), width, false)?;
        let value = self.b.linear(seen, &format!("{name}.to_v"), width, false)?;
        let mixed = self.b.attend([&query, &key, &value], heads, heads.count, AttentionMask::All);
        self.b.linear(&mixed, &format!("{name}.to_out.0"), width, true)
    }
}
