//! One call of every method of `Store` that is about one account. A unit test of the driver for SQLite includes this file, too.

use std::time::Duration;

use tintype_domain::budget::{Budget, Period};
use tintype_domain::endpoint::{AddedBy, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::identity::Identity;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::person::Role;
use tintype_domain::request::GenerateRequest;
use tintype_store::{
    AccountChange, BoardWrite, Cancellation, EntryFilter, GalleryFilter, InvitationAcceptance, NewEndpoint,
    NewInvitation, NewKey, NewSharedLink, NewUpload, Newcomer, Result, SoughtPreview, Store, Submission, Target,
    TaskState, UploadedPicture, UsageBy, UsageFilter,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Calls each of them. The account has a row in every table, where that is easily had.
pub async fn walk(store: &Store) -> Result<()> {
    let account = new_account(store, "ada").await?;
    new_account(store, "bob").await?;
    money(store, account).await?;
    let key = keys(store, account).await?;
    let tasks = tasks(store, account, key).await?;
    gallery(store, account, &tasks).await?;
    uploads(store, account).await?;
    store.create_person(account, "ada.lovelace", Role::Owner).await?;
    let identity = Identity::new("https://id.example.com", "ada").expect("an identity");
    let (name, role, source) = ("ada.byron".into(), Role::Member, "192.0.2.1".into());
    store.join(Newcomer { account_id: account, name, role, identity, source }).await?;
    store.list_people(Some(account)).await?;
    store.find_people(Some(account), "ada", "", 9).await?;
    invitations(store, account).await?;
    let url = "https://example.com/".parse().expect("a URL");
    let (events, secret) = (Subscription::to_all(), SigningSecret::random());
    store.add_endpoint(account, NewEndpoint { url, events, added_by: AddedBy::Owner, secret }, 9).await?;
    store.list_endpoints(Some(account)).await?;
    store.audit_entries(Some(account), None, 9).await?;
    store.audit_entries(Some(account), Some(account), 9).await?;
    store.find_accounts("a", "", 9).await?;
    store.find_account("ada").await?;
    for change in
        [AccountChange::Disable, AccountChange::Enable, AccountChange::LowBalance(Some(5)), AccountChange::Delete]
    {
        store.change_account(account, change).await?;
    }
    Ok(())
}

async fn new_account(store: &Store, name: &str) -> Result<Id> {
    Ok(store.create_account(name, 100).await?.expect("a free name").id)
}

async fn invitations(store: &Store, account_id: Id) -> Result<()> {
    let owner = store.find_person("ada.lovelace").await?.expect("a person").person.id;
    let (hash, expires_at) = ([1; 32], store.now().saturating_add(MINUTE));
    let new = NewInvitation { account_id, person_id: owner, hash, role: Role::Member, places: 2, expires_at };
    let id = store.create_invitation(new, 9).await?.expect("the first one");
    store.list_invitations(account_id).await?;
    store.find_invitation(hash).await?;
    let (name, password, source) = ("ada.joins".into(), "$hash".into(), "192.0.2.1".into());
    store.accept_invitation(InvitationAcceptance { hash, name, password, source }).await?;
    store.revoke_invitation(account_id, id).await?;
    Ok(())
}

async fn money(store: &Store, account: Id) -> Result<()> {
    let now = store.now();
    store.grant(account, 5, None, Some(now.saturating_add(MINUTE))).await?;
    store.grant_after(account, Some(0), 1, None, None).await?;
    store.take(account, 1, "a mistake").await?;
    store.expiring_grants(account, 9).await?;
    store.history(account, None, 9).await?;
    store.history(account, Some(5), 9).await?;
    store.entries(account, EntryFilter::default(), Some(5), 9).await?;
    store.usage(account, 0).await?;
    for by in [UsageBy::Day, UsageBy::Key, UsageBy::Person, UsageBy::Account] {
        for from in [None, Some(now)] {
            store.usage_by(by, UsageFilter { account_id: Some(account), from, until: from }).await?;
        }
    }
    store.failed_at(account, now.saturating_sub(MINUTE), now, 1).await?;
    Ok(())
}

async fn keys(store: &Store, account: Id) -> Result<Id> {
    let new = || {
        let budget = Some(Budget { credits: 50, period: Period::Day });
        NewKey { budget, ..NewKey::new(&KeySecret::random()) }
    };
    let key = store.create_key(account, new()).await?.expect("the account exists").id;
    let (hash, hint) = (new().hash, new().hint);
    let rotated = store.rotate_key_within(key, hash, &hint, MINUTE, Some(9)).await?.created().expect("the key exists");
    store.find_key_by_hash(hash).await?;
    store.find_allowance(rotated.id).await?;
    store.list_keys(Some(account)).await?;
    Ok(rotated.id)
}

/// Returns tasks of the studio that have ended: a completed and a failed one.
async fn tasks(store: &Store, account: Id, key: Id) -> Result<[Id; 2]> {
    let mut ids = Vec::new();
    for surface in [Surface::Api, Surface::Web, Surface::Web, Surface::Web, Surface::Api] {
        let request = GenerateRequest::parse(br#"{"prompt": "a paper boat"}"#, &[443]).expect("a request");
        let key = (surface == Surface::Api).then_some(key);
        let Submission::Accepted(task) = store.submit(account, key, surface, request, 9).await? else {
            panic!("refused");
        };
        ids.push(task.id);
    }
    store.cancel(account, Surface::Web, ids[3], None, "Cancelled.").await?;
    stops(store, account).await?;
    store.count_unfinished(account, Surface::Api).await?;
    store.unfinished(&[account], Surface::Api).await?;
    let sought = SoughtPreview { account_id: account, task_id: ids[0], shown: 0, from: 0.5 };
    store.find_previews(Surface::Api, &[sought]).await?;
    let claims = store.claim(9, MINUTE).await?;
    for claim in &claims {
        match claim.lease.task_id {
            id if id == ids[1] => store.complete(claim.lease, vec!["boat.png".into()]).await?,
            id if id != ids[4] => store.fail(claim.lease, FailureCause::Engine, "it sank").await?,
            _ => store.release(claim.lease, Duration::ZERO).await?,
        };
    }
    for before in [None, Some(ids[0])] {
        store.list_tasks(account, Surface::Api, before, 9).await?;
        store.list_task_ids(account, Surface::Api, before, 9).await?;
        store.list_records(account, Surface::Web, before, 9).await?;
    }
    store.find_task(account, Surface::Api, ids[0]).await?;
    store.find_record(account, Surface::Api, ids[0]).await?;
    store.find_preview(account, Surface::Web, ids[1]).await?;
    store.recent_tasks(Some(account), 9).await?;
    // The account is deleted in the end, and must have none unfinished.
    store.fail_unleased(ids[4], FailureCause::Operator, "it sank").await?;
    Ok([ids[1], ids[2]])
}

/// Stops tasks until their share is used up.
async fn stops(store: &Store, account: Id) -> Result<()> {
    loop {
        let request = GenerateRequest::parse(br#"{"prompt": "a paper boat", "n": 4}"#, &[443]).expect("a request");
        let Submission::Accepted(task) = store.submit(account, None, Surface::Web, request, 9).await? else {
            panic!("refused");
        };
        let claims = store.claim(9, MINUTE).await?;
        let outcome = store.cancel(account, Surface::Web, task.id, None, "Cancelled.").await?;
        for claim in claims.iter().filter(|claim| claim.lease.task_id != task.id) {
            store.release(claim.lease, Duration::ZERO).await?;
        }
        if outcome == Cancellation::OverShare {
            store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
            return Ok(());
        }
    }
}

async fn gallery(store: &Store, account: Id, tasks: &[Id]) -> Result<()> {
    store.index_prompts().await?;
    store.star_tasks(account, account, tasks, true).await?;
    store.starred(account, tasks).await?;
    store.shown(account, tasks).await?;
    let BoardWrite::Done(board) = store.create_board(account, None, "Boats", 9).await? else {
        panic!("refused");
    };
    store.rename_board(account, account, board, "Ships").await?;
    store.create_board(account, Some(account), "Ships", 9).await?;
    store.publish_board(account, account, board, 9).await?;
    store.put_on_board(account, account, board, tasks, true).await?;
    store.boards(account, account).await?;
    let all = GalleryFilter::default();
    for filter in [
        all.clone(),
        GalleryFilter { text: "paper".into(), ..all.clone() },
        GalleryFilter { starred_by: Some(account), state: Some(TaskState::Completed), ..all.clone() },
        GalleryFilter { person: Some(account), ..all.clone() },
        GalleryFilter { board: Some(board), from: Some(store.now()), ..all },
    ] {
        store.gallery(account, &filter, None, 9).await?;
    }
    store.put_on_board(account, account, board, tasks, false).await?;
    store.star_tasks(account, account, tasks, false).await?;
    let (target, expires_at) = (Target::Board(board), Some(store.now().saturating_add(MINUTE)));
    let link = NewSharedLink { account_id: account, person_id: account, target, with_prompts: true, expires_at };
    store.create_shared_link(link, 9).await?;
    store.list_shared_links(account, Some(account), None, 9).await?;
    store.find_shared_link(board).await?;
    store.find_shared_task(board, tasks[0]).await?;
    store.count_view(board).await?;
    store.revoke_shared_link(account, board, None).await?;
    store.delete_expired_links().await?;
    store.remove_board(account, account, board).await?;
    store.delete_tasks(account, tasks, None).await?;
    store.bin(account, None, None, 9).await?;
    store.restore_tasks(account, &tasks[..1], None).await?;
    store.purge_tasks(account, &tasks[1..], None).await?;
    store.erase_deleted(store.now().saturating_add(MINUTE), None).await?;
    store.erase_failed_prompts(store.now().saturating_add(MINUTE), 0).await?;
    store.remove_tasks_of(account, store.now().saturating_add(MINUTE)).await?;
    Ok(())
}

async fn uploads(store: &Store, account: Id) -> Result<()> {
    let upload = store.begin_upload(NewUpload::of(account, Surface::Web), 9).await?.expect("there is room");
    store.finish_upload(upload, UploadedPicture { name: "boat.png".into(), width: 1, height: 1 }).await?;
    store.count_uploads(account).await?;
    store.find_upload_even_removed(account, Surface::Web, upload).await?;
    store.list_uploads(account, Surface::Web, None, 9).await?;
    store.list_uploads(account, Surface::Web, Some(upload), 9).await?;
    store.remove_upload(account, Surface::Web, upload, Some(account)).await?;
    store.remove_upload(account, Surface::Web, upload, None).await?;
    Ok(())
}
