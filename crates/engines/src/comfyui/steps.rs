//! Combines the steps of a brief's pictures, which several servers can render in parallel, into a single progress.

use std::cmp::Ordering;
use std::sync::Mutex;

use tintype_engine::{Progress, Stage};
use tintype_system::locked::Locked as _;

pub(super) struct Steps<'a> {
    progress: &'a Progress,
    /// Steps done and total steps of each picture.
    pictures: Mutex<Vec<(u32, u32)>>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(progress: &'a Progress, pictures: usize) -> Self {
        Self { progress, pictures: Mutex::new(vec![(0, 0); pictures]) }
    }

    /// Notes that `done` of a picture's `of` steps are done. If a workflow counts several times, the longest count is
    /// shown.
    pub(super) fn step(&self, picture: usize, done: u32, of: u32) {
        self.change(picture, |(before, all)| match of.cmp(all) {
            Ordering::Greater => (*before, *all) = (done, of),
            Ordering::Equal => *before = done.max(*before),
            Ordering::Less => {}
        });
    }

    pub(super) fn done(&self, picture: usize) {
        self.change(picture, |(done, of)| {
            *of = (*of).max(1);
            *done = *of;
        });
    }

    fn change(&self, picture: usize, change: impl FnOnce(&mut (u32, u32))) {
        let mut pictures = self.pictures.locked();
        change(&mut pictures[picture]);
        let each = pictures.iter().map(|(_, of)| *of).max().unwrap_or(0);
        let parts = pictures.iter().filter(|(_, of)| *of > 0).map(|(done, of)| f64::from(*done) / f64::from(*of));
        let (count, sum) = (u32::try_from(pictures.len()).unwrap_or(u32::MAX), parts.sum::<f64>());
        self.progress.report(match each {
            0 | 1 => Stage::Fraction((sum / f64::from(count)) as f32),
            each => Stage::Step { done: (sum * f64::from(each)).round() as u32, of: each.saturating_mul(count) },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_all_pictures_add_up() {
        let progress = Progress::default();
        let steps = Steps::new(&progress, 2);
        for (picture, done, of, shown) in [
            (0, 1, 3, "step 1 of 6"),
            (0, 1, 4, "step 1 of 8"),
            (1, 2, 4, "step 3 of 8"),
            (1, 1, 4, "step 3 of 8"),
            (0, 4, 4, "step 6 of 8"),
            (0, 1, 2, "step 6 of 8"),
        ] {
            steps.step(picture, done, of);
            assert_eq!(progress.latest().map(|stage| stage.to_string()).as_deref(), Some(shown));
        }
        steps.done(1);
        assert_eq!(progress.latest(), Some(Stage::Step { done: 8, of: 8 }));
    }

    #[test]
    fn pictures_of_a_server_that_tells_no_steps_are_a_fraction() {
        let progress = Progress::default();
        Steps::new(&progress, 4).done(2);
        assert_eq!(progress.latest(), Some(Stage::Fraction(0.25)));
    }
}
