//! Models with emphasis in prompts, and with prompts of several chunks.

use tintype_diffusion::pipelines::Guide;
use tintype_diffusion::{Options, Pipeline};
use tintype_engine::{CancellationToken, PromptSyntax};

use crate::parity::rig::{Model, folder, json, runtimes};

#[test]
fn weighted_prompts_are_those_of_the_first_web_ui() {
    for case in json("weighted/expected.json").as_array().expect("a list") {
        let name = case["model"].as_str().expect("a name");
        println!("{name}: {} without {}", case["prompt"], case["negative"]);
        let model = Model { name: "weighted", expected: case.clone() };
        for runtime in runtimes() {
            let options = Options { runtime, prompts: PromptSyntax::Weighted, ..Options::default() };
            let mut pipeline = Pipeline::open(&folder().join(name), &options).expect("a model");
            let (order, settings) = (model.order(), model.settings());
            let found = pipeline.embed_all(&[order.prompt], Some(&settings.negative)).expect("embeddings");
            let (prompt, negative) = (found.0[0].clone(), found.1.expect("an embedding"));
            model.assert_close("embedding", &prompt.states);
            model.assert_close("negative_embedding", &negative.states);
            if !prompt.pooled.is_empty() {
                model.assert_close("pooled", &prompt.pooled);
                model.assert_close("negative_pooled", &negative.pooled);
            }
            let shape = pipeline.latent_shape(order.width, order.height).expect("a size");
            let (guidance, strength, negative) = (settings.guidance, settings.strength, Some(negative));
            let guide = Guide { prompt, negative, guidance, strength, references: Vec::new(), mask: None };
            let latent = pipeline.denoise(shape, order.seed, settings.steps, &guide, |_, _, _| Ok(()));
            model.assert_close("latent", &latent.expect("a latent picture").numbers);
            let picture = pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture");
            model.assert_picture("picture", &picture);
        }
    }
}
