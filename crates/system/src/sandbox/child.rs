//! The decoder process: confines itself, decodes one picture and exits.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use super::confinement::confine;
use super::{Confinement, DAMAGED, NO_ALPHA, PICTURE, TOO_LARGE, UNKNOWN_FORMAT};
use tintype_engine::Mask;
use tintype_engine::picture::{Picture, PictureError};

/// Longest file that the process reads, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Decodes standard input to standard output, as a picture or as a mask, scaled down to `side` pixels per side at most. The
/// process refuses to work without a number there, or if it cannot set its resource limits.
pub fn main(side: Option<&str>, is_mask: bool) -> ExitCode {
    let Some(side) = side.and_then(|side| side.parse().ok()) else { return ExitCode::FAILURE };
    match confine().map_err(io::Error::other).and_then(|confinement| answer(confinement, side, is_mask)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(confinement: Confinement, side: u32, is_mask: bool) -> io::Result<()> {
    let mut file = Vec::new();
    io::stdin().lock().take(MAX_FILE_BYTES).read_to_end(&mut file)?;
    let decoded = match is_mask {
        true => Mask::decode_within(&file, side).map(Mask::into_picture),
        false => Picture::decode_within(&file, side),
    };
    let (outcome, width, height, rest) = match &decoded {
        Ok(picture) => (PICTURE, picture.width(), picture.height(), picture.as_rgb()),
        Err(PictureError::UnknownFormat) => (UNKNOWN_FORMAT, 0, 0, &[][..]),
        Err(PictureError::TooLarge) => (TOO_LARGE, 0, 0, &[][..]),
        Err(PictureError::NoAlpha) => (NO_ALPHA, 0, 0, &[][..]),
        Err(PictureError::Damaged(cause)) => (DAMAGED, 0, 0, cause.as_bytes()),
    };
    let mut header = vec![outcome, u8::from(confinement == Confinement::Full)];
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    let mut output = io::stdout().lock();
    output.write_all(&header)?;
    output.write_all(rest)?;
    output.flush()
}
