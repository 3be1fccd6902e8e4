//! The models that `tintype model pull` knows by name.

use std::sync::LazyLock;

use serde::Deserialize;
use tintype_diffusion::pipelines::KNOWN;

/// The parts downloaded from a repository outside the catalogue: all parts that this release's pipelines read.
const ALL_PARTS: [&str; 8] =
    ["scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "unet", "vae"];

/// Pipeline classes that compute in 8 bits, unless `--engine-precision` says otherwise.
const IN_8_BITS: [&str; 2] = ["Flux2KleinPipeline", "ZImagePipeline"];

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("catalogue.toml")).expect("a test reads the catalogue"));

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    model: Vec<CatalogueModel>,
}

/// A model in the catalogue.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    /// Its name.
    pub name: String,
    /// Its pipeline's class, as in `model_index.json`; for a single part, the part's class.
    pub pipeline: String,
    /// The family's display name.
    pub family: String,
    /// Its repository's owner and name.
    pub repository: String,
    /// The commit to download.
    pub commit: String,
    /// Its licence.
    pub licence: OfferedLicence,
    /// Approximate download size in 10^9 bytes.
    pub disk_gb: f64,
    /// Approximate memory for a render in 10^9 bytes.
    pub memory_gb: f64,
    /// Default steps per render.
    pub steps: u32,
    /// Most reference images.
    pub max_references: usize,
    /// Approximate seconds of one processor core for a 512x512 picture; `None` if nothing similar was measured.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// The repository folders to download; the empty name is its root.
    pub parts: Vec<String>,
}

/// A catalogue model's licence.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedLicence {
    /// Its usual name.
    pub name: String,
    /// Where its text is.
    pub url: String,
    /// Whether it allows commercial use.
    pub commercial: bool,
}

/// Whether this release can render with models of this pipeline class.
pub fn is_usable(pipeline: &str) -> bool {
    KNOWN.contains(&pipeline)
}

/// Whether models of this pipeline class compute in 8 bits by default.
pub fn is_in_8_bits(pipeline: &str) -> bool {
    IN_8_BITS.contains(&pipeline)
}

impl CatalogueModel {
    /// Approximate download size in bytes.
    pub fn disk_bytes(&self) -> u64 {
        (self.disk_gb * 1e9) as u64
    }

    /// Approximate memory for a render in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gb * 1e9) as u64
    }
}

/// All models in the catalogue, the recommended one first.
pub fn models() -> &'static [CatalogueModel] {
    &CATALOGUE.model
}

/// The model with this name.
pub fn find(name: &str) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| model.name == name)
}

/// The folders downloaded from a repository outside the catalogue.
pub fn all_parts() -> Vec<String> {
    ALL_PARTS.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_can_be_read_and_its_names_and_commits_are_well_formed() {
        assert!(models().len() > 5);
        for CatalogueModel { name, commit, licence, disk_gb, repository, parts, .. } in models() {
            assert!(crate::models::is_name(name), "{name}");
            assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
            assert!(licence.url.starts_with("https://") && *disk_gb > 0.0 && !parts.is_empty(), "{name}");
            assert_eq!(repository.split('/').count(), 2, "{name}");
        }
        let names: std::collections::BTreeSet<_> = models().iter().map(|model| &model.name).collect();
        assert_eq!(names.len(), models().len());
    }
}
