//! One file for each part of a model: its configuration and its graph. A graph is not built if the weights do not fit.

pub mod clip;
pub mod flux2;
pub mod qwen3;
pub mod resnet;
pub mod time;
pub mod tiny_vae;
pub mod unet;
pub mod vae;
pub mod z_image;
