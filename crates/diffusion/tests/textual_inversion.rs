//! Embeddings of textual inversion that come from strangers.

use safetensors::Dtype::{self, F16, F32, I32};
use tempfile::TempDir;
use tintype_diffusion::{Error, Options, Pipeline, TextualInversion};

use crate::fixtures::{fixture, tensor, write};

/// A tensor for a file: its name, its type and its sizes.
type Tensor<'a> = (&'a str, Dtype, &'a [usize]);

struct Case {
    folder: TempDir,
    number: f32,
}

impl Case {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder"), number: 0.5 }
    }

    fn write(&self, name: &str, tensors: &[Tensor<'_>]) -> TextualInversion {
        let path = self.folder.path().join(name);
        let tensors = tensors.iter();
        let tensors = tensors.map(|(name, dtype, shape)| ((*name).to_owned(), tensor(*dtype, shape, &[self.number])));
        write(&path, &tensors.collect());
        TextualInversion { path, word: None }
    }
}

fn open(name: &str, embeddings: &[TextualInversion]) -> tintype_diffusion::Result<Pipeline> {
    Pipeline::open(&fixture(name), &Options { embeddings: embeddings.to_vec(), ..Options::default() })
}

/// The message with which a model refuses to open.
fn refusal(name: &str, embeddings: &[TextualInversion]) -> String {
    match open(name, embeddings) {
        Err(Error::Embedding(message)) => message,
        other => panic!("{name}: {:?}", other.err()),
    }
}

fn assert_names(message: &str, words: &[&str]) {
    let missing: Vec<_> = words.iter().filter(|word| !message.contains(**word)).collect();
    assert!(missing.is_empty(), "{message:?} lacks {missing:?}");
    println!("{message}");
}

fn refused(name: &str, tensors: &[Tensor<'_>], words: &[&str]) {
    let message = refusal(name, &[Case::new().write("some.safetensors", tensors)]);
    assert_names(&message, &[words, &["some.safetensors"]].concat());
}

#[test]
fn an_embedding_of_another_family_is_refused_with_both_dimensions() {
    let foreign = "another family";
    let of_xl: &[Tensor<'_>] = &[("clip_l", F32, &[2, 8]), ("clip_g", F32, &[2, 12])];
    open("sdxl", &[Case::new().write("some.safetensors", of_xl)]).expect("a model");
    let other: &[Tensor<'_>] = &[("text_encoders_0", F32, &[2, 8]), ("text_encoders_1", F32, &[2, 12])];
    open("sdxl", &[Case::new().write("some.safetensors", other)]).expect("a model");
    refused("sd15", of_xl, &["8 and 12", "takes 16", foreign]);
    refused("sd15", &[("emb_params", F32, &[2, 1024])], &["emb_params", "1024", "takes 16", foreign]);
    refused("sd15", &[("<word>", F16, &[8])], &["<word>", "vectors of 8", "takes 16", foreign]);
    refused("sdxl", &[("emb_params", F32, &[2, 8])], &["one text encoder", "8 and 12", foreign]);
    refused("sdxl", &[("clip_l", F32, &[2, 768]), ("clip_g", F32, &[2, 1280])], &["clip_l", "768", "takes 8"]);
    refused("klein", &[("emb_params", F32, &[2, 16])], &["Stable Diffusion 1, 2 and XL"]);
    refused("z_image", &[("emb_params", F32, &[2, 16])], &["Stable Diffusion 1, 2 and XL"]);
}

#[test]
fn a_file_that_is_not_an_embedding_is_refused() {
    refused("sd15", &[], &["0 tensors", "not an embedding"]);
    refused("sd15", &[("a", F32, &[1, 16]), ("b", F32, &[1, 16])], &["2 tensors", "not an embedding"]);
    refused("sdxl", &[("a", F32, &[1, 8]), ("b", F32, &[1, 12])], &["2 tensors", "clip_l and clip_g"]);
    refused("sd15", &[("a", F32, &[1, 1, 16])], &["[1, 1, 16]", "not an embedding"]);
    refused("sd15", &[("a", F32, &[])], &["[]", "not an embedding"]);
    refused("sd15", &[("a", I32, &[1, 16])], &["I32", "F16"]);
    refused("sd15", &[("a", F32, &[0, 16])], &["0 vectors"]);
    refused("sd15", &[("a", F16, &[76, 16])], &["76 vectors", "1 to 75"]);
    refused("sdxl", &[("clip_l", F32, &[2, 8]), ("clip_g", F32, &[3, 12])], &["different numbers", "damaged"]);
    for number in [f32::NAN, f32::INFINITY] {
        let case = Case { number, ..Case::new() };
        let found = refusal("sd15", &[case.write("some.safetensors", &[("a", F32, &[1, 16])])]);
        assert_names(&found, &["some.safetensors", "not finite"]);
    }
}

#[test]
fn pickles_and_damaged_files_are_refused() {
    let folder = TempDir::new().expect("a folder");
    for (name, content, word) in [
        ("hands.pt", &b"PK\x03\x04"[..], "convert it to safetensors"),
        ("hands.bin", b"", "convert it to safetensors"),
        ("hands.safetensors", b"PK\x03\x04", "convert it to safetensors"),
        ("hands.safetensors", b"{}", "damaged"),
        ("hands.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff{}", "damaged"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a file");
        assert_names(&refusal("sd15", &[TextualInversion { path, word: None }]), &[name, word]);
    }
    let missing = TextualInversion { path: folder.path().join("none.safetensors"), word: None };
    assert_names(&refusal("sd15", &[missing]), &["none.safetensors", "cannot read"]);
}

#[test]
fn words_are_of_their_own() {
    let case = Case::new();
    let file = |name: &str, word: Option<&str>| {
        let word = word.map(str::to_owned);
        TextualInversion { word, ..case.write(name, &[("emb_params", F32, &[1, 16])]) }
    };
    let message = refusal("sd15", &[file("hands.safetensors", None), file("b.safetensors", Some("HANDS"))]);
    assert_names(&message, &["b.safetensors", "\"hands\"", "another"]);
    for word in ["", "  ", "a\nb", &"x".repeat(101)] {
        let message = refusal("sd15", &[file("hands.safetensors", Some(word))]);
        assert_names(&message, &["hands.safetensors", "FILE=WORD"]);
    }
    let many: Vec<_> = (0..65).map(|number| file("hands.safetensors", Some(&format!("w{number}")))).collect();
    assert_names(&refusal("sd15", &many), &["65", "64"]);
    open("sd15", &many[..64]).expect("a model");
}

#[test]
fn a_prompt_without_the_word_stays_as_it_was() {
    let case = Case::new();
    let file = case.write("hands.safetensors", &[("emb_params", F32, &[4, 16])]);
    let mut pipeline = open("sd15", std::slice::from_ref(&file)).expect("a model");
    let mut plain = open("sd15", &[]).expect("a model");
    let plain_of = |plain: &mut Pipeline, prompt| plain.embed(prompt).expect("an embedding").states;
    for prompt in ["", "a fox", "handsome"] {
        assert_eq!(pipeline.embed(prompt).expect("an embedding").states, plain_of(&mut plain, prompt), "{prompt}");
    }
    for prompt in ["hands", "HANDS", "a fox with hands"] {
        assert_ne!(pipeline.embed(prompt).expect("an embedding").states, plain_of(&mut plain, prompt), "{prompt}");
    }
    let tokens = pipeline.tokens("hands a").expect("tokens");
    assert_eq!(tokens[..5], [tokens[0]; 5], "four vectors after the begin");
}
