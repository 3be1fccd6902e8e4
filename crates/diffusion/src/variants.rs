//! Which files of a part are its weights. A repository can contain them several times: in other precisions, in one or
//! several files. The same rule decides what is downloaded and what is loaded.

/// Variants of weights, the preferred one first. Half precision halves the size and is just as good in pictures.
const VARIANTS: [&str; 3] = ["bf16", "fp16", ""];

/// Extensions of weights files, including formats that are never read.
const EXTENSIONS: [&str; 6] = [".safetensors", ".bin", ".ckpt", ".msgpack", ".onnx", ".gguf"];

/// A part's chosen weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout<'a> {
    stem: &'a str,
    variant: &'static str,
    /// Whether the weights are in several files with an index.
    pub sharded: bool,
}

impl<'a> Layout<'a> {
    /// Chooses among the files that are present. A single file is preferred to several.
    pub fn choose(stem: &'a str, is_there: impl Fn(&str) -> bool) -> Option<Self> {
        let layouts = [false, true]
            .into_iter()
            .flat_map(|sharded| VARIANTS.into_iter().map(move |variant| Self { stem, variant, sharded }));
        layouts.into_iter().find(|layout| is_there(&layout.file()))
    }

    /// The name of the single file, or of the index for several files.
    pub fn file(&self) -> String {
        let Self { stem, variant, sharded } = self;
        let dot = if variant.is_empty() { "" } else { "." };
        match sharded {
            false => format!("{stem}{dot}{variant}.safetensors"),
            true => format!("{stem}.safetensors.index{dot}{variant}.json"),
        }
    }

    /// Whether a file belongs to these weights, by name. Programs put the variant before or after a file's number.
    pub fn holds(&self, name: &str) -> bool {
        name == self.file() || (self.sharded && self.is_shard(name))
    }

    fn is_shard(&self, name: &str) -> bool {
        let inner = name.strip_prefix(self.stem).and_then(|rest| rest.strip_suffix(".safetensors"));
        let Some(inner) = inner else { return false };
        let numbers = match self.variant {
            "" => Some(inner),
            variant => {
                let dotted = format!(".{variant}");
                inner.strip_prefix(dotted.as_str()).or_else(|| inner.strip_suffix(dotted.as_str()))
            }
        };
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let numbers = numbers.and_then(|numbers| numbers.strip_prefix('-')?.split_once("-of-"));
        numbers.is_some_and(|(one, of)| is_number(one) && is_number(of))
    }
}

/// The first of the weights files that no layout with these stems holds, and what to do about it; `None` without any.
pub fn unread<'n>(stems: &[&str], names: impl Iterator<Item = &'n str>) -> Option<String> {
    let other = names.filter(|name| EXTENSIONS.iter().any(|extension| name.ends_with(extension))).min()?;
    let sharded = |stem| VARIANTS.map(|variant| Layout { stem, variant, sharded: true });
    let without_index = stems.iter().flat_map(|stem| sharded(stem)).find(|layout| layout.is_shard(other));
    Some(match without_index {
        Some(layout) => format!("{other:?} without their index: {} is missing", layout.file()),
        None => format!("{other:?} alone, which is not read: use a model with its usual weights as safetensors"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEM: &str = "model";

    fn chosen(files: &[&str]) -> Option<String> {
        Layout::choose(STEM, |name| files.contains(&name)).map(|layout| layout.file())
    }

    #[test]
    fn half_precision_comes_first_and_one_file_before_several() {
        // From most to least preferred.
        let mut files = vec![
            "model.bf16.safetensors",
            "model.fp16.safetensors",
            "model.safetensors",
            "model.safetensors.index.bf16.json",
            "model.safetensors.index.fp16.json",
            "model.safetensors.index.json",
        ];
        while let Some(first) = files.first().copied() {
            files.reverse();
            assert_eq!(chosen(&files).as_deref(), Some(first));
            files.reverse();
            files.remove(0);
        }
        assert_eq!(chosen(&["model.non_ema.safetensors", "model.bin", "other.safetensors"]), None);
    }

    #[test]
    fn the_files_of_an_index_carry_its_variant() {
        let index = "model.safetensors.index.fp16.json";
        let layout = Layout::choose(STEM, |name| name == index).expect("a layout");
        for name in [index, "model.fp16-00001-of-00002.safetensors", "model-00001-of-00002.fp16.safetensors"] {
            assert!(layout.holds(name), "{name}");
        }
        for name in ["model-00001-of-00002.safetensors", "model.fp16-1-of-2.safetensors", "model.fp16.safetensors"] {
            assert!(!layout.holds(name), "{name}");
        }
    }
}
