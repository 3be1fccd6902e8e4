//! Runs diffusion models on the processor, directly from the folders that `diffusers` writes: no Python, no other
//! server, no native library.
//!
//! A [`Pipeline`] reads a folder. Each part of its model becomes an ONNX graph, which this crate writes in memory
//! ([`graph`], [`models`]); the weights stay in the mapped safetensors files ([`weights`]); [`runtime`] executes the
//! graphs. Tests compare tokens, embeddings, blocks, scheduler steps and pictures with the results of `diffusers`.

pub mod config;
mod formats;
pub mod graph;
pub mod lora;
pub mod models;
pub mod noise;
pub mod pipelines;
pub mod quantise;
pub mod runtime;
pub mod schedulers;
pub mod textual_inversion;
pub mod tokenizer;
pub mod variants;
pub mod weights;

pub use lora::Lora;
pub use pipelines::{
    Difference, Options, Order, Pipeline, Precision, Settings, Step, Traits, compare, masks, references,
    weighted_prompts,
};
pub use textual_inversion::TextualInversion;

/// Why a model cannot be used, or didn't make a picture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This crate doesn't know the model's architecture, or its parts don't fit together. The message is for the
    /// operator.
    #[error("{0}")]
    Model(String),
    /// Files of the model are missing or damaged. The message is for the operator.
    #[error("{0}")]
    Files(String),
    /// The model's scheduler or one of its options is unknown. The message is for the operator.
    #[error("{0}")]
    Scheduler(String),
    /// A file of the model, or one made from it, cannot be used. The message is for the operator and says what to do.
    #[error("{0}")]
    Unusable(String),
    /// A LoRA file is missing or damaged, or does not fit the model. The message is for the operator and says what to do.
    #[error("{0}")]
    Lora(String),
    /// A textual inversion embedding is missing or damaged, or doesn't fit the model. The message is for the operator
    /// and says what to do.
    #[error("{0}")]
    Embedding(String),
    /// A separate VAE file is missing or damaged, or doesn't fit the model. The message is for the operator and says
    /// what to do.
    #[error("{0}")]
    Vae(String),
    /// A setting does not suit the model. The message is for the operator and says what to do.
    #[error("{0}")]
    Setting(String),
    /// This model cannot carry out the order, even if it is tried again.
    #[error("{0}")]
    Order(String),
    /// The runtime failed.
    #[error("the model could not be run: {0}")]
    Run(String),
    /// The runtime could not allocate the memory that it needs.
    #[error("memory ran out: {0}")]
    Memory(String),
    /// The model's numbers don't make a picture: they are not finite, or the picture is all black.
    #[error("{0}")]
    Spoiled(&'static str),
    /// The caller cancelled the render.
    #[error("the render was cancelled")]
    Cancelled,
}

impl Error {
    /// Turns an error about a model's file into one about a file beside the model.
    pub(crate) fn beside(self, of: impl FnOnce(String) -> Self) -> Self {
        match self {
            Self::Model(message) | Self::Files(message) | Self::Scheduler(message) | Self::Unusable(message) => {
                of(message)
            }
            other => other,
        }
    }
}

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;
