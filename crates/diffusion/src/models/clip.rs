//! CLIP's text encoder.

use serde_json::{Value, json};

use crate::Result;
use crate::config::Config;
use crate::graph::attention::AttentionMask;
use crate::graph::blocks::{Activation, Heads};
use crate::graph::{Builder, Graph};
use crate::weights::Weights;

/// The name of the projection matrix for the embedding of a whole prompt, if stored with one column per output, as
/// OpenCLIP does.
pub const TRANSPOSED_PROJECTION: &str = "text_projection.transposed";

/// The text encoder as described in its `config.json`.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Size of its vocabulary.
    pub vocabulary: usize,
    /// Tokens per prompt; shorter prompts are padded.
    pub tokens: usize,
    /// Size of a token's embedding.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Size of a whole prompt's embedding, if it has one.
    pub projection: Option<usize>,
    /// The token that ends a prompt; `None` if it is the token with the highest number.
    end: Option<i32>,
    inner: usize,
    heads: Heads,
    activation: Activation,
    epsilon: f64,
}

impl Clip {
    /// Reads the configuration.
    pub fn read(config: &Config) -> Result<Self> {
        let architectures = config.get("architectures").and_then(Value::as_array);
        let known = |name: &Value| ["CLIPTextModel", "CLIPTextModelWithProjection"].iter().any(|known| name == known);
        if architectures.is_some_and(|names| !names.iter().any(known)) {
            return Err(config.wrong("architectures", "only CLIPTextModel is supported"));
        }
        config.only("model_type", &json!("clip_text_model"))?;
        config.only("use_attention_mask", &json!(false))?;
        let projects =
            architectures.is_some_and(|names| names.iter().any(|name| name == "CLIPTextModelWithProjection"));
        // Because of an old mistake, 2 in published configurations means the token with the highest number, as absence
        // does here.
        let end = config.number_or_none("eos_token_id")?;
        let width = config.number("hidden_size")?;
        let activation = config.text("hidden_act", "quick_gelu")?;
        Ok(Self {
            vocabulary: config.number_or("vocab_size", 49_408)?,
            tokens: config.number_or("max_position_embeddings", 77)?,
            width,
            projection: if projects { Some(config.number_or("projection_dim", 512)?) } else { None },
            end: i32::try_from(end).ok().filter(|end| ![0, 2].contains(end)),
            inner: config.number("intermediate_size")?,
            layers: config.number("num_hidden_layers")?,
            heads: Heads::split(width, config.number("num_attention_heads")?)?,
            activation: Activation::named(activation)
                .ok_or_else(|| config.wrong("hidden_act", "gelu and quick_gelu are supported"))?,
            epsilon: config.fraction("layer_norm_eps", 1e-5)?,
        })
    }

    /// The position of the token whose state represents the whole prompt.
    pub fn last(&self, ids: &[i32]) -> usize {
        let most = ids.iter().copied().max();
        let end = self.end.or(most);
        ids.iter().position(|id| Some(*id) == end).unwrap_or(0)
    }

    /// Writes the graph. Input: `ids`, one per token. Outputs, with one row per token: `states`; `layer.N` after each
    /// layer, counted from 0; and `projected`, if the model has an embedding for a whole prompt.
    pub fn graph(&self, weights: &Weights) -> Result<Graph> {
        self.graph_of(weights, false)
    }

    /// Writes the graph for prompts in which vectors can replace tokens. Further inputs: `kept`, 1 for each token and 0
    /// for each vector, and `vectors`, with one row for each, all zeros for tokens.
    pub fn graph_with_vectors(&self, weights: &Weights) -> Result<Graph> {
        self.graph_of(weights, true)
    }

    fn graph_of(&self, weights: &Weights, takes_vectors: bool) -> Result<Graph> {
        // Older versions of the `transformers` library prefixed every name.
        let old = weights.get("text_model.final_layer_norm.weight").is_some();
        let prefix = if old { "text_model." } else { "" };
        let mut b = Builder::new(weights, "");
        let (tokens, width) = (self.tokens, self.width);
        let ids = b.input_ids("ids", &[tokens]);
        let words = b.weight(&format!("{prefix}embeddings.token_embedding.weight"), &[self.vocabulary, width])?;
        let places = b.weight(&format!("{prefix}embeddings.position_embedding.weight"), &[tokens, width])?;
        let mut words = b.op("Gather", &[&words, &ids], &[], &[tokens, width]);
        if takes_vectors {
            let (kept, vectors) = (b.input("kept", &[tokens, 1]), b.input("vectors", &[tokens, width]));
            words = b.mul(&words, &kept);
            words = b.add(&words, &vectors);
        }
        let mut x = b.add(&words, &places);
        for layer in 0..self.layers {
            let name = format!("{prefix}encoder.layers.{layer}");
            let h = b.layer_norm(&x, &format!("{name}.layer_norm1"), self.epsilon)?;
            let query = b.linear(&h, &format!("{name}.self_attn.q_proj"), width, true)?;
            let key = b.linear(&h, &format!("{name}.self_attn.k_proj"), width, true)?;
            let value = b.linear(&h, &format!("{name}.self_attn.v_proj"), width, true)?;
            let mixed = b.attend([&query, &key, &value], self.heads, self.heads.count, AttentionMask::Causal(None));
            let mixed = b.linear(&mixed, &format!("{name}.self_attn.out_proj"), width, true)?;
            x = b.add(&x, &mixed);
            let h = b.layer_norm(&x, &format!("{name}.layer_norm2"), self.epsilon)?;
            let h = b.linear(&h, &format!("{name}.mlp.fc1"), self.inner, true)?;
            let h = b.activation(&h, self.activation);
            let h = b.linear(&h, &format!("{name}.mlp.fc2"), width, true)?;
            x = b.add(&x, &h);
            b.output(&format!("layer.{layer}"), &x);
        }
        let states = b.layer_norm(&x, &format!("{prefix}final_layer_norm"), self.epsilon)?;
        b.output("states", &states);
        if let Some(size) = self.projection {
            let projected = if b.has(TRANSPOSED_PROJECTION) {
                let weight = b.weight(TRANSPOSED_PROJECTION, &[width, size])?;
                b.op("MatMul", &[&states, &weight], &[], &[tokens, size])
            } else {
                b.linear_wide(&states, "text_projection", size, false)?
            };
            b.output("projected", &projected);
        }
        let other = |name: &str| !name.starts_with(prefix) && name != "text_projection.weight";
        b.finish(|name| other(name) || name.strip_prefix(prefix) == Some("embeddings.position_ids"))
    }
}
