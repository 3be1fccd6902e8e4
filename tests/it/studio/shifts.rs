//! Pages with many pictures: nothing moves while pictures load.

use super::browser::{Person, first};

/// Collects every shift of the layout, also those since the page was opened.
pub(super) const WATCH: &str = "(() => {
    window.shifts = [];
    window.watcher = new PerformanceObserver((list) => shifts.push(...list.getEntries()));
    watcher.observe({ type: 'layout-shift', buffered: true });
})()";

/// The shifts so far that no click or key explains, with the elements that moved and are still there: the words about a
/// wait, which change in their place, are gone with it. Shifts below 0.0001 are left out, a thousandth of what Web Vitals
/// still call good: on a busy machine single controls of the form move by as much while the page arrives, because Chromium
/// also paints between a label or a summary and the words in it, which make it larger.
pub(super) const SHIFTS: &str =
    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
    shifts.push(...watcher.takeRecords());
    const moved = ({ sources }) => sources.filter(({ node }) => node?.isConnected);
    const shown = ({ node }) => node.outerHTML?.slice(0, 160) ?? node.nodeName;
    done(shifts.filter((shift) => !shift.hadRecentInput && shift.value > 0.0001 && moved(shift).length > 0)
        .map((shift) => `${shift.value}: ${moved(shift).map(shown).join(' | ')}`));
}))))";

/// Whether every picture that is on the screen has arrived.
const LOADED: &str = "[...document.images].every((image) => {
    const { top, bottom } = image.getBoundingClientRect();
    return !image.checkVisibility() || bottom < 0 || top > innerHeight || (image.complete && image.naturalWidth > 0);
})";

impl Person {
    /// Fails if anything has moved by itself since the page was opened.
    #[track_caller]
    fn assert_still(&mut self, about: &str) {
        let moved = self.evaluate(SHIFTS);
        assert_eq!(moved, serde_json::json!([]), "{about}");
    }
}

#[test]
fn nothing_moves_while_pictures_arrive() {
    let mut person = Person::sign_in(&[]);
    // As the form does, whose picture below arrives while it is watched.
    person.evaluate(
        "(async () => {
            const proof = document.querySelector('[name=proof]').value;
            const shapes = ['16:9', '1:1', '9:16', '21:9', '4:5'];
            for (let i = 0; i < 30; i++) {
                const prompt = `Harbour at night, study number ${i}`;
                const body = new URLSearchParams({ proof, prompt, shape: shapes[i % 5], n: 1, references: '' });
                await fetch('/studio/tasks', { method: 'POST', body, headers: { 'x-requested-with': 'studio' } });
            }
        })(), 1",
    );
    person.until("document.querySelectorAll('.tile[data-state=completed]').length === 30");
    for (width, height) in [(1_280, 900), (390, 844)] {
        person.resize(width, height);
        for path in ["/studio", "/studio/gallery"] {
            person.open(path);
            person.evaluate(WATCH);
            person.until(LOADED);
            for _ in 0..6 {
                person.evaluate("scrollBy({ top: innerHeight * 0.9, behavior: 'instant' })");
                person.until(LOADED);
            }
            person.assert_still(&format!("{path} at {width}"));
        }
        // A picture takes the place that its tile kept for it.
        person.open("/studio");
        person.create("A slow boat [[delay 2s]]");
        person.until("document.querySelector('.tile progress')");
        person.evaluate(WATCH);
        person.until(&first("completed"));
        person.until(LOADED);
        person.assert_still(&format!("a picture that arrives at {width}"));
    }
    // While the page itself arrives, its last row grows.
    person.block(&["*/pictures/*"]);
    person.slow_down(60_000);
    for path in ["/studio", "/studio/gallery"] {
        person.open(path);
        person.evaluate(WATCH);
        person.assert_still(&format!("{path} over a slow connection"));
    }
    person.errors.retain(|error| !error.contains("ERR_BLOCKED_BY_CLIENT"));
    person.leave();
}
