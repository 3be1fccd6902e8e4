//! Z-Image.

use tintype_diffusion::models::z_image::ZImage;
use tintype_diffusion::runtime::Input;

use crate::parity::rig::Model;

#[test]
fn every_block_of_the_transformer_gives_the_same_numbers() {
    let model = Model::new("z_image");
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
