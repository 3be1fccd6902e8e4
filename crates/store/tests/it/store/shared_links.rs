//! Shared links.

use tintype_domain::model::Id;
use tintype_store::{
    AccountChange, Action, Actor, Addition, BoardWrite, NewSharedLink, Result, SharedLink, Target, Via,
};

use super::fixture::{DAY, Fixture, MILLISECOND};

const MOST: u32 = 3;

impl Fixture {
    async fn share(&self, account_id: Id, person_id: Id, target: Target) -> Result<Addition<Id>> {
        let expires_at = Some(self.clock.now().saturating_add(DAY));
        let new = NewSharedLink { account_id, person_id, target, with_prompts: true, expires_at };
        self.store.create_shared_link(new, MOST).await
    }

    async fn link_to(&self, account: Id, maker: Id, target: Target) -> Result<Id> {
        match self.share(account, maker, target).await? {
            Addition::Created(id) => Ok(id),
            refused => panic!("{refused:?}"),
        }
    }

    async fn board_with(&self, account: Id, tasks: &[Id]) -> Result<Id> {
        let BoardWrite::Done(board) = self.store.create_board(account, None, "boats", 9).await? else {
            panic!("refused")
        };
        assert!(self.store.put_on_board(account, account, board, tasks, true).await?);
        Ok(board)
    }

    async fn works(&self, link: Id) -> Result<bool> {
        Ok(self.store.find_shared_link(link).await?.is_some())
    }

    async fn shows(&self, link: Id, task: Id) -> Result<bool> {
        Ok(self.store.find_shared_task(link, task).await?.is_some_and(|record| record.task.id == task))
    }
}

fn ids(links: &[SharedLink]) -> Vec<Id> {
    links.iter().map(|link| link.id).collect()
}

case!(a_shared_link_shows_its_task_or_what_is_on_its_board, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let (grace, mallory) = (fx.person(ada, "grace").await?.id, fx.person(eve, "mallory").await?.id);
    let (first, second) = (fx.completed_by(ada, grace).await?, fx.completed_by(ada, grace).await?);
    let of_eve = fx.completed_by(eve, mallory).await?;
    let board = fx.board_with(ada, &[first]).await?;
    let of_task = fx.link_to(ada, grace, Target::Task(first)).await?;
    let of_board = fx.link_to(ada, grace, Target::Board(board)).await?;
    let hedy = fx.person(ada, "hedy").await?.id;
    let BoardWrite::Done(of_hedy) = fx.store.create_board(ada, Some(hedy), "hers", 9).await? else { panic!("refused") };
    for (maker, target) in [
        (grace, Target::Task(of_eve)),
        (mallory, Target::Task(first)),
        (grace, Target::Board(first)),
        (grace, Target::Task(board)),
        (ada, Target::Board(board)),
        (grace, Target::Board(of_hedy)),
    ] {
        assert_eq!(fx.share(ada, maker, target).await?, Addition::NotPossible, "{target:?}");
    }
    assert!(fx.shows(of_task, first).await? && fx.shows(of_board, first).await?);
    assert!(!fx.shows(of_task, second).await? && !fx.shows(of_board, second).await?);
    fx.store.put_on_board(ada, ada, board, &[second], true).await?;
    fx.store.put_on_board(ada, ada, board, &[first], false).await?;
    assert!(fx.shows(of_board, second).await? && !fx.shows(of_board, first).await? && fx.shows(of_task, first).await?);
    for _ in 0..2 {
        fx.store.count_view(of_board).await?;
    }
    let found = fx.store.find_shared_link(of_board).await?.expect("a link");
    assert_eq!((found.views, found.title.as_str(), found.account_id), (2, "boats", ada));
    assert_eq!(fx.store.find_shared_link(of_task).await?.expect("a link").title, "a boat");
    fx.link_to(ada, grace, Target::Task(second)).await?;
    assert_eq!(fx.share(ada, grace, Target::Task(second)).await?, Addition::TooMany);
    Ok(())
});

case!(shared_links_are_listed_for_their_maker_or_the_account, async |fx| {
    let (ada, eve) = (fx.account("ada", 100).await?, fx.account("eve", 100).await?);
    let (grace, hedy) = (fx.person(ada, "grace").await?.id, fx.person(ada, "hedy").await?.id);
    let task = fx.completed_by(ada, grace).await?;
    let (one, two) =
        (fx.link_to(ada, grace, Target::Task(task)).await?, fx.link_to(ada, hedy, Target::Task(task)).await?);
    let listed = async |account, maker, before, limit| -> Result<_> {
        Ok(ids(&fx.store.list_shared_links(account, maker, before, limit).await?))
    };
    assert_eq!(listed(ada, None, None, 9).await?, [two, one]);
    assert_eq!(listed(ada, None, Some(two), 9).await?, [one]);
    assert_eq!(listed(ada, None, None, 1).await?, [two]);
    assert_eq!(listed(ada, Some(grace), None, 9).await?, [one]);
    assert_eq!(listed(eve, None, None, 9).await?, []);
    assert!(!fx.store.revoke_shared_link(eve, one, None).await?);
    assert!(!fx.store.revoke_shared_link(ada, one, Some(hedy)).await?);
    let actor = Actor { name: "grace".into(), person_id: Some(grace), via: Via::Studio, source: None };
    assert!(fx.store.acting(actor).revoke_shared_link(ada, one, Some(grace)).await?);
    assert!(!fx.store.revoke_shared_link(ada, one, None).await?);
    assert_eq!((listed(ada, None, None, 9).await?, fx.works(one).await?), (vec![two], false));
    let log = fx.store.audit_entries(Some(ada), None, 9).await?;
    let log: Vec<_> = log.iter().map(|entry| (entry.audited.action, entry.audited.subject.clone())).collect();
    assert_eq!(log, [(Action::Unshare, Some(task.to_string()))]);
    Ok(())
});

case!(a_shared_link_ends_with_what_it_needs, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let (grace, hedy) = (fx.person(ada, "grace").await?.id, fx.person(ada, "hedy").await?.id);
    let task = fx.completed_by(ada, grace).await?;
    let board = fx.board_with(ada, &[task]).await?;
    let of_task = fx.link_to(ada, grace, Target::Task(task)).await?;
    let of_board = fx.link_to(ada, grace, Target::Board(board)).await?;
    // Nothing of a task in the bin is shown.
    fx.store.delete_tasks(ada, &[task], None).await?;
    assert!(!fx.works(of_task).await? && !fx.shows(of_board, task).await? && !fx.shows(of_task, task).await?);
    fx.store.restore_tasks(ada, &[task], None).await?;
    assert!(fx.works(of_task).await? && fx.shows(of_board, task).await?);
    // A disabled account shows nothing.
    fx.store.change_account(ada, AccountChange::Disable).await?;
    assert!(!fx.works(of_task).await? && !fx.shows(of_board, task).await?);
    fx.store.change_account(ada, AccountChange::Enable).await?;
    // Its maker leaves.
    let of_hedy = fx.link_to(ada, hedy, Target::Task(task)).await?;
    fx.store.remove_person(hedy).await?;
    assert!(!fx.works(of_hedy).await? && fx.works(of_task).await?);
    // The board goes, and then the task.
    fx.store.remove_board(ada, ada, board).await?;
    assert!(!fx.works(of_board).await?);
    fx.store.delete_tasks(ada, &[task], None).await?;
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 1);
    assert_eq!(fx.count("shared_links"), 0);
    // Its time is over.
    let task = fx.completed_by(ada, grace).await?;
    let last = fx.link_to(ada, grace, Target::Task(task)).await?;
    fx.clock.advance(DAY - MILLISECOND);
    assert_eq!((fx.works(last).await?, fx.store.delete_expired_links().await?), (true, 0));
    fx.clock.advance(MILLISECOND);
    assert!(!fx.works(last).await? && !fx.shows(last, task).await?);
    assert_eq!((fx.count("shared_links"), fx.store.delete_expired_links().await?), (1, 1));
    // The account is deleted.
    fx.link_to(ada, grace, Target::Task(task)).await?;
    fx.store.change_account(ada, AccountChange::Delete).await?;
    assert_eq!(fx.count("shared_links"), 0);
    Ok(())
});
