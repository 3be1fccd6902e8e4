//! Many pictures on one page: small tiles, the viewer, selections, and the way back to a tile.

use super::browser::Person;

const GALLERY: &str = "/studio/gallery";
const TILES: &str = "[...document.querySelectorAll('.grid > .tile:not([hidden])')]";
/// Whether all tiles have ended.
const ENDED: &str = "[...document.querySelectorAll('.tile')].every((tile) => tile.dataset.state !== 'processing')";

impl Person {
    /// Signs in to a server that takes any number of tasks.
    fn of_many() -> Self {
        Self::sign_in(&["--submit-rate", "0", "--max-unfinished", "0"])
    }

    /// Creates tasks of all shapes, newest last, with these words in the prompts of all of them. It leaves the page with the
    /// form, which would draw each of their steps.
    fn create_many(&mut self, count: usize, words: &str) {
        if self.evaluate("location.pathname") != "/studio/sessions" {
            self.open("/studio/sessions");
        }
        self.evaluate(&format!(
            "(async () => {{
                window.made = false;
                const shapes = ['16:9', '1:1', '9:16', '21:9', '4:5', '3:2', '2:3'];
                const proof = document.querySelector('[name=proof]').value;
                for (let i = 0; i < {count}; i++) {{
                    const fields = {{ proof, prompt: `Harbour ${{i}} {words}`, shape: shapes[i % 7], n: 1 + (i % 4) }};
                    const body = new URLSearchParams(fields);
                    const headers = {{ 'x-requested-with': 'studio' }};
                    const answer = await fetch('/studio/tasks', {{ method: 'POST', body, headers }});
                    if (!answer.ok) throw new Error(await answer.text());
                }}
                window.made = true;
            }})(), 1"
        ));
        self.until("window.made === true");
    }

    /// Opens the gallery when every task has ended.
    fn open_gallery(&mut self) {
        self.open("/studio");
        self.until(ENDED);
        self.open(GALLERY);
        self.until(&format!("{TILES}.length > 0 && document.documentElement.dataset.size"));
    }

    fn count(&mut self, expression: &str) -> u64 {
        self.evaluate(expression).as_u64().expect("a number")
    }
}

#[test]
fn tiles_are_small_and_pictures_fill_the_grid() {
    let mut person = Person::of_many();
    person.create_many(14, "at night, a study in blue with many boats that wait for the tide, long exposure");
    person.open_gallery();
    let largest = "Promise.resolve().then(async () => {
        const page = await (await fetch('/studio/gallery', { headers: { 'x-requested-with': 'studio' } })).text();
        const template = document.createElement('template');
        template.innerHTML = page;
        const tiles = [...template.content.querySelectorAll('.tile')];
        return [Math.max(...tiles.map((tile) => tile.querySelectorAll('*').length + 1)),
            Math.max(...tiles.map((tile) => new TextEncoder().encode(tile.outerHTML).length)),
            tiles.length];
    })";
    let largest = person.evaluate(largest);
    assert_eq!(largest[2], 14);
    assert!(largest[0].as_u64().is_some_and(|nodes| nodes <= 15), "{largest}");
    assert!(largest[1].as_u64().is_some_and(|bytes| bytes <= 1_024), "{largest}");
    for (width, height) in [(1_440, 900), (390, 844)] {
        person.resize(width, height);
        let share = "(() => {
            const grid = document.querySelector('.grid').getBoundingClientRect();
            const end = document.querySelector('.tile:last-of-type').getBoundingClientRect().bottom;
            const images = [...document.querySelectorAll('.tile img')].map((image) => image.getBoundingClientRect());
            const covered = images.reduce((sum, { width, height }) => sum + width * height, 0);
            return Math.round(100 * covered / (grid.width * (end - grid.top)));
        })()";
        let share = person.count(share);
        assert!((75..=100).contains(&share), "{share} % at {width}");
        // A tile has the ratio of its picture.
        let ratios = "[...document.querySelectorAll('.tile:not(.n2, .n3)')].filter((tile) => {
            const [across, down] = tile.dataset.shape.split(':');
            const { width, height } = tile.getBoundingClientRect();
            return Math.abs(width / height - across / down) > 0.03 * across / down;
        }).map((tile) => tile.outerHTML.slice(0, 120))";
        assert_eq!(person.evaluate(ratios), serde_json::json!([]), "at {width}");
    }
    person.resize(1_440, 900);
    let height = "document.querySelector('.tile').getBoundingClientRect().height";
    let medium = person.evaluate(height).as_f64();
    person.evaluate(
        "(() => {
            const range = document.querySelector('[data-sizer] input');
            range.value = 1;
            range.dispatchEvent(new Event('input'));
        })()",
    );
    assert!(person.evaluate(height).as_f64() < medium);
    person.open(GALLERY);
    assert!(person.evaluate(height).as_f64() < medium, "the browser keeps the size");
    person.leave();
}

#[test]
fn a_hundred_boards_leave_the_pictures_at_the_top() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    person.evaluate(
        "(async () => {
            const proof = document.querySelector('[name=proof]').value;
            for (let i = 0; i < 100; i++) {
                const body = new URLSearchParams({ proof, name: `Board number ${i}` });
                await fetch('/studio/boards', { method: 'POST', body, headers: { 'x-requested-with': 'studio' } });
            }
            window.made = true;
        })(), 1",
    );
    person.until("window.made === true");
    for (width, height, most) in [(1_440, 900, 200), (1_024, 768, 200), (390, 844, 260)] {
        person.resize(width, height);
        person.open(GALLERY);
        let top = person.count("Math.round(document.querySelector('.tile').getBoundingClientRect().top)");
        assert!(top <= most, "{top} at {width}");
    }
    person.resize(1_440, 900);
    person.open(GALLERY);
    let shown = "[...document.querySelectorAll('[data-board]:not([hidden])')].length";
    assert_eq!(person.count(shown), 100);
    person.paste("document.querySelector('[data-board-find]')", "number 42");
    person.until(&format!("{shown} === 1"));
    // A board shows its newest picture.
    person.evaluate(&format!("{TILES}[0].querySelector('[data-pick]').click()"));
    let board = "document.querySelector('[data-board]:not([hidden])').href.split('=')[1]";
    person.evaluate(&format!("document.querySelector('#chosen').elements.board.value = {board}"));
    person.click("document.querySelector('#chosen [formaction$=put]')");
    person.until(&format!("!document.querySelector('#chosen').checkVisibility() && {TILES}.length === 1"));
    person.follow("document.querySelector('[data-board]:not([hidden])')");
    let covers = "[...document.querySelectorAll('img.cover')].filter((cover) => cover.naturalWidth > 1).length";
    person.evaluate("document.querySelector('[data-board][aria-current=page]').scrollIntoView()");
    person.until(&format!("{covers} === 1 && {TILES}.length === 1"));
    // The list of boards stays closed for a person who closes it.
    person.click("document.querySelector('[data-side] summary')");
    person.until("!document.querySelector('[data-side]').open");
    person.open(GALLERY);
    assert_eq!(person.evaluate("document.querySelector('[data-side]').open"), false);
    person.leave();
}

#[test]
fn the_viewer_goes_through_the_gallery_and_returns_to_the_tile() {
    let mut person = Person::of_many();
    person.create_many(3, "at night");
    person.create_many(60, "in fog [[fail]]");
    person.create_many(3, "at dawn");
    person.open_gallery();
    let seen = "document.querySelector('.about')?.dataset.task";
    let id = |index: usize| format!("{TILES}[{index}].id.slice('task-'.length)");
    person.click(&format!("{TILES}[0].querySelector('.open')"));
    person.until(&format!("{seen} === {}", id(0)));
    person.until("document.querySelector('[data-large]').naturalWidth > 640");
    assert_eq!(person.evaluate(&format!("location.pathname === '/studio/tasks/' + {}", id(0))), true);
    // The first one has three pictures.
    assert_eq!(person.count("document.querySelectorAll('[data-strip] button').length"), 3);
    for _ in 0..3 {
        person.press("ArrowRight");
    }
    person.until(&format!("{seen} === {}", id(1)));
    person.press("ArrowLeft");
    person.until(&format!("{seen} === {}", id(0)));
    person.until("document.querySelectorAll('[data-strip] button')[2].ariaCurrent === 'true'");
    person.click("document.querySelector('[data-large]')");
    person.until("document.querySelector('.stage.whole')");
    // Esc leaves the zoom first.
    person.press("Escape");
    person.until("!document.querySelector('.stage.whole') && document.querySelector('.viewer').open");
    person.press("Escape");
    person.until("!document.querySelector('.viewer').open && location.pathname === '/studio/gallery'");
    assert_eq!(person.evaluate(&format!("document.activeElement.parentNode === {TILES}[0]")), true);
    // From the last tile of a page it goes on to older ones, and Back returns to the tile.
    let at = "document.activeElement.closest('.tile').getBoundingClientRect().top";
    person.evaluate("scrollTo({ top: 900, behavior: 'instant' })");
    person.evaluate(&format!("{TILES}[20].querySelector('.open').focus()"));
    let before = person.evaluate(at).as_f64().expect("a place");
    person.press("Enter");
    person.until(&format!("{seen} === {}", id(20)));
    person.evaluate("history.back()");
    person.until("!document.querySelector('.viewer').open");
    let after = person.evaluate(at).as_f64().expect("a place");
    assert!((before - after).abs() <= 50.0, "{before} {after}");
    person.click(&format!("{TILES}[40].querySelector('.open')"));
    for index in 41..64 {
        person.until(&format!("{seen} === {}", id(index - 1)));
        person.press("ArrowRight");
    }
    person.until(&format!("{TILES}.length === 66 && {seen} === {}", id(63)));
    person.press("Escape");
    person.until("!document.querySelector('.viewer').open");
    assert_eq!(person.evaluate(&format!("document.activeElement.parentNode === {TILES}[63]")), true);
    person.leave();
}

#[test]
fn a_reload_leaves_the_focus_where_people_write() {
    let mut person = Person::sign_in(&[]);
    person.finish("A ferry at dusk");
    person.evaluate("window.isOld = true, setTimeout(() => location.reload()), 1");
    let loaded =
        "!window.isOld && document.readyState === 'complete' && document.querySelector('.tile .star') !== null";
    person.until_asked(loaded, |_| ());
    person.until("document.activeElement.id === 'prompt'");
    // Whoever was at a tile is there again.
    person.evaluate("document.querySelector('.tile .open').focus(), 1");
    person.evaluate("window.isOld = true, setTimeout(() => location.reload()), 1");
    person.until_asked(loaded, |_| ());
    person.until("document.activeElement.parentNode.classList.contains('tile')");
    person.leave();
}

#[test]
fn a_held_key_deletes_one_task_and_the_notice_counts() {
    let mut person = Person::of_many();
    person.create_many(12, "in fog [[fail]]");
    person.open_gallery();
    person.evaluate(&format!("{TILES}[3].querySelector('.open').focus()"));
    person.hold("Delete", 8);
    let notice = "document.querySelector('.undo [role=status]')?.textContent ?? ''";
    person.until(&format!("({notice}).startsWith('Moved to')"));
    assert_eq!(person.count(&format!("{TILES}.length")), 11);
    person.press("Delete");
    person.until(&format!("({notice}).startsWith('2 moved')"));
    // In the viewer, too, which goes on to the next one.
    person.press("Enter");
    person.until("document.querySelector('.viewer .about')");
    let shown = person.evaluate("location.pathname");
    person.hold("Delete", 8);
    person.until(&format!("({notice}).startsWith('3 moved') && location.pathname !== {shown}"));
    person.press("Escape");
    person.until("!document.querySelector('.viewer').open");
    assert_eq!(person.count(&format!("{TILES}.length")), 9);
    person.click("document.querySelector('.undo button')");
    person.until(&format!("{TILES}.length === 12 && !document.querySelector('.undo')"));
    person.leave();
}

#[test]
fn the_bar_for_chosen_tasks_stays_in_view() {
    let mut person = Person::of_many();
    person.create_many(110, "in fog [[fail]]");
    person.open_gallery();
    person.until(&format!("scrollTo(0, document.body.scrollHeight), {TILES}.length === 110"));
    let picked = "document.querySelectorAll('.picked [data-pick]:checked').length";
    let bar = "(() => {
        const { top, bottom } = document.querySelector('#chosen').getBoundingClientRect();
        return top >= 0 && bottom <= innerHeight && document.querySelector('#chosen').checkVisibility();
    })()";
    assert_eq!(person.evaluate(bar), false, "nothing is chosen");
    person.evaluate(&format!("{TILES}[5].querySelector('[data-pick]').click()"));
    person.evaluate(&format!(
        "{TILES}[75].querySelector('[data-pick]').dispatchEvent(new MouseEvent('click', {{ shiftKey: true, bubbles: true }}))"
    ));
    person.until(&format!("{picked} === 71"));
    for (width, height) in [(1_280, 900), (390, 844)] {
        person.resize(width, height);
        for top in ["0", "1500", "document.body.scrollHeight"] {
            person.evaluate(&format!("scrollTo({{ top: {top}, behavior: 'instant' }})"));
            assert_eq!(person.evaluate(bar), true, "{width} at {top}");
        }
    }
    person.resize(1_280, 900);
    person.evaluate(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', ctrlKey: true, bubbles: true }))",
    );
    person.until(&format!("{picked} === 110"));
    assert_eq!(person.evaluate("document.querySelector('[data-chosen-count]').textContent"), "110 selected");
    person.press("Escape");
    person.until(&format!("{picked} === 0"));
    assert_eq!(person.evaluate(bar), false);
    // All that the search finds, also what no page has loaded.
    person.open(GALLERY);
    person.until(&format!("{TILES}.length > 0 && document.documentElement.dataset.size"));
    person.evaluate(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', ctrlKey: true, bubbles: true }))",
    );
    let offer = "document.querySelector('[data-all-found]')";
    person.until(&format!("{offer}.checkVisibility() && {offer}.textContent === 'Select all 110 found'"));
    person.click(offer);
    assert_eq!(person.evaluate("document.querySelector('[data-chosen-count]').textContent"), "110 selected");
    person.click("document.querySelector('#chosen .danger')");
    person.until("document.querySelector('.undo')?.textContent.includes('110')");
    person.open("/studio/gallery?ids=1");
    assert_eq!(person.evaluate("JSON.parse(document.body.textContent).ids.length"), 0);
    person.leave();
}

#[test]
fn back_from_the_page_of_a_picture_returns_to_the_same_tile() {
    let mut person = Person::of_many();
    person.create_many(110, "in fog [[fail]]");
    person.open_gallery();
    person.until(&format!("scrollTo(0, document.body.scrollHeight), {TILES}.length === 110"));
    person.evaluate(&format!("{TILES}[100].querySelector('.open').focus()"));
    let place = "(() => {
        const tile = document.activeElement.closest('.tile');
        return tile && [tile.id, Math.round(tile.getBoundingClientRect().top)];
    })()";
    let before = person.evaluate(place);
    let url = person.evaluate("document.activeElement.href");
    person.browser.open(url.as_str().expect("a URL"));
    person.until("document.querySelector('.one .details')");
    person.evaluate("setTimeout(() => history.back()), 1");
    let returned = "location.pathname === '/studio/gallery' && document.activeElement?.closest('.tile')?.id";
    let id = person.until_asked(returned, |_| std::thread::yield_now());
    assert_eq!(id, before[0]);
    let after = person.until(place);
    let moved = before[1].as_i64().expect("a place") - after[1].as_i64().expect("a place");
    assert!(moved.abs() <= 50, "{before} {after}");
    person.leave();
}

#[test]
fn failures_leave_the_rows_of_the_grid_whole() {
    let mut person = Person::of_many();
    for _ in 0..6 {
        person.create_many(1, "at night");
        person.create_many(1, "in fog [[fail]]");
    }
    person.create_many(8, "at dawn");
    person.open_gallery();
    // The rows but the last: how far they are from the end of the grid, and how unequal their heights are.
    let torn = "(() => {
        const rows = Map.groupBy(document.querySelectorAll('.grid > .tile'), (tile) => tile.offsetTop);
        const grid = document.querySelector('.grid');
        const end = grid.getBoundingClientRect().right - parseFloat(getComputedStyle(grid).paddingRight);
        return [...rows.values()].slice(0, -1).map((row) => {
            const boxes = row.map((tile) => tile.getBoundingClientRect());
            const heights = boxes.map((box) => box.height);
            return [end - boxes.at(-1).right, Math.max(...heights) - Math.min(...heights)].map(Math.round);
        }).filter(([gap, ragged]) => gap > 1 || ragged > 1);
    })()";
    for (width, height) in [(1_280, 900), (390, 844)] {
        person.resize(width, height);
        assert_eq!(person.evaluate(torn), serde_json::json!([]), "at {width}");
    }
    person.leave();
}

#[test]
fn the_page_of_a_picture_has_arrows_and_a_way_back() {
    let mut person = Person::of_many();
    person.create_many(3, "in fog [[fail]]");
    person.open_gallery();
    let paths = person.evaluate(&format!("{TILES}.map((tile) => new URL(tile.querySelector('.open')).pathname)"));
    let path = |index: usize| paths[index].as_str().expect("a path");
    person.open(path(1));
    for (key, index) in [("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 0)] {
        person.press(key);
        let there = format!("location.pathname === '{}' && document.readyState === 'complete'", path(index));
        person.until_asked(&there, |_| std::thread::yield_now());
    }
    let ends = "[...document.querySelectorAll('.steps a')].map((link) => link.rel)";
    assert_eq!(person.evaluate(ends), serde_json::json!(["next"]));
    person.press("Escape");
    let back = format!("location.pathname === '{GALLERY}' && document.activeElement?.closest('.tile') !== null");
    person.until_asked(&back, |_| std::thread::yield_now());
    person.leave();
}

/// A finger moves to the left over the picture in the viewer; which one of the task is large afterwards.
const SWIPE: &str = "(() => {
    const stage = document.querySelector('[data-stage]');
    const fingers = (clientX) => [new Touch({ identifier: 1, target: stage, clientX, clientY: 9 })];
    stage.dispatchEvent(new TouchEvent('touchstart', { touches: fingers(300) }));
    stage.dispatchEvent(new TouchEvent('touchend', { changedTouches: fingers(100) }));
    return seen.at;
})()";

#[test]
fn back_from_a_remix_returns_to_the_viewer_over_the_gallery() {
    let mut person = Person::of_many();
    person.create_many(3, "at night");
    person.open_gallery();
    // A thumbnail has no original size.
    person.block(&["*/files/*"]);
    let zoom = "document.querySelector('[data-zoom]').ariaDisabled";
    person.click(&format!("{TILES}[1].querySelector('.open')"));
    person.until("document.querySelector('.viewer .drop')");
    person.click("document.querySelector('[data-large]')");
    assert_eq!(person.evaluate(&format!("document.querySelector('.stage.whole') ?? {zoom}")), "true");
    person.block(&[]);
    person.press("ArrowRight");
    person.press("ArrowLeft");
    person.until(&format!("{zoom} === 'false'"));
    person.errors.retain(|error| !error.contains("ERR_BLOCKED_BY_CLIENT"));
    let shown = person.evaluate("location.pathname");
    person.enlarge(2);
    assert_eq!(person.evaluate(SWIPE), 0);
    person.enlarge(1);
    assert_eq!(person.evaluate(SWIPE), 1);
    person.press("ArrowLeft");
    person.click("document.querySelector('.viewer .drop summary')");
    person.follow("document.querySelector('.viewer [data-remix=prompt]')");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    person.evaluate("setTimeout(() => history.back()), 1");
    let back = format!("location.pathname === {shown} && document.querySelector('.viewer')?.open");
    person.until_asked(&back, |_| std::thread::yield_now());
    person.press("Escape");
    let closed = format!("location.pathname === '{GALLERY}' && !document.querySelector('.viewer').open");
    person.until_asked(&closed, |_| std::thread::yield_now());
    assert_eq!(person.count(&format!("{TILES}.indexOf(document.activeElement.closest('.tile'))")), 1);
    person.leave();
}

#[test]
fn a_deletion_that_is_refused_halfway_shows_what_is_left() {
    let mut person = Person::of_many();
    person.create_many(3, "in fog [[fail]]");
    person.open_gallery();
    // One task at a time, of which the second one does not arrive.
    person.evaluate(
        "(() => {
            document.querySelector('[data-chosen]').dataset.most = 1;
            const [send, sent] = [window.fetch, []];
            window.fetch = (url, ...rest) => {
                if (!String(url).endsWith('/delete')) return send(url, ...rest);
                return sent.push(url) === 2 ? Promise.reject(new Error('gone')) : send(url, ...rest);
            };
            document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', ctrlKey: true, bubbles: true }));
        })()",
    );
    person.click("document.querySelector('#chosen .danger')");
    person.until(&format!("{TILES}.length === 2 && document.querySelector('.undo')"));
    assert_eq!(person.evaluate("document.querySelector('[data-refusal]').checkVisibility()"), true);
    // What was refused stays chosen.
    assert_eq!(person.evaluate("document.querySelector('[data-chosen-count]').textContent"), "2 selected");
    person.click("document.querySelector('.undo button')");
    person.until(&format!("{TILES}.length === 3 && !document.querySelector('.undo')"));
    person.leave();
}

#[test]
fn a_link_skips_to_the_pictures() {
    let mut person = Person::of_many();
    person.create_many(2, "in fog [[fail]]");
    person.open_gallery();
    for (key, reached) in [
        ("Tab", "document.activeElement.matches('.skip[href=\"#pictures\"]')"),
        ("Enter", "document.activeElement.id === 'pictures'"),
        ("ArrowDown", "document.activeElement.parentNode === document.querySelector('.tile')"),
    ] {
        person.press(key);
        person.until(reached);
    }
    // From anywhere else two arrows lead there, too; the others scroll the page.
    person.evaluate("document.activeElement.blur()");
    person.press("ArrowDown");
    assert_eq!(person.evaluate("document.activeElement === document.body"), true);
    person.press("ArrowRight");
    person.until("document.activeElement.parentNode === document.querySelector('.tile')");
    person.leave();
}

#[test]
fn a_star_after_the_session_has_ended_leads_to_the_sign_in() {
    let mut person = Person::of_many();
    person.create_many(1, "in fog [[fail]]");
    person.open_gallery();
    person.evaluate(&format!("{TILES}[0].querySelector('.open').focus()"));
    person.forget_cookies();
    person.press("s");
    person.until_asked("location.pathname === '/studio/sign-in'", |_| std::thread::yield_now());
    // The stream of changes ends with the session, too.
    person.errors.retain(|error| !error.contains("text/event-stream"));
    person.leave();
}

#[test]
fn single_pictures_are_chosen_for_a_download() {
    let mut person = Person::of_many();
    person.create_many(4, "at night");
    person.open_gallery();
    let selected = "document.querySelector('[data-chosen-count]').textContent";
    let alone = "document.querySelector('[data-chosen-alone]').checkVisibility()";
    let picture = |number: usize| format!("{TILES}[0].querySelectorAll('.open img')[{number}]");
    person.until(&format!("{}?.naturalWidth > 0", picture(3)));
    person.evaluate(&format!("{TILES}[1].querySelector('[data-pick]').click()"));
    person.until(&format!("{selected} === '3 selected' && !{alone}"));
    person.click(&picture(1));
    person.until(&format!("{selected} === '4 selected' && {alone}"));
    let sent =
        "[...new FormData(document.querySelector('#chosen')).keys()].filter((key) => /^(task|picture)-/.test(key))";
    let id = |index: usize| format!("{TILES}[{index}].id.slice('task-'.length)");
    let expected = format!("[`task-${{{}}}`, `picture-${{{}}}/2`]", id(1), id(0));
    assert_eq!(person.evaluate(sent), person.evaluate(&expected));
    for number in [0, 2, 3] {
        person.click(&picture(number));
    }
    person.until(&format!("{selected} === '7 selected' && !{alone} && {TILES}[0].matches('.picked')"));
    person.click(&picture(0));
    person.until(&format!("{selected} === '6 selected' && {alone}"));
    // The deletion takes the whole tile, and says so.
    assert_eq!(person.evaluate("document.querySelector('#chosen .danger').textContent"), "Delete 7 pictures");
    person.click("document.querySelector('#chosen .danger')");
    person.until(&format!("{TILES}.length === 2 && document.querySelector('.undo')?.textContent.includes('7')"));
    person.leave();
}
