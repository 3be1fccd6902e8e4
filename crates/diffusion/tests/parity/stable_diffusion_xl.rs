//! Stable Diffusion XL.

use tintype_diffusion::Settings;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::runtime::Input;

use crate::parity::rig::Model;

fn model() -> Model {
    Model::new("sdxl")
}

#[test]
fn prompts_have_the_same_tokens() {
    model().assert_tokens();
}

#[test]
fn the_text_encoders_give_the_same_numbers() {
    let model = model();
    let embedding = model.pipeline().embed(model.prompt()).expect("an embedding");
    model.assert_close("embedding", &embedding.states);
    model.assert_close("pooled", &embedding.pooled);
}

#[test]
fn every_block_of_the_unet_gives_the_same_numbers() {
    let model = model();
    let prompt = model.pipeline().embed(model.prompt()).expect("an embedding");
    let unet = Unet::read(&model.config("unet")).expect("a UNet");
    let ([_, _, height, width], latent) = model.latent(4, 8);
    let tokens = prompt.states.len() / unet.context;
    let graph = unet.graph(&model.weights("unet"), 1, [height, width], tokens).expect("a graph");
    let time = unet.embed_time(801.0);
    let sizes = [height * 8, width * 8, 0, 0, height * 8, width * 8];
    let addition = unet.addition.expect("more inputs");
    let addition = unet.embed_addition(addition, &prompt.pooled, &sizes).expect("an embedding");
    let (latents, times, contexts) = ([1, 4, height, width], [1, time.len()], [tokens, unet.context]);
    let inputs = [
        ("latent", Input::Floats(&latents, &latent)),
        ("time", Input::Floats(&times, &time)),
        ("context", Input::Floats(&contexts, &prompt.states)),
        ("addition", Input::Floats(&[1, addition.len()], &addition)),
    ];
    model.assert_part("unet.", graph, &inputs);
}

#[test]
fn every_block_of_the_decoder_gives_the_same_numbers() {
    model().assert_decoder();
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    let model = model();
    model.assert_run("", model.pipelines(), &model.order(), &model.settings());
    // Nothing that the picture should not show is not the same as the words "".
    let guided = Settings { guidance: 3.0, ..model.settings() };
    model.assert_run("zeros.", model.pipelines(), &model.order(), &guided);
    let guided = Settings { negative: "blurry".into(), ..guided };
    model.assert_run("guided.", model.pipelines(), &model.order(), &guided);
}

#[test]
fn the_model_says_how_it_is_used() {
    let pipeline = model().pipeline();
    let traits = pipeline.traits();
    assert_eq!((traits.steps, traits.side_multiple, traits.references, traits.negative), (1, 8, 1, true));
    assert!(!pipeline.asks_twice(traits.guidance));
}
