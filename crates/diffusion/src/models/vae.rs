//! The decoder of the autoencoder of Stable Diffusion: latent pictures to pictures.

use serde_json::json;

use super::resnet::{Norm, residual};
use crate::Result;
use crate::config::Config;
use crate::graph::blocks::{Activation, Heads};
use crate::graph::{Builder, Graph, Node};
use crate::weights::Weights;

/// All normalisations of the autoencoder have this constant.
const EPSILON: f64 = 1e-6;

/// The autoencoder as its `config.json` describes it.
#[derive(Debug, Clone)]
pub struct Vae {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Latent pictures are divided by this before they are decoded.
    pub scaling: f32,
    /// And this is added then.
    pub shift: f32,
    blocks: Vec<usize>,
    layers: usize,
    groups: usize,
    entry: bool,
    attends: bool,
}

impl Vae {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If it is not that of an `AutoencoderKL` of known blocks.
    pub fn read(config: &Config) -> Result<Self> {
        config.only("_class_name", &json!("AutoencoderKL"))?;
        config.only("act_fn", &json!("silu"))?;
        config.only("out_channels", &json!(3))?;
        for key in ["latents_mean", "latents_std"] {
            config.only(key, &serde_json::Value::Null)?;
        }
        let up = config.names("up_block_types")?;
        if up.iter().any(|name| name != "UpDecoderBlock2D") {
            return Err(config.wrong("up_block_types", "only UpDecoderBlock2D is supported"));
        }
        Ok(Self {
            channels: config.number_or("latent_channels", 4)?,
            scaling: config.fraction("scaling_factor", 0.18215)? as f32,
            shift: config.fraction("shift_factor", 0.0)? as f32,
            blocks: config.numbers("block_out_channels", up.len())?,
            layers: config.number_or("layers_per_block", 1)?.min(64),
            groups: config.number_or("norm_num_groups", 32)?,
            entry: config.flag("use_post_quant_conv", true)?,
            attends: config.flag("mid_block_add_attention", true)?,
        })
    }

    /// Pixels of the picture for each pixel of the latent picture, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.blocks.len() - 1)
    }

    /// Writes the graph of the decoder for a latent picture of the given size. Input: `latent`, already scaled. Output:
    /// `picture`, from -1 to 1.
    ///
    /// # Errors
    /// If the weights do not fit.
    pub fn graph(&self, weights: &Weights, height: usize, width: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "");
        let norm = Norm { groups: self.groups, epsilon: EPSILON };
        let widest = self.blocks[self.blocks.len() - 1];
        let mut x = b.input("latent", &[1, self.channels, height, width]);
        if self.entry {
            x = b.conv(&x, "post_quant_conv", self.channels, 1, 1)?;
        }
        x = b.conv(&x, "decoder.conv_in", widest, 3, 1)?;
        x = residual(&mut b, &x, None, "decoder.mid_block.resnets.0", widest, norm)?;
        if self.attends {
            x = self.attention(&mut b, &x)?;
        }
        x = residual(&mut b, &x, None, "decoder.mid_block.resnets.1", widest, norm)?;
        b.output("mid", &x);
        for (at, &channels) in self.blocks.iter().rev().enumerate() {
            for layer in 0..=self.layers {
                let name = format!("decoder.up_blocks.{at}.resnets.{layer}");
                x = residual(&mut b, &x, None, &name, channels, norm)?;
            }
            if at + 1 < self.blocks.len() {
                let [.., height, width] = x.map();
                x = b.enlarge(&x, height * 2, width * 2);
                x = b.conv(&x, &format!("decoder.up_blocks.{at}.upsamplers.0.conv"), channels, 3, 1)?;
            }
            b.output(&format!("up.{at}"), &x);
        }
        let x = b.group_norm(&x, "decoder.conv_norm_out", self.groups, EPSILON)?;
        let x = b.activation(&x, Activation::Silu);
        let x = b.conv(&x, "decoder.conv_out", 3, 3, 1)?;
        b.output("picture", &x);
        b.finish(|name| name.starts_with("encoder.") || name.starts_with("quant_conv."))
    }

    /// Attention of all positions to each other, with one head.
    fn attention(&self, b: &mut Builder<'_>, x: &Node) -> Result<Node> {
        let [_, channels, height, width] = x.map();
        let name = "decoder.mid_block.attentions.0";
        // The published files of Stable Diffusion 1.5 have the older names.
        let old = b.has(&format!("{name}.query.weight"));
        let names = if old { ["query", "key", "value", "proj_attn"] } else { ["to_q", "to_k", "to_v", "to_out.0"] };
        let h = b.group_norm(x, &format!("{name}.group_norm"), self.groups, EPSILON)?;
        let rows = b.to_rows(&h);
        let query = b.linear(&rows, &format!("{name}.{}", names[0]), channels, true)?;
        let key = b.linear(&rows, &format!("{name}.{}", names[1]), channels, true)?;
        let value = b.linear(&rows, &format!("{name}.{}", names[2]), channels, true)?;
        let mixed = b.attention([&query, &key, &value], Heads::split(channels, 1)?, None);
        let mixed = b.linear(&mixed, &format!("{name}.{}", names[3]), channels, true)?;
        let h = b.to_map(&mixed, height, width);
        Ok(b.add(x, &h))
    }
}
