//! FLUX.2's transformer.

use serde_json::json;

use crate::config::Config;
use crate::graph::attention::{AttentionMask, MOST_OF_A_HEAD, Rotation, angles};
use crate::graph::blocks::{Activation, Heads, ROWS_AT_A_TIME, parts};
use crate::graph::{Builder, Graph, Node};
use crate::models::time::waves;
use crate::weights::Weights;
use crate::{Error, Result};

/// Axes of positions: picture number, row, column, and word of the prompt.
const AXES: usize = 4;

/// Distance on the first axis between one picture and the next.
const PICTURES_APART: usize = 10;

/// The layer that computes scale and shift of the last norm, named by `diffusers` and by the original program. The
/// latter swaps the halves of its outputs.
pub(crate) const NORM_OUT: &str = "norm_out.linear";
pub(crate) const ORIGINAL_NORM_OUT: &str = "final_layer.adaLN_modulation.1";

/// The transformer as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct Flux2 {
    /// Channels of a latent picture.
    pub channels: usize,
    /// Size of a token's embedding.
    pub context: usize,
    /// Rows that the wide layers work on at a time.
    pub rows_at_a_time: usize,
    heads: Heads,
    inner: usize,
    waves: usize,
    doubles: usize,
    singles: usize,
    axes: [usize; AXES],
    theta: f64,
    epsilon: f64,
}

impl Flux2 {
    /// Reads the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        config.only("_class_name", &json!("Flux2Transformer2DModel"))?;
        config.only("patch_size", &json!(1))?;
        let channels = config.number_or("in_channels", 128)?;
        config.only("out_channels", &json!(channels))?;
        let heads = Heads {
            count: config.number_or("num_attention_heads", 48)?,
            size: config.number_or("attention_head_dim", 128)?,
        };
        if heads.size > MOST_OF_A_HEAD {
            return Err(config.wrong("attention_head_dim", &format!("at most {MOST_OF_A_HEAD} are supported")));
        }
        let axes = config.numbers_or("axes_dims_rope", &[32; AXES])?;
        if axes.iter().any(|size| !size.is_multiple_of(2)) || axes.iter().sum::<usize>() != heads.size {
            return Err(config.wrong("axes_dims_rope", "four even numbers whose sum is attention_head_dim are needed"));
        }
        let theta = config.fraction("rope_theta", 2000.0)?;
        let ratio = config.fraction("mlp_ratio", 3.0)?;
        if theta < 1.0 || !(0.0..=64.0).contains(&ratio) {
            return Err(config.wrong("mlp_ratio", "a number up to 64, and rope_theta from 1, are needed"));
        }
        let waves = config.number_or("timestep_guidance_channels", 256)?;
        if !waves.is_multiple_of(2) {
            return Err(config.wrong("timestep_guidance_channels", "an even number is needed"));
        }
        Ok(Self {
            channels,
            context: config.number_or("joint_attention_dim", 15_360)?,
            rows_at_a_time: ROWS_AT_A_TIME,
            inner: ((heads.count * heads.size) as f64 * ratio) as usize,
            heads,
            waves,
            doubles: config.number_or("num_layers", 8)?,
            singles: config.number_or("num_single_layers", 48)?,
            axes: [axes[0], axes[1], axes[2], axes[3]],
            theta,
            epsilon: config.fraction("eps", 1e-6)?,
        })
    }

    /// The time embedding that the graph takes.
    pub fn embed_time(&self, time: f32) -> Vec<f32> {
        waves(time, self.waves, 0.0)
    }

    /// Writes the graph for a latent picture and reference pictures of the given heights and widths.
    ///
    /// Inputs: `pictures`, with one row for each position of the latent picture and then of each reference; `time` (see
    /// [`Flux2::embed_time`]); `context`, with one row for each of `tokens`. Output: `velocity`, with the latent
    /// picture's shape.
    pub fn graph(
        &self,
        weights: &Weights,
        [height, width]: [usize; 2],
        references: &[[usize; 2]],
        tokens: usize,
    ) -> Result<Graph> {
        let mut b = Builder::new(weights, "");
        let inner = self.heads.count * self.heads.size;
        let rows = std::iter::once(&[height, width]).chain(references).map(|[height, width]| height * width).sum();
        let image = b.input("pictures", &[rows, self.channels]);
        let time = b.input("time", &[1, self.waves]);
        let context = b.input("context", &[tokens, self.context]);
        let time = b.linear_wide(&time, "time_guidance_embed.timestep_embedder.linear_1", inner, false)?;
        let time = b.activation(&time, Activation::Silu);
        let time = b.linear_wide(&time, "time_guidance_embed.timestep_embedder.linear_2", inner, false)?;
        let time = b.activation(&time, Activation::Silu);
        let mut image = b.linear(&image, "x_embedder", inner, false)?;
        let mut text = b.linear(&context, "context_embedder", inner, false)?;
        let positions = positions(tokens, [height, width], references);
        let angles = angles(positions.into_iter(), self.axes, self.theta);
        let rotation = b.rotation(&angles, tokens + image.matrix()[0], true);
        let mut part = Part { model: self, b, rotation, width: inner };
        let image_parts = part.modulation(&time, "double_stream_modulation_img", 6)?;
        let text_parts = part.modulation(&time, "double_stream_modulation_txt", 6)?;
        for layer in 0..self.doubles {
            (image, text) = part.double(image, text, layer, &image_parts, &text_parts)?;
        }
        let parts = part.modulation(&time, "single_stream_modulation", 3)?;
        let mut all = part.b.concat(&[&text, &image], 0);
        for layer in 0..self.singles {
            all = part.single(&all, layer, &parts)?;
        }
        let Part { mut b, .. } = part;
        let image = b.slice(&all, 0, tokens, tokens + height * width);
        // In files of the original program the shift comes first.
        let is_original = b.has(&format!("{ORIGINAL_NORM_OUT}.weight"));
        let norm = if is_original { ORIGINAL_NORM_OUT } else { NORM_OUT };
        let parts = b.linear_wide(&time, norm, inner * 2, false)?;
        let mut parts = b.split(&parts, &[inner, inner]);
        if is_original {
            parts.reverse();
        }
        let image = b.modulate(&image, &parts[0], Some(&parts[1]), self.epsilon);
        let image = b.linear(&image, "proj_out", self.channels, false)?;
        let velocity = b.to_map(&image, height, width);
        b.output("velocity", &velocity);
        // Some configurations promise a guidance input, but the pipeline never passes one.
        b.finish(|name| name.starts_with("time_guidance_embed.guidance_embedder."))
    }
}

/// The positions of all rows: words of the prompt, the picture, and the references.
fn positions(tokens: usize, picture: [usize; 2], references: &[[usize; 2]]) -> Vec<[usize; AXES]> {
    let mut all: Vec<_> = (0..tokens).map(|word| [0, 0, 0, word]).collect();
    for (number, [height, width]) in std::iter::once(&picture).chain(references).enumerate() {
        let rows = (0..*height).flat_map(|row| (0..*width).map(move |column| (row, column)));
        all.extend(rows.map(|(row, column)| [number * PICTURES_APART, row, column, 0]));
    }
    all
}

/// A graph under construction, with what all of its blocks need.
struct Part<'a, 'w> {
    model: &'a Flux2,
    b: Builder<'w>,
    rotation: Rotation,
    width: usize,
}

impl Part<'_, '_> {
    /// Shifts, scales and gates that all blocks share.
    fn modulation(&mut self, time: &Node, name: &str, parts: usize) -> Result<Vec<Node>> {
        let all = self.b.linear_wide(time, &format!("{name}.linear"), self.width * parts, false)?;
        Ok(self.b.split(&all, &vec![self.width; parts]))
    }

    /// Normalised queries, keys, and values.
    fn project(&mut self, x: &Node, name: &str, [query, key, value]: [&str; 3], norms: [&str; 2]) -> Result<[Node; 3]> {
        let (size, epsilon) = (self.model.heads.size, self.model.epsilon);
        let query = self.b.linear(x, &format!("{name}.{query}"), self.width, false)?;
        let key = self.b.linear(x, &format!("{name}.{key}"), self.width, false)?;
        let value = self.b.linear(x, &format!("{name}.{value}"), self.width, false)?;
        let query = self.b.head_norm(&query, &format!("{name}.{}", norms[0]), size, epsilon)?;
        let key = self.b.head_norm(&key, &format!("{name}.{}", norms[1]), size, epsilon)?;
        Ok([query, key, value])
    }

    fn mix(&mut self, query: &Node, key: &Node, value: &Node) -> Node {
        let heads = self.model.heads;
        let query = self.b.rotate(query, &self.rotation, heads.size);
        let key = self.b.rotate(key, &self.rotation, heads.size);
        self.b.attend([&query, &key, value], heads, heads.count, AttentionMask::All)
    }

    fn gated(&mut self, x: &Node, gate: &Node, h: &Node) -> Node {
        let h = self.b.mul(h, gate);
        self.b.add(x, &h)
    }

    /// The gated activation for rows with gates before values.
    fn swiglu(&mut self, gate: &Node, value: &Node) -> Node {
        let gate = self.b.activation(gate, Activation::Silu);
        self.b.mul(&gate, value)
    }

    /// Adds the wide layers' results to rows, part by part.
    fn feed_forward(&mut self, mut x: Node, name: &str, modulation: &[Node]) -> Result<Node> {
        let (inner, epsilon) = (self.model.inner, self.model.epsilon);
        for part in parts(x.matrix()[0], self.b.rows_at_a_time(self.model.rows_at_a_time)) {
            let (these, rest) = self.b.first(&x, part.len());
            let h = self.b.modulate(&these, &modulation[1], Some(&modulation[0]), epsilon);
            let [gate, value] = self.b.linears(&h, &format!("{name}.linear_in"), [inner, inner], false)?;
            let h = self.swiglu(&gate, &value);
            let h = self.b.linear(&h, &format!("{name}.linear_out"), self.width, false)?;
            let these = self.gated(&these, &modulation[2], &h);
            x = self.b.last(rest.as_ref(), &these);
        }
        Ok(x)
    }

    /// A block with separate weights for image and text, which meet in the attention.
    fn double(
        &mut self,
        image: Node,
        text: Node,
        layer: usize,
        image_parts: &[Node],
        text_parts: &[Node],
    ) -> Result<(Node, Node)> {
        let (name, epsilon) = (format!("transformer_blocks.{layer}"), self.model.epsilon);
        let attention = format!("{name}.attn");
        let [tokens, _] = text.matrix();
        let h = self.b.modulate(&image, &image_parts[1], Some(&image_parts[0]), epsilon);
        let of_image = self.project(&h, &attention, ["to_q", "to_k", "to_v"], ["norm_q", "norm_k"])?;
        let h = self.b.modulate(&text, &text_parts[1], Some(&text_parts[0]), epsilon);
        let names = ["add_q_proj", "add_k_proj", "add_v_proj"];
        let of_text = self.project(&h, &attention, names, ["norm_added_q", "norm_added_k"])?;
        let mut both = of_text.iter().zip(&of_image).map(|(text, image)| self.b.concat(&[text, image], 0));
        let [query, key, value] = [both.next(), both.next(), both.next()].map(|both| both.expect("three of each"));
        drop(both);
        let mixed = self.mix(&query, &key, &value);
        let [rows, _] = mixed.matrix();
        let of_text = self.b.slice(&mixed, 0, 0, tokens);
        let of_image = self.b.slice(&mixed, 0, tokens, rows);
        let mut result = Vec::new();
        for (x, mixed, out, ff, modulation) in
            [(image, of_image, "to_out.0", "ff", image_parts), (text, of_text, "to_add_out", "ff_context", text_parts)]
        {
            let h = self.b.linear(&mixed, &format!("{attention}.{out}"), self.width, false)?;
            let x = self.gated(&x, &modulation[2], &h);
            result.push(self.feed_forward(x, &format!("{name}.{ff}"), &modulation[3..])?);
        }
        let [image, text] = result.try_into().map_err(|_| Error::Run("a block has two results".into()))?;
        self.b.output_of_block(&format!("double.{layer}.image"), &image);
        self.b.output_of_block(&format!("double.{layer}.text"), &text);
        Ok((image, text))
    }

    /// A block whose attention and other layers run in parallel, on image and text alike.
    fn single(&mut self, x: &Node, layer: usize, modulation: &[Node]) -> Result<Node> {
        let name = format!("single_transformer_blocks.{layer}.attn");
        let (size, width, inner, epsilon) = (self.model.heads.size, self.width, self.model.inner, self.model.epsilon);
        let joined = format!("{name}.to_qkv_mlp_proj");
        let (up, end) = (3 * width + inner, 3 * width + inner * 2);
        let modulate = |b: &mut Builder<'_>, x: &Node| b.modulate(x, &modulation[1], Some(&modulation[0]), epsilon);
        let all = modulate(&mut self.b, x);
        let query = self.b.linear_part(&all, &joined, end, 0..width, false)?;
        let key = self.b.linear_part(&all, &joined, end, width..2 * width, false)?;
        let value = self.b.linear_part(&all, &joined, end, 2 * width..3 * width, false)?;
        let query = self.b.head_norm(&query, &format!("{name}.norm_q"), size, epsilon)?;
        let key = self.b.head_norm(&key, &format!("{name}.norm_k"), size, epsilon)?;
        let mixed = self.mix(&query, &key, &value);
        let mut x = x.clone();
        for part in parts(x.matrix()[0], self.b.rows_at_a_time(self.model.rows_at_a_time)) {
            let (these, rest) = self.b.first(&x, part.len());
            // Normalising rows twice costs less than keeping them.
            let h = if rest.is_some() { modulate(&mut self.b, &these) } else { all.clone() };
            let gate = self.b.linear_part(&h, &joined, end, 3 * width..up, false)?;
            let value = self.b.linear_part(&h, &joined, end, up..end, false)?;
            let active = self.swiglu(&gate, &value);
            let mixed = if rest.is_some() { self.b.slice(&mixed, 0, part.start, part.end) } else { mixed.clone() };
            let both = self.b.concat(&[&mixed, &active], 1);
            let h = self.b.linear(&both, &format!("{name}.to_out"), width, false)?;
            let these = self.gated(&these, &modulation[2], &h);
            x = self.b.last(rest.as_ref(), &these);
        }
        self.b.output_of_block(&format!("single.{layer}"), &x);
        Ok(x)
    }
}
