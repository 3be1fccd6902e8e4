//! Models with embeddings of textual inversion.

use tintype_diffusion::{Options, Pipeline, Settings, TextualInversion};

use crate::parity::rig::{Model, folder, json, runtimes};

#[test]
fn pictures_with_embeddings_are_those_of_diffusers() {
    for case in json("textual_inversion/expected.json").as_array().expect("a list") {
        let files = case["embeddings"].as_array().expect("a list").iter();
        let embeddings = files.map(|file| TextualInversion {
            path: folder().join("textual_inversion").join(file["file"].as_str().expect("a name")),
            word: file["word"].as_str().map(str::to_owned),
        });
        let embeddings: Vec<_> = embeddings.collect();
        let name = case["model"].as_str().expect("a name");
        println!("{name}: {}", case["prompt"]);
        let model = Model { name: "textual_inversion", expected: case.clone() };
        for runtime in runtimes() {
            let options = Options { runtime, embeddings: embeddings.clone(), ..Options::default() };
            let mut pipeline = Pipeline::open(&folder().join(name), &options).expect("a model");
            let order = model.order();
            let settings = Settings { strength: 1.0, ..model.settings() };
            let prompt = pipeline.embed(order.prompt).expect("an embedding");
            model.assert_close("embedding", &prompt.states);
            if !settings.negative.is_empty() {
                let negative = pipeline.embed_negative(&settings.negative, &prompt).expect("an embedding");
                model.assert_close("negative", &negative.states);
            }
            if !prompt.pooled.is_empty() {
                model.assert_close("pooled", &prompt.pooled);
            }
            model.assert_last(&mut pipeline, &order, &settings);
        }
    }
}
