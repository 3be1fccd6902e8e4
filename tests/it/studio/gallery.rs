//! The gallery: search, stars, boards, deletion with undo, and the download, over HTTP and in a browser.

use std::time::Duration;

use hyper::StatusCode;
use tintype_config::ERASE_EVERY;
use tintype_domain::model::{Id, Status};
use tintype_domain::person::Role;

use super::Visitor;
use super::browser::Person;
use crate::rigs::service::Service;
use crate::rigs::visitor::text;

const GALLERY: &str = "/studio/gallery";
/// The time that a deleted task stays in the bin here.
const BIN: Duration = Duration::from_secs(60 * 60);
const BIN_FLAGS: [&str; 2] = ["--bin-retention", "1h"];

impl Visitor {
    async fn rendered(&self, prompt: &str) -> Id {
        let id = self.finished(prompt).await;
        self.service.sweeper.index_prompts().await;
        id
    }

    async fn mark(&self, change: &str, task: Id, board: &str) -> StatusCode {
        let field = format!("task-{task}");
        self.send(&format!("{GALLERY}/{change}"), &[(&field, "1"), ("board", board)]).await.status
    }

    async fn board(&self, name: &str) -> Id {
        let made = self.send("/studio/boards", &[("name", name)]).await;
        assert_eq!(made.status, StatusCode::SEE_OTHER, "{made:?}");
        made.header("location").rsplit('=').next().and_then(|id| id.parse().ok()).expect("a board")
    }

    async fn shows(&self, query: &str, task: Id) -> bool {
        self.page(&format!("{GALLERY}?{query}")).await.contains(&format!("id=\"task-{task}\""))
    }
}

#[tokio::test]
async fn the_gallery_searches_stars_and_collects() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    let page = ada.page(GALLERY).await;
    assert!(page.contains("No pictures yet") && !page.contains("id=\"chosen\""), "{page}");
    assert!(ada.page(&format!("{GALLERY}?q=boat")).await.contains("No pictures match"));
    let (boat, hut) = (ada.rendered("a red boat").await, ada.rendered("a red hut").await);
    assert!(ada.shows("q=RED", boat).await && ada.shows("q=boa", boat).await);
    assert!(!ada.shows("q=boa", hut).await);
    assert!(
        ada.shows("state=nonsense&from=x&board=x&before=x&starred=0", boat).await,
        "what is unreadable filters nothing"
    );
    assert_eq!(ada.mark("star", boat, "").await, StatusCode::SEE_OTHER);
    assert!(ada.shows("starred=1", boat).await && !ada.shows("starred=1", hut).await);
    assert_eq!(ada.mark("unstar", boat, "").await, StatusCode::SEE_OTHER);
    assert!(!ada.shows("starred=1", boat).await);
    let board = ada.board("Ships & <boats>").await;
    assert_eq!(ada.mark("put", boat, board.as_str()).await, StatusCode::SEE_OTHER);
    assert!(ada.shows(&format!("board={board}"), boat).await && !ada.shows(&format!("board={board}"), hut).await);
    assert!(ada.page(GALLERY).await.contains("Ships &#38; &#60;boats&#62;"));
    let twice = ada.send("/studio/boards", &[("name", "Ships & <boats>")]).await;
    assert_eq!(twice.status, StatusCode::UNPROCESSABLE_ENTITY);
    for name in ["", "  ", "a\nb", &"a".repeat(61)] {
        assert_eq!(ada.send("/studio/boards", &[("name", name)]).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert_eq!(ada.send(&format!("/studio/boards/{board}/rename"), &[("name", "Boats")]).await.status, 303);
    assert!(ada.page(GALLERY).await.contains(">Boats<"));
    assert_eq!(ada.mark("take", boat, board.as_str()).await, StatusCode::SEE_OTHER);
    assert!(!ada.shows(&format!("board={board}"), boat).await);
    assert_eq!(ada.send(&format!("/studio/boards/{board}/remove"), &[]).await.status, 303);
    assert!(!ada.page(GALLERY).await.contains(">Boats<"));
}

#[tokio::test]
async fn filters_are_named_and_removed_one_by_one() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let long = ada.get(&format!("{GALLERY}?q=red+boat&state=failed&kind=&shape=16%3A9&from=")).await;
    let short = format!("{GALLERY}?q=red+boat&state=failed&shape=16%3A9");
    assert_eq!((long.status, long.header("location")), (StatusCode::SEE_OTHER, short.as_str()));
    let page = ada.page(&short).await;
    assert!(page.contains("<details class=\"filters\">"), "{page}");
    for (without, words) in [("q=red+boat&#38;shape=16%3A9", "State: Failed"), ("q=red+boat&#38;state=failed", "16:9")]
    {
        let link =
            page.split(&format!("<a class=\"quiet\" href=\"{GALLERY}?{without}\">")).nth(1).unwrap_or_else(|| {
                panic!("{without}: {page}");
            });
        assert!(link.split("</a>").next().is_some_and(|link| link.contains(words)), "{words}: {link}");
    }
    let of_day = format!("{GALLERY}?from=2026-10-03");
    let headers = [("cookie", ada.cookie.as_str()), ("accept-language", "de")];
    let in_german = service.call("GET", &of_day, &headers, "").await;
    let in_english = ada.page(&of_day).await;
    for (page, day) in [(in_english.as_str(), "From: 3 Oct 2026"), (text(&in_german), "Von: 3. Okt. 2026")] {
        assert!(page.contains(day), "{day}: {page}");
    }
    let page = ada.page(&format!("{GALLERY}?q=boat&state=nonsense&from=x")).await;
    assert!(!page.contains("class=\"active-filters\""), "{page}");
}

#[tokio::test]
async fn a_deleted_task_comes_back_for_its_time_in_the_bin_and_is_then_erased_with_its_files() {
    let (service, ada) = Service::with_visitor(&BIN_FLAGS, 100).await;
    let (boat, hut) = (ada.rendered("a red boat").await, ada.rendered("a red hut").await);
    let Status::Completed(names) = ada.status(boat).await else { panic!("it is rendered") };
    let file = service.directory.path().join("files").join(&names[0]);
    let thumbnail = format!("/studio/tasks/{boat}/pictures/1");
    assert_eq!(ada.get(&thumbnail).await.status, 200);
    let credits = ada.credits().await;
    for _ in 0..2 {
        assert_eq!(ada.mark("delete", boat, "").await, StatusCode::SEE_OTHER);
        assert!(!ada.shows("", boat).await && ada.shows("", hut).await);
        assert!(ada.page(&format!("{GALLERY}?deleted={boat}")).await.contains(&format!("name=\"task-{boat}\"")));
        assert_eq!(ada.get(&format!("/studio/tasks/{boat}")).await.status, 404);
        service.clock.advance(BIN);
        assert_eq!(service.sweeper.sweep_deleted().await, 0);
        for _ in 0..2 {
            assert_eq!(ada.mark("restore", boat, "").await, StatusCode::SEE_OTHER, "a second click, too");
        }
        assert!(ada.shows("q=boat", boat).await);
    }
    ada.mark("delete", boat, "").await;
    service.clock.advance(BIN + ERASE_EVERY);
    assert_eq!(service.sweeper.sweep_deleted().await, 1);
    assert_eq!(ada.mark("restore", boat, "").await, StatusCode::CONFLICT);
    let record = service.shared.store.inspect_task(boat).await.expect("a store").expect("its row");
    assert_eq!((record.request.prompt.as_str(), file.exists()), ("", false));
    assert!(service.directory.path().join("files").exists());
    assert_eq!(service.sweeper.sweep_deleted().await, 0);
    assert_eq!(ada.credits().await, credits);
}

#[tokio::test]
async fn a_deleted_picture_stays_for_tasks_that_use_it() {
    let (service, ada) = Service::with_visitor(&BIN_FLAGS, 100).await;
    let boat = ada.rendered("a red boat").await;
    let reference = format!("result:{boat}/1");
    let page = ada.page(&format!("/studio/tasks/{boat}")).await;
    assert!(page.contains(&reference), "{page}");
    let fields = [("prompt", "a hut"), ("shape", "1:1"), ("n", "1"), ("references", reference.as_str())];
    assert_eq!(ada.send("/studio/tasks", &fields).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(ERASE_EVERY);
    assert_eq!(ada.mark("delete", boat, "").await, StatusCode::SEE_OTHER);
    service.clock.advance(BIN + ERASE_EVERY);
    assert_eq!(service.sweeper.sweep_deleted().await, 0, "a task needs it");
    service.work().await;
    service.sweeper.sweep(tintype_store::Reclaim::Expired).await;
    assert_eq!(service.sweeper.sweep_deleted().await, 1);
}

#[tokio::test]
async fn the_gallery_of_an_account_is_closed_to_others_and_viewers_change_nothing() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 100).await;
    let boat = ada.rendered("a secret boat").await;
    let board = ada.board("secrets").await;
    assert_eq!(ada.mark("put", boat, board.as_str()).await, StatusCode::SEE_OTHER);
    for query in ["", "q=secret", &format!("board={board}"), "starred=1"] {
        assert!(!eve.page(&format!("{GALLERY}?{query}")).await.contains("secret boat"), "{query}");
    }
    assert_eq!(eve.get(&format!("{GALLERY}.zip?tasks={boat}")).await.status, 404);
    assert!(ada.shows(&format!("board={board}"), boat).await && !ada.shows("starred=1", boat).await);
    assert_eq!(ada.mark("star", boat, "").await, StatusCode::SEE_OTHER);
    assert_eq!(eve.mark("unstar", boat, "").await, StatusCode::SEE_OTHER);
    let own = eve.board("mine").await;
    assert_eq!(eve.mark("put", boat, own.as_str()).await, StatusCode::SEE_OTHER);
    assert!(!eve.shows(&format!("board={own}"), boat).await && ada.shows("starred=1", boat).await);
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    assert!(viewer.shows("", boat).await);
    assert_eq!(viewer.get(&format!("{GALLERY}.zip?tasks={boat}")).await.status, StatusCode::OK);
    for change in ["star", "unstar", "delete", "restore", "put", "take", "nonsense"] {
        assert_eq!(viewer.mark(change, boat, board.as_str()).await, StatusCode::FORBIDDEN, "{change}");
    }
    let of_board = ["rename", "remove", "nonsense"].map(|change| format!("/studio/boards/{board}/{change}"));
    for path in of_board.iter().map(String::as_str).chain(["/studio/boards"]) {
        assert_eq!(viewer.send(path, &[("name", "mine")]).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(ada.shows(&format!("board={board}&starred=1"), boat).await, "nothing has changed");
    assert_eq!(ada.mark("delete", boat, "").await, StatusCode::SEE_OTHER);
    assert_eq!(eve.mark("restore", boat, "").await, StatusCode::CONFLICT);
    assert!(!ada.shows("", boat).await && !eve.shows("", boat).await);
}

const TILES: &str = "[...document.querySelectorAll('[data-gallery] > .tile:not([hidden])')]";

#[test]
fn the_gallery_works_by_keyboard() {
    let mut person = Person::sign_in(&[]);
    for prompt in ["A lighthouse in a storm", "A red fox in the snow", "A sailing ship at dawn"] {
        person.create(prompt);
        let shown =
            format!("document.querySelector('.tile[data-state=completed] .prompt')?.textContent === '{prompt}'");
        person.until(&shown);
    }
    person.open(GALLERY);
    person.until(&format!("{TILES}.length === 3"));
    person.until("[...document.querySelectorAll('.tile img')].every(image => image.naturalWidth > 0)");
    person.evaluate(&format!("{TILES}[0].querySelector('.open').focus()"));
    person.press("s");
    person.until(&format!("{TILES}[0].querySelector('.star').ariaPressed === 'true'"));
    person.press("ArrowRight");
    person.until(&format!("document.activeElement.parentNode === {TILES}[1]"));
    person.press(" ");
    person.until("document.querySelectorAll('.picked [data-pick]:checked').length === 1");
    person.evaluate(&format!("{TILES}[1].querySelector('.open').focus()"));
    person.press("Delete");
    person.until(&format!("{TILES}.length === 2 && document.querySelector('.undo')"));
    person.click("document.querySelector('.undo button')");
    person.until(&format!("{TILES}.length === 3 && !document.querySelector('.undo')"));
    person.evaluate(&format!("{TILES}[0].querySelector('.open').focus()"));
    person.press("Enter");
    person.until("document.querySelector('.viewer .snippet pre')");
    person.evaluate("document.querySelector('.viewer .snippet').open = true");
    person.press("Escape");
    person.until("!document.querySelector('.viewer').open && location.pathname === '/studio/gallery'");
    person.open("/studio/gallery?starred=1");
    person.until(&format!("{TILES}.length === 1"));
    person.open("/studio/gallery?q=light");
    // The sweeper indexes new prompts within a second.
    while person.evaluate(&format!("{TILES}.length")) != 1 {
        person.open("/studio/gallery?q=light");
    }
    person.leave();
}

#[test]
fn the_gallery_scrolls_over_several_pages() {
    const TASKS: usize = 110;
    let mut person = Person::sign_in(&["--submit-rate", "1000"]);
    person.evaluate(&format!(
        "(async () => {{
            for (let i = 0; i < {TASKS}; i++) {{
                const proof = document.querySelector('[name=proof]').value;
                const body = new URLSearchParams({{ proof, prompt: `boat ${{i}} [[fail]]`, shape: '1:1', n: '1' }});
                const answer = await fetch('/studio/tasks', {{ method: 'POST', body, redirect: 'manual' }});
                if (answer.status === 422) {{ i--; await new Promise(requestAnimationFrame); }}
            }}
            window.made = true;
        }})(), 1"
    ));
    person.until("window.made === true");
    person.open(GALLERY);
    person.until(&format!("scrollTo(0, document.body.scrollHeight), {TILES}.length === {TASKS}"));
    let different = format!("new Set({TILES}.map(tile => tile.id)).size");
    assert_eq!(person.evaluate(&different), TASKS);
    person.until("!document.querySelector('[data-older]')");
    person.leave();
}

#[tokio::test]
async fn a_private_board_is_its_owners_alone_until_the_team_sees_it() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let task = bob.finished("a boat").await;
    let made = bob.send("/studio/boards", &[("name", "Secret plans"), ("private", "1")]).await;
    let board = made.header("location").rsplit('=').next().expect("a board").to_owned();
    let mark = format!("task-{task}");
    let fields = [(mark.as_str(), "1"), ("board", board.as_str())];
    assert_eq!(bob.send("/studio/gallery/put", &fields).await.status, StatusCode::SEE_OTHER);
    let own = bob.page("/studio/boards").await;
    assert!(own.contains("Secret plans") && own.contains("1 picture · private"), "{own}");
    // Nobody else sees it, not even an owner of the account.
    for page in ["/studio/boards", "/studio/gallery", &format!("/studio/gallery?board={board}")] {
        let page = ada.page(page).await;
        assert!(!page.contains("Secret plans"), "{page}");
    }
    for board in [board.as_str(), "FAAAAAAAAAAAAAAAAAAAA"] {
        let page = ada.page(&format!("/studio/gallery?board={board}")).await;
        assert!(!page.contains("a boat") && !page.contains("No pictures match"), "{page}");
        assert!(page.contains("This board is gone, or visible only to the person who made it."), "{page}");
    }
    assert_eq!(ada.get(&format!("/studio/boards/{board}/cover")).await.header("content-type"), "image/svg+xml");
    let cover = bob.get(&format!("/studio/boards/{board}/cover")).await;
    assert_eq!(cover.header("location"), format!("/studio/tasks/{task}/pictures/1"));
    for (path, fields) in [
        (format!("/studio/boards/{board}/rename"), vec![("name", "mine")]),
        (format!("/studio/boards/{board}/publish"), vec![]),
        (format!("/studio/boards/{board}/remove"), vec![]),
        ("/studio/gallery/put".into(), fields.to_vec()),
        ("/studio/gallery/take".into(), fields.to_vec()),
        ("/studio/links".into(), vec![("board", board.as_str()), ("days", "1")]),
    ] {
        assert_eq!(ada.send(&path, &fields).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(bob.send(&format!("/studio/boards/{board}/publish"), &[]).await.status, StatusCode::SEE_OTHER);
    assert!(ada.page(&format!("/studio/gallery?board={board}")).await.contains("a boat"));
    // A board that somebody else removed is named in a message.
    ada.send(&format!("/studio/boards/{board}/remove"), &[]).await;
    let late = bob.send("/studio/gallery/put", &fields).await;
    assert!(
        late.status == StatusCode::NOT_FOUND && super::text(&late).contains("This board no longer exists"),
        "{late:?}"
    );
}
