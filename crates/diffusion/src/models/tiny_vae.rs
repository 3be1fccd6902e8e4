//! A tiny autoencoder (TAESD): nearly the large one's picture, in a fraction of its time.

use serde_json::json;

use crate::Result;
use crate::config::Config;
use crate::graph::blocks::Activation;
use crate::graph::{Builder, Graph, Node};
use crate::weights::Weights;

/// The tiny autoencoder as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct TinyVae {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Latent pictures are divided by this before they are decoded.
    pub scaling: f32,
    /// The number of blocks and their channels, from the smallest size to the largest.
    blocks: Vec<(usize, usize)>,
    /// The blocks of the encoder, from the largest size to the smallest.
    encoder_blocks: Vec<(usize, usize)>,
    activation: Activation,
}

impl TinyVae {
    /// Reads the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        config.only("_class_name", &json!("AutoencoderTiny"))?;
        config.only("out_channels", &json!(3))?;
        config.only("upsampling_scaling_factor", &json!(2))?;
        config.only("upsample_fn", &json!("nearest"))?;
        let blocks = |side: &str| {
            let name = format!("num_{side}_blocks");
            let levels = config.get(&name).and_then(|list| list.as_array()).map_or(0, Vec::len);
            if !(1..=8).contains(&levels) {
                return Err(config.wrong(&name, "a list of 1 to 8 numbers is needed"));
            }
            let channels = config.numbers(&format!("{side}_block_out_channels"), levels)?;
            let counts = config.numbers(&name, levels)?;
            Ok(counts.into_iter().map(|count| count.min(64)).zip(channels).collect::<Vec<_>>())
        };
        let (encoder_blocks, blocks) = (blocks("encoder")?, blocks("decoder")?);
        if encoder_blocks.len() != blocks.len() {
            return Err(config.wrong("num_encoder_blocks", "as many numbers as num_decoder_blocks has are needed"));
        }
        let activation = config.text("act_fn", "relu")?;
        Ok(Self {
            channels: config.number_or("latent_channels", 4)?,
            scaling: config.fraction("scaling_factor", 1.0)? as f32,
            blocks,
            encoder_blocks,
            activation: Activation::named(activation)
                .ok_or_else(|| config.wrong("act_fn", "relu, silu and gelu are supported"))?,
        })
    }

    /// Pixels per latent pixel, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.blocks.len() - 1)
    }

    /// Writes the graph of the decoder for a latent picture of the given size. Input: `latent`, already scaled. Output:
    /// `picture`, from -1 to 1.
    pub fn graph(&self, weights: &Weights, height: usize, width: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "decoder.layers.");
        let latent = b.input("latent", &[1, self.channels, height, width]);
        // Latent values beyond 3 are softly clamped.
        let x = b.scale(&latent, 1.0 / 3.0);
        let x = b.op("Tanh", &[&x], &[], latent.shape());
        let x = b.scale(&x, 3.0);
        let x = b.conv(&x, "0", self.blocks[0].1, 3, 1)?;
        let mut x = b.activation(&x, self.activation);
        // Weight names count all layers, including layers without weights.
        let mut layer = 2;
        for (at, &(count, channels)) in self.blocks.iter().enumerate() {
            for _ in 0..count {
                x = self.block(&mut b, &x, &layer.to_string(), channels)?;
                layer += 1;
            }
            let last = at + 1 == self.blocks.len();
            if !last {
                let [.., height, width] = x.map();
                x = b.enlarge(&x, height * 2, width * 2);
                layer += 1;
            }
            let outputs = if last { 3 } else { channels };
            x = b.conv_with(&x, &layer.to_string(), outputs, 3, 1, last)?;
            layer += 1;
        }
        let x = b.scale(&x, 2.0);
        let one = b.constant(&[], vec![-1.0]);
        let x = b.add(&x, &one);
        b.output("picture", &x);
        b.finish(|_| false)
    }

    /// Writes the graph of the encoder for a picture of the given size in pixels. Input: `picture`, from -1 to 1. Output:
    /// `latent`, not scaled.
    pub fn encoder_graph(&self, weights: &Weights, height: usize, width: usize) -> Result<Graph> {
        let mut b = Builder::new(weights, "encoder.layers.");
        let picture = b.input("picture", &[1, 3, height, width]);
        let one = b.constant(&[], vec![1.0]);
        let x = b.add(&picture, &one);
        let mut x = b.scale(&x, 0.5);
        let mut layer = 0;
        for (at, &(count, channels)) in self.encoder_blocks.iter().enumerate() {
            x = b.conv_with(&x, &layer.to_string(), channels, 3, if at == 0 { 1 } else { 2 }, at == 0)?;
            layer += 1;
            for _ in 0..count {
                x = self.block(&mut b, &x, &layer.to_string(), channels)?;
                layer += 1;
            }
        }
        let x = b.conv(&x, &layer.to_string(), self.channels, 3, 1)?;
        b.output("latent", &x);
        b.finish(|_| false)
    }

    fn block(&self, b: &mut Builder<'_>, x: &Node, name: &str, channels: usize) -> Result<Node> {
        let h = b.conv(x, &format!("{name}.conv.0"), channels, 3, 1)?;
        let h = b.activation(&h, self.activation);
        let h = b.conv(&h, &format!("{name}.conv.2"), channels, 3, 1)?;
        let h = b.activation(&h, self.activation);
        let h = b.conv(&h, &format!("{name}.conv.4"), channels, 3, 1)?;
        let skip = if b.has(&format!("{name}.skip.weight")) {
            b.conv_with(x, &format!("{name}.skip"), channels, 1, 1, false)?
        } else {
            x.clone()
        };
        let sum = b.add(&h, &skip);
        Ok(b.activation(&sum, Activation::Relu))
    }
}
