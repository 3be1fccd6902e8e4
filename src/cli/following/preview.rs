//! Shows images in terminals that can, and opens them on the desktop.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::cli::complain;
use tintype_config::{Graphics, terminal_graphics};

/// Most bytes in one command of the kitty protocol.
const CHUNK_BYTES: usize = 4_096;
/// Height of a preview, in lines of the terminal.
const ROWS: u32 = 16;

/// Shows a PNG if standard output is a terminal that shows images.
pub(super) fn show(png: &[u8]) {
    if !io::stdout().is_terminal() {
        return;
    }
    let text = match terminal_graphics() {
        Some(Graphics::Kitty) => kitty(png),
        Some(Graphics::Iterm) => iterm(png),
        None => return,
    };
    // An error here means that the terminal is gone.
    drop(writeln!(io::stdout().lock(), "{text}"));
}

/// The graphics protocol of kitty, which Ghostty and Konsole speak too.
fn kitty(png: &[u8]) -> String {
    let encoded = BASE64_STANDARD.encode(png);
    let chunks: Vec<_> = encoded.as_bytes().chunks(CHUNK_BYTES).map(String::from_utf8_lossy).collect();
    let last = chunks.len() - 1;
    let command = |(position, chunk): (usize, &std::borrow::Cow<'_, str>)| {
        let more = u8::from(position < last);
        let head = if position == 0 { format!("a=T,f=100,r={ROWS},m={more}") } else { format!("m={more}") };
        format!("\x1b_G{head};{chunk}\x1b\\")
    };
    chunks.iter().enumerate().map(command).collect()
}

/// The inline images of iTerm2, which WezTerm shows too.
fn iterm(png: &[u8]) -> String {
    let encoded = BASE64_STANDARD.encode(png);
    format!("\x1b]1337;File=inline=1;size={};height={ROWS}:{encoded}\x07", png.len())
}

/// Opens a file with the program that the desktop has for it.
pub(super) fn open(path: &Path) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.spawn() {
        complain(&format!("tintype: cannot open {}: {opener}: {error}", path.display()));
    }
}
