//! FLUX.2 klein.

use tempfile::TempDir;
use tintype_diffusion::models::flux2::Flux2;
use tintype_diffusion::models::qwen3::Qwen3;
use tintype_diffusion::models::vae::Vae;
use tintype_diffusion::runtime::Input;
use tintype_diffusion::{Order, Settings};
use tintype_engine::Picture;

use crate::parity::rig::{Model, TOLERANCE, assert_within, count, floats, picture, pipelines_of};

/// Tokens of every prompt.
const TOKENS: usize = 512;

fn model() -> Model {
    Model::new("klein")
}

/// The recorded references, the large one last.
fn references(model: &Model) -> Vec<Picture> {
    let sizes = model.expected["references"].as_array().expect("a list").iter().map(floats);
    sizes.map(|size| picture(size[0] as usize, size[1] as usize)).collect()
}

#[test]
fn the_text_encoder_gives_the_same_numbers() {
    let model = model();
    let mut ids = model.pipeline().tokens(model.prompt()).expect("tokens");
    let mask = Qwen3::mask(ids.len(), TOKENS);
    // The padding of this tokenizer is the first special token.
    let config = model.config("text_encoder");
    ids.resize(TOKENS, count(config.get("vocab_size").expect("a number")) as i32 - 5);
    let encoder = Qwen3::read(&config).expect("a text encoder");
    let weights = model.weights("text_encoder");
    let words = encoder.words(&weights, &ids).expect("embeddings");
    let graph = encoder.graph(&weights, TOKENS, &[9, 18, 27]).expect("a graph");
    let (words_shape, mask_shape) = ([TOKENS, encoder.width], [1, 1, 1, TOKENS]);
    let inputs = [("words", Input::Floats(&words_shape, &words)), ("mask", Input::Floats(&mask_shape, &mask))];
    model.assert_part("text.", graph, &inputs);
}

#[test]
fn every_block_of_the_transformer_gives_the_same_numbers() {
    let model = model();
    let mut transformer = Flux2::read(&model.config("transformer")).expect("a transformer");
    let (shape, latent) = model.latent(transformer.channels, 16);
    let (weights, size) = (model.weights("transformer"), [shape[2], shape[3]]);
    let area = shape[2] * shape[3];
    let rows: Vec<_> = (0..area).flat_map(|at| latent.iter().skip(at).step_by(area)).copied().collect();
    // All rows at a time, and parts of them, of which the last is shorter.
    for most in [transformer.rows_at_a_time, 7] {
        transformer.rows_at_a_time = most;
        let graph = transformer.graph(&weights, size, &[], TOKENS).expect("a graph");
        let pictures = ("pictures", Input::Floats(&[area, shape[1]], &rows));
        model.assert_transformer(graph, pictures, &transformer.embed_time(801.0), transformer.context);
    }
}

#[test]
fn every_block_of_the_autoencoder_gives_the_same_numbers() {
    let model = model();
    let vae = Vae::read(&model.config("vae")).expect("an autoencoder");
    let weights = model.weights("vae");
    let (width, height) = model.size();
    let seen = picture(width, height);
    let planes = (0..3).flat_map(|plane| seen.as_rgb()[plane..].iter().step_by(3));
    let planes: Vec<_> = planes.map(|byte| f32::from(*byte) / 127.5 - 1.0).collect();
    let graph = vae.encoder_graph(&weights, height, width).expect("a graph");
    model.assert_part("encoder.", graph, &[("picture", Input::Floats(&[1, 3, height, width], &planes))]);

    // The recorded latent picture has 2x2 pixels in the channels of one.
    let ([_, channels, rows, columns], patched) = model.latent(vae.channels * 4, 16);
    let mut latent = vec![0.0; patched.len()];
    for (at, number) in patched.into_iter().enumerate() {
        let (channel, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
        let (row, column) = (row * 2 + channel / 2 % 2, column * 2 + channel % 2);
        latent[(channel / 4 * rows * 2 + row) * columns * 2 + column] = number;
    }
    let graph = vae.graph(&weights, rows * 2, columns * 2).expect("a graph");
    let shape = [1, channels / 4, rows * 2, columns * 2];
    model.assert_part("vae.", graph, &[("latent", Input::Floats(&shape, &latent))]);
}

#[test]
fn references_are_seen_the_same() {
    let model = model();
    let mut pipeline = model.pipeline();
    for (number, reference) in references(&model).iter().enumerate() {
        let latent = pipeline.look(reference, [0; 3]).expect("a latent picture");
        let expected = &model.expected["values"][format!("look.{number}")];
        // Pillow scales in another order of the sides: steep edges of a picture that is scaled down differ a little.
        let scaled = reference.width() * reference.height() > 1024 * 1024;
        assert_within(&format!("look.{number}"), &latent.numbers, expected, if scaled { 0.05 } else { TOLERANCE });
    }
}

#[test]
fn every_step_with_references_and_the_picture_are_the_same() {
    let model = model();
    let mut references = references(&model);
    references.pop();
    let order = Order { references: &references, ..model.order() };
    model.assert_run("references.", model.pipelines(), &order, &model.settings());
}

#[test]
fn every_step_of_a_model_with_guidance_and_the_picture_are_the_same() {
    let model = model();
    let folder = TempDir::new().expect("a folder");
    for part in ["text_encoder", "transformer", "vae", "tokenizer", "scheduler"] {
        std::os::unix::fs::symlink(model.path(part), folder.path().join(part)).expect("a link");
    }
    let index = std::fs::read_to_string(model.path("model_index.json")).expect("a file");
    let base = index.replace("\"is_distilled\": true", "\"is_distilled\": false");
    assert_ne!(base, index);
    std::fs::write(folder.path().join("model_index.json"), base).expect("a file");
    let settings = Settings { guidance: 3.5, ..model.settings() };
    model.assert_run("base.", pipelines_of(folder.path()), &model.order(), &settings);
}
