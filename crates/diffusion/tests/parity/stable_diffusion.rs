//! Stable Diffusion.

use tintype_diffusion::{Error, Order, Step};
use tintype_engine::{CancellationToken, Picture};

use crate::parity::rig::{Model, picture};

#[test]
fn a_reference_of_another_size_is_cut_to_the_size_of_the_picture() {
    let model = Model::new("lcm");
    let mut pipeline = model.pipeline();
    let mut render = |width, height| {
        let references = [picture(width, height)];
        let order = Order { references: &references, ..model.order() };
        pipeline.render(&order, &model.settings(), |_| {}, &CancellationToken::new()).expect("a picture")
    };
    let (wide, high) = (render(200, 50), render(33, 200));
    assert_eq!((wide.width() as usize, wide.height() as usize), model.size());
    assert_ne!(wide, high, "the reference counts");
}

#[test]
fn a_seed_decides_the_picture() {
    let model = Model::new("lcm");
    let (mut pipeline, settings, never) = (model.pipeline(), model.settings(), CancellationToken::new());
    let mut render = |seed, prompt| {
        let order = Order { seed, prompt, ..model.order() };
        pipeline.render(&order, &settings, |_| {}, &never).expect("a picture")
    };
    let first = render(1, "a fox");
    assert_ne!(render(2, "a fox"), first);
    assert_ne!(render(1, "a house"), first);
    assert_eq!(render(1, "a fox"), first);
}

#[test]
fn a_cancelled_render_ends_between_steps() {
    let model = Model::new("lcm");
    let (mut pipeline, cancel) = (model.pipeline(), CancellationToken::new());
    let mut last = 0;
    let after = |step: &Step<'_>| {
        last = step.done;
        if step.done == 2 {
            cancel.cancel();
        }
    };
    let result = pipeline.render(&model.order(), &model.settings(), after, &cancel);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(last, 2);
}

#[test]
fn a_picture_is_the_same_in_a_batch_and_alone() {
    let prompts = ["a fox", "a lighthouse in a storm", "a fox"];
    for name in ["sd15", "lcm", "sdxl"] {
        let model = Model::new(name);
        let (settings, never) = (model.settings(), CancellationToken::new());
        let orders: Vec<_> = (1..).zip(prompts).map(|(seed, prompt)| Order { seed, prompt, ..model.order() }).collect();
        for mut pipeline in model.pipelines() {
            pipeline.learn_previews().expect("learnt");
            let (mut heard, mut previews) = (Vec::new(), Vec::new());
            let progress = |step: &Step<'_>| {
                heard.push(step.done);
                previews = (0..prompts.len()).map(|picture| step.preview(picture)).collect();
            };
            let batch = pipeline.render_batch(&orders, &settings, progress, &never).expect("pictures");
            for (at, (order, picture)) in orders.iter().zip(&batch).enumerate() {
                let (mut preview, mut steps) = (None, Vec::new());
                let progress = |step: &Step<'_>| {
                    steps.push(step.done);
                    preview = step.preview(0);
                };
                let alone = pipeline.render(order, &settings, progress, &never);
                assert_eq!(heard, steps, "{name}: each step is one of all pictures");
                assert_close(picture, &alone.expect("a picture"), name);
                let (in_batch, alone) = (previews[at].as_ref(), preview.as_ref());
                assert_close(in_batch.expect("a preview"), alone.expect("a preview"), name);
            }
            assert!(batch[0] != batch[1] && batch[0] != batch[2]);
        }
    }
}

/// Two pictures differ by rounding alone.
fn assert_close(one: &Picture, other: &Picture, name: &str) {
    let apart = one.as_rgb().iter().zip(other.as_rgb()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(one.as_rgb().len() == other.as_rgb().len() && apart <= Some(1), "{name}: {apart:?}");
}

#[test]
fn orders_that_suit_no_batch_are_refused() {
    let never = CancellationToken::new();
    for (name, change) in [
        ("lcm", (|order| order.width = 128) as fn(&mut Order<'_>)),
        // A model that makes one picture at a time.
        ("klein", |order| order.seed = 2),
    ] {
        let model = Model::new(name);
        let mut orders = [model.order(), model.order()];
        change(&mut orders[1]);
        let result = model.pipeline().render_batch(&orders, &model.settings(), |_| {}, &never);
        assert!(matches!(result, Err(Error::Order(_))), "{name}: {result:?}");
    }
}
