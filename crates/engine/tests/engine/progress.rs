//! Sizes and progress.

use tintype_engine::{Picture, Progress, Sizes, Stage};

#[test]
fn the_nearest_size_has_the_nearest_ratio_and_then_the_nearest_area() {
    let sizes = Sizes::Of(vec![(512, 512), (1024, 1024), (1344, 768), (768, 1344)]);
    assert_eq!(sizes.nearest(1024, 1024), (1024, 1024));
    assert_eq!(sizes.nearest(600, 600), (512, 512));
    assert_eq!(sizes.nearest(1568, 672), (1344, 768));
    assert_eq!(sizes.nearest(672, 1568), (768, 1344));
    assert_eq!(Sizes::Any.nearest(1248, 832), (1248, 832));
}

#[test]
fn only_the_latest_progress_report_is_kept() {
    let progress = Progress::default();
    assert_eq!(progress.latest(), None);
    progress.report(Stage::Step { done: 3, of: 20 });
    assert_eq!(progress.latest().map(|stage| stage.to_string()).as_deref(), Some("step 3 of 20"));
    progress.report(Stage::Fraction(0.5));
    assert_eq!(progress.latest().map(|stage| stage.to_string()).as_deref(), Some("50 %"));
}

#[test]
fn the_latest_preview_is_kept_small_where_somebody_looks() {
    let grey = |width: u32, height: u32| {
        Picture::from_rgb(width, height, vec![128; (width * height * 3) as usize]).expect("a picture")
    };
    let unseen = Progress::default();
    unseen.show(grey(8, 8));
    assert!(!unseen.wants_previews() && unseen.preview().is_none());

    let progress = Progress::with_previews();
    assert!(progress.preview().is_none());
    for (shown, kept) in [((640, 320), (128, 64)), ((1, 2048), (1, 128)), ((64, 32), (64, 32))] {
        progress.show(grey(shown.0, shown.1));
        let preview = progress.preview().expect("a preview");
        assert_eq!((preview.width(), preview.height()), kept);
    }
}

#[test]
fn a_fraction_is_between_0_and_1() {
    let stages = [
        (Stage::Step { done: 7, of: 20 }, 0.35),
        (Stage::Step { done: 30, of: 20 }, 1.0),
        (Stage::Step { done: 0, of: 0 }, 0.0),
        (Stage::Step { done: 1, of: 0 }, 1.0),
        (Stage::Fraction(-1.0), 0.0),
        (Stage::Fraction(f32::NAN), 0.0),
    ];
    for (stage, fraction) in stages {
        assert_eq!(stage.fraction(), fraction, "{stage:?}");
    }
}
