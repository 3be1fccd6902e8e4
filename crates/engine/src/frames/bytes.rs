//! Reads and writes the bytes of frame bodies.

use super::{FrameError, HEADER_BYTES, MAX_PICTURES, MAX_SIDE, MAX_TEXT_BYTES, body_length};
use crate::Picture;

/// A frame under construction.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        Self(vec![0; HEADER_BYTES])
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u32) {
        self.0.extend(number.to_be_bytes());
    }

    pub(super) fn long(&mut self, number: u64) {
        self.0.extend(number.to_be_bytes());
    }

    pub(super) fn fraction(&mut self, number: Option<f64>) {
        self.byte(u8::from(number.is_some()));
        self.long(number.unwrap_or_default().to_bits());
    }

    pub(super) fn count(&mut self, count: usize) {
        self.number(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend(text.as_bytes());
    }

    pub(super) fn picture(&mut self, picture: &Picture) {
        self.number(picture.width());
        self.number(picture.height());
        self.0.extend(picture.as_rgb());
    }

    pub(super) fn end(mut self) -> Result<Vec<u8>, FrameError> {
        let length = self.0.len() - HEADER_BYTES;
        let too_long = FrameError("it is too long");
        let header = u32::try_from(length).map_err(|_| too_long)?.to_be_bytes();
        body_length(header).map_err(|_| too_long)?;
        self.0[..HEADER_BYTES].copy_from_slice(&header);
        Ok(self.0)
    }
}

/// The unread rest of a body.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(FrameError("it is too short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(FrameError("it is too short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, FrameError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError("it has a flag that is neither set nor clear")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn within(&mut self, least: u32, most: u32) -> Result<u32, FrameError> {
        let number = self.number()?;
        if (least..=most).contains(&number) { Ok(number) } else { Err(FrameError("it has a number out of range")) }
    }

    pub(super) fn long(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A fraction from 0 to `most`, if there is one.
    pub(super) fn fraction(&mut self, most: f64) -> Result<Option<f64>, FrameError> {
        let (given, number) = (self.flag()?, f64::from_bits(self.long()?));
        match given {
            true if (0.0..=most).contains(&number) => Ok(Some(number)),
            false if number.to_bits() == 0 => Ok(None),
            _ => Err(FrameError("it has a number out of range")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, FrameError> {
        let length = self.number()? as usize;
        if length > MAX_TEXT_BYTES {
            return Err(FrameError("it has a text that is too long"));
        }
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| FrameError("it has a text that is not UTF-8"))
    }

    pub(super) fn picture(&mut self) -> Result<Picture, FrameError> {
        let (width, height) = (self.within(1, MAX_SIDE)?, self.within(1, MAX_SIDE)?);
        let bytes = self.bytes(width as usize * height as usize * 3)?;
        Picture::from_rgb(width, height, bytes.to_vec()).ok_or(FrameError("it has a picture of another size"))
    }

    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Vec<T>, FrameError> {
        let count = self.number()? as usize;
        if count > MAX_PICTURES as usize {
            return Err(FrameError("it has a list that is too long"));
        }
        (0..count).map(|_| item(self)).collect()
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError("something is behind its end")) }
    }
}
