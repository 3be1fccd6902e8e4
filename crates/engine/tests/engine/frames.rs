//! Messages between the service and an engine in a process of its own.

use tintype_engine::frames::{Event, Fault, Loaded, Message, Order, Prompt, ResourceUsage, body_length};
use tintype_engine::picture::PREVIEW_SIDE;
use tintype_engine::{Mask, Picture, PromptSyntax};

fn picture() -> Picture {
    Picture::from_rgb(2, 1, vec![1, 2, 3, 4, 5, 6]).expect("a picture")
}

fn order() -> Order {
    Order {
        number: 7,
        prompts: vec![
            Prompt { text: "a fox in the snow, größer".into(), seeds: vec![u64::MAX, 0], previews: true },
            Prompt { text: String::new(), seeds: vec![1], previews: false },
        ],
        width: 1_280,
        height: 720,
        references: vec![picture()],
        mask: Some(Mask::of(picture())),
        steps: 4,
        guidance_scale: Some(7.5),
        strength: None,
        negative_prompt: "blurry".into(),
        syntax: PromptSyntax::Weighted,
        batch: 4,
    }
}

/// The body of a frame, after a check of its header.
fn body(frame: &[u8]) -> &[u8] {
    let (header, body) = frame.split_first_chunk().expect("a header");
    assert_eq!(body_length(*header), Ok(body.len()));
    body
}

#[test]
fn messages_and_events_are_read_as_they_were_written() {
    for message in [Message::Render(order()), Message::Cancel { order: 7 }] {
        assert_eq!(Message::read(body(&message.frame().expect("a frame"))), Ok(message));
    }
    let loaded = Loaded {
        family: "Stable Diffusion".into(),
        processor: "x86-64, AVX2".into(),
        references: 4,
        sees_references: true,
        steps: 25,
        calls: 2,
        side_multiple: 16,
        trained_pixels: 512 * 512,
        batch: 8,
        confined: true,
        micros: 1,
    };
    let faults = [Fault::Model, Fault::Order, Fault::Run, Fault::Spoiled, Fault::Cancelled, Fault::Memory];
    let failed = faults.map(|fault| Event::Failed { fault, message: "no".into() });
    let events = [
        Event::Loaded(loaded),
        Event::Encoded { micros: u64::MAX },
        Event::Step { picture: 3, pictures: 61, done: 4, of: 4, micros: 9 },
        Event::Preview { of: 63, picture: picture() },
        Event::Painted { picture: picture(), micros: 2 },
        Event::Done(ResourceUsage { peak_bytes: 5, own_bytes: 6 }),
    ];
    for event in events.into_iter().chain(failed) {
        assert_eq!(Event::read(body(&event.frame().expect("a frame"))), Ok(event));
    }
}

#[test]
fn a_body_that_is_cut_or_longer_is_refused() {
    let frame = Message::Render(order()).frame().expect("a frame");
    let whole = body(&frame);
    for length in 0..whole.len() {
        assert!(Message::read(&whole[..length]).is_err(), "{length} bytes");
    }
    assert!(Message::read(&[whole, &[0]].concat()).is_err());
}

#[test]
fn numbers_out_of_range_are_refused() {
    assert!(body_length([0; 4]).is_err() && body_length([255; 4]).is_err());
    let refused = |change: fn(&mut Order)| {
        let mut order = order();
        change(&mut order);
        let frame = Message::Render(order).frame().expect("a frame");
        Message::read(body(&frame)).is_err()
    };
    assert!(refused(|order| order.width = 0));
    assert!(refused(|order| order.height = 4_097));
    assert!(refused(|order| order.prompts.clear()));
    assert!(refused(|order| order.prompts[1].seeds.clear()));
    assert!(refused(|order| order.prompts[1].seeds = vec![1; 65]));
    assert!(refused(|order| order.prompts[1].seeds = vec![1; 63]), "65 pictures in all");
    assert!(refused(|order| order.batch = 0));
    assert!(refused(|order| order.steps = 10_001));
    assert!(refused(|order| order.guidance_scale = Some(f64::NAN)));
    assert!(refused(|order| order.guidance_scale = Some(-1.0)));
    assert!(refused(|order| order.strength = Some(1.5)));
    assert!(refused(|order| order.prompts[0].text = "a".repeat((256 << 10) + 1)));
    for (done, of) in [(0, 4), (5, 4), (1, 10_001)] {
        let step = Event::Step { picture: 0, pictures: 1, done, of, micros: 0 }.frame().expect("a frame");
        assert!(Event::read(body(&step)).is_err(), "{done} of {of}");
    }
    for (picture, pictures) in [(64, 1), (0, 0), (60, 5)] {
        let step = Event::Step { picture, pictures, done: 1, of: 1, micros: 0 }.frame().expect("a frame");
        assert!(Event::read(body(&step)).is_err(), "{pictures} from {picture} on");
    }
    let wide = Picture::from_rgb(PREVIEW_SIDE + 1, 1, vec![0; 387]).expect("a picture");
    let preview = Event::Preview { of: 0, picture: wide }.frame().expect("a frame");
    assert!(Event::read(body(&preview)).is_err());
    let large = Picture::from_rgb(4_096, 4_096, vec![0; 4_096 * 4_096 * 3]).expect("a picture");
    assert!(Event::Painted { picture: large, micros: 0 }.frame().is_err());
}
