//! Installs a model from a folder or file that is already on this machine.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::catalogue::all_parts;
use super::download::{ProgressSink, sha256};
use super::manifest::{MANIFEST, Manifest, ModelFile, read_operators_json, write};
use super::pull::{Index, page, repository_name};
use super::selection::{RemoteFile, select};
use super::{CACHE, INDEX, Installed, Single, directory, is_name, missing_index, way_to};
use tintype_config::HUGGING_FACE;
use tintype_system::data_dir;

/// A model's name, derived from its folder or file; `None` if that gives no valid name.
pub fn name_of(path: &Path) -> Option<String> {
    // `.` and paths that end with `..` have no name of their own, and links keep the name that was typed.
    let real = path.file_name().is_none().then(|| path.canonicalize().ok()).flatten();
    let path = real.as_deref().unwrap_or(path);
    let name = if path.is_file() { path.file_stem()? } else { path.file_name()? };
    let name = name.to_str()?.to_ascii_lowercase();
    let letter = |letter: char| if letter.is_ascii_alphanumeric() || "._".contains(letter) { letter } else { '-' };
    let name: String = name.chars().map(letter).collect();
    let name = name.trim_matches(['-', '.', '_']).to_owned();
    is_name(&name).then_some(name)
}

struct Found {
    folder: PathBuf,
    /// The path in the folder of the file to open, if it is a single file.
    file: Option<String>,
    pipeline: String,
    files: Vec<RemoteFile>,
}

impl Found {
    fn of_folder(folder: PathBuf) -> Result<Self, String> {
        if !folder.join(INDEX).exists() {
            return Err(missing_index::explain(&folder));
        }
        let index: Index = read_operators_json(&folder.join(INDEX))?;
        let pipeline = index.pipeline_class().map_err(|reason| format!("{}: {reason}", folder.display()))?;
        let listing = listing(&folder)?;
        if let Some(empty) = listing.iter().find(|file| file.bytes == 0) {
            return Err(format!("{} is empty: copy or download it again", folder.join(&empty.path).display()));
        }
        let files = select(&listing, &all_parts(), false)
            .map_err(|reason| format!("{}: {}", folder.display(), reason.replace("repository", "folder")))?;
        Ok(Self { folder, file: None, pipeline, files })
    }

    /// The file, and files beside it that belong to the model.
    fn of_file(path: &Path) -> Result<Self, String> {
        let Single { folder, file, files, pipeline } = Single::recognise(path)?;
        let files = files.into_iter().filter_map(|name| file_in(&folder, name)).collect();
        Ok(Self { folder, file: Some(file), pipeline: pipeline.to_owned(), files })
    }
}

/// The absolute path. A file keeps its own name: in a hub's cache it is a link to a file without an extension.
fn real(path: &Path) -> io::Result<PathBuf> {
    let whole = path.canonicalize()?;
    match (whole.is_file(), path.file_name()) {
        (true, Some(name)) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(folder.canonicalize()?.join(name))
        }
        _ => Ok(whole),
    }
}

/// Installs the model in a folder or file under a name, without copying its files. With `hash`, `tintype model verify`
/// can later find damage that doesn't change a file's length.
///
/// # Errors
/// A message for the operator: the folder or file isn't a model, or the name is taken.
pub fn add(data_dir: &Path, path: &Path, name: &str, hash: bool, sink: &dyn ProgressSink) -> Result<Installed, String> {
    if !is_name(name) {
        return Err(format!(
            "{name:?} cannot be the name of a model: give one of lower-case letters, digits, dots and hyphens as --name"
        ));
    }
    let path = real(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let path = path.display().to_string();
            let page = page(&path, &[HUGGING_FACE]).filter(|page| repository_name(page).is_some());
            let way = match page {
                None if path.contains("://") => "download the file yourself first".into(),
                _ => way_to(page.unwrap_or(&path)),
            };
            format!("{path} is not on this machine: {way}")
        }
        _ => format!("{}: {error}", path.display()),
    })?;
    let found = if path.is_file() { Found::of_file(&path)? } else { Found::of_folder(path)? };
    let total = found.files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    sink.begin(if hash { total } else { 0 }, 0);
    let mut manifest = Manifest::new(name, &found.pipeline, Vec::new());
    for RemoteFile { path, bytes, .. } in found.files {
        let hashed = hash.then(|| File::open(found.folder.join(&path)).and_then(|mut file| sha256(&mut file, sink)));
        let sha256 = hashed.transpose().map_err(|error| format!("{path}: {error}"))?;
        manifest.files.push(ModelFile { path, bytes, sha256 });
    }
    (manifest.folder, manifest.file) = (Some(found.folder.clone()), found.file.clone());
    manifest.check(name).map_err(|reason| format!("the model {reason}"))?;
    let models = directory(data_dir);
    let own = models.join(name);
    data_dir::create(&models)?;
    fs::create_dir(&own).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("there is a model {name} already: give another name as --name"),
        _ => format!("cannot create {}: {error}", own.display()),
    })?;
    write(&own, MANIFEST, &manifest.text()).inspect_err(|_| drop(fs::remove_dir_all(&own)))?;
    File::open(&models).and_then(|models| models.sync_all()).map_err(|error| error.to_string())?;
    let (folder, file) = (found.folder, found.file);
    Ok(Installed {
        name: name.to_owned(),
        folder,
        file,
        cache: Some(own.join(CACHE)),
        manifest: Some(manifest),
        unusable: None,
    })
}

/// A folder's file as a hub would list it.
fn file_in(folder: &Path, path: String) -> Option<RemoteFile> {
    let metadata = fs::metadata(folder.join(&path)).ok().filter(fs::Metadata::is_file)?;
    // Nothing is downloaded, so there is nothing to compare.
    Some(RemoteFile { path, bytes: metadata.len(), sha256: Some("0".repeat(64)), git_sha1: None })
}

/// A folder's files as a hub would list them.
fn listing(folder: &Path) -> Result<Vec<RemoteFile>, String> {
    let mut found: Vec<_> = file_in(folder, INDEX.into()).into_iter().collect();
    for part in all_parts() {
        let names = super::names(&folder.join(&part))?;
        found.extend(names.into_iter().filter_map(|name| file_in(folder, format!("{part}/{name}"))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pull::NoProgress;
    use super::super::{find, pull};
    use super::*;

    /// The names that identify a complete Stable Diffusion XL file.
    const XL: [&str; 4] = [
        "model.diffusion_model.input_blocks.0.0.weight",
        "conditioner.embedders.0.transformer.text_model.x",
        "conditioner.embedders.1.model.x",
        "first_stage_model.decoder.x",
    ];

    const SCHEDULER: &str = "scheduler/scheduler_config.json";

    fn write_file(path: &Path, names: &[&str]) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let entry = |(at, name): (usize, &&str)| {
            // Four channels of a transformer correspond to one of a VAE.
            let (shape, dtype) = if *name == "x_embedder.weight" { ([1, 4], "F8_E4M3") } else { ([1, 1], "F32") };
            ((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at * 4, at * 4 + 4]}))
        };
        let header: serde_json::Map<_, _> = names.iter().enumerate().map(entry).collect();
        let header = serde_json::Value::Object(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + names.len() * 4, 0);
        fs::write(path, bytes).expect("a file");
    }

    #[test]
    fn a_snapshot_in_the_cache_of_a_hub_is_installed() {
        let (data, own) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let snapshot = own.path().join("snapshots/0123abcd");
        fs::create_dir_all(snapshot.join("unet")).expect("a folder");
        fs::create_dir(own.path().join("blobs")).expect("a folder");
        for (at, (name, content, up)) in [
            (INDEX, r#"{"_class_name": "StableDiffusionPipeline"}"#, "../.."),
            ("unet/config.json", "{}", "../../.."),
            ("unet/diffusion_pytorch_model.safetensors", "weights", "../../.."),
        ]
        .into_iter()
        .enumerate()
        {
            fs::write(own.path().join(format!("blobs/{at}")), content).expect("written");
            std::os::unix::fs::symlink(format!("{up}/blobs/{at}"), snapshot.join(name)).expect("a link");
        }
        let added = add(data.path(), &snapshot, "mine", true, &NoProgress).expect("a model");
        let manifest = added.manifest.as_ref().expect("a manifest");
        assert_eq!((manifest.pipeline.as_str(), manifest.files.len()), ("StableDiffusionPipeline", 3));
        assert!(pull::verify(&added, &NoProgress).expect("readable").is_empty());
        assert!(find(data.path(), "mine").is_ok());
    }

    #[test]
    fn a_folder_that_is_no_model_is_refused_with_the_way_to_one() {
        let (data, own) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let own = own.path().canonicalize().expect("a path");
        let refused = |folder: &Path, way: &str| {
            let added = add(data.path(), folder, "mine", false, &NoProgress).expect_err("no model");
            let found = find(data.path(), folder.to_str().expect("text")).expect_err("no model");
            assert!(added.contains(way) && added == found, "{added} {found}");
        };
        for (path, way) in [
            ("sd-turbo", "`tintype model pull sd-turbo` fetches it"),
            (
                "someone/some-model",
                "if it is a repository of the hub, `tintype model pull someone/some-model` fetches it",
            ),
            ("https://example.com/a.safetensors", "is not on this machine: download the file yourself first"),
            ("https://huggingface.co/a/b", "if it is a repository of the hub, `tintype model pull a/b` fetches it"),
            ("https://huggingface.co/a/b/resolve/main/c.safetensors", "download the file yourself first"),
        ] {
            let added = add(data.path(), Path::new(path), "mine", false, &NoProgress).expect_err(path);
            assert!(added.starts_with(path) && added.contains(way), "{added}");
        }
        refused(&own, "holds no model_index.json: give the folder of a model as diffusers writes it");
        write_file(&own.join("b.safetensors"), &XL);
        refused(&own, &format!("give one of them, such as {}", own.join("b.safetensors").display()));
        let snapshot = own.join("models--a--b/snapshots/0123");
        fs::create_dir_all(snapshot.join("unet")).expect("a folder");
        fs::write(snapshot.join(INDEX), r#"{"_class_name": "StableDiffusionPipeline"}"#).expect("written");
        let way = format!("but {} does: give that folder", snapshot.display());
        refused(&own.join("models--a--b"), &way);
        refused(snapshot.parent().expect("a folder"), &way);
        refused(&snapshot.join("unet"), &format!("is a part of the model in {}: give that folder", snapshot.display()));
        let config = snapshot.join("unet/config.json");
        fs::write(&config, "{}").expect("written");
        refused(&config, "holds no weights: give the folder of the whole model");
        let weights = snapshot.join("unet/diffusion_pytorch_model.safetensors");
        fs::write(&weights, "").expect("written");
        let added = add(data.path(), &snapshot, "mine", false, &NoProgress).expect_err("no model");
        assert_eq!(added, format!("{} is empty: copy or download it again", weights.display()));
    }

    #[test]
    fn configurations_beside_a_file_belong_to_it() {
        let (data, own) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let path = own.path().join("model.safetensors");
        write_file(&path, &XL);
        let beside = own.path().join(SCHEDULER);
        fs::create_dir(beside.parent().expect("a folder")).expect("a folder");
        fs::write(&beside, "{}").expect("written");
        let added = add(data.path(), &path, "mine", false, &NoProgress).expect("a model");
        let files = added.manifest.expect("a manifest").files;
        assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["model.safetensors", SCHEDULER]);
        fs::write(&beside, "{ }").expect("written");
        assert!(find(data.path(), "mine").is_err());
        // Those of weights do not.
        let other = own.path().join("vae/config.json");
        fs::create_dir(other.parent().expect("a folder")).expect("a folder");
        for name in [other.clone(), other.with_file_name("diffusion_pytorch_model.safetensors")] {
            fs::write(name, "{}").expect("written");
        }
        let added = add(data.path(), &path, "alone", false, &NoProgress).expect("a model");
        assert_eq!(added.manifest.expect("a manifest").files.len(), 2);
    }

    #[test]
    fn a_transformer_is_installed_with_the_files_of_comfyui() {
        let (data, own) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let own = own.path().canonicalize().expect("a path").join("models");
        let path = own.join("diffusion_models/Some Tune (v2).safetensors");
        write_file(&path, &["x_pad_token", "noise_refiner.0.x", "cap_embedder.1.weight", "x_embedder.weight"]);
        let refused = |lacks: &str| {
            let added = add(data.path(), &path, "tune", false, &NoProgress).expect_err("no model");
            assert!(
                added.contains(lacks) && find(data.path(), path.to_str().expect("text")) == Err(added.clone()),
                "{added}"
            );
        };
        refused("is the transformer of Z-Image alone, and no text encoder (Qwen 3 with 1 numbers a token)");
        let (encoder, shard) = (own.join("text_encoder"), "model-00002-of-00002.safetensors");
        write_file(&encoder.join("model-00001-of-00002.safetensors"), &["model.embed_tokens.weight"]);
        fs::write(encoder.join("config.json"), "{}").expect("written");
        let index =
            json!({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors", "b": shard}});
        fs::write(encoder.join("model.safetensors.index.json"), index.to_string()).expect("written");
        refused(shard);
        fs::remove_dir_all(encoder).expect("a folder");
        let text = own.join("text_encoders/qwen 3.safetensors");
        write_file(&text, &["model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight"]);
        refused("no VAE (with 1 channels)");
        write_file(&own.join("vae/ae.safetensors"), &["decoder.conv_in.weight"]);
        let added = add(data.path(), &path, "tune", true, &NoProgress).expect("a model");
        assert_eq!((added.path(), find(data.path(), "tune")), (path.clone(), Ok(added.clone())));
        let manifest = added.manifest.as_ref().expect("a manifest");
        let files = manifest.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>();
        let expected =
            ["diffusion_models/Some Tune (v2).safetensors", "text_encoders/qwen 3.safetensors", "vae/ae.safetensors"];
        assert_eq!((manifest.pipeline.as_str(), files), ("ZImagePipeline", expected.to_vec()));
        assert!(pull::verify(&added, &NoProgress).expect("readable").is_empty());
        fs::remove_file(&text).expect("removed");
        assert!(find(data.path(), "tune").expect_err("damaged").contains("qwen 3.safetensors"));
    }
}
