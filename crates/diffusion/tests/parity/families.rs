//! What each family is compared by.

use tintype_diffusion::models::clip::Clip;
use tintype_diffusion::models::tiny_vae::TinyVae;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::pipelines::embed_guidance;
use tintype_diffusion::runtime::Input;
use tintype_diffusion::{Order, Settings};

use crate::parity::rig::{Model, picture};

const STABLE_DIFFUSION: [&str; 4] = ["sd15", "lcm", "turbo", "sdxs"];

fn all() -> impl Iterator<Item = Model> {
    STABLE_DIFFUSION.into_iter().chain(["sdxl", "klein", "z_image"]).map(Model::new)
}

#[test]
fn prompts_have_the_same_tokens() {
    all().for_each(|model| model.assert_tokens());
}

#[test]
fn text_encoders_give_the_same_numbers() {
    for model in STABLE_DIFFUSION.map(Model::new) {
        let ids = model.pipeline().tokens(model.prompt()).expect("tokens");
        let clip = Clip::read(&model.config("text_encoder")).expect("a text encoder");
        let graph = clip.graph(&model.weights("text_encoder")).expect("a graph");
        model.assert_part("text.", graph, &[("ids", Input::Ids(&ids))]);
    }
    for model in ["sdxl", "klein", "z_image"].map(Model::new) {
        let embedding = model.pipeline().embed(model.prompt()).expect("an embedding");
        model.assert_close("embedding", &embedding.states);
        if model.name == "sdxl" {
            model.assert_close("pooled", &embedding.pooled);
        }
    }
}

#[test]
fn every_block_of_the_unet_gives_the_same_numbers() {
    for model in STABLE_DIFFUSION.into_iter().chain(["sdxl"]).map(Model::new) {
        let mut pipeline = model.pipeline();
        let prompt = pipeline.embed(model.prompt()).expect("an embedding");
        let unet = Unet::read(&model.config("unet")).expect("a UNet");
        let ([_, _, height, width], latent) = model.latent(4, pipeline.traits().side_multiple);
        let tokens = prompt.states.len() / unet.context;
        let graph = unet.graph(&model.weights("unet"), 1, [height, width], tokens).expect("a graph");
        let sizes = [height * 8, width * 8, 0, 0, height * 8, width * 8];
        let addition =
            unet.addition.map(|more| unet.embed_addition(more, &prompt.pooled, &sizes).expect("an embedding"));
        let rows = [
            ("time", 1, Some(unet.embed_time(801.0))),
            ("context", tokens, Some(prompt.states)),
            ("guidance", 1, unet.guidance.map(|size| embed_guidance(8.5, size))),
            ("addition", 1, addition),
        ];
        let rows = rows.into_iter().filter_map(|(name, count, numbers)| numbers.map(|numbers| (name, count, numbers)));
        let rows: Vec<_> = rows.map(|(name, count, numbers)| (name, [count, numbers.len() / count], numbers)).collect();
        let latents = [1, 4, height, width];
        let mut inputs = vec![("latent", Input::Floats(&latents, &latent))];
        inputs.extend(rows.iter().map(|(name, shape, numbers)| (*name, Input::Floats(shape, numbers))));
        model.assert_part("unet.", graph, &inputs);
    }
}

#[test]
fn every_block_of_the_decoder_gives_the_same_numbers() {
    for name in ["sd15", "turbo", "sdxl", "z_image"] {
        Model::new(name).assert_decoder();
    }
    for model in ["lcm", "sdxs"].map(Model::new) {
        let vae = TinyVae::read(&model.config("vae")).expect("an autoencoder");
        let (shape, latent) = model.latent(4, 8);
        let latent: Vec<_> = latent.into_iter().map(|x| x / vae.scaling).collect();
        let graph = vae.graph(&model.weights("vae"), shape[2], shape[3]).expect("a graph");
        model.assert_part("vae.", graph, &[("latent", Input::Floats(&shape, &latent))]);
    }
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    all().for_each(|model| model.assert_run("", model.pipelines(), &model.order(), &model.settings()));
}

#[test]
fn every_step_from_a_reference_and_the_picture_are_the_same() {
    for model in STABLE_DIFFUSION.map(Model::new) {
        let (width, height) = model.size();
        let order = Order { references: &[picture(width, height)], ..model.order() };
        model.assert_run("from.", model.pipelines(), &order, &model.settings());
    }
}

#[test]
fn every_step_with_guidance_and_the_picture_are_the_same() {
    for (name, run, guidance, negative) in [
        // Nothing that the picture should not show is not the same as the words "".
        ("sdxl", "zeros.", 3.0, None),
        ("sdxl", "guided.", 3.0, Some("blurry")),
        // `diffusers` counts from 0: 3 there is 4 here.
        ("z_image", "guided.", 4.0, None),
    ] {
        let model = Model::new(name);
        let usual = model.settings();
        let negative = negative.map_or_else(|| usual.negative.clone(), str::to_owned);
        let settings = Settings { guidance, negative, ..usual };
        model.assert_run(run, model.pipelines(), &model.order(), &settings);
    }
}

#[test]
fn a_model_says_how_it_is_used() {
    for (name, steps, guidance, side_multiple, references, negative) in [
        ("sd15", 25, Some(7.5), 8, 1, true),
        ("lcm", 4, Some(8.5), 8, 1, false),
        ("turbo", 1, Some(0.0), 8, 1, true),
        ("sdxs", 1, Some(0.0), 8, 1, true),
        ("sdxl", 1, None, 8, 1, true),
        ("klein", 4, None, 16, 4, false),
        ("z_image", 8, None, 16, 0, true),
    ] {
        let pipeline = Model::new(name).pipeline();
        let traits = pipeline.traits();
        let found = (traits.steps, traits.side_multiple, traits.references, traits.negative);
        assert_eq!(found, (steps, side_multiple, references, negative), "{name}");
        if let Some(guidance) = guidance {
            assert_eq!(traits.guidance, guidance, "{name}");
        }
        if ["sdxl", "z_image"].contains(&name) {
            assert!(!pipeline.asks_twice(traits.guidance), "{name}");
        }
    }
}
