//! Reads a form of the type `multipart/form-data` (RFC 7578) piece by piece, in memory that does not grow with its
//! parts.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem;

/// Longest boundary (RFC 2046, section 5.1.1).
const MAX_BOUNDARY: usize = 70;
/// Longest header of a part, in bytes.
const MAX_HEADER: usize = 8 * 1024;

/// The body is not such a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the form is malformed")]
pub struct Malformed;

/// A piece of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A part begins.
    Part {
        /// The name of the field.
        name: String,
        /// Whether it is a file.
        is_file: bool,
    },
    /// Bytes of the part, never none.
    Data(Bytes),
    /// The form has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// Before the first delimiter.
    Preamble,
    /// After a delimiter.
    Delimiter,
    Header,
    Data,
    End,
}

/// A reader for a form. The caller pushes bytes as they arrive, and takes pieces while there are any.
#[derive(Debug)]
pub struct Multipart {
    /// The line break and the boundary between two parts.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: ParserState,
}

impl Multipart {
    /// A reader for a body of this `Content-Type`; `None` if that is another type or has no usable boundary.
    pub fn new(content_type: &str) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.trim().split_once('=')?;
            name.eq_ignore_ascii_case("boundary").then(|| value.trim_matches('"'))
        })?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY || !boundary.bytes().all(plain) {
            return None;
        }
        // The first delimiter may be at the very beginning.
        Some(Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: ParserState::Preamble,
        })
    }

    /// Adds bytes of the body. At most a delimiter or the header of a part is left of the earlier ones once
    /// [`Multipart::next_piece`] has returned `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` if it needs more bytes.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, Malformed> {
        loop {
            match self.state {
                ParserState::Preamble => {
                    let Some(at) = memmem::find(&self.buffer, &self.delimiter) else {
                        self.buffer.advance(self.certain());
                        return Ok(None);
                    };
                    self.buffer.advance(at + self.delimiter.len());
                    self.state = ParserState::Delimiter;
                }
                ParserState::Delimiter => match self.buffer.get(..2) {
                    None => return Ok(None),
                    Some(b"--") => self.state = ParserState::End,
                    Some(b"\r\n") => {
                        // The line break stays: it ends an empty header.
                        self.state = ParserState::Header;
                    }
                    Some(_) => return Err(Malformed),
                },
                ParserState::Header => {
                    let Some(at) = memmem::find(&self.buffer, b"\r\n\r\n") else {
                        return if self.buffer.len() > MAX_HEADER { Err(Malformed) } else { Ok(None) };
                    };
                    let header = self.buffer.split_to(at + 4);
                    self.state = ParserState::Data;
                    return part(&header).map(Some);
                }
                ParserState::Data => {
                    let found = memmem::find(&self.buffer, &self.delimiter);
                    let length = found.unwrap_or_else(|| self.certain());
                    if length > 0 {
                        return Ok(Some(Piece::Data(self.buffer.split_to(length).freeze())));
                    }
                    if found.is_none() {
                        return Ok(None);
                    }
                    self.buffer.advance(self.delimiter.len());
                    self.state = ParserState::Delimiter;
                }
                ParserState::End => {
                    self.buffer.clear();
                    return Ok(Some(Piece::End));
                }
            }
        }
    }

    /// The number of bytes that are certainly not the beginning of a delimiter.
    fn certain(&self) -> usize {
        self.buffer.len().saturating_sub(self.delimiter.len() - 1)
    }
}

fn part(header: &[u8]) -> Result<Piece, Malformed> {
    // Some programs write file names in another encoding. Field names are ASCII, and file names aren't used.
    let header = String::from_utf8_lossy(header);
    let field = |wanted: &str| {
        let mut fields = header.split("\r\n").filter_map(|line| line.split_once(':'));
        fields.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then_some(value.trim()))
    };
    let (kind, mut rest) = field("content-disposition").ok_or(Malformed)?.split_once(';').ok_or(Malformed)?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return Err(Malformed);
    }
    // Some clients name no file when they send the bytes of one.
    let is_image = field("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("image/"));
    let (mut name, mut is_file) = (None, is_image);
    loop {
        let (key, value, left) = parameter(rest)?;
        match key.to_ascii_lowercase().as_str() {
            // Of two names, another reader may take the other one.
            "name" if name.replace(value).is_some() => return Err(Malformed),
            "filename" | "filename*" => is_file = true,
            _ => {}
        }
        match left {
            Some(left) => rest = left,
            None => return Ok(Piece::Part { name: name.ok_or(Malformed)?, is_file }),
        }
    }
}

/// The first of the parameters, and the others after its semicolon. A semicolon in a quoted value ends nothing.
fn parameter(text: &str) -> Result<(&str, String, Option<&str>), Malformed> {
    // A semicolon may stand at the end.
    if text.trim().is_empty() {
        return Ok(("", String::new(), None));
    }
    let (key, rest) = text.split_once('=').ok_or(Malformed)?;
    let (key, rest) = (key.trim(), rest.trim_start());
    let Some(quoted) = rest.strip_prefix('"') else {
        let (value, left) = rest.split_once(';').map_or((rest, None), |(value, left)| (value, Some(left)));
        return if key.contains([';', '"']) || value.contains('"') {
            Err(Malformed)
        } else {
            Ok((key, value.trim().to_owned(), left))
        };
    };
    let (mut value, mut letters) = (String::new(), quoted.chars());
    loop {
        match letters.next().ok_or(Malformed)? {
            '"' => break,
            '\\' => match letters.next().ok_or(Malformed)? {
                escaped @ ('"' | '\\') => value.push(escaped),
                // Old browsers send the path of a file as it is.
                other => value.extend(['\\', other]),
            },
            other => value.push(other),
        }
    }
    match letters.as_str().trim() {
        "" if !key.contains([';', '"']) => Ok((key, value, None)),
        rest if !key.contains([';', '"']) => Ok((key, value, Some(rest.strip_prefix(';').ok_or(Malformed)?))),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &[u8] = b"ignored\r\n--x-y\r\nContent-Disposition: form-data; name=\"proof\"\r\n\r\nsecret\r\n--x-y\r\n\
        content-disposition: FORM-DATA; name=\"file\"; filename=\"a;b.png\"\r\nContent-Type: image/png\r\n\r\n\
        \x89PNG\r\n--x-no delimiter\r\n\r\n--x-y\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--x-y--\r\nmore";

    /// The parts of a form that arrives in chunks of a size, with all their data.
    fn read(form: &[u8], size: usize) -> Result<Vec<(String, bool, Vec<u8>)>, Malformed> {
        let mut reader = Multipart::new("multipart/form-data; boundary=x-y").expect("a form");
        let mut parts: Vec<(String, bool, Vec<u8>)> = Vec::new();
        for chunk in form.chunks(size) {
            reader.push(chunk);
            while let Some(piece) = reader.next_piece()? {
                match piece {
                    Piece::Part { name, is_file } => parts.push((name, is_file, Vec::new())),
                    Piece::Data(data) => parts.last_mut().expect("a part").2.extend_from_slice(&data),
                    Piece::End => return Ok(parts),
                }
            }
            assert!(reader.buffer.len() <= MAX_HEADER, "the buffer does not grow with the part");
        }
        Err(Malformed)
    }

    #[test]
    fn a_form_is_the_same_however_it_is_cut() {
        let expected = [
            ("proof".to_owned(), false, b"secret".to_vec()),
            ("file".to_owned(), true, b"\x89PNG\r\n--x-no delimiter\r\n".to_vec()),
            ("empty".to_owned(), false, Vec::new()),
        ];
        for size in 1..FORM.len() + 1 {
            assert_eq!(read(FORM, size).as_deref(), Ok(&expected[..]), "{size}");
        }
    }

    #[test]
    fn a_quoted_value_hides_no_parameter() {
        let header = |disposition: &str| part(format!("Content-Disposition: {disposition}\r\n\r\n").as_bytes());
        let piece = |name: &str, is_file| Ok(Piece::Part { name: name.into(), is_file });
        assert_eq!(header("form-data; filename=\"a; name=prompt\"; name=\"image\""), piece("image", true));
        assert_eq!(header("form-data; name=\"image\"; filename=\"a\\\"; name=\\\"prompt.png\""), piece("image", true));
        assert_eq!(header("form-data; name=\"a\\\"b\\\\c\\d; filename=x\""), piece("a\"b\\c\\d; filename=x", false));
        assert_eq!(header("form-data; filename=\"a=b\"; name=image[];"), piece("image[]", true));
        assert_eq!(header("form-data ; name = \"image\" ; filename* = UTF-8''a"), piece("image", true));
        let latin = b"Content-Disposition: form-data; name=image; filename=\"\xfcber.png\"\r\n\r\n";
        assert_eq!(part(latin), piece("image", true));
        for malformed in [
            "form-data",
            "form-data; name=\"image",
            "form-data; name=\"image\\\"",
            "form-data; name=\"image\"prompt\"",
            "form-data; name=\"image\" prompt",
            "form-data; name=im\"age\"",
            "form-data; name=image; name=prompt",
            "form-data; filename; name=image",
            "form-data; name",
        ] {
            assert_eq!(header(malformed), Err(Malformed), "{malformed}");
        }
    }

    #[test]
    fn an_unfinished_or_malformed_form_is_an_error() {
        for length in 0..FORM.len() - 7 {
            assert_eq!(read(&FORM[..length], 16), Err(Malformed), "{length}");
        }
        let long = format!("--x-y\r\nContent-Disposition: form-data; name=\"{}\"", "a".repeat(2 * MAX_HEADER));
        let cases = [
            "--x-y\r\n\r\nno header\r\n--x-y--",
            "--x-y\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--x-y--",
            "--x-y\r\nContent-Disposition: attachment; name=a\r\n\r\na\r\n--x-y--",
            "--x-yz\r\nContent-Disposition: form-data; name=a\r\n\r\na\r\n--x-y--",
            &long,
        ];
        for case in cases {
            assert_eq!(read(case.as_bytes(), 7), Err(Malformed), "{case}");
        }
        let long = format!("multipart/form-data; boundary={}", "a".repeat(71));
        for kind in ["", "multipart/form-data", "multipart/mixed; boundary=a", "multipart/form-data; boundary=", &long]
        {
            assert!(Multipart::new(kind).is_none(), "{kind}");
        }
        assert!(Multipart::new("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"").is_none());
        assert!(Multipart::new("Multipart/Form-Data; charset=utf-8; Boundary=\"a-b\"").is_some());
    }
}
