//! Stable Diffusion.

use tintype_diffusion::models::clip::Clip;
use tintype_diffusion::models::tiny_vae::TinyVae;
use tintype_diffusion::models::unet::Unet;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::pipelines::embed_guidance;
use tintype_diffusion::runtime::Input;
use tintype_diffusion::{Error, Order, Step};
use tintype_engine::{CancellationToken, Picture};

use crate::parity::rig::{Model, picture};

fn models() -> [Model; 4] {
    ["sd15", "lcm", "turbo", "sdxs"].map(Model::new)
}

#[test]
fn prompts_have_the_same_tokens() {
    for model in models() {
        model.assert_tokens();
    }
}

#[test]
fn the_text_encoder_gives_the_same_numbers() {
    for model in models() {
        let ids = model.pipeline().tokens(model.prompt()).expect("tokens");
        let clip = Clip::read(&model.config("text_encoder")).expect("a text encoder");
        let graph = clip.graph(&model.weights("text_encoder")).expect("a graph");
        model.assert_part("text.", graph, &[("ids", Input::Ids(&ids))]);
    }
}

#[test]
fn every_block_of_the_unet_gives_the_same_numbers() {
    for model in models() {
        let mut pipeline = model.pipeline();
        let context = pipeline.embed(model.prompt()).expect("an embedding").states;
        let unet = Unet::read(&model.config("unet")).expect("a UNet");
        let ([_, _, height, width], latent) = model.latent(4, pipeline.traits().side_multiple);
        let weights = model.weights("unet");
        let tokens = context.len() / unet.context;
        let graph = unet.graph(&weights, 1, [height, width], tokens).expect("a graph");
        let time = unet.embed_time(801.0);
        let (latents, times, contexts) = ([1, 4, height, width], [1, time.len()], [tokens, unet.context]);
        let mut inputs = vec![
            ("latent", Input::Floats(&latents, &latent)),
            ("time", Input::Floats(&times, &time)),
            ("context", Input::Floats(&contexts, &context)),
        ];
        let guidance = unet.guidance.map(|size| embed_guidance(8.5, size));
        let guidances = [1, guidance.as_ref().map_or(0, Vec::len)];
        if let Some(guidance) = &guidance {
            inputs.push(("guidance", Input::Floats(&guidances, guidance)));
        }
        model.assert_part("unet.", graph, &inputs);
    }
}

#[test]
fn every_block_of_the_decoder_gives_the_same_numbers() {
    for model in models() {
        let ([_, _, height, width], latent) = model.latent(4, 8);
        let (config, weights) = (model.config("vae"), model.weights("vae"));
        let (graph, scaling) = if ["lcm", "sdxs"].contains(&model.name) {
            let vae = TinyVae::read(&config).expect("an autoencoder");
            (vae.graph(&weights, height, width).expect("a graph"), vae.scaling)
        } else {
            let vae = Vae::read(&config).expect("an autoencoder");
            (vae.graph(&weights, height, width).expect("a graph"), vae.scaling)
        };
        let latent: Vec<_> = latent.into_iter().map(|x| x / scaling).collect();
        model.assert_part("vae.", graph, &[("latent", Input::Floats(&[1, 4, height, width], &latent))]);
    }
}

#[test]
fn every_step_and_the_picture_are_the_same() {
    for model in models() {
        let (order, settings) = (model.order(), model.settings());
        model.assert_run("", model.pipelines(), &order, &settings);
        let references = [picture(order.width, order.height)];
        let order = Order { references: &references, ..order };
        model.assert_run("from.", model.pipelines(), &order, &settings);
    }
}

#[test]
fn a_reference_of_another_size_is_cut_to_the_size_of_the_picture() {
    let model = Model::new("lcm");
    let mut pipeline = model.pipeline();
    let mut render = |width, height| {
        let references = [picture(width, height)];
        let order = Order { references: &references, ..model.order() };
        pipeline.render(&order, &model.settings(), |_| {}, &CancellationToken::new()).expect("a picture")
    };
    let (wide, high) = (render(200, 50), render(33, 200));
    assert_eq!((wide.width() as usize, wide.height() as usize), model.size());
    assert_ne!(wide, high, "the reference counts");
}

#[test]
fn a_seed_decides_the_picture() {
    let model = Model::new("lcm");
    let (mut pipeline, settings, never) = (model.pipeline(), model.settings(), CancellationToken::new());
    let mut render = |seed, prompt| {
        let order = Order { seed, prompt, ..model.order() };
        pipeline.render(&order, &settings, |_| {}, &never).expect("a picture")
    };
    let first = render(1, "a fox");
    assert_ne!(render(2, "a fox"), first);
    assert_ne!(render(1, "a house"), first);
    assert_eq!(render(1, "a fox"), first);
}

#[test]
fn a_model_says_how_it_is_used() {
    let traits = |name| Model::new(name).pipeline().traits().clone();
    let [usual, distilled] = [traits("sd15"), traits("lcm")];
    assert_eq!((usual.steps, usual.guidance, usual.negative, usual.references), (25, 7.5, true, 1));
    assert_eq!((distilled.steps, distilled.guidance, distilled.negative, distilled.references), (4, 8.5, false, 1));
    for name in ["turbo", "sdxs"] {
        let traits = traits(name);
        assert_eq!((traits.steps, traits.guidance, traits.references), (1, 0.0, 1), "{name}");
    }
    assert_eq!((usual.side_multiple, distilled.side_multiple), (8, 8));
}

#[test]
fn a_cancelled_render_ends_between_steps() {
    let model = Model::new("lcm");
    let (mut pipeline, cancel) = (model.pipeline(), CancellationToken::new());
    let mut last = 0;
    let after = |step: &Step<'_>| {
        last = step.done;
        if step.done == 2 {
            cancel.cancel();
        }
    };
    let result = pipeline.render(&model.order(), &model.settings(), after, &cancel);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(last, 2);
}

#[test]
fn a_picture_is_the_same_in_a_batch_and_alone() {
    let prompts = ["a fox", "a lighthouse in a storm", "a fox"];
    for name in ["sd15", "lcm", "sdxl"] {
        let model = Model::new(name);
        let (settings, never) = (model.settings(), CancellationToken::new());
        let orders: Vec<_> = (1..).zip(prompts).map(|(seed, prompt)| Order { seed, prompt, ..model.order() }).collect();
        for mut pipeline in model.pipelines() {
            pipeline.learn_previews().expect("learnt");
            let (mut heard, mut previews) = (Vec::new(), Vec::new());
            let progress = |step: &Step<'_>| {
                heard.push(step.done);
                previews = (0..prompts.len()).map(|picture| step.preview(picture)).collect();
            };
            let batch = pipeline.render_batch(&orders, &settings, progress, &never).expect("pictures");
            for (at, (order, picture)) in orders.iter().zip(&batch).enumerate() {
                let (mut preview, mut steps) = (None, Vec::new());
                let progress = |step: &Step<'_>| {
                    steps.push(step.done);
                    preview = step.preview(0);
                };
                let alone = pipeline.render(order, &settings, progress, &never);
                assert_eq!(heard, steps, "{name}: each step is one of all pictures");
                assert_close(picture, &alone.expect("a picture"), name);
                let (in_batch, alone) = (previews[at].as_ref(), preview.as_ref());
                assert_close(in_batch.expect("a preview"), alone.expect("a preview"), name);
            }
            assert!(batch[0] != batch[1] && batch[0] != batch[2]);
        }
    }
}

/// Two pictures differ by rounding alone.
fn assert_close(one: &Picture, other: &Picture, name: &str) {
    let apart = one.as_rgb().iter().zip(other.as_rgb()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(one.as_rgb().len() == other.as_rgb().len() && apart <= Some(1), "{name}: {apart:?}");
}

#[test]
fn orders_that_suit_no_batch_are_refused() {
    let never = CancellationToken::new();
    for (name, change) in [
        ("lcm", (|order| order.width = 128) as fn(&mut Order<'_>)),
        // A model that makes one picture at a time.
        ("klein", |order| order.seed = 2),
    ] {
        let model = Model::new(name);
        let mut orders = [model.order(), model.order()];
        change(&mut orders[1]);
        let result = model.pipeline().render_batch(&orders, &model.settings(), |_| {}, &never);
        assert!(matches!(result, Err(Error::Order(_))), "{name}: {result:?}");
    }
}
