//! Which files of a repository to download: those that a pipeline reads, and never any that contain code.

use std::collections::BTreeMap;

use tintype_diffusion::variants::{Layout, unread};

use super::INDEX;
use super::manifest::{MAX_FILES, check_path};

/// A tokenizer's files that aren't JSON. The chat template is compared and never run.
const TEXTS: [&str; 2] = ["merges.txt", "chat_template.jinja"];
/// Names of weights files without variant and shard.
const WEIGHTS: [&str; 2] = ["model", "diffusion_pytorch_model"];
/// Most file names in an error, and most bytes in each.
const MAX_NAMES: usize = 5;
const MAX_NAME: usize = 255;
/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// A repository's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path, as written by the hub.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its content's SHA-256, if the hub knows it.
    pub sha256: Option<String>,
    /// Git's SHA-1 of its content, if the hub stores it in git itself.
    pub git_sha1: Option<String>,
}

/// Selects the files of `parts` to download, sorted by path. With `every`, all parts must be there.
///
/// # Errors
/// A message for the operator: something is missing, or a name, length or checksum cannot be used.
pub fn select(files: &[RemoteFile], parts: &[String], every: bool) -> Result<Vec<RemoteFile>, String> {
    let mut chosen: BTreeMap<&str, &RemoteFile> = BTreeMap::new();
    let mut take = |file| match chosen.insert(RemoteFile::path(file), file) {
        Some(_) => Err(format!("the hub names {:?} twice", file.path)),
        None => Ok(()),
    };
    let is_single = parts.iter().any(String::is_empty);
    if !is_single {
        let index = files.iter().filter(|file| file.path == INDEX).collect::<Vec<_>>();
        if index.is_empty() {
            return Err(without_index(files));
        }
        index.into_iter().try_for_each(&mut take)?;
    }
    for part in parts {
        let inside: Vec<_> = files.iter().filter_map(|file| Some((name_in(file, part)?, file))).collect();
        let is_there = |wanted: &str| inside.iter().any(|(name, _)| *name == wanted);
        let weights = WEIGHTS.into_iter().find_map(|stem| Layout::choose(stem, is_there));
        let others = inside.iter().map(|(name, _)| *name);
        if let Some(other) = unread(&WEIGHTS, others).filter(|_| weights.is_none()) {
            let of = if part.is_empty() { "its weights".to_owned() } else { format!("the weights of {part:?}") };
            return Err(format!("the repository holds {of} as {other}"));
        }
        let mut found = false;
        for (name, file) in inside {
            if is_settings(name, part) || weights.is_some_and(|weights| weights.holds(name)) {
                take(file)?;
                found = true;
            }
        }
        if every && !found {
            return Err(format!("the repository holds nothing of the part {part:?}"));
        }
    }
    if !chosen.keys().any(|path| path.ends_with(".safetensors")) {
        return Err("the repository holds no weights as safetensors; other formats are not fetched".into());
    }
    if chosen.len() > MAX_FILES {
        return Err(format!("the repository has {} files to fetch; at most {MAX_FILES} are allowed", chosen.len()));
    }
    chosen.values().try_for_each(|file| file.check())?;
    Ok(chosen.into_values().cloned().collect())
}

/// The error for a repository that isn't in diffusers format. It may contain models in single files.
fn without_index(files: &[RemoteFile]) -> String {
    let singles: Vec<_> = files.iter().filter(|file| is_single_file(&file.path)).collect();
    if singles.is_empty() {
        return format!("the repository holds no {INDEX}: only models as diffusers lays them out can be used");
    }
    let names: Vec<_> = singles.iter().take(MAX_NAMES).map(|file| format!("{:?}", file.path)).collect();
    let more = singles.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "the repository holds no {INDEX}, but single files ({}{more}): download one, and `tintype model add` it",
        names.join(", ")
    )
}

/// Whether a file in the root could be a complete model.
fn is_single_file(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/') && path.len() <= MAX_NAME
}

/// The name of a file directly in the folder `part`.
fn name_in<'a>(file: &'a RemoteFile, part: &str) -> Option<&'a str> {
    let name = if part.is_empty() { &file.path } else { file.path.strip_prefix(part)?.strip_prefix('/')? };
    (!name.contains('/')).then_some(name)
}

/// Whether a file configures a part: JSON, or a tokenizer's text file.
fn is_settings(name: &str, part: &str) -> bool {
    let of_tokenizer = part.starts_with("tokenizer");
    (of_tokenizer && (name.ends_with(".json") || TEXTS.contains(&name)))
        || ["config.json", "scheduler_config.json"].contains(&name)
}

impl RemoteFile {
    fn path(&self) -> &str {
        &self.path
    }

    fn check(&self) -> Result<(), String> {
        check_path(&self.path).map_err(|reason| format!("the hub {reason}"))?;
        if self.bytes == 0 || self.bytes > MAX_FILE_BYTES {
            return Err(format!("the hub gives {} as the length of {}", self.bytes, self.path));
        }
        if self.sha256.is_none() && self.git_sha1.is_none() {
            return Err(format!("the hub gives no checksum of {}, so it cannot be verified", self.path));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RemoteFile> {
        let file = |path: &&str| RemoteFile {
            path: (*path).to_owned(),
            bytes: 1,
            sha256: Some("00".repeat(32)),
            git_sha1: None,
        };
        paths.iter().map(file).collect()
    }

    fn chosen(paths: &[&str], parts: &[&str]) -> Result<Vec<String>, String> {
        let parts: Vec<_> = parts.iter().map(|part| (*part).to_owned()).collect();
        Ok(select(&files(paths), &parts, true)?.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn one_variant_of_the_weights_is_fetched_and_no_code() {
        let repository = [
            "README.md",
            "model_index.json",
            "pipeline.py",
            "unet/config.json",
            "unet/diffusion_pytorch_model.bin",
            "unet/diffusion_pytorch_model.safetensors",
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "unet/diffusion_pytorch_model.non_ema.safetensors",
            "unet/code.py",
            "unet/more/config.json",
            "tokenizer/chat_template.jinja",
            "tokenizer/merges.txt",
            "tokenizer/vocab.json",
            "tokenizer/chat.py",
            "tokenizer/other.jinja",
            "safety_checker/model.safetensors",
        ];
        assert_eq!(
            chosen(&repository, &["tokenizer", "unet"]).expect("a model"),
            [
                "model_index.json",
                "tokenizer/chat_template.jinja",
                "tokenizer/merges.txt",
                "tokenizer/vocab.json",
                "unet/config.json",
                "unet/diffusion_pytorch_model.fp16.safetensors",
            ]
        );
    }

    #[test]
    fn all_shards_are_fetched_with_their_index() {
        let repository = [
            "model_index.json",
            "text_encoder/model-00001-of-00002.safetensors",
            "text_encoder/model-00002-of-00002.safetensors",
            "text_encoder/model.safetensors.index.json",
            "text_encoder/model.fp16-00001-of-00002.safetensors",
            "text_encoder/model.fp16.safetensors.index.json",
        ];
        let chosen = chosen(&repository, &["text_encoder"]).expect("a model");
        assert_eq!(chosen, [repository[0], repository[1], repository[2], repository[3]]);
    }

    #[test]
    fn a_part_whose_weights_are_not_read_is_named_before_anything_is_fetched() {
        for other in ["pytorch_model.bin", "model.non_ema.safetensors", "flax_model.msgpack"] {
            let encoder = format!("text_encoder/{other}");
            let repository = ["model_index.json", "unet/model.safetensors", "text_encoder/config.json", &encoder];
            let said = chosen(&repository, &["text_encoder", "unet"]).expect_err(other);
            assert!(said.contains(&format!("the weights of \"text_encoder\" as {other:?} alone")), "{said}");
        }
        let shard = "text_encoder/model.fp16-00001-of-00002.safetensors";
        let said = chosen(&["model_index.json", "unet/model.safetensors", shard], &["text_encoder", "unet"]);
        let said = said.expect_err("no index");
        assert!(said.ends_with("without their index: model.safetensors.index.fp16.json is missing"), "{said}");
    }

    #[test]
    fn a_single_part_lies_in_the_root() {
        let repository =
            ["config.json", "diffusion_pytorch_model.safetensors", "taesd.py", "taesd.pth", "a/config.json"];
        assert_eq!(chosen(&repository, &[""]).expect("a part"), ["config.json", "diffusion_pytorch_model.safetensors"]);
    }

    #[test]
    fn single_files_in_the_root_are_named() {
        let refusal = |paths: &[&str]| chosen(paths, &["unet"]).expect_err("no model");
        let said = refusal(&["README.md", "a v6.safetensors", "b.ckpt", "unet/model.safetensors"]);
        let expected = "but single files (\"a v6.safetensors\"): download one, and `tintype model add` it";
        assert!(said.contains(expected), "{said}");
        let many: Vec<_> = (0..7).map(|at| format!("{at}.safetensors")).collect();
        let said = refusal(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(said.contains("\"4.safetensors\" and 2 more)"), "{said}");
        assert!(refusal(&["README.md"]).contains("only models as diffusers lays them out can be used"));
    }

    #[test]
    fn hostile_names_are_never_chosen() {
        let hostile = [
            "../unet/config.json",
            "/unet/config.json",
            "unet/../../config.json",
            "unet//config.json",
            "unet/./config.json",
            "unet\\config.json",
            "unet/config.json\0",
            "UNET/config.json",
            "tokenizer/..json",
            "tokenizer/a b.json",
            "tokenizer/é.json",
            "tokenizer/.hidden.json",
        ];
        for path in hostile {
            let repository = ["model_index.json", "unet/model.safetensors", "tokenizer/vocab.json", path];
            if let Ok(chosen) = chosen(&repository, &["tokenizer", "unet"]) {
                assert!(!chosen.iter().any(|chosen| chosen == path), "{path:?}");
            }
        }
        let twice = ["model_index.json", "unet/model.safetensors", "unet/model.safetensors"];
        assert!(chosen(&twice, &["unet"]).is_err());
    }
}
