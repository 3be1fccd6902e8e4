//! The language model Qwen 3 as a text encoder: its middle layers' states are used, not its words.

use serde_json::{Value, json};

use crate::config::Config;
use crate::graph::attention::{AttentionMask, MOST_OF_A_HEAD, angles};
use crate::graph::blocks::{Activation, Heads};
use crate::graph::{Builder, Graph};
use crate::weights::Weights;
use crate::{Error, Result};

/// Added to the attention scores of padding, so that its weight becomes 0.
const HIDDEN: f32 = -1e9;

/// The language model as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct Qwen3 {
    /// Size of its vocabulary.
    pub vocabulary: usize,
    /// Size of a token's state.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    inner: usize,
    heads: Heads,
    shared: usize,
    theta: f64,
    epsilon: f64,
}

impl Qwen3 {
    /// Reads the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        let architectures = config.get("architectures").and_then(Value::as_array);
        let known = |name: &Value| ["Qwen3ForCausalLM", "Qwen3Model"].iter().any(|known| name == known);
        if architectures.is_some_and(|names| !names.iter().any(known)) {
            return Err(config.wrong("architectures", "only Qwen3ForCausalLM is supported"));
        }
        config.only("model_type", &json!("qwen3"))?;
        config.only("hidden_act", &json!("silu"))?;
        config.only("attention_bias", &json!(false))?;
        config.only("use_sliding_window", &json!(false))?;
        let types = config.get("layer_types").and_then(Value::as_array);
        if types.is_some_and(|types| types.iter().any(|kind| kind != "full_attention")) {
            return Err(config.wrong("layer_types", "only full_attention is supported"));
        }
        // Newer configurations group everything about positions in an object.
        let positions = config.within("rope_parameters");
        config.only("rope_scaling", &Value::Null)?;
        positions.only("rope_type", &json!("default"))?;
        let theta = positions.fraction("rope_theta", 10_000.0)?;
        if theta < 1.0 {
            return Err(positions.wrong("rope_theta", "a number from 1 is needed"));
        }
        let width = config.number("hidden_size")?;
        let count = config.number("num_attention_heads")?;
        let size = config.number_or("head_dim", width / count)?;
        let shared = config.number_or("num_key_value_heads", count)?;
        if !size.is_multiple_of(2) || size > MOST_OF_A_HEAD {
            return Err(config.wrong("head_dim", &format!("an even number up to {MOST_OF_A_HEAD} is needed")));
        }
        if !count.is_multiple_of(shared) {
            return Err(config.wrong("num_key_value_heads", "a part of num_attention_heads is needed"));
        }
        Ok(Self {
            vocabulary: config.number("vocab_size")?,
            width,
            layers: config.number("num_hidden_layers")?,
            inner: config.number("intermediate_size")?,
            heads: Heads { count, size },
            shared,
            theta,
            epsilon: config.fraction("rms_norm_eps", 1e-6)?,
        })
    }

    /// The graph's input `words`: each token's embedding. The table is too large to load for a few rows.
    pub fn words(&self, weights: &Weights, ids: &[i32]) -> Result<Vec<f32>> {
        weights.rows(&format!("{}embed_tokens.weight", prefix(weights)), [self.vocabulary, self.width], ids)
    }

    /// The graph's input `mask`: which of `tokens` are words, if the first `words` are.
    pub fn mask(words: usize, tokens: usize) -> Vec<f32> {
        (0..tokens).map(|at| if at < words { 0.0 } else { HIDDEN }).collect()
    }

    /// Writes the graph of the first layers, up to the last of `layers`, counted from 1.
    ///
    /// Inputs: `words`, with one row for each of `tokens`, and `mask`, with one number for each. Outputs: `layer.N`,
    /// the states after each of `layers`.
    pub fn graph(&self, weights: &Weights, tokens: usize, layers: &[usize]) -> Result<Graph> {
        let most = layers.iter().copied().max().unwrap_or(0);
        if most > self.layers {
            let (path, all) = (weights.path(), self.layers);
            return Err(Error::Model(format!("{path}: the text encoder has {all} layers, but {most} are needed")));
        }
        let mut b = Builder::new(weights, prefix(weights));
        let Heads { count, size } = self.heads;
        let mut x = b.input("words", &[tokens, self.width]);
        let mask = b.input("mask", &[1, 1, 1, tokens]);
        let rotation = angles((0..tokens).map(|at| [at]), [size], self.theta);
        let rotation = b.rotation(&rotation, tokens, false);
        for layer in 0..most {
            let name = format!("layers.{layer}");
            let h = b.rms_norm(&x, &format!("{name}.input_layernorm"), self.epsilon)?;
            let query = b.linear(&h, &format!("{name}.self_attn.q_proj"), count * size, false)?;
            let key = b.linear(&h, &format!("{name}.self_attn.k_proj"), self.shared * size, false)?;
            let value = b.linear(&h, &format!("{name}.self_attn.v_proj"), self.shared * size, false)?;
            let query = b.head_norm(&query, &format!("{name}.self_attn.q_norm"), size, self.epsilon)?;
            let key = b.head_norm(&key, &format!("{name}.self_attn.k_norm"), size, self.epsilon)?;
            let (query, key) = (b.rotate(&query, &rotation, size), b.rotate(&key, &rotation, size));
            let mixed = b.attend([&query, &key, &value], self.heads, self.shared, AttentionMask::Causal(Some(&mask)));
            let mixed = b.linear(&mixed, &format!("{name}.self_attn.o_proj"), self.width, false)?;
            x = b.add(&x, &mixed);
            let h = b.rms_norm(&x, &format!("{name}.post_attention_layernorm"), self.epsilon)?;
            let gate = b.linear(&h, &format!("{name}.mlp.gate_proj"), self.inner, false)?;
            let up = b.linear(&h, &format!("{name}.mlp.up_proj"), self.inner, false)?;
            let gate = b.activation(&gate, Activation::Silu);
            let h = b.mul(&gate, &up);
            let h = b.linear(&h, &format!("{name}.mlp.down_proj"), self.width, false)?;
            x = b.add(&x, &h);
            if layers.contains(&(layer + 1)) {
                b.output(&format!("layer.{}", layer + 1), &x);
            }
        }
        let unused = |name: &str| {
            let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
            layer.map_or(["embed_tokens.weight", "norm.weight", "lm_head.weight"].contains(&name), |layer: usize| {
                (most..self.layers).contains(&layer)
            })
        };
        b.finish(unused)
    }
}

/// Prefix of all names in a model that also has the layer for words.
fn prefix(weights: &Weights) -> &'static str {
    if weights.get("model.layers.0.input_layernorm.weight").is_some() { "model." } else { "" }
}
