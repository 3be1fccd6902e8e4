//! Z-Image's transformer.

use serde_json::{Value, json};

use crate::config::Config;
use crate::graph::attention::{AttentionMask, MOST_OF_A_HEAD, Rotation, angles};
use crate::graph::blocks::{Activation, Heads, ROWS_AT_A_TIME, parts};
use crate::graph::{Builder, Graph, Node};
use crate::models::time::waves;
use crate::weights::Weights;
use crate::{Error, Result};

/// Axes of positions: word of the prompt, row, column.
const AXES: usize = 3;

/// Latent pixels per transformer row, along each side.
const PATCH: usize = 2;

/// Prompts and pictures are padded to a multiple of this number of rows.
const MULTIPLE: usize = 32;

/// Sizes of the time embedding: as waves, in the middle, and at most at the end.
const WAVES: usize = 256;
const TIME_INNER: usize = 1024;
const TIME_MOST: usize = 256;

/// Head norms and the last norm have their own constants.
const HEAD_EPSILON: f64 = 1e-5;
const LAST_EPSILON: f64 = 1e-6;

/// The transformer as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct ZImage {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Size of a token's embedding.
    pub context: usize,
    /// Rows that the wide layers work on at a time.
    pub rows_at_a_time: usize,
    heads: Heads,
    layers: usize,
    refiners: usize,
    axes: [usize; AXES],
    lengths: [usize; AXES],
    theta: f64,
    epsilon: f64,
}

impl ZImage {
    /// Reads the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        config.only("_class_name", &json!("ZImageTransformer2DModel"))?;
        config.only("all_patch_size", &json!([PATCH]))?;
        config.only("all_f_patch_size", &json!([1]))?;
        config.only("qk_norm", &json!(true))?;
        config.only("siglip_feat_dim", &Value::Null)?;
        let width = config.number_or("dim", 3840)?;
        let heads = config.number_or("n_heads", 30)?;
        config.only("n_kv_heads", &json!(heads))?;
        let heads = Heads::split(width, heads)?;
        if heads.size > MOST_OF_A_HEAD {
            return Err(
                config.wrong("n_heads", &format!("at most {MOST_OF_A_HEAD} numbers of dim in each are supported"))
            );
        }
        let three = |key: &str, default: [usize; AXES]| {
            config.numbers_or(key, &default).map(|numbers| [numbers[0], numbers[1], numbers[2]])
        };
        let axes = three("axes_dims", [32, 48, 48])?;
        if axes.iter().any(|size| !size.is_multiple_of(2)) || axes.iter().sum::<usize>() != heads.size {
            return Err(config.wrong("axes_dims", "three even numbers whose sum is dim / n_heads are needed"));
        }
        // The model multiplies times from 0 to 1 by this number, which undoes what the pipeline does.
        if (config.fraction("t_scale", 1000.0)? - 1000.0).abs() > 0.0 {
            return Err(config.wrong("t_scale", "only 1000 is supported"));
        }
        let theta = config.fraction("rope_theta", 256.0)?;
        if theta < 1.0 {
            return Err(config.wrong("rope_theta", "a number from 1 is needed"));
        }
        let lengths = three("axes_lens", [1024, 512, 512])?;
        if lengths.iter().any(|length| *length < 2 * MULTIPLE) {
            return Err(config.wrong("axes_lens", &format!("three numbers from {} are needed", 2 * MULTIPLE)));
        }
        Ok(Self {
            channels: config.number_or("in_channels", 16)?,
            context: config.number_or("cap_feat_dim", 2560)?,
            rows_at_a_time: ROWS_AT_A_TIME,
            heads,
            layers: config.number_or("n_layers", 30)?,
            refiners: config.number_or("n_refiner_layers", 2)?,
            axes,
            lengths,
            theta,
            epsilon: config.fraction("norm_eps", 1e-5)?,
        })
    }

    fn width(&self) -> usize {
        self.heads.count * self.heads.size
    }

    /// The embedding of a scheduler's time: the model counts from the noise.
    pub fn embed_time(&self, time: f32) -> Vec<f32> {
        waves((1000.0 - time) / 1000.0 * 1000.0, WAVES, 0.0)
    }

    /// Writes the graph for a latent picture of the given size, whose sides are even.
    ///
    /// Inputs: `latent`; `time` (see [`ZImage::embed_time`]); `context`, with one row for each of `tokens`. Output:
    /// `velocity`, with the shape of `latent`, from noise to picture.
    ///
    /// # Errors
    /// If the weights don't fit, or there are more positions than the model has.
    pub fn graph(&self, weights: &Weights, [height, width]: [usize; 2], tokens: usize) -> Result<Graph> {
        let (rows, columns) = (height / PATCH, width / PATCH);
        let (words, pixels) = (tokens.next_multiple_of(MULTIPLE), (rows * columns).next_multiple_of(MULTIPLE));
        if [words + 2, rows, columns].iter().zip(&self.lengths).any(|(needed, known)| needed > known) {
            return Err(Error::Order(format!(
                "the model knows no positions for {tokens} tokens and {columns}x{rows} squares of the picture"
            )));
        }
        let mut b = Builder::new(weights, "");
        let latent = b.input("latent", &[1, self.channels, height, width]);
        let time = b.input("time", &[1, WAVES]);
        let context = b.input("context", &[tokens, self.context]);
        let time_size = self.width().min(TIME_MOST);
        let time = b.linear_wide(&time, "t_embedder.mlp.0", TIME_INNER, true)?;
        let time = b.activation(&time, Activation::Silu);
        let time = b.linear_wide(&time, "t_embedder.mlp.2", time_size, true)?;

        let of_picture =
            (0..pixels).map(|at| if at < rows * columns { [words + 1, at / columns, at % columns] } else { [0, 0, 0] });
        let of_words = (0..words).map(|at| [at + 1, 0, 0]);
        let of_picture = angles(of_picture, self.axes, self.theta);
        let of_words = angles(of_words, self.axes, self.theta);
        let mut part = Part { model: self, time, b };
        let image = part.squares(&latent);
        let image = part.b.linear(&image, "all_x_embedder.2-1", self.width(), true)?;
        let mut image = part.fill(image, pixels, "x_pad_token")?;
        let rotation = part.b.rotation(&of_picture, pixels, true);
        for layer in 0..self.refiners {
            image = part.block(&image, &format!("noise_refiner.{layer}"), &rotation, true)?;
            part.b.output_of_block(&format!("noise_refiner.{layer}"), &image);
        }
        let text = part.b.rms_norm(&context, "cap_embedder.0", self.epsilon)?;
        let text = part.b.linear(&text, "cap_embedder.1", self.width(), true)?;
        let mut text = part.fill(text, words, "cap_pad_token")?;
        let rotation = part.b.rotation(&of_words, words, true);
        for layer in 0..self.refiners {
            text = part.block(&text, &format!("context_refiner.{layer}"), &rotation, false)?;
            part.b.output_of_block(&format!("context_refiner.{layer}"), &text);
        }
        let mut all = part.b.concat(&[&image, &text], 0);
        let rotation = part.b.rotation(&[of_picture, of_words].concat(), pixels + words, true);
        for layer in 0..self.layers {
            all = part.block(&all, &format!("layers.{layer}"), &rotation, true)?;
            part.b.output_of_block(&format!("layers.{layer}"), &all);
        }
        let Part { mut b, time, .. } = part;
        let image = b.slice(&all, 0, 0, rows * columns);
        let time = b.activation(&time, Activation::Silu);
        let scale = b.linear_wide(&time, "all_final_layer.2-1.adaLN_modulation.1", self.width(), true)?;
        let image = b.modulate(&image, &scale, None, LAST_EPSILON);
        let image = b.linear(&image, "all_final_layer.2-1.linear", PATCH * PATCH * self.channels, true)?;
        let image = b.reshape(&image, &[rows, columns, PATCH, PATCH, self.channels]);
        let image = b.transpose(&image, &[4, 0, 2, 1, 3]);
        let velocity = b.reshape(&image, &[1, self.channels, height, width]);
        b.output("velocity", &velocity);
        b.finish(|_| false)
    }
}

/// A graph under construction, with what all of its blocks need.
struct Part<'a, 'w> {
    model: &'a ZImage,
    b: Builder<'w>,
    time: Node,
}

impl Part<'_, '_> {
    /// One row for each square of pixels, starting with all channels of its first pixel.
    fn squares(&mut self, latent: &Node) -> Node {
        let [_, channels, height, width] = latent.map();
        let (rows, columns) = (height / PATCH, width / PATCH);
        let cut = self.b.reshape(latent, &[channels, rows, PATCH, columns, PATCH]);
        let cut = self.b.transpose(&cut, &[1, 3, 2, 4, 0]);
        self.b.reshape(&cut, &[rows * columns, PATCH * PATCH * channels])
    }

    /// Pads to `rows` rows with the model's padding row.
    fn fill(&mut self, x: Node, rows: usize, name: &str) -> Result<Node> {
        let [there, width] = x.matrix();
        let row = self.b.weight(name, &[1, width])?;
        if self.b.any_size() {
            // Adds the same number of rows for every size, then cuts some off again, so that all sizes have the same
            // operators.
            let more = self.b.expand(&row, &[MULTIPLE, width]);
            let all = self.b.concat(&[&x, &more], 0);
            return Ok(self.b.slice(&all, 0, 0, rows));
        }
        if there == rows {
            return Ok(x);
        }
        let shape = [rows - there, width];
        let sizes = self.b.list(&shape.map(|size| size as i64));
        let more = self.b.op("Expand", &[&row, &sizes], &[], &shape);
        Ok(self.b.concat(&[&x, &more], 0))
    }

    fn block(&mut self, x: &Node, name: &str, rotation: &Rotation, modulated: bool) -> Result<Node> {
        let epsilon = self.model.epsilon;
        let [scale_1, gate_1, scale_2, gate_2] = self.modulation(name, modulated)?;
        let h = self.b.scaled_norm(x, &format!("{name}.attention_norm1"), scale_1.as_ref(), epsilon)?;
        let h = self.attention(&h, &format!("{name}.attention"), rotation)?;
        let h = self.b.scaled_norm(&h, &format!("{name}.attention_norm2"), gate_1.as_ref(), epsilon)?;
        let mut x = self.b.add(x, &h);
        for part in parts(x.matrix()[0], self.b.rows_at_a_time(self.model.rows_at_a_time)) {
            let (these, rest) = self.b.first(&x, part.len());
            let h = self.b.scaled_norm(&these, &format!("{name}.ffn_norm1"), scale_2.as_ref(), epsilon)?;
            let h = self.feed_forward(&h, &format!("{name}.feed_forward"))?;
            let h = self.b.scaled_norm(&h, &format!("{name}.ffn_norm2"), gate_2.as_ref(), epsilon)?;
            let these = self.b.add(&these, &h);
            x = self.b.last(rest.as_ref(), &these);
        }
        Ok(x)
    }

    fn feed_forward(&mut self, x: &Node, name: &str) -> Result<Node> {
        let width = self.model.width();
        let inner = (width as f64 / 3.0 * 8.0) as usize;
        let gate = self.b.linear(x, &format!("{name}.w1"), inner, false)?;
        let value = self.b.linear(x, &format!("{name}.w3"), inner, false)?;
        let gate = self.b.activation(&gate, Activation::Silu);
        let h = self.b.mul(&gate, &value);
        self.b.linear(&h, &format!("{name}.w2"), width, false)
    }

    /// Scales and gates of the attention and of the other layers, if the block has them.
    fn modulation(&mut self, name: &str, modulated: bool) -> Result<[Option<Node>; 4]> {
        if !modulated {
            return Ok([None, None, None, None]);
        }
        let width = self.model.width();
        let time = self.time.clone();
        let all = self.b.linear_wide(&time, &format!("{name}.adaLN_modulation.0"), width * 4, true)?;
        let one = self.b.constant(&[], vec![1.0]);
        let parts = self.b.split(&all, &[width; 4]);
        let mut part = |at: usize| {
            let part = &parts[at];
            Some(if at.is_multiple_of(2) {
                self.b.add(part, &one)
            } else {
                self.b.op("Tanh", &[part], &[], part.shape())
            })
        };
        Ok([part(0), part(1), part(2), part(3)])
    }

    fn attention(&mut self, x: &Node, name: &str, rotation: &Rotation) -> Result<Node> {
        let (heads, width) = (self.model.heads, self.model.width());
        let query = self.b.linear(x, &format!("{name}.to_q"), width, false)?;
        let key = self.b.linear(x, &format!("{name}.to_k"), width, false)?;
        let value = self.b.linear(x, &format!("{name}.to_v"), width, false)?;
        let query = self.b.head_norm(&query, &format!("{name}.norm_q"), heads.size, HEAD_EPSILON)?;
        let key = self.b.head_norm(&key, &format!("{name}.norm_k"), heads.size, HEAD_EPSILON)?;
        let query = self.b.rotate(&query, rotation, heads.size);
        let key = self.b.rotate(&key, rotation, heads.size);
        let mixed = self.b.attend([&query, &key, &value], heads, heads.count, AttentionMask::All);
        self.b.linear(&mixed, &format!("{name}.to_out.0"), width, false)
    }
}
