//! The gallery.

use std::time::Duration;

use futures::future::try_join_all;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::request::{AspectRatio, GenerateRequest};
use tintype_store::{
    AccountChange, Action, Actor, Board, BoardWrite, CompletedTask, GalleryFilter, Origin, Result, StartLimit,
    TaskState, UsageBy, UsageFilter, Via,
};
use tintype_system::clock::Clock;

use super::fixture::{Fixture, MILLISECOND, UNLIMITED, accepted, images, one_file};
use tintype_rigs::database::Backend;

const PAGE: u32 = 100;
/// The tables of the gallery that hold rows of tasks.
const TABLES: [&str; 6] = ["prompts", "prompt_words", "unindexed", "stars", "board_tasks", "deletions"];

fn request(prompt: &str) -> GenerateRequest {
    GenerateRequest { prompt: prompt.into(), ..images(1) }
}

fn text(words: &str) -> GalleryFilter {
    GalleryFilter { text: words.into(), ..GalleryFilter::default() }
}

fn board(made: BoardWrite) -> Id {
    match made {
        BoardWrite::Done(id) => id,
        refused => panic!("{refused:?}"),
    }
}

impl Fixture {
    /// A failed task of the studio.
    async fn ended_of(&self, account: Id, request: GenerateRequest) -> Result<Id> {
        let id = self.submit_request(account, Surface::Web, request).await?.id;
        self.store.fail(self.claim().await?, FailureCause::Engine, "it sank").await?;
        Ok(id)
    }

    /// A completed task of the studio.
    async fn completed_of(&self, account: Id, request: GenerateRequest) -> Result<Id> {
        let id = self.submit_request(account, Surface::Web, request).await?.id;
        self.store.complete(self.claim().await?, one_file()).await?;
        Ok(id)
    }

    /// A completed task that a person created in the studio.
    pub async fn completed_by(&self, account: Id, person: Id) -> Result<Id> {
        let (start, origin) = (StartLimit::none(), Origin { person_id: Some(person), ..Origin::default() });
        let submission =
            self.store.submit_before(start, account, origin, Surface::Web, request("a boat"), UNLIMITED).await?;
        self.store.complete(self.claim().await?, one_file()).await?;
        Ok(accepted(submission).id)
    }

    /// A person of an account, who stars tasks.
    async fn fan(&self, account: Id) -> Result<Id> {
        let name = format!("fan-{account}");
        match self.store.find_person(&name).await? {
            Some(found) => Ok(found.person.id),
            None => Ok(self.person(account, &name).await?.id),
        }
    }

    async fn shown(&self, account: Id, filter: &GalleryFilter) -> Result<Vec<Id>> {
        let page = self.store.gallery(account, filter, None, PAGE).await?;
        assert_eq!(page.older, None);
        Ok(page.records.iter().map(|record| record.task.id).collect())
    }

    async fn index(&self) -> Result<()> {
        while self.store.index_prompts().await? > 0 {}
        Ok(())
    }

    fn rows(&self) -> Vec<(&'static str, i64)> {
        let exist = |table: &&str| *table != "prompt_words" || matches!(self.backend, Backend::Sqlite);
        TABLES.into_iter().filter(exist).map(|table| (table, self.count(table))).filter(|(_, rows)| *rows > 0).collect()
    }
}

case!(a_search_finds_the_words_and_beginnings_of_an_account_alone, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let ship = fx.submit_request(ada, Surface::Web, request("A red-sailed SHIP off a Café")).await?.id;
    let hut = fx.submit_request(ada, Surface::Web, request("海の船, a red hut")).await?.id;
    fx.submit_request(ada, Surface::Api, request("a red ship of the API")).await?;
    let of_eve = fx.submit_request(eve, Surface::Web, request("a red ship of eve")).await?.id;
    assert_eq!(fx.shown(ada, &text("red")).await?, [], "not yet indexed");
    assert_eq!(fx.store.index_prompts().await?, 3);
    assert_eq!(fx.store.index_prompts().await?, 0);
    for (words, found) in [
        ("red", vec![hut, ship]),
        ("  RED ship ", vec![ship]),
        ("cafe", vec![ship]),
        ("sai", vec![ship]),
        ("sa", vec![]),
        ("船", vec![hut]),
        ("ship hut", vec![]),
        ("api", vec![]),
        ("eve", vec![]),
        ("\"' OR *:(", vec![]),
        ("red' | 'ship", vec![ship]),
        ("NOT red", vec![]),
        ("", vec![hut, ship]),
    ] {
        assert_eq!(fx.shown(ada, &text(words)).await?, found, "{words}");
    }
    assert_eq!(fx.shown(eve, &text("ship")).await?, [of_eve]);
    Ok(())
});

case!(a_search_finds_short_words_and_symbols, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let fox = fx.completed_of(ada, request("an ox and a🦊under UV light, 海の船")).await?;
    let family = fx.completed_of(ada, request("👨\u{200D}👩\u{200D}👧 say 👍🏽 ❤\u{FE0F} at 🇩🇪🇫🇷")).await?;
    let plain = fx.completed_of(ada, request("oxen in ultraviolet")).await?;
    fx.index().await?;
    for (words, found) in [
        ("UV", vec![fox]),
        ("ox", vec![fox]),
        ("uv ox", vec![fox]),
        ("oxe", vec![plain]),
        ("海", vec![fox]),
        ("の", vec![fox]),
        ("空", vec![]),
        ("🦊", vec![fox]),
        ("🦊 ox", vec![fox]),
        ("🦊 👍", vec![]),
        ("🐺", vec![]),
        ("👨\u{200D}👩\u{200D}👧", vec![family]),
        ("👩", vec![family]),
        ("👨\u{200D}👩\u{200D}👦", vec![]),
        ("👍", vec![family]),
        ("👍🏽", vec![family]),
        ("👍🏿", vec![]),
        ("❤", vec![family]),
        ("❤\u{FE0F}", vec![family]),
        ("🇩🇪", vec![family]),
        ("🇫🇷", vec![family]),
        ("🇪🇫", vec![]),
        ("🇩", vec![]),
        ("'\"\\:*", vec![]),
    ] {
        assert_eq!(fx.shown(ada, &text(words)).await?, found, "{words}");
    }
    assert_eq!(fx.store.delete_tasks(ada, &[fox, family, plain], None).await?.len(), 3);
    fx.clock.advance(Duration::from_secs(1));
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 3);
    assert_eq!(fx.shown(ada, &text("🦊")).await?, []);
    Ok(())
});

case!(the_gallery_shows_what_fits_every_filter, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let wide = GenerateRequest { aspect_ratio: AspectRatio::W16H9, ..request("a wide boat") };
    let completed = fx.completed_of(ada, wide).await?;
    let failed = fx.ended_of(ada, request("a boat")).await?;
    fx.clock.advance(Duration::from_secs(60));
    let noon = fx.clock.now();
    let remix = GenerateRequest { reference_images: vec!["https://a.example/b.png".into()], ..request("a boat") };
    let waiting = fx.submit_request(ada, Surface::Web, remix).await?.id;
    fx.submit(ada).await?;
    fx.index().await?;
    let collected = board(fx.store.create_board(ada, None, "boats", 10).await?);
    fx.store.star_tasks(ada, fx.fan(ada).await?, &[failed, waiting], true).await?;
    fx.store.put_on_board(ada, ada, collected, &[failed, completed], true).await?;
    let all = GalleryFilter::default;
    for (filter, found) in [
        (all(), vec![waiting, failed, completed]),
        (GalleryFilter { state: Some(TaskState::Processing), ..all() }, vec![waiting]),
        (GalleryFilter { state: Some(TaskState::Completed), ..all() }, vec![completed]),
        (GalleryFilter { state: Some(TaskState::Failed), ..all() }, vec![failed]),
        (GalleryFilter { image_to_image: Some(true), ..all() }, vec![waiting]),
        (GalleryFilter { image_to_image: Some(false), ..all() }, vec![failed, completed]),
        (GalleryFilter { aspect_ratio: Some(AspectRatio::W16H9), ..all() }, vec![completed]),
        (GalleryFilter { starred_by: Some(fx.fan(ada).await?), ..all() }, vec![waiting, failed]),
        (GalleryFilter { board: Some(collected), ..all() }, vec![failed, completed]),
        (GalleryFilter { board: Some(collected), starred_by: Some(fx.fan(ada).await?), ..all() }, vec![failed]),
        (GalleryFilter { board: Some(ada), ..all() }, vec![]),
        (GalleryFilter { from: Some(noon), ..all() }, vec![waiting]),
        (GalleryFilter { until: Some(noon), ..all() }, vec![failed, completed]),
        (GalleryFilter { starred_by: Some(fx.fan(ada).await?), until: Some(noon), ..text("boat") }, vec![failed]),
        (GalleryFilter { board: Some(collected), ..text("wide") }, vec![completed]),
    ] {
        assert_eq!(fx.shown(ada, &filter).await?, found, "{filter:?}");
    }
    Ok(())
});

case!(pages_of_the_gallery_have_no_gap_and_no_overlap, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut tasks = Vec::new();
    for _ in 0..7 {
        tasks.insert(0, fx.submit_request(ada, Surface::Web, request("a boat")).await?.id);
    }
    fx.index().await?;
    fx.store.star_tasks(ada, fx.fan(ada).await?, &tasks, true).await?;
    for filter in [
        GalleryFilter::default(),
        text("boat"),
        GalleryFilter { starred_by: Some(fx.fan(ada).await?), ..GalleryFilter::default() },
    ] {
        for size in [1, 3, 7, 8] {
            let (mut seen, mut before, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = fx.store.gallery(ada, &filter, before, size).await?;
                seen.extend(page.records.iter().map(|record| record.task.id));
                (before, pages) = (page.older, pages + 1);
                if before.is_none() {
                    break;
                }
            }
            assert_eq!((&seen, pages), (&tasks, 7_u32.div_ceil(size)), "{filter:?}");
        }
    }
    Ok(())
});

case!(a_page_looks_at_a_limited_number_of_tasks_and_says_where_to_go_on, async |fx| {
    const MANY: usize = 1_100;
    let ada = fx.account("ada", 100_000).await?;
    let oldest = fx.ended_of(ada, request("a rare boat")).await?;
    fx.clock.advance(MILLISECOND);
    fx.copy_task(fx.submit_request(ada, Surface::Web, request("a boat")).await?.id, MANY - 1);
    fx.index().await?;
    let failed = GalleryFilter { state: Some(TaskState::Failed), ..GalleryFilter::default() };
    for filter in [failed.clone(), GalleryFilter { state: Some(TaskState::Failed), ..text("boat") }] {
        let first = fx.store.gallery(ada, &filter, None, 10).await?;
        assert_eq!(first.records.len(), 0);
        let second = fx.store.gallery(ada, &filter, Some(first.older.expect("older tasks")), 10).await?;
        assert_eq!(second.records.iter().map(|record| record.task.id).collect::<Vec<_>>(), [oldest]);
        assert_eq!(second.older, None);
    }
    assert_eq!(fx.shown(ada, &text("rare")).await?, [oldest], "the index finds it at once");
    Ok(())
});

case!(marks_are_set_on_tasks_of_the_account_in_the_studio_alone, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let own = fx.submit_request(ada, Surface::Web, request("a boat")).await?.id;
    let of_api = fx.submit(ada).await?.id;
    let of_eve = fx.submit_request(eve, Surface::Web, request("a boat")).await?.id;
    let all = [own, of_api, of_eve, ada];
    let (boats, of_eves) = (
        board(fx.store.create_board(ada, None, "boats", 10).await?),
        board(fx.store.create_board(eve, None, "boats", 10).await?),
    );
    for _ in 0..2 {
        fx.store.star_tasks(ada, fx.fan(ada).await?, &all, true).await?;
        assert!(fx.store.put_on_board(ada, ada, boats, &all, true).await?);
    }
    assert!(!fx.store.put_on_board(ada, ada, of_eves, &all, true).await?, "a board of another account");
    assert_eq!(fx.rows(), [("unindexed", 2), ("stars", 1), ("board_tasks", 1)]);
    assert_eq!(fx.store.shown(ada, &all).await?, [own]);
    assert_eq!(fx.store.starred(fx.fan(ada).await?, &all).await?, [own]);
    assert_eq!(fx.store.starred(fx.fan(eve).await?, &all).await?, []);
    fx.store.star_tasks(eve, fx.fan(eve).await?, &all, false).await?;
    assert!(!fx.store.put_on_board(eve, eve, boats, &all, false).await?);
    let on_board = GalleryFilter { board: Some(boats), ..GalleryFilter::default() };
    assert_eq!(fx.shown(eve, &on_board).await?, []);
    assert_eq!(
        (fx.shown(ada, &on_board).await?, fx.store.starred(fx.fan(ada).await?, &all).await?),
        (vec![own], vec![own])
    );
    fx.store.star_tasks(ada, fx.fan(ada).await?, &all, false).await?;
    assert!(fx.store.put_on_board(ada, ada, boats, &all, false).await?);
    assert_eq!(fx.rows(), [("unindexed", 2)]);
    assert_eq!(fx.store.delete_tasks(ada, &all, None).await?, [], "unfinished, or not its own");
    Ok(())
});

case!(boards_have_a_name_each_and_a_limited_number, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let task = fx.submit_request(ada, Surface::Web, request("a boat")).await?.id;
    let boats = board(fx.store.create_board(ada, None, "boats", 2).await?);
    assert_eq!(fx.store.create_board(ada, None, "boats", 2).await?, BoardWrite::NameTaken);
    let huts = board(fx.store.create_board(ada, None, "huts", 2).await?);
    assert_eq!(fx.store.create_board(ada, None, "ships", 2).await?, BoardWrite::Full);
    assert_eq!(fx.store.create_board(task, None, "ships", 2).await?, BoardWrite::NotFound, "no account");
    board(fx.store.create_board(eve, None, "boats", 2).await?);
    let of_all = |id, name: &str, images| Board { id, name: name.into(), owner: None, images: Some(images) };
    assert_eq!(fx.store.boards(ada, ada).await?, [of_all(boats, "boats", 0), of_all(huts, "huts", 0)]);
    assert_eq!(fx.store.rename_board(ada, ada, huts, "boats").await?, BoardWrite::NameTaken);
    assert_eq!(fx.store.rename_board(eve, eve, huts, "of eve").await?, BoardWrite::NotFound);
    for _ in 0..2 {
        assert_eq!(fx.store.rename_board(ada, ada, huts, "a hut").await?, BoardWrite::Done(huts));
    }
    fx.store.put_on_board(ada, ada, boats, &[task], true).await?;
    assert_eq!(fx.store.boards(ada, ada).await?, [of_all(huts, "a hut", 0), of_all(boats, "boats", 0)], "unfinished");
    fx.store.complete(fx.claim().await?, one_file()).await?;
    assert_eq!(fx.store.boards(ada, ada).await?[1].images, Some(1));
    assert!(!fx.store.remove_board(eve, eve, boats).await?);
    assert!(fx.store.remove_board(ada, ada, boats).await?);
    assert!(!fx.store.remove_board(ada, ada, boats).await?);
    assert_eq!(fx.rows(), [("unindexed", 1)]);
    assert_eq!(fx.shown(ada, &GalleryFilter::default()).await?, [task]);
    Ok(())
});

case!(a_private_board_is_its_owners_alone_until_it_is_published, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let (grace, hedy) = (fx.person(ada, "grace").await?.id, fx.person(ada, "hedy").await?.id);
    let stranger = fx.account("eve", 0).await?;
    let tasks = [fx.completed_by(ada, grace).await?, fx.completed_by(ada, hedy).await?];
    let of_grace = board(fx.store.create_board(ada, Some(grace), "boats", 1).await?);
    let of_hedy = board(fx.store.create_board(ada, Some(hedy), "boats", 1).await?);
    assert_eq!(fx.store.create_board(ada, Some(grace), "boats", 9).await?, BoardWrite::NameTaken);
    assert_eq!(fx.store.create_board(ada, Some(grace), "huts", 1).await?, BoardWrite::Full);
    assert_eq!(fx.store.create_board(ada, Some(stranger), "huts", 1).await?, BoardWrite::NotFound);
    let of_all = board(fx.store.create_board(ada, None, "boats", 1).await?);
    let seen = async |person| -> Result<Vec<Id>> {
        Ok(fx.store.boards(ada, person).await?.iter().map(|board| board.id).collect())
    };
    assert_eq!((seen(grace).await?, seen(hedy).await?), (vec![of_grace, of_all], vec![of_hedy, of_all]));
    // The other person changes nothing.
    assert_eq!(fx.store.rename_board(ada, hedy, of_grace, "mine").await?, BoardWrite::NotFound);
    assert_eq!(fx.store.publish_board(ada, hedy, of_grace, 9).await?, BoardWrite::NotFound);
    assert!(!fx.store.put_on_board(ada, hedy, of_grace, &tasks, true).await?);
    assert!(!fx.store.remove_board(ada, hedy, of_grace).await?);
    assert!(fx.store.put_on_board(ada, grace, of_grace, &tasks, true).await?);
    assert!(!fx.store.put_on_board(ada, hedy, of_grace, &tasks, false).await?);
    assert_eq!(fx.store.boards(ada, grace).await?[0].images, Some(2));
    fx.store.delete_tasks(ada, &tasks[..1], None).await?;
    assert_eq!(fx.store.boards(ada, grace).await?[0].images, Some(1), "one is in the bin");
    // Published, it follows the rules of the account's boards.
    assert_eq!(fx.store.publish_board(ada, grace, of_grace, 9).await?, BoardWrite::NameTaken);
    assert_eq!(fx.store.rename_board(ada, grace, of_grace, "barges").await?, BoardWrite::Done(of_grace));
    assert_eq!(fx.store.publish_board(ada, grace, of_grace, 1).await?, BoardWrite::Full);
    for _ in 0..2 {
        assert_eq!(fx.store.publish_board(ada, grace, of_grace, 2).await?, BoardWrite::Done(of_grace));
    }
    assert_eq!((seen(grace).await?, seen(hedy).await?), (vec![of_grace, of_all], vec![of_grace, of_hedy, of_all]));
    // A private board goes with its owner.
    fx.store.remove_person(hedy).await?;
    assert_eq!(seen(hedy).await?, [of_grace, of_all]);
    Ok(())
});

case!(a_deleted_task_is_hidden_at_once_and_comes_back, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let boat = fx.completed_of(ada, request("a boat")).await?;
    let waiting = fx.submit_request(ada, Surface::Web, request("a boat")).await?.id;
    fx.index().await?;
    fx.store.star_tasks(ada, fx.fan(ada).await?, &[boat], true).await?;
    assert_eq!(fx.store.delete_tasks(eve, &[boat], None).await?, []);
    let before = fx.task(boat).await?;
    assert_eq!(fx.store.delete_tasks(ada, &[boat, waiting], None).await?, [boat]);
    assert_eq!(fx.store.delete_tasks(ada, &[boat], None).await?, [], "once");
    assert_eq!(fx.store.find_task(ada, Surface::Web, boat).await?, None);
    for filter in
        [GalleryFilter::default(), text("boat"), GalleryFilter { starred_by: Some(fx.fan(ada).await?), ..text("") }]
    {
        assert!(!fx.shown(ada, &filter).await?.contains(&boat));
    }
    let kept: Vec<Id> = fx.store.completed_tasks(None, 10).await?.iter().map(|task| task.id).collect();
    assert_eq!(kept, [boat], "a backup keeps what may come back");
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.restore_tasks(eve, &[boat], None).await?, []);
    assert_eq!(fx.store.restore_tasks(ada, &[boat, waiting], None).await?, [boat]);
    assert_eq!(fx.store.restore_tasks(ada, &[boat], None).await?, [], "once");
    assert_eq!(fx.store.find_task(ada, Surface::Web, boat).await?, Some(before));
    assert_eq!(fx.shown(ada, &text("boat")).await?, [waiting, boat]);
    assert_eq!(fx.store.starred(fx.fan(ada).await?, &[boat]).await?, [boat]);
    Ok(())
});

// The only writer of SQLite takes a few at a time, so that nobody waits for it.
case!(a_task_keeps_its_author_and_others_delete_it_on_the_record, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let (owner, member) = (fx.person(ada, "owner").await?.id, fx.person(ada, "member").await?.id);
    let (first, second) = (fx.completed_by(ada, member).await?, fx.completed_by(ada, owner).await?);
    let unknown = fx.completed_of(ada, request("a boat")).await?;
    fx.index().await?;
    let by = |person| GalleryFilter { person: Some(person), ..GalleryFilter::default() };
    assert_eq!(fx.shown(ada, &by(member)).await?, [first]);
    assert_eq!(fx.shown(ada, &GalleryFilter { text: "boat".into(), ..by(owner) }).await?, [second]);
    assert_eq!(fx.shown(ada, &GalleryFilter { starred_by: Some(owner), ..by(owner) }).await?, []);
    let everything = [first, second, unknown];
    let acting = |person| {
        fx.store.acting(Actor { name: "grace".into(), person_id: Some(person), via: Via::Studio, source: None })
    };
    assert_eq!(acting(member).delete_tasks(ada, &everything, Some(member)).await?, [first]);
    assert_eq!(fx.store.audit_entries(Some(ada), None, 10).await?, [], "it is the member's own");
    fx.store.star_tasks(ada, member, &[first], true).await?;
    assert_eq!(fx.store.starred(member, &[first]).await?, [], "in the bin it gets none");
    assert_eq!(fx.store.shown(ada, &[first, second]).await?, [second], "what is in the bin has no page");
    fx.store.star_tasks(ada, owner, &[second], true).await?;
    let stars = [fx.store.starred(owner, &[second]).await?, fx.store.starred(member, &[second]).await?];
    assert_eq!(stars, [vec![second], vec![]], "stars are a person's");
    fx.store.star_tasks(ada, member, &[second], false).await?;
    assert_eq!(fx.shown(ada, &GalleryFilter { starred_by: Some(owner), ..GalleryFilter::default() }).await?, [second]);
    fx.store.restore_tasks(ada, &[first], Some(owner)).await?;
    assert_eq!(fx.shown(ada, &by(member)).await?, [], "it is not the owner's");
    assert_eq!(fx.store.restore_tasks(ada, &[first], Some(member)).await?, [first]);
    assert_eq!(acting(owner).delete_tasks(ada, &everything, None).await?, everything);
    let entries = fx.store.audit_entries(Some(ada), None, 10).await?;
    let deeds: Vec<_> = entries.iter().map(|entry| (entry.audited.action, entry.audited.subject.clone())).collect();
    assert_eq!(
        deeds,
        [(Action::DeleteTask, Some(first.to_string()))],
        "of the others one is the owner's, one nobody's"
    );
    // The author stays when the person goes, and the usage still tells them apart.
    fx.store.remove_person(member).await?;
    assert_eq!(fx.store.inspect_task(first).await?.and_then(|record| record.person_id), Some(member));
    let rows = fx.store.usage_by(UsageBy::Person, UsageFilter::default()).await?;
    let mut used: Vec<_> = rows.iter().map(|row| (row.person_id, row.surface, row.tasks, row.charged)).collect();
    used.sort_by_key(|(person, ..)| *person);
    assert_eq!(used, [(None, Some(Surface::Web), 1, 2), (Some(owner), None, 1, 2), (Some(member), None, 1, 2)]);
    Ok(())
});

case!(the_bin_holds_deleted_tasks_until_they_are_purged, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let (owner, member) = (fx.person(ada, "owner").await?.id, fx.person(ada, "member").await?.id);
    let (first, second) = (fx.completed_by(ada, member).await?, fx.completed_by(ada, owner).await?);
    let third = fx.completed_by(ada, owner).await?;
    assert_eq!(fx.store.neighbours(ada, second).await?, [Some(third), Some(first)]);
    let deleted_at = fx.clock.now();
    fx.store.delete_tasks(ada, &[first, second], None).await?;
    assert_eq!(fx.store.neighbours(ada, third).await?, [None, None]);
    assert_eq!(fx.store.neighbours(eve, first).await?, [None, None]);
    let bin = async |account, author, before, limit| -> Result<Vec<Id>> {
        let found = fx.store.bin(account, author, before, limit).await?.records;
        assert!(found.iter().all(|record| record.removed_at == Some(deleted_at)));
        Ok(found.iter().map(|record| record.task.id).collect())
    };
    assert_eq!(bin(ada, None, None, 10).await?, [second, first]);
    assert_eq!(bin(ada, None, None, 1).await?, [second]);
    assert_eq!(bin(ada, None, Some(second), 10).await?, [first]);
    assert_eq!(bin(ada, Some(member), None, 10).await?, [first]);
    for (author, limit, older) in [(None, 1, Some(second)), (None, 2, None), (Some(member), 1, None)] {
        assert_eq!(fx.store.bin(ada, author, None, limit).await?.older, older, "{author:?} {limit}");
    }
    assert_eq!(bin(eve, None, None, 10).await?, []);
    assert_eq!(fx.store.purge_tasks(eve, &[first], None).await?, 0);
    assert_eq!(fx.store.purge_tasks(ada, &[first, second, third], Some(member)).await?, 1);
    assert_eq!(fx.store.purge_tasks(ada, &[first, third], None).await?, 0, "once, and nothing outside of the bin");
    assert_eq!(
        (bin(ada, None, None, 10).await?, fx.store.restore_tasks(ada, &[first], None).await?),
        (vec![second], vec![])
    );
    assert_eq!(fx.store.erase_deleted(deleted_at, None).await?, 1, "long before the time of the others is over");
    assert_eq!(fx.store.restore_tasks(ada, &[second], None).await?, [second]);
    fx.store.delete_tasks(ada, &[second], None).await?;
    let ended = fx.task(second).await?.updated_at;
    assert_eq!(fx.store.erase_deleted(deleted_at, Some(ended)).await?, 0, "the retention of ended tasks counts");
    let files = fx.store.task_files(&[second]).await?;
    assert_eq!(files.iter().map(|task| task.removed_at).collect::<Vec<_>>(), [None], "its files stay");
    fx.store.delete_tasks(ada, &[third], None).await?;
    fx.clock.advance(MILLISECOND);
    fx.store.restore_tasks(ada, &[second], None).await?;
    assert_eq!(fx.store.erase_deleted(deleted_at, Some(fx.clock.now())).await?, 1);
    fx.store.delete_tasks(ada, &[second], None).await?;
    fx.store.change_account(ada, AccountChange::Delete).await?;
    assert_eq!(fx.store.erase_deleted(deleted_at, None).await?, 1, "a deleted account has no bin");
    Ok(())
});

case!(tasks_with_long_prompts_are_erased_and_removed_to_the_last, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let long = |name: usize| (0..1_500).map(|word| format!("w{word}")).chain([format!("name{name}")]);
    let long = |name: usize| long(name).collect::<Vec<_>>().join(" ");
    let mut tasks = Vec::new();
    for name in 0..6 {
        tasks.push(fx.completed_of(ada, request(&long(name))).await?);
    }
    fx.index().await?;
    assert_eq!(fx.shown(ada, &text("w77")).await?.len(), 6);
    fx.store.delete_tasks(ada, &tasks[..3], None).await?;
    fx.clock.advance(MILLISECOND);
    let mut erased = 0;
    while let some @ 1.. = fx.store.erase_deleted(fx.clock.now(), None).await? {
        erased += some;
    }
    assert_eq!((erased, fx.shown(ada, &text("w77")).await?.len()), (3, 3));
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 3);
    assert_eq!(fx.shown(ada, &text("w77")).await?, []);
    Ok(())
});

case!(an_erased_task_leaves_nothing_but_its_ledger_and_files, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let indexed = fx.completed_of(ada, request("a boat")).await?;
    fx.index().await?;
    let other = fx.ended_of(ada, request("a hut")).await?;
    let boats = board(fx.store.create_board(ada, None, "boats", 10).await?);
    fx.store.star_tasks(ada, fx.fan(ada).await?, &[indexed], true).await?;
    fx.store.put_on_board(ada, ada, boats, &[indexed], true).await?;
    let history = fx.store.history(ada, None, 10).await?;
    let deleted_at = fx.clock.now();
    fx.store.delete_tasks(ada, &[indexed, other], None).await?;
    assert_eq!(fx.store.erase_deleted(deleted_at, None).await?, 0, "not before the cutoff");
    assert_eq!(fx.store.erased_tasks(fx.clock.now(), 10).await?, []);
    fx.clock.advance(MILLISECOND);
    fx.store.forget_deletion(indexed).await?;
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 2);
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 0);
    assert_eq!(fx.rows(), [("deletions", 2)]);
    let record = fx.store.inspect_task(indexed).await?.expect("its row");
    assert_eq!((record.request.prompt.as_str(), record.removed_at), ("", Some(deleted_at)));
    assert_eq!(fx.store.restore_tasks(ada, &[indexed], None).await?, [], "too late");
    assert_eq!(fx.store.completed_tasks(None, 10).await?, []);
    let mut erased = fx.store.erased_tasks(fx.clock.now(), 10).await?;
    erased.sort_by_key(|task| task.id);
    let files = |id, images| CompletedTask { id, account_id: ada, images };
    assert_eq!(erased, [files(indexed, one_file()), files(other, Vec::new())]);
    for task in erased {
        fx.store.forget_deletion(task.id).await?;
    }
    assert_eq!(fx.rows(), []);
    assert_eq!(fx.store.history(ada, None, 10).await?, history);
    Ok(())
});

case!(a_removal_and_a_deleted_account_leave_nothing_in_the_gallery, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let old = fx.ended_of(ada, request("a boat")).await?;
    let of_eve = fx.ended_of(eve, request("a boat")).await?;
    fx.index().await?;
    for (account, task) in [(ada, old), (eve, of_eve)] {
        let boats = board(fx.store.create_board(account, None, "boats", 10).await?);
        fx.store.star_tasks(account, fx.fan(account).await?, &[task], true).await?;
        fx.store.put_on_board(account, account, boats, &[task], true).await?;
    }
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.remove_tasks_of(ada, fx.clock.now()).await?, 1);
    assert_eq!(fx.count("prompts") + fx.count("stars") + fx.count("board_tasks"), 3, "those of the other");
    fx.store.change_account(eve, AccountChange::Delete).await?;
    assert_eq!(fx.count("stars") + fx.count("board_tasks"), 0);
    assert_eq!((fx.store.boards(eve, eve).await?, fx.store.boards(ada, ada).await?.len()), (vec![], 1));
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 1);
    assert_eq!(fx.rows(), []);
    Ok(())
});

case!(boards_changed_at_once_keep_their_rules, async |fx| {
    const MOST: u32 = 12;
    let ada = fx.account("ada", 100).await?;
    let processes = [fx.store.clone(), fx.another_process()];
    let done =
        |outcomes: &[BoardWrite]| outcomes.iter().filter(|outcome| matches!(outcome, BoardWrite::Done(_))).count();
    for round in 0..5 {
        let name = format!("boats {round}");
        let made =
            try_join_all((0..8).map(|number| processes[number % 2].create_board(ada, None, &name, MOST))).await?;
        assert_eq!(done(&made), 1, "{made:?}");
        assert_eq!(made.iter().filter(|outcome| **outcome == BoardWrite::NameTaken).count(), 7, "{made:?}");
    }
    for round in 0..5 {
        let boards = fx.store.boards(ada, ada).await?;
        let name = format!("ships {round}");
        let renames = boards.iter().enumerate().map(|(number, board)| {
            let store = &processes[number % 2];
            store.rename_board(ada, ada, board.id, &name)
        });
        let renamed = try_join_all(renames).await?;
        assert_eq!(done(&renamed), 1, "{renamed:?}");
        assert!(renamed.iter().all(|outcome| *outcome != BoardWrite::NotFound), "{renamed:?}");
    }
    let names: Vec<String> = (0..16).map(|number| format!("hut {number}")).collect();
    let creations =
        names.iter().enumerate().map(|(number, name)| processes[number % 2].create_board(ada, None, name, MOST));
    let made = try_join_all(creations).await?;
    assert_eq!(done(&made), 7, "{made:?}");
    assert_eq!(made.iter().filter(|outcome| **outcome == BoardWrite::Full).count(), 9, "{made:?}");
    assert_eq!(fx.store.boards(ada, ada).await?.len(), MOST as usize);
    Ok(())
});

case!(a_search_finds_tasks_from_after_the_clock_was_set_back, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut late = Vec::new();
    for _ in 0..3 {
        late.push(fx.submit_request(ada, Surface::Web, request("a boat")).await?.id);
    }
    fx.index().await?;
    let earlier = Clock::manual(fx.clock.now().saturating_sub(Duration::from_secs(86_400)));
    let restarted = fx.process_with_clock(&earlier);
    let mut early = Vec::new();
    for _ in 0..3 {
        earlier.advance(MILLISECOND);
        let submission = restarted.submit(ada, None, Surface::Web, request("a boat"), UNLIMITED).await?;
        early.push(accepted(submission).id);
    }
    while restarted.index_prompts().await? > 0 {}
    let newest_first: Vec<Id> = early.iter().chain(&late).rev().copied().collect();
    for size in [1, 2, 4, 10] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = fx.store.gallery(ada, &text("boat"), before, size).await?;
            seen.extend(page.records.iter().map(|record| record.task.id));
            before = page.older;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, newest_first, "{size}");
    }
    let noon = fx.clock.now();
    let until = GalleryFilter { until: Some(noon.saturating_sub(Duration::from_secs(60))), ..text("boat") };
    assert_eq!(fx.shown(ada, &until).await?, newest_first[3..]);
    let from = GalleryFilter { from: Some(noon.saturating_sub(Duration::from_secs(60))), ..text("boat") };
    assert_eq!(fx.shown(ada, &from).await?, newest_first[..3]);
    Ok(())
});

case!(words_of_many_old_tasks_are_found_page_by_page, async |fx| {
    const OLD: usize = 5_001;
    let ada = fx.account("ada", 100_000).await?;
    for (prompt, tasks) in [("a boat", OLD), ("a hut", 1_100)] {
        fx.copy_task(fx.submit_request(ada, Surface::Web, request(prompt)).await?.id, tasks - 1);
    }
    fx.index().await?;
    let (mut found, mut before, mut pages) = (0, None, 0);
    loop {
        let page = fx.store.gallery(ada, &text("boat"), before, 1_000).await?;
        (found, before, pages) = (found + page.records.len(), page.older, pages + 1);
        if before.is_none() {
            break;
        }
    }
    assert_eq!(found, OLD);
    assert!(pages <= 9, "{pages}");
    Ok(())
});
