//! Removes tags that engines would interpret as options.

use tintype_engine::EngineError;

/// The tag for passing arbitrary arguments to stable-diffusion.cpp.
const OPEN_ARGUMENTS: &str = "<sd_cpp_extra_args>";
const CLOSE_ARGUMENTS: &str = "</sd_cpp_extra_args>";
/// Tags that load one of the engine's files, up to the next `>`.
const FILE_TAGS: [&str; 4] = ["<lora:", "<lyco:", "<hypernet:", "<embedding:"];

/// The prompt without tags that engines obey: stable-diffusion.cpp arguments and files to load. Callers must not change
/// an engine's settings through their prompt. Each tag leaves a space, so that its surroundings cannot join into
/// another tag.
fn without_tags(prompt: &str) -> String {
    // Only ASCII letters are lowered, so that positions in both texts are the same.
    let lower = prompt.to_ascii_lowercase();
    let mut kept = String::with_capacity(prompt.len());
    let mut at = 0;
    while let Some(opening) = lower[at..].find('<').map(|found| at + found) {
        kept.push_str(&prompt[at..opening]);
        at = match tag_length(&lower[opening..]) {
            Some(length) => {
                kept.push(' ');
                opening + length
            }
            None => {
                kept.push('<');
                opening + 1
            }
        };
    }
    kept.push_str(&prompt[at..]);
    kept
}

/// The prompt that an engine is allowed to see: without tags, and with spaces in place of `reserved` words, which mean
/// something to this engine.
///
/// # Errors
/// [`EngineError::Permanent`]: nothing is left of it.
pub fn for_engine(prompt: &str, reserved: &[&str]) -> Result<String, EngineError> {
    let words = reserved.iter().fold(without_tags(prompt), |words, reserved| words.replace(reserved, " "));
    match words.trim().is_empty() {
        true => Err(EngineError::Permanent("without the tags that engines obey, nothing is left of the prompt".into())),
        false => Ok(words),
    }
}

/// The length of the tag at the beginning of `text`, which is in lower case. If the tag has no end, only its beginning
/// counts.
fn tag_length(text: &str) -> Option<usize> {
    if text.starts_with(OPEN_ARGUMENTS) {
        let end = text.find(CLOSE_ARGUMENTS).map(|end| end + CLOSE_ARGUMENTS.len());
        return Some(end.unwrap_or(OPEN_ARGUMENTS.len()));
    }
    if text.starts_with(CLOSE_ARGUMENTS) {
        return Some(CLOSE_ARGUMENTS.len());
    }
    let tag = FILE_TAGS.iter().find(|tag| text.starts_with(**tag))?;
    Some(text.find('>').map_or(tag.len(), |end| end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_engines_obey_are_taken_out_of_a_prompt() {
        for (prompt, kept) in [
            ("a boat", "a boat"),
            ("a <b> boat < 3 > 2", "a <b> boat < 3 > 2"),
            ("a <lora:evil:1.0> boat", "a   boat"),
            ("a <LoRA:evil:1.0>boat<hypernet:x:1>", "a  boat "),
            ("a<sd_cpp_extra_args>{\"seed\": 1}</sd_cpp_extra_args>boat", "a boat"),
            ("a<sd_cpp_extra_args>{\"x\": \"<lora:a:1>\"}", "a {\"x\": \" \"}"),
            ("a </sd_cpp_extra_args> boat", "a   boat"),
            ("<lora:without an end", " without an end"),
            // What remains must not join into a tag.
            ("<lo<lora:a:1>ra:b:1>", "<lo ra:b:1>"),
            ("<<lora:lora:a:1>", "< "),
            ("<sd_cpp_<lora:a:1>extra_args>{}</sd_cpp_extra_args>", "<sd_cpp_ extra_args>{} "),
            ("ein Boot <lora:ä:1> über ÄÖÜ", "ein Boot   über ÄÖÜ"),
        ] {
            assert_eq!(without_tags(prompt), kept, "{prompt}");
        }
    }

    #[test]
    fn nothing_that_an_engine_obeys_survives_any_nesting() {
        let pieces = ["<lora:", "<sd_cpp_extra_args>", "</sd_cpp_extra_args>", "<lo", "ra:", ">", "x:1", "<"];
        let count = pieces.len();
        for index in 0..count.pow(4) {
            let prompt: String = (0..4_u32).map(|place| pieces[index / count.pow(place) % count]).collect();
            let kept = without_tags(&prompt);
            assert!(!kept.contains("<lora:") && !kept.contains("sd_cpp_extra_args>"), "{prompt:?} leaves {kept:?}");
        }
    }
}
