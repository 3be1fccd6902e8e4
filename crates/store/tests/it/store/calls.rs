//! Calls of OpenAI's dialect: a repeated call finds the task of the attempt before, and is never charged again.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::join_all;
use tintype_domain::model::{Id, Surface};
use tintype_store::{
    AccountChange, Attachment, Call, CallEnd, FOUND_UNCOUNTED_WITHIN, Origin, Result, StartLimit, Store, Submission,
};

use super::fixture::{Fixture, HOUR, MILLISECOND, UNLIMITED, accepted, images, new_key};

fn call(attempt: u32, holder: i64) -> Call {
    Call { digest: [7; 32], attempt, counted: true, holder, ..Call::default() }
}

fn named(name: u8, digest: u8) -> Call {
    Call { digest: [digest; 32], idempotency: Some([name; 32]), holder: 1, ..Call::default() }
}

async fn submit(store: &Store, account: Id, key_id: Id, call: Call) -> Result<Submission> {
    let origin = Origin { key_id: Some(key_id), call: Some(call), ..Origin::default() };
    store.submit_before(StartLimit::none(), account, origin, Surface::Api, images(1), UNLIMITED).await
}

impl Fixture {
    /// An account with a key.
    async fn caller(&self, name: &str) -> Result<(Id, Id)> {
        let account = self.account(name, 100).await?;
        Ok((account, self.another_key(account).await?))
    }

    async fn another_key(&self, account: Id) -> Result<Id> {
        Ok(self.store.create_key(account, new_key("")).await?.expect("the account exists").id)
    }

    async fn called(&self, account: Id, key_id: Id, call: Call) -> Result<Id> {
        self.clock.advance(MILLISECOND);
        Ok(accepted(submit(&self.store, account, key_id, call).await?).id)
    }
}

case!(a_repeated_call_takes_the_task_over_and_is_not_charged, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let task = fx.called(ada, key, call(0, 1)).await?;
    assert!(fx.store.holds_call(task, 1).await?);
    assert_eq!(submit(&fx.store, ada, key, call(1, 2)).await?, Submission::Repeated, "it looks before the charge");
    assert_eq!(fx.store.attach_call(key, call(1, 2)).await?, Attachment::Task(task));
    assert!(!fx.store.holds_call(task, 1).await? && fx.store.holds_call(task, 2).await?);
    assert!(!fx.store.end_call(task, 1, CallEnd::Delivered).await?, "the first attempt lost it");
    assert_eq!(fx.store.attach_call(key, call(1, 3)).await?, Attachment::None, "one attempt takes it once");
    assert!(fx.store.end_call(task, 2, CallEnd::HungUp).await?);
    assert_eq!(fx.store.attach_call(key, call(2, 4)).await?, Attachment::Task(task));
    assert!(fx.store.end_call(task, 4, CallEnd::Delivered).await?);
    assert_eq!(fx.store.attach_call(key, call(3, 5)).await?, Attachment::None, "its answer was delivered");
    assert_eq!(fx.credits(ada).await?, 98);
    accepted(submit(&fx.store, ada, key, call(3, 5)).await?);
    assert_eq!(fx.credits(ada).await?, 96, "a repeated call without a task of its own makes one");
    Ok(())
});

case!(a_first_attempt_and_another_key_and_other_choices_make_tasks_of_their_own, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let other_key = fx.another_key(ada).await?;
    fx.called(ada, key, call(0, 1)).await?;
    fx.called(ada, key, call(0, 2)).await?;
    assert_eq!(fx.store.attach_call(other_key, call(1, 3)).await?, Attachment::None);
    fx.called(ada, other_key, call(1, 3)).await?;
    let other = Call { digest: [8; 32], ..call(1, 4) };
    assert_eq!(fx.store.attach_call(key, other).await?, Attachment::None);
    fx.called(ada, key, other).await?;
    assert_eq!(fx.credits(ada).await?, 92);
    Ok(())
});

case!(a_task_that_nobody_holds_is_taken_first_and_the_oldest_before_others, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let (first, second, third) = (
        fx.called(ada, key, call(0, 1)).await?,
        fx.called(ada, key, call(0, 2)).await?,
        fx.called(ada, key, call(0, 3)).await?,
    );
    fx.store.end_call(second, 2, CallEnd::HungUp).await?;
    for (holder, task) in [(4, second), (5, first), (6, third)] {
        assert_eq!(fx.store.attach_call(key, call(1, holder)).await?, Attachment::Task(task));
    }
    assert_eq!(fx.store.attach_call(key, call(1, 7)).await?, Attachment::None);
    Ok(())
});

case!(a_call_of_a_client_that_does_not_count_takes_what_was_given_up_for_a_short_time, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let uncounted = |holder| Call { counted: false, ..call(0, holder) };
    let task = fx.called(ada, key, uncounted(1)).await?;
    assert_eq!(fx.store.attach_call(key, uncounted(2)).await?, Attachment::None, "its caller still waits");
    assert!(fx.store.end_call(task, 1, CallEnd::HungUp).await?);
    assert_eq!(fx.store.attach_call(key, uncounted(2)).await?, Attachment::Task(task));
    assert!(fx.store.holds_call(task, 2).await?);
    assert_eq!(fx.store.attach_call(key, uncounted(3)).await?, Attachment::None, "one call takes it");
    assert!(fx.store.end_call(task, 2, CallEnd::HungUp).await?);
    assert_eq!(
        fx.store.attach_call(key, uncounted(4)).await?,
        Attachment::Task(task),
        "it is taken as often as given up"
    );
    assert!(fx.store.end_call(task, 4, CallEnd::Delivered).await?);
    assert_eq!(fx.store.attach_call(key, uncounted(5)).await?, Attachment::None, "its answer was delivered");
    let killed = fx.called(ada, key, uncounted(9)).await?;
    assert_eq!(fx.store.release_calls().await?, 1, "at the next start of its process");
    assert_eq!(fx.store.attach_call(key, uncounted(10)).await?, Attachment::Task(killed));
    let late = fx.called(ada, key, uncounted(6)).await?;
    assert!(fx.store.end_call(late, 6, CallEnd::HungUp).await?);
    let other = Call { digest: [8; 32], ..uncounted(7) };
    assert_eq!(fx.store.attach_call(key, other).await?, Attachment::None);
    fx.clock.advance(FOUND_UNCOUNTED_WITHIN + MILLISECOND);
    assert_eq!(fx.store.attach_call(key, uncounted(7)).await?, Attachment::None, "nobody repeats a call so late");
    assert_eq!(fx.store.attach_call(key, call(1, 8)).await?, Attachment::Task(late), "unless it says so");
    Ok(())
});

case!(an_idempotency_key_names_one_task_whatever_becomes_of_it, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let other_key = fx.another_key(ada).await?;
    assert_eq!(fx.store.attach_call(key, named(1, 7)).await?, Attachment::None);
    let task = fx.called(ada, key, named(1, 7)).await?;
    assert_eq!(submit(&fx.store, ada, key, named(1, 7)).await?, Submission::Repeated);
    for _ in 0..2 {
        assert_eq!(fx.store.attach_call(key, named(1, 7)).await?, Attachment::Task(task));
        fx.store.end_call(task, 1, CallEnd::Delivered).await?;
    }
    assert_eq!(fx.store.attach_call(key, named(1, 8)).await?, Attachment::OtherChoices);
    assert_eq!(submit(&fx.store, ada, key, named(1, 8)).await?, Submission::Repeated);
    assert_eq!(fx.store.attach_call(key, named(2, 7)).await?, Attachment::None);
    assert_eq!(fx.store.attach_call(key, call(1, 9)).await?, Attachment::None, "a call without it");
    assert_eq!(fx.store.attach_call(other_key, named(1, 7)).await?, Attachment::None);
    fx.called(ada, other_key, named(1, 7)).await?;
    assert_eq!(fx.credits(ada).await?, 96);
    Ok(())
});

/// Attaches or submits until one of both succeeds, as the service does.
async fn repeated(store: Arc<Store>, account: Id, key_id: Id, call: Call) -> Result<Id> {
    loop {
        if let Attachment::Task(id) = store.attach_call(key_id, call).await? {
            return Ok(id);
        }
        match submit(&store, account, key_id, call).await? {
            Submission::Repeated => {}
            submission => return Ok(accepted(submission).id),
        }
    }
}

case!(of_attempts_at_once_in_several_processes_each_takes_another_task, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    let processes = match fx.backend {
        tintype_rigs::database::Backend::Sqlite => vec![fx.store.clone()],
        tintype_rigs::database::Backend::Postgres => vec![fx.store.clone(), fx.another_process()],
    };
    let store = |turn: usize| processes[turn % processes.len()].clone();
    let first: Vec<Id> = join_all((0..5).map(|turn| {
        let store = store(turn);
        async move { submit(&store, ada, key, call(0, turn as i64)).await.map(|submission| accepted(submission).id) }
    }))
    .await
    .into_iter()
    .collect::<Result<_>>()?;
    let attempts = (0..8).map(|turn| tokio::spawn(repeated(store(turn), ada, key, call(1, 100 + turn as i64))));
    let taken: Vec<Id> =
        join_all(attempts).await.into_iter().map(|taken| taken.expect("no panic")).collect::<Result<_>>()?;
    let distinct: HashSet<Id> = taken.iter().copied().collect();
    assert_eq!(distinct.len(), 8, "each task goes to one caller");
    assert!(first.iter().all(|id| distinct.contains(id)), "no task of the attempts before is left");
    assert_eq!(fx.credits(ada).await?, 100 - 2 * 8);
    // One call with an idempotency key, sent many times at once.
    let named_calls = (0..8).map(|turn| tokio::spawn(repeated(store(turn), ada, key, named(1, 7))));
    let same: HashSet<Id> =
        join_all(named_calls).await.into_iter().map(|id| id.expect("no panic")).collect::<Result<_>>()?;
    assert_eq!((same.len(), fx.credits(ada).await?), (1, 100 - 2 * 9));
    Ok(())
});

case!(old_calls_are_not_found_and_deleted_and_so_are_those_of_a_deleted_account, async |fx| {
    let (ada, key) = fx.caller("ada").await?;
    fx.called(ada, key, call(0, 1)).await?;
    fx.called(ada, key, named(1, 7)).await?;
    fx.clock.advance(HOUR + MILLISECOND);
    assert_eq!(fx.store.attach_call(key, call(1, 2)).await?, Attachment::None);
    assert!(matches!(fx.store.attach_call(key, named(1, 7)).await?, Attachment::Task(_)));
    assert_eq!(fx.store.delete_calls(fx.store.now()).await?, 2);
    assert_eq!(fx.store.attach_call(key, named(1, 7)).await?, Attachment::None);
    let (eve, key_of_eve) = fx.caller("eve").await?;
    let task = fx.called(eve, key_of_eve, named(1, 7)).await?;
    fx.store.cancel(eve, Surface::Api, task, None, "Cancelled.").await?;
    fx.store.change_account(eve, AccountChange::Delete).await?.expect("an account");
    assert_eq!(fx.count("calls"), 0);
    Ok(())
});

case!(a_repeated_form_of_a_person_finds_its_task_and_that_of_nobody_else, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let [owner, member] = [fx.person(ada, "ada").await?.id, fx.person(ada, "bob").await?.id];
    let send = async |person_id| {
        let origin = Origin { person_id: Some(person_id), call: Some(named(1, 7)), ..Origin::default() };
        fx.store.submit_before(StartLimit::none(), ada, origin, Surface::Web, images(1), UNLIMITED).await
    };
    let task = accepted(send(owner).await?).id;
    assert_eq!(send(owner).await?, Submission::Repeated);
    assert_eq!(fx.store.attach_call(owner, named(1, 7)).await?, Attachment::Task(task));
    assert_eq!(fx.store.attach_call(member, named(1, 7)).await?, Attachment::None);
    assert_ne!(accepted(send(member).await?).id, task);
    assert_eq!(fx.credits(ada).await?, 96);
    assert!(fx.store.remove_person(member).await?);
    assert_eq!(fx.count("calls"), 1);
    for task in fx.store.list_task_ids(ada, Surface::Web, None, 9).await? {
        fx.store.cancel(ada, Surface::Web, task, None, "Cancelled.").await?;
    }
    fx.store.change_account(ada, AccountChange::Delete).await?.expect("an account");
    assert_eq!(fx.count("calls"), 0);
    Ok(())
});
