//! Z-Image.

use tintype_diffusion::Settings;
use tintype_diffusion::models::z_image::ZImage;
use tintype_diffusion::runtime::Input;

use crate::parity::rig::Model;

fn model() -> Model {
    Model::new("z_image")
}

#[test]
fn prompts_have_the_same_tokens() {
    model().assert_tokens();
}

#[test]
fn the_text_encoder_gives_the_same_numbers() {
    let model = model();
    let embedding = model.pipeline().embed(model.prompt()).expect("an embedding");
    model.assert_close("embedding", &embedding.states);
}

#[test]
fn every_block_of_the_transformer_gives_the_same_numbers() {
    let model = model();
    let mut transformer = ZImage::read(&model.config("transformer")).expect("a transformer");
    let (shape, latent) = model.latent(transformer.channels, 8);
    let (weights, size) = (model.weights("transformer"), [shape[2], shape[3]]);
    let tokens = model.pipeline().tokens(model.prompt()).expect("tokens").len();
    // All rows at a time, and parts of them, of which the last is shorter.
    for most in [transformer.rows_at_a_time, 7] {
        transformer.rows_at_a_time = most;
        let graph = transformer.graph(&weights, size, tokens).expect("a graph");
        let latent = ("latent", Input::Floats(&shape, &latent));
        model.assert_transformer(graph, latent, &transformer.embed_time(801.0), transformer.context);
    }
}

#[test]
fn every_block_of_the_decoder_gives_the_same_numbers() {
    model().assert_decoder();
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    let model = model();
    model.assert_run("", model.pipelines(), &model.order(), &model.settings());
}

#[test]
fn every_step_with_guidance_and_the_picture_are_the_same() {
    let model = model();
    // `diffusers` counts from 0: 3 there is 4 here.
    let settings = Settings { guidance: 4.0, ..model.settings() };
    model.assert_run("guided.", model.pipelines(), &model.order(), &settings);
}

#[test]
fn the_model_says_how_it_is_used() {
    let pipeline = model().pipeline();
    let traits = pipeline.traits();
    assert_eq!((traits.steps, traits.side_multiple, traits.references, traits.negative), (8, 16, 0, true));
    assert!(!pipeline.asks_twice(traits.guidance));
}
