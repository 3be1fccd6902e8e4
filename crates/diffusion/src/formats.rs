//! Recognises files that aren't safetensors by their names and first bytes: what they are, and what to do.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::{Error, Result};

/// Bytes of the longest header that the format allows.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// First bytes that are looked at.
const BEGINNING: usize = 32;

/// Endings of the names of pickles.
const PICKLED: [&str; 5] = ["ckpt", "pt", "pth", "bin", "pkl"];

/// The first bytes of pictures and of archives.
const PICTURES: [&[u8]; 4] = [b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"GIF8"];
const ARCHIVES: [&[u8]; 3] = [b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x8b"];

/// The error of a file that cannot be read. In a hub's cache all files are links.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let name = path.display();
    Error::Files(match std::fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => {
            let target = target.display();
            format!("{name} is a symbolic link to {target}, which is not there: copy or mount what it leads to as well")
        }
        _ => format!("cannot read {name}: {error}"),
    })
}

/// Rejects files of other formats.
pub(crate) fn check_format(path: &Path) -> Result<()> {
    let name = path.display();
    let unreadable = |error| unreadable(path, &error);
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(Error::Files(format!("{name} is not a file")));
    }
    let mut first = Vec::new();
    File::open(path).and_then(|file| file.take(BEGINNING as u64).read_to_end(&mut first)).map_err(unreadable)?;
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let extension = extension.as_deref().unwrap_or_default();
    if PICKLED.contains(&extension) {
        return Err(pickle(&name.to_string()));
    }
    if extension == "json" && first.trim_ascii_start().starts_with(b"{") {
        return Err(Error::Unusable(format!(
            "{name} holds no weights: give the folder of the whole model, or a .safetensors file"
        )));
    }
    check_beginning(&name.to_string(), &first)
}

/// Like [`check_format`], by the first bytes alone.
pub(crate) fn check_beginning(name: &str, data: &[u8]) -> Result<()> {
    let first = &data[..data.len().min(BEGINNING)];
    let is = |what: &str| Err(Error::Unusable(format!("{name} is {what}")));
    // The eight bytes of a header's length can look like the start of any other format.
    if first.get(4..9) == Some(b"\0\0\0\0{") {
        return Ok(());
    }
    if first.starts_with(b"PK\x03\x04") || matches!(first, [0x80, 2..=5, ..]) {
        return Err(pickle(name));
    }
    if first.starts_with(b"GGUF") {
        return is(
            "a GGUF file: use the same model as safetensors (FP8 is as small as Q8_0), or sd-server as the engine",
        );
    }
    if first.starts_with(b"version https://git-lfs") {
        return is("a pointer of Git LFS instead of the file itself: run `git lfs pull` in its repository");
    }
    let begins = |all: &[&[u8]]| all.iter().any(|beginning| first.starts_with(beginning));
    if begins(&PICTURES) {
        return is("a picture and holds no weights: download the .safetensors file itself");
    }
    if begins(&ARCHIVES) {
        return is("an archive: unpack it, and use the .safetensors file in it");
    }
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if first.trim_ascii_start().starts_with(b"<") || (first.len() >= 8 && first.iter().all(is_text)) {
        return is(
            "a web page or an error message of the site instead of the file: download it again, with a token of your \
             account if the site asks for one",
        );
    }
    Ok(())
}

fn pickle(name: &str) -> Error {
    Error::Unusable(format!("{name} is a pickle, which can run code when it is read: convert it to safetensors"))
}
