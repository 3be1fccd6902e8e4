//! The framed protocol between a service and the child process that renders for it.
//!
//! Both sides write frames: the length of the body in four bytes, then the body. A body begins with a byte for its
//! kind. Numbers are big-endian; texts and lists begin with their length. A body can be read in only one way and has no
//! trailing bytes, and everything in it has a limit, so that neither side allocates more than a frame for the other.
//!
//! The service writes [`Message`]s. The child answers each order with [`Event`]s, ending with [`Event::Done`] or
//! [`Event::Failed`]. Before its first order it writes [`Event::Loaded`].

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
/// Most pictures in an order, and most reference pictures.
const MAX_PICTURES: u32 = 64;
/// Longest side of a picture, in pixels.
const MAX_SIDE: u32 = 4_096;
/// Most steps per picture.
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

/// A frame that cannot be read. The two sides are out of sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame cannot be read: {0}")]
pub struct FrameError(&'static str);

/// A frame from the service.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Render pictures.
    Render(Order),
    /// Stop the order with this number between two steps. Has no effect if it has already ended.
    Cancel {
        /// The order's number.
        order: u32,
    },
}

/// Pictures to render, all of the same size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Order {
    /// Unique among a child's orders.
    pub number: u32,
    /// The prompts of one or several tasks, at least one.
    pub prompts: Vec<Prompt>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Reference pictures, in the caller's order.
    pub references: Vec<Picture>,
    /// The part of the first reference picture to change.
    pub mask: Option<Mask>,
    /// Steps per picture; 0 for the model's default.
    pub steps: u32,
    /// How strongly the pictures follow their prompts; `None` for the model's default.
    pub guidance_scale: Option<f64>,
    /// How much a picture may differ from its reference, from 0 to 1; `None` for the default.
    pub strength: Option<f64>,
    /// What the picture should not show.
    pub negative_prompt: String,
    /// How the prompts are read.
    pub syntax: PromptSyntax,
    /// The most pictures in a batch.
    pub batch: u32,
}

/// A prompt and the pictures to render from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The caller's words.
    pub text: String,
    /// A seed for each picture, at least one.
    pub seeds: Vec<u64>,
    /// Whether someone is watching previews.
    pub previews: bool,
}

impl Order {
    /// All of the order's pictures, each with its prompt and seed, in the order in which events count them.
    pub fn pictures(&self) -> impl Iterator<Item = (&Prompt, u64)> {
        self.prompts.iter().flat_map(|prompt| prompt.seeds.iter().map(move |seed| (prompt, *seed)))
    }
}

/// A frame from the child.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The model is loaded. A child's first frame.
    Loaded(Loaded),
    /// The prompts and the reference pictures are encoded.
    Encoded {
        /// Time that this took, in microseconds.
        micros: u64,
    },
    /// A step is done.
    Step {
        /// The first picture that took it, from 0.
        picture: u32,
        /// How many pictures took it together, at least one.
        pictures: u32,
        /// How many of these pictures' steps are done, at least one.
        done: u32,
        /// How many steps these pictures take in total.
        of: u32,
        /// Time that the step took, in microseconds. The first one loads the model.
        micros: u64,
    },
    /// A preview of the current picture.
    Preview {
        /// The picture that it shows, from 0.
        of: u32,
        /// At most [`PREVIEW_SIDE`] pixels on each side.
        picture: Picture,
    },
    /// The next picture is ready.
    Painted {
        /// The picture.
        picture: Picture,
        /// Time from the last step to the picture, in microseconds: the batch's time divided by its pictures.
        micros: u64,
    },
    /// All of the order's pictures are ready.
    Done(ResourceUsage),
    /// The order failed.
    Failed {
        /// The kind of failure.
        fault: Fault,
        /// A message for the operator, which contains none of the caller's words.
        message: String,
    },
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The model's family, for the operator.
    pub family: String,
    /// The processor, with the instructions that the child uses.
    pub processor: String,
    /// The most reference pictures.
    pub references: u32,
    /// Whether each step sees the reference pictures, rather than only the first one.
    pub sees_references: bool,
    /// Default number of steps per picture.
    pub steps: u32,
    /// How often each step asks the model.
    pub calls: u32,
    /// Both sides of a picture are multiples of this, in pixels.
    pub side_multiple: u32,
    /// Pixels of the pictures that the model was trained on; 0 if it supports any size.
    pub trained_pixels: u32,
    /// The most pictures in a batch.
    pub batch: u32,
    /// Whether the child's system calls are filtered.
    pub confined: bool,
    /// How long the start took, in microseconds.
    pub micros: u64,
}

/// A child's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Peak resident memory including mapped weights, in bytes.
    pub peak_bytes: u64,
    /// Current memory of its own, without files, in bytes.
    pub own_bytes: u64,
}

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The model's files cannot be used.
    Model,
    /// The model cannot carry out the order, even if it is tried again.
    Order,
    /// The runtime failed.
    Run,
    /// The picture is black, or its numbers aren't finite. Another try would give the same result.
    Spoiled,
    /// The order was cancelled.
    Cancelled,
    /// The process or the device ran out of memory.
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

/// A body's length, from the bytes before it.
///
/// # Errors
/// No frame has this length.
pub fn body_length(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX);
    if (1..=MAX_BODY_BYTES).contains(&length) { Ok(length) } else { Err(FrameError("its length is out of range")) }
}

impl Message {
    /// This message as a frame.
    ///
    /// # Errors
    /// It exceeds the longest frame.
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

    /// Reads a frame's body.
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
    /// This event as a frame.
    ///
    /// # Errors
    /// It exceeds the longest frame.
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

    /// Reads a frame's body.
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
