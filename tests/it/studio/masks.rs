//! Masks that people paint on the first reference, the presets that take them, and boards that pictures go to at once.

use std::fs;

use bytes::Bytes;
use hyper::StatusCode;
use tintype_domain::model::{Id, Status};
use tintype_engine::EngineInfo;
use tintype_engine::picture::Picture;
use tintype_sketch::Sketch;

use super::browser::Person;
use super::{Visitor, text};
use crate::rigs::service::Service;

/// A grey picture whose left half is white.
fn half(width: u32, height: u32) -> Bytes {
    let row = (0..width).flat_map(|x| [if x < width / 2 { 255 } else { 0 }; 3]).collect::<Vec<u8>>();
    Picture::from_rgb(width, height, row.repeat(height as usize)).expect("a picture").to_png().into()
}

impl Visitor {
    /// Sends a painted mask for a reference, and returns the status and what the service answers.
    async fn paint(&self, reference: &str, mask: Bytes) -> (StatusCode, String) {
        let proof = self.proof().await;
        let answer = self.upload_with(&format!("?mask_of={reference}"), mask, &[("x-proof", &proof)]).await;
        (answer.status, text(&answer).to_owned())
    }

    /// Sends the form of the first page, and returns the status and the task that is the newest afterwards.
    async fn edit(&self, references: &str, more: &[(&str, &str)]) -> (StatusCode, Option<Id>) {
        let status = self.submit("a boat", &[&[("references", references)], more].concat()).await.status;
        (status, self.newest_task().await)
    }

    async fn result(&self, task: Id) -> Picture {
        let Status::Completed(names) = self.status(task).await else { panic!("it is not completed") };
        let file = self.service.call("GET", &format!("/files/{}", names[0]), &[], "").await;
        Picture::decode(&file.body).expect("a picture")
    }
}

#[tokio::test]
async fn only_the_painted_part_of_a_reference_changes() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (_, task) = ada.edit("", &[]).await;
    service.work().await;
    let reference = format!("result:{}/1", task.expect("a task"));
    // Painted on a small copy, and fitted to the picture.
    let (status, mask) = ada.paint(&reference, half(320, 320)).await;
    assert_eq!(status, StatusCode::OK, "{mask}");
    let (status, edited) = ada.edit(&reference, &[("mask", &mask)]).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    service.work().await;
    let edited = edited.expect("a task");
    let (before, after) = (ada.result(task.expect("a task")).await, ada.result(edited).await);
    let columns = |picture: &Picture, from: u32, to: u32| -> Vec<u8> {
        let row = picture.width() as usize * 3;
        picture.as_rgb().chunks(row).flat_map(|row| &row[from as usize * 3..to as usize * 3]).copied().collect()
    };
    let width = before.width();
    // The edge of the brush is soft.
    assert!(columns(&before, width / 2 + 8, width) == columns(&after, width / 2 + 8, width), "the right half changed");
    assert!(columns(&before, 0, width / 2 - 8) != columns(&after, 0, width / 2 - 8), "the left half stayed");
    // The forms that make it again carry the mask.
    let page = ada.page(&format!("/studio/tasks/{edited}")).await;
    assert!(page.contains(&format!("name=\"mask\" value=\"{mask}\"")), "{page}");
    let remixed = ada.page(&format!("/studio?from={edited}")).await;
    assert!(remixed.contains(&format!("name=\"mask_of\" value=\"{reference}\"")), "{remixed}");
}

#[tokio::test]
async fn a_mask_that_does_not_fit_is_refused_before_the_charge() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 100).await;
    let (_, square) = ada.edit("", &[]).await;
    let (_, wide) = ada.edit("", &[("shape", "16:9")]).await;
    service.work().await;
    let [square, wide] = [square, wide].map(|task| format!("result:{}/1", task.expect("a task")));
    assert_eq!(ada.paint(&square, half(2, 1)).await.0, StatusCode::OK);
    let nothing = Picture::from_rgb(8, 8, vec![0; 192]).expect("a picture").to_png();
    assert_eq!(ada.paint(&square, nothing.into()).await.0, StatusCode::UNPROCESSABLE_ENTITY, "nothing is painted");
    assert_eq!(eve.paint(&square, half(8, 8)).await.0, StatusCode::UNPROCESSABLE_ENTITY, "another account's picture");
    assert_eq!(ada.paint("nonsense", half(8, 8)).await.0, StatusCode::BAD_REQUEST);
    let (_, mask) = ada.paint(&square, half(8, 8)).await;
    let (_, other) = eve.edit("", &[]).await;
    service.work().await;
    let of_eve = format!("result:{}/1", other.expect("a task"));
    let credits = (ada.credits().await, eve.credits().await);
    for (visitor, references, mask) in [
        (&ada, "", mask.as_str()),
        (&ada, wide.as_str(), &mask),
        (&ada, "https://example.com/a.png", &mask),
        (&ada, &format!("{wide}\n{square}"), &mask),
        (&ada, &square, "nonsense"),
        (&ada, &square, "upload:FAAAAAAAAAAAAAAAAAAAA"),
        (&eve, &of_eve, &mask),
    ] {
        let (status, _) = visitor.edit(references, &[("mask", mask)]).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{references} with {mask}");
    }
    assert_eq!((ada.credits().await, eve.credits().await), credits);
    // The page that says so has the form without the mask.
    let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("references", &*wide), ("mask", &*mask)];
    let refused = text(&ada.send("/studio/tasks", &fields).await).to_owned();
    assert!(refused.contains("name=\"mask\" value=\"\"") && refused.contains("on another picture"), "{refused}");
}

#[tokio::test]
async fn a_preset_without_references_is_named_as_such_and_not_as_one_without_masks() {
    let service = Service::start_on_sqlite(&[]).await;
    let ada = service.visitor("ada", 100).await;
    let (_, task) = ada.edit("", &[]).await;
    service.work().await;
    let reference = format!("result:{}/1", task.expect("a task"));
    let (_, mask) = ada.paint(&reference, half(8, 8)).await;
    for (max_references, reason) in [(0, "This preset does not support references."), (1, "does not support masks")] {
        let words = EngineInfo { max_references, masks: false, ..Sketch::info() };
        service.shared.presets.set_engines(std::iter::once(("words".to_owned(), &words)), true);
        let fields =
            [("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("references", &*reference), ("mask", &*mask)];
        let refused = ada.send("/studio/tasks", &fields).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(text(&refused).contains(reason), "{reason}: {refused:?}");
    }
}

#[tokio::test]
async fn a_picture_goes_to_a_board_at_once_unless_the_person_does_not_see_it() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    assert!(!ada.page("/studio").await.contains("name=\"board\""), "there are no boards yet");
    let made = ada.send("/studio/boards", &[("name", "Boats")]).await;
    let board = made.header("location").rsplit('=').next().expect("a board").to_owned();
    assert!(ada.page("/studio").await.contains(&format!("<option value=\"{board}\">Boats")));
    let (status, task) = ada.edit("", &[("board", &board)]).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    let shown = ada.page(&format!("/studio/gallery?board={board}")).await;
    assert!(shown.contains(&format!("id=\"task-{}\"", task.expect("a task"))), "{shown}");
    let eve = service.visitor("eve", 100).await;
    for board in [board.as_str(), "nonsense"] {
        let (status, task) = eve.edit("", &[("board", board)]).await;
        assert_eq!((status, task), (StatusCode::UNPROCESSABLE_ENTITY, None), "{board}");
    }
    assert_eq!(eve.credits().await, 100);
}

#[test]
fn a_person_chooses_a_preset_by_its_sample_and_paints_a_mask_with_the_keyboard() {
    let folder = tempfile::tempdir().expect("a folder");
    let sample = folder.path().join("sample.png");
    fs::write(&sample, half(64, 64)).expect("a file");
    let config = folder.path().join("tintype.toml");
    let presets = format!(
        "[preset.boats]\ndescription = \"Boats at dusk\"\nsample = {sample:?}\ncallers = []\n\
         [preset.gone]\nsample = \"/nowhere/sample.png\"\n"
    );
    fs::write(&config, presets).expect("a file");
    let mut person = Person::sign_in(&["--config", config.to_str().expect("a path")]);
    person.click("document.querySelector('.presets summary')");
    person.until("document.querySelector('.presets img[src*=boats]').naturalWidth === 64");
    assert_eq!(person.evaluate("document.querySelector('[data-setting=seed]').hidden"), false);
    person.click("document.querySelector('.presets input[value=boats]')");
    assert_eq!(person.evaluate("document.querySelector('[data-preset]').textContent"), "boats");
    assert_eq!(person.evaluate("document.querySelector('.tuning').checkVisibility()"), false);
    // What a preset does not take would be refused.
    person.finish("A lighthouse in a storm");
    person.choose("[data-reference]");
    person.until("document.querySelector('.chip [data-paint]')");
    person.click("document.querySelector('.chip [data-paint]')");
    person.until("document.activeElement.matches('.brush canvas')");
    person.click("document.querySelector('[data-brush-done]')");
    person.until("document.querySelector('[data-brush-refusal]').textContent.startsWith('Nothing is painted')");
    person.evaluate(
        "for (const key of ['ArrowRight', 'ArrowRight', 'ArrowDown']) document.querySelector('.brush canvas')
            .dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey: true, bubbles: true }))",
    );
    // Esc closes the brush and keeps the strokes.
    person.press("Escape");
    person.until("!document.querySelector('.brush').open");
    person.click("document.querySelector('.chip [data-paint]')");
    person.until("document.activeElement.matches('.brush canvas')");
    person.click("document.querySelector('[data-brush-done]')");
    person.until("document.querySelector('.chip .mask')?.naturalWidth > 0 && !document.querySelector('.brush').open");
    person.create("The same lighthouse at night");
    person.until("document.querySelectorAll('.tile[data-state=completed]').length === 2");
    // A draft keeps the mask; another first reference has none.
    person.open("/studio");
    person.until("document.querySelector('.chip .mask')?.naturalWidth > 0");
    person.click("document.querySelector('[data-drop-reference]')");
    assert_eq!(person.evaluate("document.querySelector('[name=mask]').value"), "");
    // The browser itself reports the status of the empty mask, and of the sample that is gone.
    person.errors.retain(|error| !error.contains("422") && !error.contains("404"));
    person.leave();
}
