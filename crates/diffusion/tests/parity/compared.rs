//! How far a model in other numbers is from the same in 32 bits, down to its picture.

use std::path::Path;

use tintype_diffusion::quantise::WeightPreparation;
use tintype_diffusion::{Difference, Options, Order, Pipeline, Precision, compare};
use tintype_engine::{CancellationToken, Picture};

/// The differences of the embedding and of the first answer, and the mean over all colours of the picture, of 255.
pub fn compared(folder: &Path, suit: WeightPreparation<'_>) -> [f64; 3] {
    let order = Order { prompt: "a fox", width: 64, height: 64, seed: 3, references: &[], mask: None };
    let wide = Options { precision: Precision::F32, cache: None, ..suit.options.clone() };
    let mut wide = Pipeline::open(folder, &wide).expect("a model");
    let settings = wide.traits().settings();
    let never = CancellationToken::new();
    let rules = suit.rules;
    let again = WeightPreparation { options: suit.options, rules, progress: &mut *suit.progress };
    let Difference { prompt, answer } = compare(folder, again, &order, &settings, &never).expect("a difference");
    let mut narrow = Pipeline::open_with(folder, suit).expect("a model");
    let render = |pipeline: &mut Pipeline| pipeline.render(&order, &settings, |_| {}, &never).expect("a picture");
    let pictures = [render(&mut wide), render(&mut narrow)];
    let [wide, narrow] = pictures.each_ref().map(Picture::as_rgb);
    let gaps: u64 = wide.iter().zip(narrow).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    [prompt, answer, gaps as f64 / wide.len() as f64]
}
