//! Stable Diffusion 1 and 2, and models distilled from them.

use std::path::{Path, PathBuf};

use super::{Denoiser, Embedding, Family, Guide, Latent, Traits, decode, part_config};
use crate::config::Config;
use crate::graph::Graph;
use crate::models::clip::{Clip, check_ids};
use crate::models::tiny_vae::TinyVae;
use crate::models::unet::Unet;
use crate::models::vae::Vae;
use crate::quantise::Suit;
use crate::runtime::{Input, Session};
use crate::schedulers::{Scheduler, scheduler};
use crate::tokenizer;
use crate::weights::Weights;
use crate::{Error, Result};

/// The decoder of a model.
#[derive(Debug)]
enum Decoder {
    Large(Vae),
    Tiny(TinyVae),
}

#[derive(Debug)]
pub(super) struct StableDiffusion {
    traits: Traits,
    tokenizer: tokenizer::Clip,
    clip: Clip,
    clip_weights: Weights,
    unet: Unet,
    unet_weights: Weights,
    decoder: Decoder,
    decoder_weights: Weights,
    scheduler: Config,
}

/// The parts of a model, wherever they lie.
pub(super) struct Parts {
    pub index: Config,
    pub clip: Config,
    pub clip_weights: Weights,
    pub unet: Config,
    pub unet_weights: Weights,
    pub vae: Config,
    pub vae_weights: Weights,
    pub scheduler: Config,
    /// A folder.
    pub tokenizer: PathBuf,
}

impl Parts {
    /// Those in a folder.
    pub fn of_folder(folder: &Path, index: Config) -> Result<Self> {
        Ok(Self {
            index,
            clip: part_config(folder, "text_encoder")?,
            unet: part_config(folder, "unet")?,
            vae: part_config(folder, "vae")?,
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
            tokenizer: folder.join("tokenizer"),
            clip_weights: Weights::open_part(&folder.join("text_encoder"), "model")?,
            unet_weights: Weights::open_part(&folder.join("unet"), "diffusion_pytorch_model")?,
            vae_weights: Weights::open_part(&folder.join("vae"), "diffusion_pytorch_model")?,
        })
    }
}

impl StableDiffusion {
    pub(super) fn open(parts: Parts, suit: &mut Suit<'_>) -> Result<Self> {
        let clip = Clip::read(&parts.clip)?;
        let unet = Unet::read(&parts.unet)?;
        if clip.width != unet.context {
            let (text, image) = (clip.width, unet.context);
            return Err(Error::Model(format!(
                "the text encoder gives {text} numbers a token, but the UNet takes {image}"
            )));
        }
        let vae = &parts.vae;
        let decoder = match vae.text("_class_name", "AutoencoderKL")? {
            "AutoencoderTiny" => Decoder::Tiny(TinyVae::read(vae)?),
            _ => Decoder::Large(Vae::read(vae)?),
        };
        let (decoded, factor) = match &decoder {
            Decoder::Large(vae) => (vae.channels, vae.factor()),
            Decoder::Tiny(vae) => (vae.channels, vae.factor()),
        };
        if decoded != unet.channels {
            let made = unet.channels;
            return Err(Error::Model(format!(
                "the UNet makes latent pictures of {made} channels, the autoencoder takes {decoded}"
            )));
        }
        let mut family = Self {
            traits: traits(&parts.index, &parts.scheduler, &unet, factor)?,
            tokenizer: tokenizer::Clip::read(&parts.tokenizer, clip.tokens)?,
            clip_weights: parts.clip_weights,
            unet_weights: parts.unet_weights,
            decoder_weights: parts.vae_weights,
            scheduler: parts.scheduler,
            clip,
            unet,
            decoder,
        };
        family.check()?;
        family.clip_weights = {
            let uses = family.clip.graph(&family.clip_weights)?.uses;
            suit.weights("text_encoder", family.clip_weights, &uses)?
        };
        family.unet_weights = {
            let uses = family.unet.graph(&family.unet_weights, 8, 8, family.clip.tokens)?.uses;
            suit.weights("unet", family.unet_weights, &uses)?
        };
        Ok(family)
    }

    /// Compares all weights with the configuration and tries the tokenizer.
    fn check(&self) -> Result<()> {
        check_ids(&self.tokenizer.encode("")?, self.clip.vocabulary)?;
        scheduler(&self.scheduler, 1)?;
        self.clip.graph(&self.clip_weights)?;
        self.unet.graph(&self.unet_weights, 8, 8, self.clip.tokens)?;
        self.decoder_graph(8, 8)?;
        Ok(())
    }

    fn decoder_graph(&self, height: usize, width: usize) -> Result<Graph> {
        match &self.decoder {
            Decoder::Large(vae) => vae.graph(&self.decoder_weights, height, width),
            Decoder::Tiny(vae) => vae.graph(&self.decoder_weights, height, width),
        }
    }
}

/// Nothing in a folder says how many steps suit the model, so its other fields must: a guidance input is that of LCM, and
/// only the turbo models begin at the very last time step of the training, because they take one step from there.
fn traits(index: &Config, scheduler: &Config, unet: &Unet, side_multiple: usize) -> Result<Traits> {
    let usual = Traits {
        family: "Stable Diffusion",
        references: 0,
        steps: 25,
        guidance: 7.5,
        side_multiple,
        negative: unet.guidance.is_none(),
    };
    if index.text("_class_name", "")? == "LatentConsistencyModelPipeline" || unet.guidance.is_some() {
        return Ok(Traits { family: "Latent Consistency Model", steps: 4, guidance: 8.5, ..usual });
    }
    if scheduler.text("timestep_spacing", "")? == "trailing" {
        return Ok(Traits { family: "Stable Diffusion Turbo", steps: 1, guidance: 0.0, ..usual });
    }
    Ok(usual)
}

impl Family for StableDiffusion {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn latent_shape(&self, width: usize, height: usize) -> [usize; 3] {
        let factor = self.traits.side_multiple;
        [self.unet.channels, height / factor, width / factor]
    }

    fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt)?;
        check_ids(&ids, self.clip.vocabulary)?;
        Ok(ids)
    }

    fn embed(&self, prompt: &str) -> Result<Embedding> {
        let ids = self.tokens(prompt)?;
        let session = Session::load(self.clip.graph(&self.clip_weights)?)?;
        let [states] = session.run(&[("ids", Input::Ids(&ids))], ["states"])?;
        Ok(Embedding { states })
    }

    fn scheduler(&self, steps: usize, _: [usize; 3]) -> Result<Box<dyn Scheduler>> {
        scheduler(&self.scheduler, steps)
    }

    fn denoiser<'a>(&'a self, shape: [usize; 3], guide: &'a Guide) -> Result<Box<dyn Denoiser + 'a>> {
        let [_, height, width] = shape;
        let session = Session::load(self.unet.graph(&self.unet_weights, height, width, self.clip.tokens)?)?;
        let guidance = self.unet.guidance.map(|size| embed_guidance(guide.guidance, size));
        Ok(Box::new(Loaded { family: self, session, shape, guidance }))
    }

    fn decode(&self, latent: &Latent) -> Result<Vec<f32>> {
        match &self.decoder {
            Decoder::Large(vae) => decode(vae, &self.decoder_weights, latent),
            Decoder::Tiny(vae) => {
                let [channels, height, width] = latent.shape;
                let numbers: Vec<_> = latent.numbers.iter().map(|x| x / vae.scaling).collect();
                let session = Session::load(vae.graph(&self.decoder_weights, height, width)?)?;
                let shape = [1, channels, height, width];
                let [planes] = session.run(&[("latent", Input::Floats(&shape, &numbers))], ["picture"])?;
                Ok(planes)
            }
        }
    }
}

/// The UNet, loaded.
struct Loaded<'a> {
    family: &'a StableDiffusion,
    session: Session,
    shape: [usize; 3],
    guidance: Option<Vec<f32>>,
}

impl Denoiser for Loaded<'_> {
    fn predict(&self, sample: &[f32], time: f32, prompt: &Embedding) -> Result<Vec<f32>> {
        let StableDiffusion { unet, clip, .. } = self.family;
        let latent = [1, self.shape[0], self.shape[1], self.shape[2]];
        let time = unet.embed_time(time);
        let (times, tokens) = ([1, time.len()], [clip.tokens, clip.width]);
        let mut inputs = vec![
            ("latent", Input::Floats(&latent, sample)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&tokens, &prompt.states)),
        ];
        let guidances = [1, self.guidance.as_ref().map_or(0, Vec::len)];
        if let Some(guidance) = &self.guidance {
            inputs.push(("guidance", Input::Floats(&guidances, guidance)));
        }
        let [noise] = self.session.run(&inputs, ["noise"])?;
        Ok(noise)
    }
}

/// The embedding of the guidance that distilled models take.
pub fn embed_guidance(guidance: f32, size: usize) -> Vec<f32> {
    let half = size / 2;
    let frequency = |at: usize| (-(10_000_f64.ln()) * at as f64 / (half as f64 - 1.0)).exp() as f32;
    let angles: Vec<_> = (0..half).map(|at| (guidance - 1.0) * 1000.0 * frequency(at)).collect();
    let mut numbers: Vec<_> =
        angles.iter().map(|angle| angle.sin()).chain(angles.iter().map(|angle| angle.cos())).collect();
    numbers.resize(size, 0.0);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guidance_is_embedded_as_sines_and_cosines() {
        assert_eq!(embed_guidance(1.0, 5), [0.0, 0.0, 1.0, 1.0, 0.0]);
    }
}
