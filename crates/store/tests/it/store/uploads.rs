//! Uploads.

use tintype_domain::model::{Id, Surface};
use tintype_store::{AccountChange, Action, Actor, CompletedTask, NewUpload, Result, StoreError, TaskFiles, Upload};
use tintype_store::{UploadedPicture, Via};
use tintype_system::clock::Timestamp;

use super::fixture::{DAY, Fixture, MILLISECOND};

const MOST: u32 = 3;

fn picture(name: &str) -> UploadedPicture {
    UploadedPicture { name: name.into(), width: 640, height: 480 }
}

impl Fixture {
    async fn begun(&self, account: Id, surface: Surface) -> Result<Id> {
        self.clock.advance(MILLISECOND);
        Ok(self.store.begin_upload(NewUpload::of(account, surface), MOST).await?.expect("a place"))
    }

    async fn upload(&self, account: Id, surface: Surface, name: &str) -> Result<Upload> {
        let id = self.begun(account, surface).await?;
        assert!(self.store.finish_upload(id, picture(name)).await?);
        Ok(Upload {
            id,
            account_id: account,
            surface,
            picture: picture(name),
            removed_at: None,
            person_id: None,
            is_mask: false,
        })
    }
}

case!(an_upload_is_seen_by_its_account_and_surface_once_it_is_finished, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    let id = fixture.begun(ada, Surface::Web).await?;
    assert_eq!(fixture.store.find_upload_even_removed(ada, Surface::Web, id).await?, None);
    assert_eq!(fixture.store.list_uploads(ada, Surface::Web, None, 10).await?, []);
    assert!(fixture.store.finish_upload(id, picture("a.png")).await?);
    assert!(!fixture.store.finish_upload(id, picture("b.png")).await?, "once");
    assert!(!fixture.store.finish_upload(ada, picture("b.png")).await?, "an unknown one");
    let first = fixture.store.find_upload(ada, Surface::Web, id).await?.expect("an upload");
    assert_eq!((first.id, first.account_id, &first.picture), (id, ada, &picture("a.png")));
    for (account, surface) in [(eve, Surface::Web), (ada, Surface::Api)] {
        assert_eq!(fixture.store.find_upload_even_removed(account, surface, id).await?, None);
        assert!(!fixture.store.remove_upload(account, surface, id, None).await?);
    }
    let second = fixture.upload(ada, Surface::Web, "second.png").await?;
    fixture.upload(ada, Surface::Api, "of the API.png").await?;
    fixture.upload(eve, Surface::Web, "of eve.png").await?;
    let list = async |before, limit| fixture.store.list_uploads(ada, Surface::Web, before, limit).await;
    assert_eq!(list(None, 10).await?, [second.clone(), first.clone()]);
    assert_eq!(list(None, 1).await?, std::slice::from_ref(&second));
    assert_eq!(list(Some(second.id), 10).await?, [first]);
    Ok(())
});

case!(an_account_has_a_limited_number_of_uploads, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    let first = fixture.upload(ada, Surface::Web, "first.png").await?;
    fixture.upload(ada, Surface::Api, "second.png").await?;
    fixture.begun(ada, Surface::Web).await?;
    assert_eq!(fixture.store.count_uploads(ada).await?, MOST);
    assert_eq!(fixture.store.begin_upload(NewUpload::of(ada, Surface::Web), MOST).await?, None);
    fixture.begun(eve, Surface::Web).await?;
    assert!(fixture.store.remove_upload(ada, Surface::Web, first.id, None).await?);
    fixture.begun(ada, Surface::Web).await?;
    fixture.store.change_account(eve, AccountChange::Disable).await?;
    assert_eq!(fixture.store.begin_upload(NewUpload::of(eve, Surface::Web), MOST).await?, None, "a disabled account");
    assert_eq!(fixture.store.begin_upload(NewUpload::of(first.id, Surface::Web), MOST).await?, None, "no account");
    Ok(())
});

case!(an_upload_keeps_its_author_and_others_remove_it_on_the_record, async |fixture| {
    let ada = fixture.account("ada", 0).await?;
    let (owner, member) = (fixture.person(ada, "owner").await?.id, fixture.person(ada, "member").await?.id);
    let mut ids = Vec::new();
    for (author, is_mask) in [(Some(member), false), (Some(owner), true), (None, false)] {
        fixture.clock.advance(MILLISECOND);
        let new = NewUpload { person_id: author, is_mask, ..NewUpload::of(ada, Surface::Web) };
        let id = fixture.store.begin_upload(new, MOST).await?.expect("a place");
        assert!(fixture.store.finish_upload(id, picture("a.png")).await?);
        let upload = fixture.store.find_upload(ada, Surface::Web, id).await?.expect("an upload");
        assert_eq!((upload.person_id, upload.is_mask), (author, is_mask));
        ids.push(id);
    }
    let remove = async |person, id, author| {
        let actor = Actor { name: "grace".into(), person_id: Some(person), via: Via::Studio, source: None };
        fixture.store.acting(actor).remove_upload(ada, Surface::Web, id, author).await
    };
    let left = async || -> Result<Vec<Id>> {
        Ok(fixture.store.list_uploads(ada, Surface::Web, None, 10).await?.iter().map(|upload| upload.id).collect())
    };
    assert!(!remove(member, ids[1], Some(member)).await?, "it is the owner's");
    assert!(!remove(member, ids[2], Some(member)).await?, "it is nobody's");
    assert!(!remove(owner, ids[0], Some(owner)).await?, "it is the member's");
    assert_eq!(left().await?, [ids[2], ids[1], ids[0]]);
    assert_eq!(fixture.store.audit_entries(Some(ada), None, 10).await?, []);
    // The author stays when the person goes.
    fixture.store.remove_person(member).await?;
    let kept = fixture.store.find_upload(ada, Surface::Web, ids[0]).await?.expect("an upload");
    assert_eq!(kept.person_id, Some(member));
    for id in &ids {
        assert!(remove(owner, *id, None).await?);
        assert!(!remove(owner, *id, None).await?, "once");
    }
    assert_eq!(left().await?, []);
    let entries = fixture.store.audit_entries(Some(ada), None, 10).await?;
    let deeds: Vec<_> = entries.iter().map(|entry| (entry.audited.action, entry.audited.subject.clone())).collect();
    let first = ids[0].to_string();
    assert_eq!(deeds, [(Action::RemoveUpload, Some(first))], "of the others one is the owner's, one nobody's");
    Ok(())
});

case!(a_removed_upload_is_held_until_its_file_is_gone, async |fixture| {
    let ada = fixture.account("ada", 0).await?;
    let upload = fixture.upload(ada, Surface::Web, "a.png").await?;
    fixture.store.forget_upload_file(upload.id).await?;
    assert!(
        fixture.store.find_upload(ada, Surface::Web, upload.id).await?.is_some(),
        "only a removed one loses its file"
    );
    assert!(fixture.store.remove_upload(ada, Surface::Web, upload.id, None).await?);
    assert!(!fixture.store.remove_upload(ada, Surface::Web, upload.id, None).await?);
    let removed = Upload { removed_at: Some(fixture.store.now()), ..upload };
    assert_eq!(fixture.store.find_upload(ada, Surface::Web, removed.id).await?, None);
    assert_eq!(fixture.store.list_uploads(ada, Surface::Web, None, 10).await?, []);
    assert_eq!(fixture.store.find_upload_even_removed(ada, Surface::Web, removed.id).await?, Some(removed.clone()));
    assert_eq!(fixture.store.removed_uploads(fixture.store.now(), 10).await?, []);
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.removed_uploads(fixture.store.now(), 10).await?, std::slice::from_ref(&removed));
    fixture.store.forget_upload_file(removed.id).await?;
    assert_eq!(fixture.store.find_upload_even_removed(ada, Surface::Web, removed.id).await?, None);
    assert_eq!(fixture.store.removed_uploads(Timestamp::MAX, 10).await?, []);
    let known = async || Ok::<_, StoreError>(fixture.store.task_files(&[removed.id]).await?.len());
    assert_eq!(fixture.store.delete_uploads(fixture.store.now().saturating_sub(MILLISECOND)).await?, 0);
    assert_eq!(known().await?, 1, "a sweep finds other copies of its file");
    assert_eq!(fixture.store.delete_uploads(fixture.store.now()).await?, 1);
    assert_eq!(known().await?, 0);
    Ok(())
});

case!(old_uploads_are_removed_and_unfinished_ones_sooner, async |fixture| {
    let ada = fixture.account("ada", 0).await?;
    let old = fixture.upload(ada, Surface::Web, "old.png").await?;
    let unfinished = fixture.begun(ada, Surface::Web).await?;
    fixture.clock.advance(DAY);
    let young = fixture.upload(ada, Surface::Web, "young.png").await?;
    let now = fixture.store.now();
    assert_eq!(fixture.store.remove_uploads(old.id.timestamp(), unfinished.timestamp()).await?, 0);
    assert_eq!(fixture.store.remove_uploads(old.id.timestamp(), now).await?, 1);
    assert!(!fixture.store.finish_upload(unfinished, picture("late.png")).await?);
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.delete_uploads(fixture.store.now()).await?, 1, "it never had a file");
    assert_eq!(fixture.store.remove_uploads(young.id.timestamp(), now).await?, 1);
    assert_eq!(fixture.store.list_uploads(ada, Surface::Web, None, 10).await?, [young]);
    let of_call = fixture.upload(ada, Surface::Api, "of a call.png").await?;
    fixture.clock.advance(MILLISECOND);
    assert_eq!(fixture.store.remove_uploads(now, of_call.id.timestamp()).await?, 0);
    assert_eq!(
        fixture.store.remove_uploads(now, fixture.store.now()).await?,
        1,
        "it was left by a call that broke off"
    );
    Ok(())
});

case!(the_uploads_of_a_deleted_account_are_removed, async |fixture| {
    let (ada, eve) = (fixture.account("ada", 0).await?, fixture.account("eve", 0).await?);
    let (gone, unfinished) =
        (fixture.upload(ada, Surface::Web, "a.png").await?, fixture.begun(ada, Surface::Api).await?);
    let stays = fixture.upload(eve, Surface::Web, "b.png").await?;
    fixture.store.change_account(ada, AccountChange::Delete).await?;
    assert!(!fixture.store.finish_upload(unfinished, picture("late.png")).await?);
    let removed = fixture.store.removed_uploads(Timestamp::MAX, 10).await?;
    assert_eq!(removed.iter().map(|upload| upload.id).collect::<Vec<_>>(), [gone.id]);
    assert_eq!(fixture.store.list_uploads(eve, Surface::Web, None, 10).await?, [stays]);
    Ok(())
});

case!(sweeps_and_backups_see_the_files_of_uploads, async |fixture| {
    let ada = fixture.account("ada", 0).await?;
    let begun = fixture.begun(ada, Surface::Web).await?;
    let first = fixture.upload(ada, Surface::Web, "a.png").await?;
    let now = fixture.store.now();
    let files = |id, is_processing, images| TaskFiles { id, is_processing, images, updated_at: now, removed_at: None };
    let before = now.saturating_sub(MILLISECOND);
    let mut expected = [
        TaskFiles { updated_at: before, ..files(begun, true, Vec::new()) },
        files(first.id, false, vec!["a.png".to_owned()]),
    ];
    let found = async || -> Result<Vec<TaskFiles>> {
        let mut found = fixture.store.task_files(&[begun, first.id]).await?;
        found.sort_by_key(|files| files.id);
        Ok(found)
    };
    assert_eq!(found().await?, expected);
    let stored = CompletedTask { id: first.id, account_id: ada, images: vec!["a.png".to_owned()] };
    assert_eq!(fixture.store.completed_tasks(None, 10).await?, [stored]);
    assert_eq!(fixture.store.completed_tasks(Some(first.id), 10).await?, []);
    fixture.store.remove_uploads(Timestamp::MAX, Timestamp::MAX).await?;
    expected[0].removed_at = Some(now);
    expected[0].is_processing = false;
    expected[1].removed_at = Some(now);
    assert_eq!(found().await?, expected);
    assert_eq!(fixture.store.completed_tasks(None, 10).await?, []);
    Ok(())
});
