//! Models in folders and files, and whether their pictures are those of `diffusers`.

mod fixtures;
mod folders;
mod fp8;
mod halves;
mod lora;
mod one_load;
mod other_vae;
mod parity;
mod placement;
mod quantise;
mod single_file;
mod textual_inversion;
mod trained;
mod weighted;
