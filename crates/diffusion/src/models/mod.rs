//! One file for each part of a model: its configuration, and its graph.

pub mod clip;
pub mod resnet;
pub mod tiny_vae;
pub mod unet;
pub mod vae;
