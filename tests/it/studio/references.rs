//! References in a real browser: brought by file, paste, drop and drag, and two pictures compared.

use super::browser::Person;

/// Makes `file`, a picture in a file.
const FILE: &str = "const canvas = Object.assign(document.createElement('canvas'), { width: 900, height: 600 });
    const paint = canvas.getContext('2d');
    paint.fillStyle = '#b5651d'; paint.fillRect(0, 0, 900, 600);
    paint.fillStyle = '#fff3d6'; paint.fillRect(300, 200, 300, 200);
    const blob = await new Promise((made) => canvas.toBlob(made));
    const file = new File([blob], 'shape.png', { type: 'image/png' });
    const transfer = new DataTransfer(); transfer.items.add(file);";

impl Person {
    /// Runs statements with `file` and `transfer`.
    fn with_file(&mut self, statements: &str) {
        self.evaluate(&format!("(async () => {{ {FILE} {statements} }})()"));
    }

    fn until_references(&mut self, count: usize) {
        self.until(&format!(
            "[...document.querySelectorAll('.chip')].filter((chip) => chip.ariaBusy !== 'true' &&
                chip.querySelector('img').naturalWidth > 0).length === {count}"
        ));
    }
}

#[test]
fn references_come_by_file_paste_drop_and_drag_and_go_with_the_task() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    person.with_file(
        "const field = document.querySelector('input[type=file]'); field.files = transfer.files;
        field.dispatchEvent(new Event('change', { bubbles: true }));",
    );
    person.until_references(1);
    person.with_file(
        "document.querySelector('#prompt').dispatchEvent(
        new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true }));",
    );
    person.until_references(2);
    // Text from Word, which puts a picture of it beside it, is left to the browser.
    person.with_file(
        "for (const type of ['text/plain', 'text/html']) transfer.setData(type, 'a lighthouse');
        const paste = new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true });
        document.querySelector('#prompt').dispatchEvent(paste);
        document.title = paste.defaultPrevented;",
    );
    person.until("document.title === 'false'");
    person.with_file(
        "document.querySelector('main').dispatchEvent(
        new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));",
    );
    person.until_references(3);
    person.evaluate(
        "{
        const transfer = new DataTransfer();
        const drag = (name, element) => element.dispatchEvent(
            new DragEvent(name, { dataTransfer: transfer, bubbles: true, cancelable: true }));
        drag('dragstart', document.querySelector('.tile img'));
        drag('dragover', document.querySelector('.maker'));
        drag('drop', document.querySelector('.maker'));
    }",
    );
    person.until_references(4);
    // A fifth one is refused, and a removed one makes room.
    person.with_file(
        "document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: transfer, cancelable: true }));",
    );
    person.until("document.querySelector('[data-refusal]').textContent.includes('four')");
    person.click("document.querySelectorAll('[data-drop-reference]')[1]");
    person.until_references(3);
    person.create("The same lighthouse in paper");
    person.until("document.querySelectorAll('.tile[data-state=completed]').length === 2");
    let address = person.evaluate("document.querySelector('.tile .open').pathname");
    person.open(address.as_str().expect("a path"));
    person.until(
        "[...document.querySelectorAll('.details .reference')].filter((image) => image.naturalWidth > 0).length === 3",
    );
    person.open("/studio/uploads");
    assert_eq!(person.evaluate("document.querySelectorAll('.uploads li').length"), 3);
    person.click("document.querySelector('.uploads .ask summary')");
    person.follow("document.querySelector('.uploads .ask button')");
    assert_eq!(person.evaluate("document.querySelectorAll('.uploads li').length"), 2);
    person.leave();
}

#[test]
fn a_file_that_is_no_picture_is_refused_beside_the_form() {
    let mut person = Person::sign_in(&[]);
    person.evaluate("upload(new File(['no picture'], 'a.png', { type: 'image/png' }))");
    person.until("document.querySelector('[data-refusal]').textContent.includes('cannot be read')");
    assert_eq!(person.evaluate("document.querySelectorAll('.chip').length"), 0);
    // The browser itself reports the status of the refused upload.
    person.errors.retain(|error| !error.contains("422"));
    person.leave();
}

#[test]
fn a_dropped_file_that_the_browser_does_not_know_is_refused_beside_the_form() {
    let mut person = Person::sign_in(&[]);
    let drop_all = "transfer.items.add(new File(['no type'], 'a.heic'));
        document.querySelector('#prompt').dispatchEvent(
            new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));";
    person.with_file(&format!("transfer.items.clear(); {drop_all}"));
    let refused = "document.querySelector('[data-refusal]').textContent.includes('cannot be read')";
    person.until(refused);
    assert_eq!(person.evaluate("document.querySelectorAll('.chip').length"), 0);
    // Beside a picture it does not go unnoticed either.
    person.evaluate("say('')");
    person.with_file(drop_all);
    person.until_references(1);
    person.until(refused);
    person.leave();
}

#[test]
fn two_pictures_are_compared_side_by_side_and_by_the_keyboard_over_each_other() {
    let mut person = Person::sign_in(&[]);
    person.click("document.querySelector('input[name=n][value=\"2\"]')");
    person.finish("A sailing ship on a mountain lake");
    person.click("document.querySelector('.tile .more')");
    person.follow("document.querySelector('[data-menu]:popover-open [href*=compare]')");
    person.until("document.querySelector('.compared img').naturalWidth > 0");
    assert_eq!(person.evaluate("document.querySelector('.compared img').checkVisibility()"), true);
    person.follow("document.querySelector('.uploads a')");
    person.until("[...document.querySelectorAll('.pair img')].filter((image) => image.naturalWidth > 0).length === 2");
    person.click("document.querySelector('[data-compare-over]')");
    for _ in 0..5 {
        person.press("ArrowRight");
    }
    let share = "document.querySelector('.pair').style.getPropertyValue('--share')";
    assert_eq!(person.evaluate(share), "55%");
    person.leave();
}
