//! The models that `tintype model pull` knows by name.

use std::sync::LazyLock;

use serde::Deserialize;
use tintype_diffusion::pipelines::KNOWN;

/// The parts of a repository that is not in the catalogue: those that any pipeline of this release reads.
const ALL_PARTS: [&str; 8] =
    ["scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "unet", "vae"];

/// The classes of pipelines that compute in 8 bits unless `--engine-precision` says otherwise.
const IN_8_BITS: [&str; 2] = ["Flux2KleinPipeline", "ZImagePipeline"];

static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("catalogue.toml")).expect("a test reads the catalogue"));

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    model: Vec<CatalogueModel>,
}

/// A model of the catalogue.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    /// Its name.
    pub name: String,
    /// The class of its pipeline, as `model_index.json` names it; of a single part, the class of that part.
    pub pipeline: String,
    /// The family for people.
    pub family: String,
    /// Owner and name of its repository.
    pub repository: String,
    /// The commit that is fetched.
    pub commit: String,
    /// Its licence.
    pub licence: OfferedLicence,
    /// Size of its download in 10^9 bytes, about.
    pub disk_gb: f64,
    /// Memory that a render needs in 10^9 bytes, about.
    pub memory_gb: f64,
    /// Usual steps of a render.
    pub steps: u32,
    /// Most reference images.
    pub max_references: usize,
    /// Seconds of one processor core for a picture of 512x512, about; `None` where nothing like it was measured.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// The folders of the repository that are fetched; the empty one is its root.
    pub parts: Vec<String>,
}

/// The licence of a model of the catalogue.
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

/// Whether this release renders with models of this class of pipeline.
pub fn is_usable(pipeline: &str) -> bool {
    KNOWN.contains(&pipeline)
}

/// Whether models of this class of pipeline compute in 8 bits unless the settings say otherwise.
pub fn is_in_8_bits(pipeline: &str) -> bool {
    IN_8_BITS.contains(&pipeline)
}

impl CatalogueModel {
    /// Bytes of its download, about.
    pub fn disk_bytes(&self) -> u64 {
        (self.disk_gb * 1e9) as u64
    }

    /// Bytes of memory that a render needs, about.
    pub fn memory_bytes(&self) -> u64 {
        (self.memory_gb * 1e9) as u64
    }
}

/// All models of the catalogue, the recommended one first.
pub fn models() -> &'static [CatalogueModel] {
    &CATALOGUE.model
}

/// The model of this name.
pub fn find(name: &str) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| model.name == name)
}

/// The folders that are fetched of a repository that is not in the catalogue.
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
