//! Weighted prompts, however long and odd.

use tintype_diffusion::{Error, Options, Order, Pipeline, TextualInversion};
use tintype_engine::{CancellationToken, PromptSyntax};

use crate::fixtures::fixture;

fn options() -> Options {
    Options { prompts: PromptSyntax::Weighted, ..Options::default() }
}

fn weighted(name: &str) -> Pipeline {
    Pipeline::open(&fixture(name), &options()).expect("a model")
}

#[test]
fn plain_prompts_do_not_know_brackets() {
    let mut plain = Pipeline::open(&fixture("sd15"), &Options::default()).expect("a model");
    let mut weighted = weighted("sd15");
    let mut embed = |prompt: &str| {
        let embed = |pipeline: &mut Pipeline| pipeline.embed(prompt).expect("an embedding");
        (embed(&mut plain), embed(&mut weighted))
    };
    for prompt in ["", "a fox", "16:9"] {
        let (plain, weighted) = embed(prompt);
        assert_eq!(plain, weighted, "{prompt}");
    }
    for prompt in ["a (fox:1.3)", "a [fox]", r"a \(fox\)"] {
        let (plain, weighted) = embed(prompt);
        assert_ne!(plain, weighted, "{prompt}");
    }
    let (plain, weighted) = embed(&"fox ".repeat(200));
    assert!(plain.states.len() < weighted.states.len());
}

#[test]
fn prompts_of_any_length_make_pictures() {
    for name in ["sd15", "sdxl"] {
        let mut pipeline = weighted(name);
        let settings = tintype_diffusion::Settings { steps: 1, guidance: 3.0, ..pipeline.traits().settings() };
        for prompt in ["(fox ".repeat(3_000), "(fox:0)".repeat(40), ")(:[]\\".repeat(90), "(a:99999999999)".into()] {
            let most = 16 * 77;
            assert!(pipeline.tokens(&prompt).expect("tokens").len() <= most, "{name}");
            let order = Order { prompt: &prompt, width: 64, height: 64, seed: 3, references: &[], mask: None };
            pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture");
        }
        let order = |prompt| Order { prompt, width: 64, height: 64, seed: 3, references: &[], mask: None };
        let long = "a fox in the snow ".repeat(40);
        let orders = [order("a fox"), order(&long)];
        pipeline.render_batch(&orders, &settings, |_| {}, &CancellationToken::new()).expect("pictures");
    }
}

#[test]
fn the_vectors_of_a_word_stay_in_one_chunk() {
    let file = TextualInversion { path: fixture("textual_inversion/badhands.safetensors"), word: None };
    let options = Options { embeddings: vec![file], ..options() };
    let pipeline = Pipeline::open(&fixture("sd15"), &options).expect("a model");
    let tokens = pipeline.tokens(&format!("{}(badhands:1.2)", "a ".repeat(73))).expect("tokens");
    assert_eq!(tokens.len(), 2 * 77);
    assert_eq!(tokens[77..81], [tokens[0]; 4], "begin and three vectors");
    assert_ne!(tokens[74], tokens[0]);
}

#[test]
fn other_families_are_refused() {
    for name in ["klein", "z_image"] {
        let error = Pipeline::open(&fixture(name), &options()).err();
        assert!(
            matches!(&error, Some(Error::Setting(text)) if text.contains("Stable Diffusion 1, 2 and XL")),
            "{error:?}"
        );
    }
}
