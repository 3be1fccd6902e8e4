//! Runs diffusion models on the processor, straight from the folders that `diffusers` writes: no Python, no other server,
//! no native library.
//!
//! A [`Pipeline`] reads a folder. Each part of its model becomes an ONNX graph, written by this crate in memory
//! ([`graph`], [`models`]); the weights stay in the mapped safetensors files ([`weights`]); [`runtime`] executes the
//! graphs. Tests compare tokens, embeddings, blocks, scheduler steps and pictures with those of `diffusers`.

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

/// Why a model cannot be used, or gave no picture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model is of an architecture that this crate does not know, or its parts do not fit together. The message is
    /// for the operator.
    #[error("{0}")]
    Model(String),
    /// Files of the model are missing or damaged. The message is for the operator.
    #[error("{0}")]
    Files(String),
    /// The scheduler of the model is not known, or one of its options is not. The message is for the operator.
    #[error("{0}")]
    Scheduler(String),
    /// A file of the model, or one that is made of it, cannot be used. The message is for the operator and says what to do.
    #[error("{0}")]
    Unusable(String),
    /// A LoRA file is missing or damaged, or does not fit the model. The message is for the operator and says what to do.
    #[error("{0}")]
    Lora(String),
    /// An embedding of textual inversion is missing or damaged, or does not fit the model. The message is for the operator
    /// and says what to do.
    #[error("{0}")]
    Embedding(String),
    /// A VAE in a file of its own is missing or damaged, or does not fit the model. The message is for the operator and says
    /// what to do.
    #[error("{0}")]
    Vae(String),
    /// A setting does not suit the model. The message is for the operator and says what to do.
    #[error("{0}")]
    Setting(String),
    /// The order cannot be carried out with this model, whatever is tried.
    #[error("{0}")]
    Order(String),
    /// The runtime failed.
    #[error("the model could not be run: {0}")]
    Run(String),
    /// The runtime could not get the memory that it needs.
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
    /// This error as one of a file beside the model, if it is about a model's file.
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
