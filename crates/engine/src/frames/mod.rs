//! The framed protocol between a service and the child process that renders for it.
//!
//! Either side writes frames to the other: the length of the body in four bytes, then the body. A body begins with a byte
//! for its kind. Numbers are big-endian; a text and a list begin with their length. A body has one reading and
//! nothing behind it, and everything in it has a limit, so that neither side allocates more than a frame for the other.
//!
//! The service writes [`Message`]s. The child answers an order with [`Event`]s, of which the last one is
//! [`Event::Done`] or [`Event::Failed`]. Before its first order it writes [`Event::Loaded`].

mod bytes;

use self::bytes::{Reader, Writer};
use crate::picture::PREVIEW_SIDE;
use crate::{Mask, Picture, PromptSyntax};

/// Bytes before the body of a frame.
pub const HEADER_BYTES: usize = 4;
/// Longest body, in bytes: a picture of 2048x2048, or five references of 1568x1568, with room for the rest.
pub const MAX_BODY_BYTES: usize = 40 << 20;
/// Longest text, in bytes. A prompt has at most 32,000 characters.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// Most pictures of an order, and most reference pictures.
const MAX_PICTURES: u32 = 64;
/// Longest side of a picture, in pixels.
const MAX_SIDE: u32 = 4_096;
/// Most steps of a picture.
const MAX_STEPS: u32 = 10_000;
const MAX_GUIDANCE: f64 = 1_000.0;

const RENDER: u8 = 1;
const CANCEL: u8 = 2;
const LOADED: u8 = 16;
const ENCODED: u8 = 17;
const STEP: u8 = 18;
const PAINTED: u8 = 19;
const DONE: u8 = 20;
const FAILED: u8 = 21;
const PREVIEW: u8 = 22;

/// A frame that cannot be read. The two sides have lost each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame cannot be read: {0}")]
pub struct FrameError(&'static str);

/// A frame of the service.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Render pictures.
    Render(Order),
    /// Stop the order of this number between two steps. One that has ended stays ended.
    Cancel {
        /// The number of the order.
        order: u32,
    },
}

/// Pictures to render, of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// Different for each order to a child.
    pub number: u32,
    /// The prompts of several tasks, or of one, at least one.
    pub prompts: Vec<Prompt>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Reference pictures, in the order of the caller.
    pub references: Vec<Picture>,
    /// The part of the first reference picture to change.
    pub mask: Option<Mask>,
    /// Steps of each picture; 0 for as many as the model was made for.
    pub steps: u32,
    /// How strongly the pictures follow their prompts; `None` for as strongly as the model was made for.
    pub guidance_scale: Option<f64>,
    /// How far a picture may be from its reference, from 0 to 1; `None` for the usual distance.
    pub strength: Option<f64>,
    /// Words for things that the pictures should not show.
    pub negative_prompt: String,
    /// How the prompts are read.
    pub syntax: PromptSyntax,
    /// The most pictures that take each step together.
    pub batch: u32,
}

/// A prompt and the pictures to render from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The words of the caller.
    pub text: String,
    /// A seed for each picture, at least one.
    pub seeds: Vec<u64>,
    /// Whether someone looks at previews.
    pub previews: bool,
}

impl Order {
    /// All pictures of the order, in which the events count them: the prompt and the seed of each.
    pub fn pictures(&self) -> impl Iterator<Item = (&Prompt, u64)> {
        self.prompts.iter().flat_map(|prompt| prompt.seeds.iter().map(move |seed| (prompt, *seed)))
    }
}

/// A frame of the child.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The model is open. The first frame of a child.
    Loaded(Loaded),
    /// The prompts and the reference pictures are encoded.
    Encoded {
        /// Time that this took, in microseconds.
        micros: u64,
    },
    /// A step is done.
    Step {
        /// The first picture that it belongs to, from 0.
        picture: u32,
        /// Pictures that took it together, at least one.
        pictures: u32,
        /// Steps of these pictures that are done, at least one.
        done: u32,
        /// All steps of these pictures.
        of: u32,
        /// Time that the step took, in microseconds. The first one loads the model.
        micros: u64,
    },
    /// A preview of the picture that is being made.
    Preview {
        /// The picture that it is one of, from 0.
        of: u32,
        /// At most [`PREVIEW_SIDE`] pixels on each side.
        picture: Picture,
    },
    /// The next picture is ready.
    Painted {
        /// The picture.
        picture: Picture,
        /// Time from the last step to the picture, in microseconds: its part of the time for all pictures of its batch.
        micros: u64,
    },
    /// All pictures of the order are ready.
    Done(ResourceUsage),
    /// The order failed.
    Failed {
        /// The kind of the failure.
        fault: Fault,
        /// A message for the operator, without words of the caller.
        message: String,
    },
}

/// A model that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The family of the model, for the operator.
    pub family: String,
    /// The processor, with the instructions that the child uses.
    pub processor: String,
    /// The most reference pictures that the model takes.
    pub references: u32,
    /// Whether each step sees the reference pictures, and not only the first one.
    pub sees_references: bool,
    /// Steps of a picture unless the order names others.
    pub steps: u32,
    /// How often each step asks the model.
    pub calls: u32,
    /// Both sides of a picture are multiples of this, in pixels.
    pub side_multiple: u32,
    /// Pixels of the pictures that the model was trained with; 0 if it makes any size.
    pub trained_pixels: u32,
    /// The most pictures that can take a step together.
    pub batch: u32,
    /// Whether system calls of the child are filtered.
    pub confined: bool,
    /// Time that the start took, in microseconds.
    pub micros: u64,
}

/// The memory of a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// The most that was resident at any time, with the mapped weights, in bytes.
    pub peak_bytes: u64,
    /// Its own memory now, without files, in bytes.
    pub own_bytes: u64,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The files of the model cannot be used.
    Model,
    /// The model cannot carry out the order, whatever is tried.
    Order,
    /// The runtime failed.
    Run,
    /// The picture is black, or its numbers are not finite. It would be again.
    Spoiled,
    /// The order was cancelled.
    Cancelled,
    /// The memory of the process or of the device ran out.
    Memory,
}

const FAULTS: [(Fault, u8); 6] = [
    (Fault::Model, 0),
    (Fault::Order, 1),
    (Fault::Run, 2),
    (Fault::Spoiled, 3),
    (Fault::Cancelled, 4),
    (Fault::Memory, 5),
];

/// The length of a body, from the bytes before it.
///
/// # Errors
/// There is no such frame.
pub fn body_length(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX);
    if (1..=MAX_BODY_BYTES).contains(&length) { Ok(length) } else { Err(FrameError("its length is out of range")) }
}

impl Message {
    /// The frame of this message.
    ///
    /// # Errors
    /// It is longer than any frame.
    pub fn frame(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = Writer::new();
        match self {
            Self::Render(order) => {
                frame.byte(RENDER);
                frame.number(order.number);
                frame.count(order.prompts.len());
                for prompt in &order.prompts {
                    frame.text(&prompt.text);
                    frame.count(prompt.seeds.len());
                    prompt.seeds.iter().for_each(|seed| frame.long(*seed));
                    frame.byte(u8::from(prompt.previews));
                }
                frame.number(order.width);
                frame.number(order.height);
                frame.count(order.references.len());
                order.references.iter().for_each(|picture| frame.picture(picture));
                frame.byte(u8::from(order.mask.is_some()));
                order.mask.iter().for_each(|mask| frame.picture(mask.picture()));
                frame.number(order.steps);
                frame.fraction(order.guidance_scale);
                frame.fraction(order.strength);
                frame.text(&order.negative_prompt);
                frame.byte(u8::from(order.syntax == PromptSyntax::Weighted));
                frame.number(order.batch);
            }
            Self::Cancel { order } => {
                frame.byte(CANCEL);
                frame.number(*order);
            }
        }
        frame.end()
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// It is not a message.
    pub fn read(body: &[u8]) -> Result<Self, FrameError> {
        let mut body = Reader(body);
        let message = match body.byte()? {
            RENDER => {
                let (number, prompts) = (body.number()?, body.list(prompt)?);
                let (width, height) = (body.within(1, MAX_SIDE)?, body.within(1, MAX_SIDE)?);
                let references = body.list(Reader::picture)?;
                let mask = if body.flag()? { Some(Mask::of(body.picture()?)) } else { None };
                let steps = body.within(0, MAX_STEPS)?;
                let (guidance_scale, strength) = (body.fraction(MAX_GUIDANCE)?, body.fraction(1.0)?);
                let negative_prompt = body.text()?;
                let syntax = if body.flag()? { PromptSyntax::Weighted } else { PromptSyntax::Plain };
                let batch = body.within(1, MAX_PICTURES)?;
                let order = Order {
                    number,
                    prompts,
                    width,
                    height,
                    references,
                    mask,
                    steps,
                    guidance_scale,
                    strength,
                    negative_prompt,
                    syntax,
                    batch,
                };
                if !(1..=MAX_PICTURES as usize).contains(&order.pictures().count()) {
                    return Err(FrameError("it orders no picture, or too many"));
                }
                Self::Render(order)
            }
            CANCEL => Self::Cancel { order: body.number()? },
            _ => return Err(FrameError("it is no message")),
        };
        body.end()?;
        Ok(message)
    }
}

fn prompt(body: &mut Reader<'_>) -> Result<Prompt, FrameError> {
    let prompt = Prompt { text: body.text()?, seeds: body.list(Reader::long)?, previews: body.flag()? };
    if prompt.seeds.is_empty() { Err(FrameError("it has a prompt without a picture")) } else { Ok(prompt) }
}

impl Event {
    /// The frame of this event.
    ///
    /// # Errors
    /// It is longer than any frame.
    pub fn frame(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = Writer::new();
        match self {
            Self::Loaded(loaded) => {
                frame.byte(LOADED);
                frame.text(&loaded.family);
                frame.text(&loaded.processor);
                frame.number(loaded.references);
                frame.byte(u8::from(loaded.sees_references));
                frame.number(loaded.steps);
                frame.number(loaded.calls);
                frame.number(loaded.side_multiple);
                frame.number(loaded.trained_pixels);
                frame.number(loaded.batch);
                frame.byte(u8::from(loaded.confined));
                frame.long(loaded.micros);
            }
            Self::Encoded { micros } => {
                frame.byte(ENCODED);
                frame.long(*micros);
            }
            Self::Step { picture, pictures, done, of, micros } => {
                frame.byte(STEP);
                [*picture, *pictures, *done, *of].into_iter().for_each(|number| frame.number(number));
                frame.long(*micros);
            }
            Self::Preview { of, picture } => {
                frame.byte(PREVIEW);
                frame.number(*of);
                frame.picture(picture);
            }
            Self::Painted { picture, micros } => {
                frame.byte(PAINTED);
                frame.picture(picture);
                frame.long(*micros);
            }
            Self::Done(usage) => {
                frame.byte(DONE);
                frame.long(usage.peak_bytes);
                frame.long(usage.own_bytes);
            }
            Self::Failed { fault, message } => {
                frame.byte(FAILED);
                frame.byte(FAULTS.iter().find(|(known, _)| known == fault).map_or(0, |(_, code)| *code));
                frame.text(message);
            }
        }
        frame.end()
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// It is not an event.
    pub fn read(body: &[u8]) -> Result<Self, FrameError> {
        let mut body = Reader(body);
        let event = match body.byte()? {
            LOADED => Self::Loaded(Loaded {
                family: body.text()?,
                processor: body.text()?,
                references: body.number()?,
                sees_references: body.flag()?,
                steps: body.within(1, MAX_STEPS)?,
                calls: body.within(1, 2)?,
                side_multiple: body.within(1, MAX_SIDE)?,
                trained_pixels: body.number()?,
                batch: body.within(1, MAX_PICTURES)?,
                confined: body.flag()?,
                micros: body.long()?,
            }),
            ENCODED => Self::Encoded { micros: body.long()? },
            STEP => {
                let picture = body.within(0, MAX_PICTURES - 1)?;
                let pictures = body.within(1, MAX_PICTURES - picture)?;
                let (done, of) = (body.number()?, body.within(1, MAX_STEPS)?);
                if !(1..=of).contains(&done) {
                    return Err(FrameError("it is a step that no order has"));
                }
                Self::Step { picture, pictures, done, of, micros: body.long()? }
            }
            PREVIEW => {
                let (of, picture) = (body.within(0, MAX_PICTURES - 1)?, body.picture()?);
                if picture.width().max(picture.height()) > PREVIEW_SIDE {
                    return Err(FrameError("it has a preview that is too large"));
                }
                Self::Preview { of, picture }
            }
            PAINTED => Self::Painted { picture: body.picture()?, micros: body.long()? },
            DONE => Self::Done(ResourceUsage { peak_bytes: body.long()?, own_bytes: body.long()? }),
            FAILED => {
                let code = body.byte()?;
                let known = FAULTS.iter().find(|(_, known)| *known == code);
                let (fault, _) = known.ok_or(FrameError("it fails in an unknown way"))?;
                Self::Failed { fault: *fault, message: body.text()? }
            }
            _ => return Err(FrameError("it is no event")),
        };
        body.end()?;
        Ok(event)
    }
}
