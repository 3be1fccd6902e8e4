//! VAEs in files and folders that come from strangers.

use std::path::Path;

use tempfile::TempDir;
use tintype_diffusion::{Error, Options, Pipeline};

use crate::fixtures::fixture;

/// The message with which a model refuses to open.
fn refused(model: &str, vae: &Path, words: &[&str]) {
    let options = Options { vae: Some(vae.to_owned()), ..Options::default() };
    let message = match Pipeline::open(&fixture(model), &options) {
        Err(Error::Vae(message)) => message,
        other => panic!("{model} with {}: {:?}", vae.display(), other.err()),
    };
    let path = vae.display().to_string();
    let all = words.iter().copied().chain([path.as_str(), "leave it out"]);
    let missing: Vec<_> = all.filter(|word| !message.contains(word)).collect();
    assert!(missing.is_empty(), "{message:?} lacks {missing:?}");
    println!("{message}");
}

/// A copy of the folder of a VAE, with other words in its configuration.
fn changed(name: &str, from: &str, to: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let weights = "diffusion_pytorch_model.safetensors";
    std::fs::copy(fixture(name).join(weights), folder.path().join(weights)).expect("a copy");
    let config = std::fs::read_to_string(fixture(name).join("config.json")).expect("a configuration");
    assert!(config.contains(from), "{config}");
    std::fs::write(folder.path().join("config.json"), config.replace(from, to)).expect("a file");
    folder
}

#[test]
fn a_vae_of_another_family_is_refused() {
    refused("sd15", &fixture("klein/vae"), &["AutoencoderKLFlux2"]);
    refused("sd15", &fixture("z_image/vae"), &["leave it out"]);
    refused("sd15", &fixture("other_vae/large_xl"), &["0.13025", "0.18215", "another family"]);
    refused("sdxl", &fixture("other_vae/large"), &["0.18215", "0.13025", "another family"]);
    let other = changed("other_vae/tiny", "\"latent_channels\": 4", "\"latent_channels\": 16");
    refused("sd15", other.path(), &["latent pictures of 4 channels", "takes 16"]);
    for model in ["klein", "z_image"] {
        refused(model, &fixture("other_vae/large"), &["Stable Diffusion 1, 2 and XL"]);
    }
}

#[test]
fn a_damaged_vae_or_something_else_is_refused() {
    refused("sd15", &fixture("none.safetensors"), &["cannot read"]);
    refused("sd15", &fixture("sd15"), &["config.json", "its VAE is the folder"]);
    refused("sd15", &fixture("sd15/vae/config.json"), &["holds no weights"]);
    refused("sd15", &fixture("lora/sd15_kohya.safetensors"), &["holds no autoencoder"]);
    refused("sd15", &fixture("textual_inversion/badhands.safetensors"), &["holds no autoencoder"]);
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("vae.safetensors");
    let whole = std::fs::read(fixture("other_vae/original.safetensors")).expect("a file");
    std::fs::write(&path, &whole[..whole.len() - 1]).expect("a file");
    refused("sd15", &path, &["damaged"]);
    let text = String::from_utf8_lossy(&whole).into_owned();
    let name = "decoder.mid.block_2.conv1.bias";
    let at = text.find(name).expect("a tensor");
    let mut renamed = whole.clone();
    renamed[at] = b'x';
    std::fs::write(&path, &renamed).expect("a file");
    refused("sd15", &path, &["decoder.mid_block.resnets.1.conv1.bias", "missing"]);
    let path = folder.path().join("vae.pt");
    std::fs::write(&path, b"PK\x03\x04").expect("a file");
    refused("sd15", &path, &["convert it to safetensors"]);
}

#[test]
fn a_vae_without_an_encoder_does_not_replace_one_with_it() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("vae.safetensors");
    let whole = std::fs::read(fixture("other_vae/original.safetensors")).expect("a file");
    let length = u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
    let header = String::from_utf8(whole[8..8 + length].to_vec()).expect("a header");
    let without = header.replace("\"encoder.", "\"encode_.");
    std::fs::write(&path, [&whole[..8], without.as_bytes(), &whole[8 + length..]].concat()).expect("a file");
    refused("sd15", &path, &["no encoder", "reference pictures"]);
}
