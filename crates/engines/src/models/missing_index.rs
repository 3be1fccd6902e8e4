//! Explains what a folder without a model contains, and where the model may be.

use std::path::{Path, PathBuf};

use super::{INDEX, names};

/// Most file names in an error.
const MAX_NAMES: usize = 3;

/// The error for a folder without a model's index.
pub(super) fn explain(folder: &Path) -> String {
    let (name, inside) = (folder.display(), entries(folder));
    let is_model = |folder: &PathBuf| folder.join(INDEX).is_file();
    // A downloads folder, or a repository's folder in a hub's cache.
    let snapshots = entries(&folder.join("snapshots"));
    if let Some(model) = inside.iter().chain(&snapshots).find(|inside| is_model(inside)) {
        return format!("{name} holds no {INDEX}, but {} does: give that folder", model.display());
    }
    let whole = folder.canonicalize().ok().and_then(|folder| folder.parent().map(Path::to_owned));
    if let Some(model) = whole.filter(is_model) {
        return format!("{name} is a part of the model in {}: give that folder", model.display());
    }
    let files = inside.iter().filter(|file| file.is_file() && file.extension().is_some_and(|end| end == "safetensors"));
    let files: Vec<_> = files.take(MAX_NAMES).map(|file| file.display().to_string()).collect();
    match files.is_empty() {
        true => format!(
            "{name} holds no {INDEX}: give the folder of a model as diffusers writes it, or a .safetensors file"
        ),
        false => format!("{name} holds no {INDEX}, but single files: give one of them, such as {}", files.join(", ")),
    }
}

/// A folder's entries, sorted by name; none if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = names(folder).unwrap_or_default().iter().map(|name| folder.join(name)).collect();
    entries.sort();
    entries
}
