//! Models with LoRA files.

use tempfile::TempDir;
use tintype_diffusion::{Lora, Options, Pipeline, Settings};

use crate::parity::rig::{Model, folder, json, runtimes};
use crate::parity::whole_file::write_whole_file;

#[test]
fn pictures_with_loras_are_those_of_diffusers() {
    for case in json("lora/expected.json").as_array().expect("a list") {
        let made = TempDir::new().expect("a folder");
        let name = case["model"].as_str().expect("a name");
        let path = match name.strip_prefix("single/") {
            None => folder().join(name),
            Some(name) => {
                let path = made.path().join("model.safetensors");
                write_whole_file(&folder(), name, &path);
                path
            }
        };
        let loras = case["loras"].as_array().expect("a list").iter().map(|lora| Lora {
            path: folder().join("lora").join(lora["file"].as_str().expect("a name")),
            weight: lora["weight"].as_f64().expect("a number"),
        });
        let loras: Vec<_> = loras.collect();
        println!("{name} with {}", case["loras"]);
        let model = Model { name: "lora", expected: case.clone() };
        let (cache, [first, second]) = (Some(made.path().join("cache")), runtimes());
        // Merged in memory, merged into a file, and from that file, which has nothing of the runtime that wrote it.
        for (runtime, cache) in [(&first, None), (&first, cache.clone()), (&second, cache), (&second, None)] {
            let options = Options { runtime: runtime.clone(), loras: loras.clone(), cache, ..Options::default() };
            assert_case(&model, Pipeline::open(&path, &options).expect("a model"));
        }
    }
}

fn assert_case(model: &Model, mut pipeline: Pipeline) {
    let order = model.order();
    let settings = Settings { strength: 1.0, ..model.settings() };
    if model.expected["values"]["embedding"].is_object() {
        let embedding = pipeline.embed(order.prompt).expect("an embedding");
        model.assert_close("embedding", &embedding.states);
    }
    model.assert_last(&mut pipeline, &order, &settings);
}
