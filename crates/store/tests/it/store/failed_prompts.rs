//! Failed tasks: how many of an account failed lately, and how long their prompts are kept.

use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{GalleryFilter, Result};

use super::fixture::{self, Fixture, HOUR, MILLISECOND, images};

/// No limit on the bytes of prompts.
const ANY: u64 = u64::MAX;

/// Submits a task with this prompt and a reference, and lets it fail.
async fn failed(fx: &Fixture, account: Id, surface: Surface, prompt: &str) -> Result<Id> {
    let reference_images = vec!["https://example.com/boat.png".into()];
    let request = GenerateRequest { prompt: prompt.into(), reference_images, ..images(1) };
    let id = fx.submit_request(account, surface, request).await?.id;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    Ok(id)
}

async fn prompt(fx: &Fixture, id: Id) -> Result<String> {
    let record = fx.store.inspect_task(id).await?.expect("the task exists");
    assert_eq!(record.request.prompt.is_empty(), record.request.reference_images.is_empty(), "both or neither");
    Ok(record.request.prompt)
}

case!(old_prompts_of_failed_tasks_are_erased_and_their_tasks_stay, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let old = failed(fx, ada, Surface::Web, "a paper boat").await?;
    let completed = fx.submit(ada).await?.id;
    fx.store.complete(fx.claim().await?, vec!["boat.png".into()]).await?;
    fx.store.index_prompts().await?;
    let found = async |text: &str| -> Result<usize> {
        let filter = GalleryFilter { text: text.into(), ..GalleryFilter::default() };
        Ok(fx.store.gallery(ada, &filter, None, 10).await?.records.len())
    };
    let fan = fx.person(ada, "fan").await?.id;
    fx.store.star_tasks(ada, fan, &[old], true).await?;
    assert_eq!(found("paper").await?, 1);
    fx.clock.advance(HOUR);
    let cutoff = fx.clock.now();
    let young = failed(fx, ada, Surface::Api, "a kite").await?;
    assert_eq!(fx.store.erase_failed_prompts(old.timestamp(), ANY).await?, 0, "not before their time");
    assert_eq!(fx.store.erase_failed_prompts(cutoff, ANY).await?, 1);
    assert_eq!(fx.store.erase_failed_prompts(cutoff, ANY).await?, 0, "once");
    assert_eq!((prompt(fx, old).await?.as_str(), prompt(fx, young).await?.as_str()), ("", "a kite"));
    assert_eq!(fx.store.inspect_task(completed).await?.expect("a task").request.prompt, "a boat");
    assert_eq!(found("paper").await?, 0, "the search forgets it");
    assert_eq!(fx.store.starred(fan, &[old]).await?, [old]);
    let task = fx.store.find_task(ada, Surface::Web, old).await?.expect("its owner still sees it");
    assert_eq!(task.status, fixture::failure(FailureCause::Engine, "it sank"));
    assert!(task.image_to_image);
    Ok(())
});

case!(the_prompts_of_failed_tasks_have_a_limited_space_for_each_account, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let mut of_ada = Vec::new();
    for _ in 0..5 {
        of_ada.push(failed(fx, ada, Surface::Api, &"x".repeat(1_000)).await?);
    }
    let of_bob = failed(fx, bob, Surface::Api, "a boat").await?;
    // The latest two, with their references.
    let cutoff = of_ada[0].timestamp();
    assert_eq!(fx.store.erase_failed_prompts(cutoff, 2_500).await?, 3);
    let mut kept = Vec::new();
    for id in &of_ada {
        kept.push(!prompt(fx, *id).await?.is_empty());
    }
    assert_eq!(kept, [false, false, false, true, true]);
    assert_eq!(prompt(fx, of_bob).await?, "a boat");
    assert_eq!(fx.store.erase_failed_prompts(cutoff, 2_500).await?, 0);
    assert_eq!(fx.store.erase_failed_prompts(cutoff, 0).await?, 3);
    Ok(())
});

case!(many_prompts_of_failed_tasks_are_erased_in_parts, async |fx| {
    let ada = fx.account("ada", 10_000).await?;
    fx.copy_task(fx.submit(ada).await?.id, 1_099);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.expire(fx.clock.now(), "it sank").await?.len(), 1_100);
    assert_eq!(fx.store.erase_failed_prompts(fx.clock.now(), ANY).await?, 1_100);
    assert_eq!(fx.count("failed_prompts"), 0);
    Ok(())
});

case!(a_removed_or_deleted_task_is_no_longer_among_the_failed_prompts, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let deleted = failed(fx, ada, Surface::Web, "a boat").await?;
    failed(fx, ada, Surface::Api, "a boat").await?;
    assert_eq!(fx.count("failed_prompts"), 2);
    assert_eq!(fx.store.delete_tasks(ada, &[deleted], None).await?, [deleted]);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 1);
    assert_eq!(fx.count("failed_prompts"), 1);
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 1);
    assert_eq!(fx.count("failed_prompts"), 0);
    Ok(())
});

case!(the_failures_of_an_account_are_counted_from_the_latest, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let begin = fx.clock.now();
    let mut times = Vec::new();
    for _ in 0..3 {
        failed(fx, ada, Surface::Api, "a boat").await?;
        failed(fx, bob, Surface::Web, "a boat").await?;
        fx.submit(ada).await?;
        fx.store.complete(fx.claim().await?, vec!["boat.png".into()]).await?;
        times.push(
            fx.store.history(ada, None, 100).await?.iter().find(|entry| entry.amount > 0).expect("a refund").created_at,
        );
    }
    for (nth, at) in [(1, Some(times[2])), (2, Some(times[1])), (3, Some(times[0])), (4, None)] {
        assert_eq!(fx.store.failed_at(ada, begin, times[2], nth).await?, at, "{nth}");
    }
    assert_eq!(fx.store.failed_at(ada, times[1], times[2], 1).await?, Some(times[2]));
    assert_eq!(fx.store.failed_at(ada, times[2], Timestamp::MAX, 1).await?, None, "after that time only");
    assert_eq!(fx.store.failed_at(ada, begin, times[1], 1).await?, Some(times[1]), "before the clock was set back");
    Ok(())
});
