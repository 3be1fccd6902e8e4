//! Frames between a service and the child process that renders for it.

use tintype_engine::frames::{Event, FrameError, HEADER_BYTES, MAX_BODY_BYTES, Message, body_length};

/// A body that is read has one reading, which is written in the same bytes. No body is both a message and an event.
pub fn frame(data: &[u8]) -> bool {
    if let Some(header) = data.first_chunk::<HEADER_BYTES>() {
        let length = body_length(*header);
        assert_eq!(length.is_ok(), (1..=MAX_BODY_BYTES).contains(&(u32::from_be_bytes(*header) as usize)));
    }
    let message = Message::read(data).map(|message| message.frame());
    let event = Event::read(data).map(|event| event.frame());
    assert!(message.is_err() || event.is_err());
    let same = |frame: Result<Vec<u8>, FrameError>| {
        let frame = frame.expect("a frame that was read can be written");
        let (header, body) = frame.split_first_chunk().expect("a header");
        assert_eq!((body_length(*header), body), (Ok(data.len()), data));
    };
    let accepted = message.is_ok() || event.is_ok();
    message.into_iter().chain(event).for_each(same);
    accepted
}
