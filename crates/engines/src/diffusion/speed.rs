//! A model's speed on this machine: measured by every render, remembered across restarts, and used to choose a task's
//! working size.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tintype_engine::Picture;
use tintype_engine::frames::Loaded;

/// Longest file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Sizes to remember.
const MAX_POINTS: usize = 32;
/// The weight of a new measurement against earlier ones.
const WEIGHT_OF_NEW: f64 = 0.4;
/// A step's time grows with this power of the size: attention grows with its square, the rest proportionally.
const GROWTH: f64 = 1.35;
/// A model renders sides up to this many times as long as in training. Beyond that, it repeats its subject.
const BEYOND_TRAINING: f64 = 1.5;
/// Shortest side of a working size, in pixels.
pub(super) const LEAST_SIDE: u32 = 256;
/// Working sizes' sides are multiples of this, in pixels.
const SIDE_MULTIPLE: u32 = 16;
/// The fraction of the time limit that a render is planned to take.
const PLANNED_PART: f64 = 0.75;
/// The file is rewritten when one of its numbers has changed by this fraction.
const WORTH_WRITING: f64 = 0.2;

/// How many seconds the parts of a render take.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Speed {
    /// The processor that it was measured on.
    processor: String,
    /// The model's default number of steps.
    steps: u32,
    /// How often each step asks the model; 0 if unknown.
    #[serde(default)]
    calls: u32,
    /// Both sides of a picture are multiples of this, in pixels.
    side_multiple: u32,
    /// Pixels of the pictures that the model was trained on; 0 if it supports any size.
    #[serde(default)]
    trained_pixels: u32,
    /// Whether each step sees the reference pictures.
    #[serde(default)]
    sees_references: bool,
    /// Seconds for a prompt and its references.
    encode: f64,
    /// The latest sizes, the newest last.
    points: Vec<Point>,
}

/// The seconds at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    /// Pixels of the picture and its references.
    pixels: u64,
    step: f64,
    /// Seconds from the last step to the picture, if measured.
    decode: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Height of the picture in pixels.
    pub height: u32,
    pub pictures: usize,
    pub steps: u32,
    /// Pixels of all references.
    pub reference_pixels: u64,
    /// Both sides must be multiples of this.
    pub side_multiple: u32,
    /// The most pixels that suit the model; 0 for any number.
    pub most_pixels: u64,
}

impl Speed {
    /// The speed remembered in a file beside a model. An unreadable file counts as none.
    pub(super) fn remembered(path: &Path) -> Self {
        let readable =
            std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() < MAX_FILE_BYTES);
        let text = if readable { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        let speed: Self = serde_json::from_str(&text).unwrap_or_default();
        let sane = |seconds: f64| seconds.is_finite() && (0.0..1e6).contains(&seconds);
        let point = |point: &Point| sane(point.step) && point.pixels > 0 && point.decode.is_none_or(sane);
        let usable = sane(speed.encode) && speed.points.len() <= MAX_POINTS && speed.points.iter().all(point);
        if usable { speed } else { Self::default() }
    }

    /// Saves it for the next start.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn remember(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.parent().ok_or_else(|| std::io::Error::other("it is not a file in a folder"))?;
        std::fs::create_dir_all(folder)?;
        let unfinished = folder.join(format!(".speed.{}", std::process::id()));
        let write = || {
            // A file with this name is left over from an earlier process with the same id.
            drop(std::fs::remove_file(&unfinished));
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
            file.write_all(serde_json::to_string_pretty(self).map_err(std::io::Error::other)?.as_bytes())?;
            std::fs::rename(&unfinished, path)
        };
        write().inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
    }

    /// Notes the open model. Forgets everything measured on another processor.
    pub(super) fn on(&mut self, loaded: &Loaded) {
        if self.processor != loaded.processor {
            *self = Self { processor: loaded.processor.clone(), ..Self::default() };
        }
        (self.steps, self.side_multiple) = (loaded.steps, loaded.side_multiple);
        (self.calls, self.trained_pixels) = (loaded.calls, loaded.trained_pixels);
        self.sees_references = loaded.sees_references;
    }

    /// The reference pixels that each step works on.
    pub(super) fn seen_pixels(&self, references: &[Picture]) -> u64 {
        // The model shrinks larger references.
        let pixels = |picture: &Picture| (u64::from(picture.width()) * u64::from(picture.height())).min(1 << 20);
        if self.sees_references { references.iter().map(pixels).sum() } else { 0 }
    }

    /// The plan of a task for the most recently noted model. With `steps` 0, the model's default number is used.
    pub(super) fn plan(&self, (width, height): (u32, u32), pictures: usize, steps: u32, reference_pixels: u64) -> Plan {
        let steps = (if steps > 0 { steps } else { self.steps }).saturating_mul(self.calls.max(1));
        let most_pixels = (f64::from(self.trained_pixels) * BEYOND_TRAINING * BEYOND_TRAINING) as u64;
        let side_multiple = self.side_multiple.max(1);
        Plan { width, height, pictures, steps, reference_pixels, side_multiple, most_pixels }
    }

    pub(super) fn is_known(&self) -> bool {
        !self.points.is_empty()
    }

    /// Whether it differs enough from what was remembered to be worth saving.
    pub(super) fn differs(&self, remembered: &Self) -> bool {
        let far = |a: f64, b: f64| (a - b).abs() > WORTH_WRITING * a.max(b);
        let same = |(a, b): (&Point, &Point)| {
            a.pixels == b.pixels && !far(a.step, b.step) && !far(a.decode.unwrap_or(0.0), b.decode.unwrap_or(0.0))
        };
        self.processor != remembered.processor
            || far(self.encode, remembered.encode)
            || self.points.len() != remembered.points.len()
            || !self.points.iter().zip(&remembered.points).all(same)
    }

    pub(super) fn observe_encoding(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        // A cached prompt takes no time, so it says nothing about the next one.
        if took > self.encode * 0.1 {
            self.encode = if self.encode > 0.0 { self.encode + (took - self.encode) * WEIGHT_OF_NEW } else { took };
        }
    }

    pub(super) fn observe_step(&mut self, pixels: u64, took: Duration) {
        let took = took.as_secs_f64();
        match self.points.iter_mut().find(|point| point.pixels == pixels) {
            Some(point) => point.step += (took - point.step) * WEIGHT_OF_NEW,
            None => {
                if self.points.len() == MAX_POINTS {
                    self.points.remove(0);
                }
                self.points.push(Point { pixels, step: took, decode: None });
            }
        }
    }

    pub(super) fn has_measured(&self, pixels: u64) -> bool {
        self.points.iter().any(|point| point.pixels == pixels)
    }

    pub(super) fn observe_decoding(&mut self, pixels: u64, took: Duration) {
        let took = took.as_secs_f64();
        if let Some(point) = self.points.iter_mut().find(|point| point.pixels == pixels) {
            point.decode = Some(point.decode.map_or(took, |before| before + (took - before) * WEIGHT_OF_NEW));
        }
    }

    /// Estimated seconds per step; `None` before the first measurement.
    pub(super) fn step(&self, pixels: u64) -> Option<f64> {
        self.nearest(pixels, |point| Some(point.step))
    }

    /// Estimated seconds from the last step to the picture.
    pub(super) fn decoding(&self, pixels: u64) -> f64 {
        self.nearest(pixels, |point| point.decode).unwrap_or(0.0)
    }

    /// Scales the seconds at the nearest size. Smaller sizes save no more than their pixels.
    fn nearest(&self, pixels: u64, part: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        let ratio = |point: &Point| pixels as f64 / point.pixels as f64;
        let known = self.points.iter().filter_map(|point| Some((ratio(point), part(point)?)));
        let (ratio, seconds) = known.min_by(|(a, _), (b, _)| a.ln().abs().total_cmp(&b.ln().abs()))?;
        Some(seconds * if ratio > 1.0 { ratio.powf(GROWTH) } else { ratio })
    }

    /// Estimated time of a task at its size; `None` before the first measurement.
    pub(super) fn task(&self, plan: &Plan) -> Option<Duration> {
        let own = u64::from(plan.width) * u64::from(plan.height);
        let steps = self.step(own + plan.reference_pixels)? * f64::from(plan.steps);
        let seconds = self.encode + (steps + self.decoding(own)) * plan.pictures as f64;
        Some(Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))
    }

    /// The largest size of the same ratio that suits the model and lets the task finish within the limit: the task's
    /// own size, or one with sides that are multiples of 16 pixels and at least 256. `None` if none is fast enough.
    pub(super) fn working_size(&self, plan: &Plan, limit: Duration) -> Option<(u32, u32)> {
        let fits = |width, height| {
            let task = self.task(&Plan { width, height, ..*plan });
            task.is_none_or(|task| task <= limit.mul_f64(PLANNED_PART))
        };
        let multiple = least_common(SIDE_MULTIPLE, plan.side_multiple.max(1));
        let (width, height, short) = (plan.width, plan.height, plan.width.min(plan.height));
        let suits =
            |width: u32, height: u32| plan.most_pixels == 0 || u64::from(width) * u64::from(height) <= plan.most_pixels;
        let is_whole = |side: u32| side.is_multiple_of(plan.side_multiple.max(1));
        if is_whole(width) && is_whole(height) && suits(width, height) && fits(width, height) {
            return Some((width, height));
        }
        let scaled = |side: u32, to: u32| {
            let side = f64::from(side) * f64::from(to) / f64::from(short) / f64::from(multiple);
            (side.round() as u32).max(1).saturating_mul(multiple)
        };
        let least = LEAST_SIDE.min(short).div_ceil(multiple).max(1);
        let sizes = (least..=short / multiple).rev().map(|side| (side, side * multiple));
        let sizes = sizes.map(|(at, side)| (at == least, (scaled(width, side), scaled(height, side))));
        let mut suited = sizes.filter(|(is_least, (width, height))| *is_least || suits(*width, *height));
        suited.find(|(_, (width, height))| fits(*width, *height)).map(|(_, size)| size)
    }
}

fn least_common(a: u32, b: u32) -> u32 {
    let divisor = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (a / divisor(a, b)).saturating_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(processor: &str) -> Loaded {
        Loaded {
            family: "a family".into(),
            processor: processor.into(),
            references: 4,
            sees_references: true,
            steps: 4,
            calls: 1,
            side_multiple: 16,
            trained_pixels: 0,
            batch: 1,
            confined: true,
            micros: 0,
        }
    }

    fn measured(side: u64, step: f64, decode: f64) -> Speed {
        let mut speed = Speed::default();
        speed.on(&loaded("a processor"));
        speed.observe_encoding(Duration::from_secs(10));
        speed.observe_step(side * side, Duration::from_secs_f64(step));
        speed.observe_decoding(side * side, Duration::from_secs_f64(decode));
        speed
    }

    fn plan(width: u32, height: u32, pictures: usize) -> Plan {
        measured(512, 25.0, 10.0).plan((width, height), pictures, 0, 0)
    }

    const LIMIT: Duration = Duration::from_secs(8 * 60);

    #[test]
    fn a_task_is_rendered_at_the_largest_size_that_fits() {
        let speed = measured(512, 25.0, 10.0);
        let size = |plan: &Plan| speed.working_size(plan, LIMIT);
        assert_eq!(size(&plan(512, 512, 1)), Some((512, 512)));
        let (width, height) = size(&plan(1_024, 1_024, 1)).expect("a size");
        assert!(width == height && width % 16 == 0 && (512..1_024).contains(&width), "{width}x{height}");
        let (wide, high) = size(&plan(1_280, 720, 1)).expect("a size");
        assert!(
            wide % 16 == 0 && high % 16 == 0 && (wide as f64 / high as f64 - 16.0 / 9.0).abs() < 0.05,
            "{wide}x{high}"
        );
        let (smaller, _) = size(&plan(1_024, 1_024, 4)).expect("a size");
        assert!(smaller < width, "four pictures have less time each");
        let referring = Plan { reference_pixels: 1 << 20, ..plan(1_024, 1_024, 1) };
        assert!(size(&referring).is_none_or(|(side, _)| side < width), "references take time");
        assert_eq!(speed.working_size(&plan(1_024, 1_024, 1), Duration::from_secs(20)), None);
        assert_eq!(Speed::default().working_size(&plan(1_024, 1_024, 4), LIMIT), Some((1_024, 1_024)));
    }

    #[test]
    fn a_model_makes_no_pictures_far_larger_than_those_of_its_training() {
        let mut speed = measured(512, 0.001, 0.001);
        speed.on(&Loaded { trained_pixels: 512 * 512, ..loaded("a processor") });
        let size = |width, height| speed.working_size(&speed.plan((width, height), 1, 0, 0), LIMIT).expect("a size");
        assert_eq!((size(512, 512), size(768, 768)), ((512, 512), (768, 768)));
        assert_eq!((size(1_024, 1_024), size(1_360, 768)), ((768, 768), (1_024, 576)));
        speed.on(&Loaded { trained_pixels: 64 * 64, ..loaded("a processor") });
        let size = speed.working_size(&speed.plan((1_024, 1_024), 1, 0, 0), LIMIT);
        assert_eq!(size, Some((LEAST_SIDE, LEAST_SIDE)), "the smallest suits every model");
    }

    #[test]
    fn a_step_that_asks_the_model_twice_takes_twice_the_time() {
        let mut speed = measured(512, 25.0, 10.0);
        let task = |speed: &Speed| speed.task(&speed.plan((512, 512), 1, 0, 0)).expect("seconds").as_secs();
        assert_eq!(task(&speed), 10 + 4 * 25 + 10);
        speed.on(&Loaded { calls: 2, ..loaded("a processor") });
        assert_eq!(task(&speed), 10 + 8 * 25 + 10);
    }

    #[test]
    fn sides_suit_the_model() {
        let speed = measured(64, 0.001, 0.001);
        let odd = Plan { side_multiple: 64, ..plan(1_120, 896, 1) };
        let (width, height) = speed.working_size(&odd, LIMIT).expect("a size");
        assert!(width.is_multiple_of(64) && height.is_multiple_of(64), "{width}x{height}");
        let small = Plan { side_multiple: 24, ..plan(72, 48, 1) };
        assert_eq!(speed.working_size(&small, LIMIT), Some((72, 48)), "a size of the settings is taken as it is");
    }

    #[test]
    fn the_estimate_follows_the_size_and_the_latest_measurements() {
        let mut speed = measured(512, 25.0, 10.0);
        let step = |speed: &Speed, side: u64| speed.step(side * side).expect("seconds");
        assert!(step(&speed, 1_024) > 4.0 * 25.0 && step(&speed, 256) == 25.0 / 4.0);
        for _ in 0..20 {
            speed.observe_step(1_024 * 1_024, Duration::from_secs(50));
        }
        assert!((step(&speed, 1_024) - 50.0).abs() < 1.0 && step(&speed, 512) == 25.0);
        for side in 1..100 {
            speed.observe_step(side, Duration::from_secs(1));
        }
        assert_eq!(speed.points.len(), MAX_POINTS);
    }

    #[test]
    fn a_speed_is_remembered_for_the_same_processor_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("cache");
        let file = cache.join("speed-w8a8.json");
        assert_eq!(Speed::remembered(&file), Speed::default());
        let speed = measured(512, 25.0, 10.0);
        speed.remember(&file).expect("written");
        let mut found = Speed::remembered(&file);
        assert_eq!(found, speed);
        assert!(!found.differs(&speed) && found.differs(&Speed::default()));
        found.on(&loaded("a processor"));
        assert!(found.is_known());
        found.on(&loaded("another processor"));
        assert!(!found.is_known());
        let entries = std::fs::read_dir(&cache).expect("a folder").count();
        assert_eq!(entries, 1, "nothing else is left there");
        let text = serde_json::to_string(&speed).expect("JSON");
        let damaged =
            [String::new(), text.replace("25.0", "-25.0"), text.replace("25.0", "1e300"), text[1..].to_owned()];
        for text in damaged {
            std::fs::write(&file, &text).expect("written");
            assert_eq!(Speed::remembered(&file), Speed::default(), "{text}");
        }
    }
}
