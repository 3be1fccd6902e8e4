//! Tasks that people cancel while they wait, or stop while they are rendered.

use std::sync::Arc;
use std::time::Duration;

use super::browser::{Person, first};
use super::*;
use crate::metrics::{exposed, value};
use crate::rigs::service::files;
use crate::rigs::staged::{Staged, grey};

impl Visitor {
    async fn stop(&self, id: Id) -> Answer {
        self.send(&format!("/studio/tasks/{id}/cancel"), &[]).await
    }

    async fn stop_by_script(&self, id: Id) -> Answer {
        self.send_as_script(&format!("/studio/tasks/{id}/cancel")).await
    }

    /// Asserts that the task is shown as cancelled, and to whoever reads the state as failed.
    async fn assert_cancelled(&self, id: Id) {
        let message = "Cancelled.";
        let cancelled = Status::Failed(TaskFailure::new(FailureCause::Cancelled, message));
        assert_eq!(self.status(id).await, cancelled);
        for path in ["/studio", "/studio/gallery", "/studio/gallery?state=cancelled", &format!("/studio/tasks/{id}")] {
            let page = self.page(path).await;
            let shown = page.split(&format!("id=\"task-{id}\"")).nth(1).unwrap_or_else(|| panic!("{path}: {page}"));
            let shown = shown.split("</article>").next().expect("its end");
            assert!(shown.contains("data-state=\"cancelled\""), "{path}: {shown}");
            assert!(
                shown.contains("<strong>Cancelled</strong>") && shown.contains("credits refunded"),
                "{path}: {shown}"
            );
            assert!(!shown.contains("Failed"), "{path}: {shown}");
        }
        let failed = self.page("/studio/gallery?state=failed").await;
        assert!(!failed.contains(&format!("id=\"task-{id}\"")), "{failed}");
    }
}

/// The button that ends a task, on a page.
fn button(page: &str, id: Id) -> Option<&str> {
    let form = page.split(&format!("/studio/tasks/{id}/cancel\"")).nth(1)?;
    form.split("</button>").next()?.rsplit('>').next()
}

#[tokio::test]
async fn a_waiting_task_is_cancelled_and_refunded_once() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let id = ada.create("a boat").await;
    for path in ["/studio", &format!("/studio/tasks/{id}")] {
        assert_eq!(button(&ada.page(path).await, id), Some("Cancel"), "{path}");
    }
    for _ in 0..2 {
        assert_eq!(ada.stop(id).await.status, StatusCode::SEE_OTHER);
        assert_eq!(ada.credits().await, 10);
    }
    ada.assert_cancelled(id).await;
    let german = ("accept-language", "de");
    let path = format!("/studio/tasks/{id}");
    let page = ada.page(&path).await;
    assert!(page.contains("<strong>Cancelled</strong> 2 credits refunded.") && !page.contains("Failed<"), "{page}");
    let page = service.call("GET", &path, &[("cookie", &ada.cookie), german], "").await;
    assert!(text(&page).contains("<strong>Abgebrochen</strong> 2 Credits erstattet."), "{page:?}");
}

/// Whether the worker hears of the stop before the engine has ended, or afterwards.
#[tokio::test]
async fn a_rendering_task_is_stopped_and_its_result_is_discarded() {
    for is_late in [false, true] {
        let (service, ada) = Service::with_visitor(&[], 10).await;
        let id = ada.create("a boat").await;
        let preview = format!("/studio/tasks/{id}/preview");
        let engine = Arc::new(Staged::default());
        let worker = engine.worker(&service);
        let stopping = async {
            engine.begun().await;
            engine.show(grey(64, 32, 50));
            worker.report_progress().await;
            assert_eq!(ada.get(&preview).await.status, 200);
            for path in ["/studio", &format!("/studio/tasks/{id}")] {
                assert_eq!(button(&ada.page(path).await, id), Some("Stop"), "{path}");
            }
            // Two tabs.
            let (one, other) = tokio::join!(ada.stop_by_script(id), ada.stop_by_script(id));
            for answer in [one, other] {
                assert!(answer.status == 200 && text(&answer).contains("data-state=\"cancelled\""), "{answer:?}");
                assert_eq!(answer.header("x-credits"), "10 credits");
            }
            assert_eq!(ada.get(&preview).await.status, 404);
            if is_late { engine.end() } else { assert_eq!(worker.cancel_lost().await, 1) }
        };
        let (done, ()) = tokio::join!(worker.step(), stopping);
        assert_eq!(done.expect("a store"), 1);
        ada.assert_cancelled(id).await;
        assert_eq!((ada.credits().await, files(&service)), (10, Vec::new()), "{is_late}");
        let metrics = exposed(&service);
        for (status, count) in [("cancelled", 1.0), ("failed", 0.0), ("completed", 0.0)] {
            let counted = value(&metrics, &format!("tintype_tasks_ended_total{{status=\"{status}\"}}"));
            assert_eq!(counted, Some(count), "{status}");
        }
    }
}

#[tokio::test]
async fn a_task_that_has_ended_meanwhile_is_shown_as_it_ended() {
    let (_, ada) = Service::with_visitor(&[], 10).await;
    for (prompt, state, credits) in [("a boat", "completed", 8), ("a boat [[fail]]", "failed", 8)] {
        let id = ada.finished(prompt).await;
        let shown = ada.stop_by_script(id).await;
        assert!(shown.status == 200 && text(&shown).contains(&format!("data-state=\"{state}\"")), "{shown:?}");
        assert_eq!(ada.stop(id).await.status, StatusCode::SEE_OTHER);
        assert_eq!(ada.credits().await, credits, "{state}");
    }
}

#[tokio::test]
async fn members_stop_their_own_tasks_and_owners_all() {
    let (service, owner) = Service::with_visitor(&[], 100).await;
    let member = service.visitor_as("ada", "member", Role::Member).await;
    let other = service.visitor_as("ada", "other", Role::Member).await;
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    let stranger = service.visitor("eve", 100).await;
    for stops_own in [true, false] {
        for is_leased in [false, true] {
            let id = member.create("a boat").await;
            if is_leased {
                let claims = service.shared.store.claim(1, Duration::from_secs(60)).await.expect("a store");
                assert_eq!(claims.len(), 1);
            }
            let page = other.page(&format!("/studio/tasks/{id}")).await;
            assert_eq!(button(&page, id), None);
            let refused = other.stop(id).await;
            assert!(refused.status == 403 && text(&refused).contains("Only owners can stop"), "{refused:?}");
            assert_eq!((viewer.stop(id).await.status.as_u16(), stranger.stop(id).await.status.as_u16()), (403, 404));
            assert_eq!(owner.credits().await, 98);
            let person = if stops_own { &member } else { &owner };
            assert_eq!(person.stop(id).await.status, StatusCode::SEE_OTHER);
            let gallery = owner.page("/studio/gallery?state=cancelled").await;
            assert!(gallery.contains(&format!("id=\"task-{id}\"")), "{gallery}");
        }
    }
    assert_eq!(owner.credits().await, 100);
}

const BUTTON: &str = "document.querySelector('.tile .words button')";

#[test]
fn a_person_stops_a_render_in_a_browser() {
    let mut person = Person::sign_in(&[]);
    let balance = person.evaluate("document.querySelector('[data-credits]').textContent");
    let is_back = format!("document.querySelector('[data-credits]').textContent === {balance}");
    person.create("A red fox in the snow at dawn [[delay 5m]]");
    person.until(&format!("{BUTTON}?.textContent === 'Stop'"));
    person.click(BUTTON);
    person.until(&first("cancelled"));
    person.until(&is_back);
    person.until("document.querySelector('.tile strong').textContent === 'Cancelled'");
    person.until("document.querySelector('[data-news]').textContent.startsWith('Cancelled: A red fox')");
    // The engine has stopped, too: the next task is not behind the first one.
    person.finish("A lighthouse in a storm");
    // On the page of the task.
    person.create("A boat in a storm [[delay 5m]]");
    person.until(&format!("{BUTTON}?.textContent === 'Stop'"));
    let address = person.evaluate("document.querySelector('.tile .open').getAttribute('href')");
    person.open(address.as_str().expect("a path"));
    person.click("document.querySelector('[data-cancel] button')");
    person.until("document.querySelector('.card').dataset.state === 'cancelled'");
    // Without scripts.
    person.open("/studio");
    person.create("A boat at sea [[delay 5m]]");
    person.until(&format!("{BUTTON}?.textContent === 'Stop'"));
    person.forbid_scripts();
    person.open("/studio");
    person.follow(BUTTON);
    assert_eq!(person.evaluate("document.querySelector('.tile').dataset.state"), "cancelled");
    person.leave();
}
