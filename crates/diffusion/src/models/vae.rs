//! The autoencoder of Stable Diffusion and FLUX, between latent pictures and pictures.

use serde_json::json;

use super::resnet::{Norm, residual};
use crate::Result;
use crate::config::Config;
use crate::graph::attention::AttentionMask;
use crate::graph::blocks::{Activation, Heads};
use crate::graph::{Builder, Graph, Node};
use crate::weights::Weights;

const EPSILON: f64 = 1e-6;

/// The autoencoder as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct Vae {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Latent pictures are divided by this before they are decoded.
    pub scaling: f32,
    /// Added after the division.
    pub shift: f32,
    encoder_blocks: Vec<usize>,
    decoder_blocks: Vec<usize>,
    layers: usize,
    groups: usize,
    exit: bool,
    entry: bool,
    attends: bool,
}

impl Vae {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If the configuration isn't for an `AutoencoderKL`, or some blocks are unknown.
    pub fn read(config: &Config) -> Result<Self> {
        let is_flux2 = config.text("_class_name", "")? == "AutoencoderKLFlux2";
        let levels = if is_flux2 { 4 } else { 1 };
        if !is_flux2 {
            config.only("_class_name", &json!("AutoencoderKL"))?;
            for key in ["latents_mean", "latents_std"] {
                config.only(key, &serde_json::Value::Null)?;
            }
        }
        config.only("act_fn", &json!("silu"))?;
        for key in ["in_channels", "out_channels"] {
            config.only(key, &json!(3))?;
        }
        let down = config.names_or("down_block_types", &vec!["DownEncoderBlock2D"; levels])?;
        if down.iter().any(|name| name != "DownEncoderBlock2D") {
            return Err(config.wrong("down_block_types", "only DownEncoderBlock2D is supported"));
        }
        let up = config.names_or("up_block_types", &vec!["UpDecoderBlock2D"; levels])?;
        if up.iter().any(|name| name != "UpDecoderBlock2D") || up.len() != down.len() {
            return Err(config.wrong("up_block_types", "only UpDecoderBlock2D is supported, as many as the others"));
        }
        let encoder_blocks = config.numbers("block_out_channels", up.len())?;
        let decoder_blocks = config.numbers_or("decoder_block_out_channels", &encoder_blocks)?;
        Ok(Self {
            channels: config.number_or("latent_channels", if is_flux2 { 32 } else { 4 })?,
            scaling: config.fraction("scaling_factor", 0.18215)? as f32,
            shift: config.fraction("shift_factor", 0.0)? as f32,
            encoder_blocks,
            decoder_blocks,
            layers: config.number_or("layers_per_block", if is_flux2 { 2 } else { 1 })?.min(64),
            groups: config.number_or("norm_num_groups", 32)?,
            exit: config.flag("use_quant_conv", true)?,
            entry: config.flag("use_post_quant_conv", true)?,
            attends: config.flag("mid_block_add_attention", true)?,
        })
    }

    /// Pixels per latent pixel, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.decoder_blocks.len() - 1)
    }

    fn norm(&self) -> Norm {
        Norm { groups: self.groups, epsilon: EPSILON }
    }

    /// Writes the graph of the decoder for a latent picture of the given size. Input: `latent`, already scaled. Output:
    /// `picture`, from -1 to 1.
    pub fn graph(&self, weights: &Weights, height: usize, width: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "");
        let mut x = b.input("latent", &[1, self.channels, height, width]);
        if self.entry {
            x = b.conv(&x, "post_quant_conv", self.channels, 1, 1)?;
        }
        x = b.conv(&x, "decoder.conv_in", self.decoder_blocks[self.decoder_blocks.len() - 1], 3, 1)?;
        x = self.middle(&mut b, &x, "decoder.mid_block")?;
        b.output_of_block("mid", &x);
        for (at, &channels) in self.decoder_blocks.iter().rev().enumerate() {
            for layer in 0..=self.layers {
                let name = format!("decoder.up_blocks.{at}.resnets.{layer}");
                x = residual(&mut b, &x, None, &name, channels, self.norm())?;
            }
            if at + 1 < self.decoder_blocks.len() {
                let [.., height, width] = x.map();
                x = b.enlarge(&x, height * 2, width * 2);
                x = b.conv(&x, &format!("decoder.up_blocks.{at}.upsamplers.0.conv"), channels, 3, 1)?;
            }
            b.output_of_block(&format!("up.{at}"), &x);
        }
        let x = b.group_norm(&x, "decoder.conv_norm_out", self.groups, EPSILON)?;
        let x = b.activation(&x, Activation::Silu);
        let x = b.conv(&x, "decoder.conv_out", 3, 3, 1)?;
        b.output("picture", &x);
        // Besides the encoder, files can contain tensors from the autoencoder's training.
        b.finish(|name| !["decoder.", "post_quant_conv."].iter().any(|part| name.starts_with(part)))
    }

    /// Writes the graph of the encoder for a picture of the given size in pixels. Input: `picture`, from -1 to 1.
    /// Outputs: `latent`, the most likely latent picture, not scaled, and `spread`, the log variance around it.
    pub fn encoder_graph(&self, weights: &Weights, height: usize, width: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "");
        let mut x = b.input("picture", &[1, 3, height, width]);
        x = b.conv(&x, "encoder.conv_in", self.encoder_blocks[0], 3, 1)?;
        for (at, &channels) in self.encoder_blocks.iter().enumerate() {
            for layer in 0..self.layers {
                let name = format!("encoder.down_blocks.{at}.resnets.{layer}");
                x = residual(&mut b, &x, None, &name, channels, self.norm())?;
            }
            if at + 1 < self.encoder_blocks.len() {
                x = b.halve(&x, &format!("encoder.down_blocks.{at}.downsamplers.0.conv"), channels)?;
            }
            b.output_of_block(&format!("down.{at}"), &x);
        }
        x = self.middle(&mut b, &x, "encoder.mid_block")?;
        b.output_of_block("mid", &x);
        let x = b.group_norm(&x, "encoder.conv_norm_out", self.groups, EPSILON)?;
        let x = b.activation(&x, Activation::Silu);
        let mut x = b.conv(&x, "encoder.conv_out", self.channels * 2, 3, 1)?;
        if self.exit {
            x = b.conv(&x, "quant_conv", self.channels * 2, 1, 1)?;
        }
        let latent = b.slice(&x, 1, 0, self.channels);
        b.output("latent", &latent);
        let spread = b.slice(&x, 1, self.channels, self.channels * 2);
        b.output("spread", &spread);
        b.finish(|name| !["encoder.", "quant_conv."].iter().any(|part| name.starts_with(part)))
    }

    fn middle(&self, b: &mut Builder<'_>, x: &Node, name: &str) -> Result<Node> {
        let [_, channels, ..] = x.map();
        let mut x = residual(b, x, None, &format!("{name}.resnets.0"), channels, self.norm())?;
        if self.attends {
            x = self.attention(b, &x, &format!("{name}.attentions.0"))?;
        }
        residual(b, &x, None, &format!("{name}.resnets.1"), channels, self.norm())
    }

    /// Attention between all positions, with one head.
    fn attention(&self, b: &mut Builder<'_>, x: &Node, name: &str) -> Result<Node> {
        let [_, channels, height, width] = x.map();
        // The published files of Stable Diffusion 1.5 use the older names.
        let old = b.has(&format!("{name}.query.weight"));
        let names = if old { ["query", "key", "value", "proj_attn"] } else { ["to_q", "to_k", "to_v", "to_out.0"] };
        let h = b.group_norm(x, &format!("{name}.group_norm"), self.groups, EPSILON)?;
        let rows = b.to_rows(&h);
        let query = b.linear(&rows, &format!("{name}.{}", names[0]), channels, true)?;
        let key = b.linear(&rows, &format!("{name}.{}", names[1]), channels, true)?;
        let value = b.linear(&rows, &format!("{name}.{}", names[2]), channels, true)?;
        let mixed = b.attend([&query, &key, &value], Heads::split(channels, 1)?, 1, AttentionMask::All);
        let mixed = b.linear(&mixed, &format!("{name}.{}", names[3]), channels, true)?;
        let h = b.to_map(&mixed, height, width);
        Ok(b.add(x, &h))
    }
}
