//! Takes the pictures out of a JSON body while it arrives: a data URL may have many megabytes, and the rest of the body
//! a few hundred bytes.

use std::mem;

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

/// Fields whose values may be data URLs.
const FIELDS: [&[u8]; 5] = [b"image", b"images", b"image_url", b"mask", b"url"];
const SCHEME: &[u8] = b"data:";
/// Longest text between the scheme and the data.
const MAX_MEDIA_TYPE: usize = 200;
/// Deepest nesting that the parser of JSON takes.
const MAX_DEPTH: usize = 128;

/// Takes base64 with and without padding at its end.
static LAST: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The body cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A data URL is not in base64.
    #[error("must be a data URL in base64, such as data:image/png;base64,iVBORw0K")]
    NotBase64,
    /// The text of an image is neither a URL nor a data URL: it is longer than all of the JSON may be.
    #[error("must be an https URL, or a data URL such as data:image/png;base64,iVBORw0K")]
    NotUrl,
    /// The JSON without its pictures is longer than the limit.
    #[error("the JSON is too long")]
    TooLong,
    /// The JSON is nested too deeply.
    #[error("the JSON is nested too deeply")]
    TooDeep,
}

/// A piece of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A picture begins.
    Picture,
    /// Bytes of the picture, never none.
    Data(Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScannerState {
    Between,
    /// In a string that is kept, which began at this place.
    Text {
        begin: usize,
        escaped: bool,
    },
    /// In a data URL, before its data.
    MediaType {
        escaped: bool,
    },
    /// In the data of a data URL.
    Data {
        escaped: bool,
    },
}

/// A reader of a body.
#[derive(Debug)]
pub struct DataUrls {
    /// The body read so far, with names in place of pictures.
    json: Vec<u8>,
    max_json: usize,
    /// The beginning of the name of each picture, which no caller can guess.
    mark: String,
    pictures: usize,
    state: ScannerState,
    /// The containers around this place: whether each is an object.
    containers: Vec<bool>,
    /// Whether the next string names a field.
    expects_name: bool,
    /// Whether the last name of a field is one of [`FIELDS`].
    may_be_picture: bool,
    /// The media type, or base64 that is not decoded yet.
    text: Vec<u8>,
}

impl DataUrls {
    /// A reader for a body with at most `max_json` bytes in addition to its pictures, whose names begin with `mark`.
    pub fn new(mark: String, max_json: usize) -> Self {
        Self {
            json: Vec::new(),
            max_json,
            mark,
            pictures: 0,
            state: ScannerState::Between,
            containers: Vec::new(),
            expects_name: false,
            may_be_picture: false,
            text: Vec::new(),
        }
    }

    /// Reads the next bytes of the body, and adds what they hold of pictures to `pieces`.
    pub fn push(&mut self, bytes: &[u8], pieces: &mut Vec<Piece>) -> Result<(), Fault> {
        for byte in bytes {
            self.take(*byte, pieces)?;
            if self.json.len() > self.max_json {
                let is_image = self.may_be_picture && matches!(self.state, ScannerState::Text { .. });
                return Err(if is_image { Fault::NotUrl } else { Fault::TooLong });
            }
        }
        // The last four letters may have the padding.
        let whole = self.text.len().saturating_sub(4) / 4 * 4;
        if matches!(self.state, ScannerState::Data { .. }) && whole > 0 {
            let data = STANDARD.decode(&self.text[..whole]).map_err(|_| Fault::NotBase64)?;
            // Padding ends the data, so there is none in the middle.
            if self.text[..whole].contains(&b'=') {
                return Err(Fault::NotBase64);
            }
            self.text.drain(..whole);
            pieces.push(Piece::Data(data));
        }
        Ok(())
    }

    /// The body with the name of each picture in its place; malformed if the body was, or broke off in a picture.
    pub fn into_json(self) -> Vec<u8> {
        self.json
    }

    /// The name of a picture, counted from 0.
    pub fn name(mark: &str, index: usize) -> String {
        format!("{mark}{index}")
    }

    fn take(&mut self, byte: u8, pieces: &mut Vec<Piece>) -> Result<(), Fault> {
        match self.state {
            ScannerState::Between => self.between(byte)?,
            ScannerState::Text { begin, escaped } => {
                self.json.push(byte);
                match byte {
                    _ if escaped => self.state = ScannerState::Text { begin, escaped: false },
                    b'\\' => self.state = ScannerState::Text { begin, escaped: true },
                    b'"' => self.end_text(begin),
                    _ => self.begin_picture(begin, pieces),
                }
            }
            ScannerState::MediaType { escaped } => match unescaped(byte, escaped)? {
                Letter::Escape => self.state = ScannerState::MediaType { escaped: true },
                Letter::Of(b',') => {
                    let media_type = mem::take(&mut self.text);
                    if !media_type.to_ascii_lowercase().ends_with(b";base64") {
                        return Err(Fault::NotBase64);
                    }
                    self.state = ScannerState::Data { escaped: false };
                }
                Letter::Of(byte) if self.text.len() < MAX_MEDIA_TYPE => {
                    self.text.push(byte);
                    self.state = ScannerState::MediaType { escaped: false };
                }
                Letter::Of(_) | Letter::LineBreak | Letter::Quote => return Err(Fault::NotBase64),
            },
            ScannerState::Data { escaped } => match unescaped(byte, escaped)? {
                Letter::Escape => self.state = ScannerState::Data { escaped: true },
                Letter::LineBreak => self.state = ScannerState::Data { escaped: false },
                Letter::Of(byte) => {
                    self.text.push(byte);
                    self.state = ScannerState::Data { escaped: false };
                }
                Letter::Quote => {
                    let data = LAST.decode(mem::take(&mut self.text)).map_err(|_| Fault::NotBase64)?;
                    if !data.is_empty() {
                        pieces.push(Piece::Data(data));
                    }
                    self.json.push(b'"');
                    self.state = ScannerState::Between;
                }
            },
        }
        Ok(())
    }

    fn between(&mut self, byte: u8) -> Result<(), Fault> {
        self.json.push(byte);
        match byte {
            b'"' => self.state = ScannerState::Text { begin: self.json.len(), escaped: false },
            b'{' | b'[' if self.containers.len() >= MAX_DEPTH => return Err(Fault::TooDeep),
            b'{' | b'[' => {
                self.containers.push(byte == b'{');
                self.expects_name = byte == b'{';
            }
            b'}' | b']' => {
                self.containers.pop();
                self.expects_name = false;
            }
            b',' => self.expects_name = self.containers.last() == Some(&true),
            b':' => self.expects_name = false,
            _ => {}
        }
        Ok(())
    }

    fn end_text(&mut self, begin: usize) {
        if self.expects_name {
            let name = &self.json[begin..self.json.len() - 1];
            self.may_be_picture = FIELDS.contains(&name);
        }
        self.state = ScannerState::Between;
    }

    /// Begins a picture if the text so far is the beginning of a data URL in a permitted place.
    fn begin_picture(&mut self, begin: usize, pieces: &mut Vec<Piece>) {
        let is_picture = self.may_be_picture
            && !self.expects_name
            && self.json.len() - begin == SCHEME.len()
            && self.json[begin..].eq_ignore_ascii_case(SCHEME);
        if is_picture {
            self.json.truncate(begin);
            self.json.extend_from_slice(Self::name(&self.mark, self.pictures).as_bytes());
            self.pictures += 1;
            self.text.clear();
            self.state = ScannerState::MediaType { escaped: false };
            pieces.push(Piece::Picture);
        }
    }
}

enum Letter {
    Of(u8),
    /// The next one is escaped.
    Escape,
    /// The line ends. Ruby's `encode64` and the command `base64` break lines.
    LineBreak,
    /// The string ends.
    Quote,
}

/// Reads a character of a data URL. Only the slash and line breaks can be escaped: some programs write `\/`.
fn unescaped(byte: u8, escaped: bool) -> Result<Letter, Fault> {
    match (byte, escaped) {
        (b'/', _) => Ok(Letter::Of(byte)),
        (b'n' | b'r', true) => Ok(Letter::LineBreak),
        (_, true) => Err(Fault::NotBase64),
        (b'\\', false) => Ok(Letter::Escape),
        (b'"', false) => Ok(Letter::Quote),
        (_, false) => Ok(Letter::Of(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1_000;

    /// The JSON and the pictures of a body that arrives in chunks of a size.
    fn read(body: &str, size: usize) -> Result<(String, Vec<Vec<u8>>), Fault> {
        let mut reader = DataUrls::new("#".into(), LIMIT);
        let mut pictures: Vec<Vec<u8>> = Vec::new();
        for chunk in body.as_bytes().chunks(size) {
            let mut pieces = Vec::new();
            reader.push(chunk, &mut pieces)?;
            for piece in pieces {
                match piece {
                    Piece::Picture => pictures.push(Vec::new()),
                    Piece::Data(data) => pictures.last_mut().expect("a picture").extend_from_slice(&data),
                }
            }
            assert!(reader.text.len() <= MAX_MEDIA_TYPE + size, "the buffer does not grow with the picture");
        }
        Ok((String::from_utf8(reader.into_json()).expect("text"), pictures))
    }

    #[test]
    fn pictures_leave_a_body_however_it_is_cut() {
        let body = r#"{"prompt": "data:image/png;base64,AAAA", "images": [{"image_url": "data:image\/png;base64,\/+8="},
            {"image_url": "https://example.com/\"a.png"}], "image": "DATA:;charset=a;BASE64,aGVsbG\r\n8gd29y\nbGQ\n",
            "x": {"data:": ["data:,", "\\"]}}"#;
        let json = r##"{"prompt": "data:image/png;base64,AAAA", "images": [{"image_url": "#0"},
            {"image_url": "https://example.com/\"a.png"}], "image": "#1",
            "x": {"data:": ["data:,", "\\"]}}"##;
        for size in 1..body.len() + 1 {
            let (left, pictures) = read(body, size).expect("a body");
            assert_eq!(left, json, "{size}");
            assert_eq!(pictures, [b"\xff\xef".to_vec(), b"hello world".to_vec()], "{size}");
        }
    }

    #[test]
    fn a_body_that_cannot_be_taken_is_refused() {
        for url in [
            "data:image/png,hello",
            "data:image/png;base64",
            "data:image/png;base64\\n,AAAA",
            "data:image/png;base64,A=AA",
            "data:image/png;base64,AA==AAAA",
            "data:image/png;base64,AAA$",
            "data:image/png;base64,AA AA",
            "data:image/png;base64,A",
            "data:image/png;base64,AA\\u0041A",
            &format!("data:{};base64,AAAA", "a".repeat(300)),
        ] {
            for size in [1, 7, 1_000] {
                let body = format!(r#"{{"image": "{url}"}}"#);
                assert_eq!(read(&body, size), Err(Fault::NotBase64), "{url}");
            }
        }
        assert_eq!(read(&format!(r#"{{"image": "d\u0061ta:{}"}}"#, "A".repeat(2_000)), 9), Err(Fault::NotUrl));
        assert_eq!(read(&"[".repeat(200), 9), Err(Fault::TooDeep));
        let cut = read(r#"{"image": "data:image/png;base64,AAAA"#, 9).expect("as far as it goes");
        assert!(serde_json::from_str::<serde_json::Value>(&cut.0).is_err());
    }
}
