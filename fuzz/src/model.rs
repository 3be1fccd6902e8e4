//! Files of a model.

use serde_json::Value;
use tintype_diffusion::config::Config;
use tintype_diffusion::models::{clip, flux2, qwen3, tiny_vae, unet, vae, z_image};
use tintype_diffusion::schedulers::{Flow, Shift, scheduler};
use tintype_diffusion::weights::Header;

/// Tensors of an accepted file of weights have as many bytes as their shapes ask for, one after the other within the file.
/// A configuration is accepted if a part of a model can be made of it; its sizes then multiply without overflow.
pub fn model(data: &[u8]) -> bool {
    if data.first() == Some(&b'{') { config(data) } else { weights(data) }
}

fn weights(data: &[u8]) -> bool {
    let Ok(header) = Header::read("fuzz", data) else { return false };
    let mut entries: Vec<_> = header.entries.values().collect();
    entries.sort_by_key(|entry| (entry.bytes.start, entry.bytes.end));
    let mut end = header.begin;
    for entry in entries {
        assert_eq!(entry.bytes.start, end, "{entry:?}");
        end = entry.bytes.end;
        let count = entry.shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size)).expect("a size");
        assert_eq!(count.checked_mul(entry.dtype.bitsize()).expect("a size"), entry.bytes.len() * 8, "{entry:?}");
    }
    assert_eq!(end, data.len());
    true
}

fn config(data: &[u8]) -> bool {
    let Ok(Value::Object(fields)) = serde_json::from_slice(data) else { return false };
    let config = Config::of("fuzz", fields);
    let parts = [
        clip::Clip::read(&config).is_ok(),
        flux2::Flux2::read(&config).is_ok(),
        qwen3::Qwen3::read(&config).is_ok(),
        tiny_vae::TinyVae::read(&config).is_ok(),
        unet::Unet::read(&config).is_ok(),
        vae::Vae::read(&config).is_ok_and(|vae| vae.factor() > 0),
        z_image::ZImage::read(&config).is_ok(),
    ];
    let steps = [1, 4].map(|steps| {
        let flows = [Shift::Fitted, Shift::Line].map(|shift| Flow::new(&config, shift, 4096, steps).is_ok());
        flows.contains(&true) || scheduler(&config, steps, 1.0).is_ok_and(|set| set.trajectory().times().len() >= steps)
    });
    parts.contains(&true) || steps.contains(&true)
}
