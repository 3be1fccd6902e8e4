//! Text encoders with their tokenizers: CLIP for Stable Diffusion, Qwen3 for the transformers.

use std::path::{Path, PathBuf};

use tintype_engine::PromptSyntax;

use super::{part_config, weighted};
use crate::config::Config;
use crate::models::clip::Clip;
use crate::models::qwen3::Qwen3;
use crate::quantise::WeightPreparation;
use crate::runtime::{Input, PartKey, Sessions};
use crate::textual_inversion::{self, OwnWord, Piece};
use crate::tokenizer::{self, Thinking};
use crate::weights::Weights;
use crate::{Error, Result};

/// Most chunks of a prompt. Further ones are cut off.
const MAX_CHUNKS: usize = 16;

/// Rejects ids that aren't in the vocabulary, because the graph would read past the end of its table.
fn check_ids(ids: &[i32], vocabulary: usize) -> Result<()> {
    match ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= vocabulary)) {
        None => Ok(()),
        Some(id) => Err(Error::Model(format!(
            "the tokenizer gave the token {id}, but the text encoder knows only {vocabulary}; they are not of one model"
        ))),
    }
}

/// Checks that a transformer takes the numbers per token that the text encoder gives, and makes latent pictures of the
/// channels that the autoencoder takes.
pub(super) fn check_widths([text, image]: [usize; 2], [made, taken]: [usize; 2]) -> Result<()> {
    if text != image {
        return Err(Error::Model(format!(
            "the text encoder gives {text} numbers a token, but the transformer takes {image}"
        )));
    }
    if made != taken {
        return Err(Error::Model(format!(
            "the transformer makes latent pictures of {made} channels, the autoencoder takes {taken}"
        )));
    }
    Ok(())
}

/// Where a CLIP text encoder's tokenizer is.
#[derive(Debug)]
pub(super) enum ClipTokenizer {
    Folder(PathBuf),
    /// Built in, with a padding token.
    BuiltIn(&'static str),
}

#[derive(Debug)]
pub(super) struct ClipParts {
    pub config: Config,
    pub weights: Weights,
    pub tokenizer: ClipTokenizer,
}

impl ClipParts {
    pub(super) fn of_folder(folder: &Path, part: &str, tokenizer: &str) -> Result<Self> {
        Ok(Self {
            config: part_config(folder, part)?,
            weights: Weights::open_part(&folder.join(part), "model")?,
            tokenizer: ClipTokenizer::Folder(folder.join(tokenizer)),
        })
    }
}

#[derive(Debug)]
pub(super) struct ClipEncoder {
    /// Its name in a folder of `diffusers`.
    part: &'static str,
    tokenizer: tokenizer::Clip,
    pub clip: Clip,
    weights: Weights,
    /// Words that are replaced by vectors.
    words: Vec<OwnWord>,
}

/// What a CLIP text encoder reads at a time: a prompt, or a chunk of one.
#[derive(Debug)]
pub(super) struct Tokens<'a> {
    /// One for each place. A place with a vector has the token that begins a prompt, so that [`Clip::last`] never
    /// mistakes it for the end.
    pub ids: Vec<i32>,
    vectors: Vec<(usize, &'a [f32])>,
    /// The weight of each place.
    weights: Vec<f32>,
}

struct Place<'a> {
    id: i32,
    vector: Option<&'a [f32]>,
    weight: f32,
}

impl ClipEncoder {
    /// Compares the weights with the configuration, and tries out the tokenizer.
    pub(super) fn open(part: &'static str, ClipParts { config, weights, tokenizer }: ClipParts) -> Result<Self> {
        let clip = Clip::read(&config)?;
        let tokenizer = match tokenizer {
            ClipTokenizer::Folder(folder) => tokenizer::Clip::read(&folder, clip.tokens)?,
            ClipTokenizer::BuiltIn(padding) => tokenizer::Clip::built_in(padding, clip.tokens)?,
        };
        let encoder = Self { part, tokenizer, clip, weights, words: Vec::new() };
        encoder.tokens("", PromptSyntax::Plain)?;
        encoder.clip.graph(&encoder.weights)?;
        Ok(encoder)
    }

    /// This encoder with weights in the requested precision.
    pub(super) fn prepared(self, suit: &mut WeightPreparation<'_>) -> Result<Self> {
        let uses = self.clip.graph(&self.weights)?.uses;
        Ok(Self { weights: suit.weights(self.part, self.weights, &uses)?, ..self })
    }

    /// The number of prompt tokens that fit.
    pub(super) fn room(&self) -> usize {
        self.tokenizer.room()
    }

    /// This encoder with words to replace by vectors.
    pub(super) fn knowing(self, words: Vec<OwnWord>) -> Self {
        Self { words, ..self }
    }

    /// A prompt's tokens in chunks. Plain prompts have a single chunk.
    pub(super) fn tokens(&self, prompt: &str, syntax: PromptSyntax) -> Result<Vec<Tokens<'_>>> {
        let chunks = match syntax {
            PromptSyntax::Plain => vec![self.places(prompt, 1.0)?.into_iter().flatten().collect()],
            PromptSyntax::Weighted => self.chunks(prompt)?,
        };
        chunks.into_iter().map(|chunk| self.framed(&chunk)).collect()
    }

    /// The places of a prompt with emphasis, as many per chunk as fit. A word's vectors stay together.
    fn chunks(&self, prompt: &str) -> Result<Vec<Vec<Place<'_>>>> {
        let mut chunks = vec![Vec::new()];
        for (text, weight) in weighted::parts(prompt) {
            for group in self.places(&text, weight)? {
                if chunks.last().is_none_or(|chunk: &Vec<_>| chunk.len() + group.len() > self.room()) {
                    chunks.push(Vec::new());
                }
                if let Some(chunk) = chunks.last_mut() {
                    chunk.extend(group);
                }
            }
        }
        chunks.truncate(MAX_CHUNKS);
        Ok(chunks)
    }

    /// The places of a text: one for each token, or one group for a word's vectors.
    fn places(&self, text: &str, weight: f32) -> Result<Vec<Vec<Place<'_>>>> {
        let mut places = Vec::new();
        for piece in textual_inversion::pieces(text, &self.words) {
            match piece {
                Piece::Text(text) => {
                    let ids = self.tokenizer.pieces(text).into_iter();
                    places.extend(ids.map(|id| vec![Place { id, vector: None, weight }]));
                }
                Piece::Word(word) => {
                    let id = self.tokenizer.begin();
                    let vectors = word.vectors.iter().map(|vector| Place { id, vector: Some(vector), weight });
                    places.push(vectors.collect());
                }
            }
        }
        Ok(places)
    }

    /// As many places as fit between the tokens that begin and end a prompt.
    fn framed<'a>(&self, places: &[Place<'a>]) -> Result<Tokens<'a>> {
        let ids: Vec<_> = places.iter().map(|place| place.id).collect();
        let ids = self.tokenizer.framed(&ids);
        check_ids(&ids, self.clip.vocabulary)?;
        let (mut vectors, mut weights) = (Vec::new(), vec![1.0; ids.len()]);
        for (at, place) in places.iter().take(self.room()).enumerate() {
            weights[at + 1] = place.weight;
            vectors.extend(place.vector.map(|vector| (at + 1, vector)));
        }
        Ok(Tokens { ids, vectors, weights })
    }

    /// Outputs of [`Clip::graph`] for a prompt's chunks, one after the other. The first output must be the tokens'
    /// states, which are multiplied by the tokens' weights.
    pub(super) fn run<const N: usize>(
        &self,
        sessions: &Sessions,
        chunks: &[Tokens<'_>],
        outputs: [&str; N],
    ) -> Result<[Vec<f32>; N]> {
        let plain = self.words.is_empty();
        let graph = |_, _: &[usize]| match plain {
            true => self.clip.graph(&self.weights),
            false => self.clip.graph_with_vectors(&self.weights),
        };
        let key = PartKey { part: self.part, batch: 1, sizes: &[], examples: [(1, &[]); 2] };
        let session = sessions.of(key, graph)?;
        let (tokens, width) = (self.clip.tokens, self.clip.width);
        let shapes = [[tokens, 1], [tokens, width]];
        let mut all = [(); N].map(|()| Vec::new());
        for Tokens { ids, vectors, weights } in chunks {
            let (mut kept, mut rows) = (vec![1.0; tokens], vec![0.0; tokens * width]);
            for (place, vector) in vectors {
                kept[*place] = 0.0;
                rows[place * width..(place + 1) * width].copy_from_slice(vector);
            }
            let inputs = [
                ("ids", Input::Ids(ids)),
                ("kept", Input::Floats(&shapes[0], &kept)),
                ("vectors", Input::Floats(&shapes[1], &rows)),
            ];
            let mut found = session.run(if plain { &inputs[..1] } else { &inputs }, outputs)?;
            if let Some(states) = found.first_mut() {
                weighted::weigh(states, weights);
            }
            all.iter_mut().zip(found).for_each(|(all, found)| all.extend(found));
        }
        Ok(all)
    }
}

/// A text encoder that is a Qwen language model.
#[derive(Debug)]
pub(super) struct QwenEncoder {
    tokenizer: tokenizer::Qwen,
    pub qwen: Qwen3,
    /// The model's files, for the embedding table: weights in 8 bits don't include it.
    words: Weights,
    weights: Weights,
}

/// The parts of a model with such a text encoder, wherever they are stored.
#[derive(Debug)]
pub(super) struct QwenParts {
    pub index: Config,
    pub encoder: (Config, Weights),
    /// The tokenizer's folder, unless the built-in one is used.
    pub tokenizer: Option<PathBuf>,
    pub transformer: (Config, Weights),
    pub vae: (Config, Weights),
    pub scheduler: Config,
}

impl QwenParts {
    pub(super) fn of_folder(folder: &Path, index: Config) -> Result<Self> {
        let part = |name: &str, stem: &str| -> Result<_> {
            Ok((part_config(folder, name)?, Weights::open_part(&folder.join(name), stem)?))
        };
        Ok(Self {
            index,
            encoder: part("text_encoder", "model")?,
            tokenizer: Some(folder.join("tokenizer")),
            transformer: part("transformer", "diffusion_pytorch_model")?,
            vae: part("vae", "diffusion_pytorch_model")?,
            scheduler: Config::read(&folder.join("scheduler").join("scheduler_config.json"))?,
        })
    }
}

impl QwenEncoder {
    /// Compares the embedding table with the configuration and the tokenizer. Prompts have at most `length` tokens.
    pub(super) fn open(
        (config, weights): (Config, Weights),
        tokenizer: Option<&Path>,
        length: usize,
        thinking: Thinking,
    ) -> Result<Self> {
        let tokenizer = match tokenizer {
            Some(folder) => tokenizer::Qwen::read(folder, length, thinking)?,
            None => tokenizer::Qwen::built_in(length, thinking)?,
        };
        let encoder = Self { qwen: Qwen3::read(&config)?, tokenizer, words: weights.clone(), weights };
        encoder.qwen.words(&encoder.words, &encoder.tokens("")?)?;
        check_ids(&[encoder.tokenizer.padding()], encoder.qwen.vocabulary)?;
        Ok(encoder)
    }

    /// This encoder with weights in the requested precision. `length` and `layers` have the same meaning as in
    /// [`QwenEncoder::states`].
    pub(super) fn prepared(self, suit: &mut WeightPreparation<'_>, length: usize, layers: &[usize]) -> Result<Self> {
        let uses = self.qwen.graph(&self.weights, length, layers)?.uses;
        Ok(Self { weights: suit.weights("text_encoder", self.weights, &uses)?, ..self })
    }

    pub(super) fn tokens(&self, prompt: &str) -> Result<Vec<i32>> {
        let ids = self.tokenizer.encode(prompt);
        check_ids(&ids, self.qwen.vocabulary)?;
        Ok(ids)
    }

    /// The states after some layers, one row for each token of a prompt, which is padded to `length` if given. A token
    /// sees only earlier tokens, so padding changes nothing but the number of rows.
    pub(super) fn states<const N: usize>(
        &self,
        sessions: &Sessions,
        prompt: &str,
        length: Option<usize>,
        layers: [usize; N],
    ) -> Result<[Vec<f32>; N]> {
        let mut ids = self.tokens(prompt)?;
        let length = length.unwrap_or(ids.len());
        let mask = Qwen3::mask(ids.len(), length);
        ids.resize(length, self.tokenizer.padding());
        let words = self.qwen.words(&self.words, &ids)?;
        let examples = [(1, [5].as_slice()), (1, [11].as_slice())];
        let key = PartKey { part: "text_encoder", batch: 1, sizes: &[length], examples };
        let session = sessions.of(key, |_, sizes| self.qwen.graph(&self.weights, sizes[0], &layers))?;
        let shapes = ([length, self.qwen.width], [1, 1, 1, length]);
        let inputs = [("words", Input::Floats(&shapes.0, &words)), ("mask", Input::Floats(&shapes.1, &mask))];
        let outputs = layers.map(|layer| format!("layer.{layer}"));
        session.run(&inputs, outputs.each_ref().map(String::as_str))
    }
}
