//! Submitting tasks and reading them.

use futures::future::try_join_all;
use tintype_domain::ledger::NotCharged;
use tintype_domain::model::{EntryKind, FailureCause, Id, Status, Surface, Task, TaskId};
use tintype_domain::request::{AspectRatio, GenerateRequest, TaskSettings};
use tintype_engine::{PromptSyntax, RenderSettings};
use tintype_store::{Result, START_WITHIN, StartLimit, Submission};

use super::fixture::{Fixture, LEASE, MILLISECOND, UNLIMITED, accepted, ids, images, one_file};
use tintype_rigs::database::NOON;

case!(a_submit_charges_two_credits_per_image, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut balance = 100;
    for n in 1..=4 {
        let task = fx.submit_request(ada, Surface::Api, images(n)).await?;
        let cost = 2 * i64::from(n);
        balance -= cost;
        assert_eq!(fx.credits(ada).await?, balance);
        let charge = fx.store.history(ada, None, 1).await?.remove(0);
        assert_eq!((charge.kind, charge.amount, charge.balance), (EntryKind::Charge, -cost, balance));
        assert_eq!((charge.task_id, charge.created_at), (Some(TaskId(task.id)), fx.clock.now()));
    }
    Ok(())
});

case!(every_process_reads_a_task_as_soon_as_it_is_accepted, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let elsewhere = fx.another_process();
    let task = fx.submit(ada).await?;
    let now = fx.clock.now();
    let expected = Task {
        id: task.id,
        account_id: ada,
        surface: Surface::Api,
        image_to_image: false,
        status: Status::Processing,
        updated_at: now,
    };
    assert_eq!((&task, task.created_at()), (&expected, now));
    assert_eq!(elsewhere.find_task(ada, Surface::Api, task.id).await?, Some(expected.clone()));
    assert_eq!(elsewhere.list_tasks(ada, Surface::Api, None, 10).await?, std::slice::from_ref(&expected));
    assert_eq!(elsewhere.recent_tasks(None, 10).await?, [expected]);
    Ok(())
});

case!(a_claim_returns_the_request_unchanged, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let prompts = ["a boat", "  '); DROP TABLE tasks; --\n\t\"?1\" %s {} \\ ", "船 🛥️ e\u{301}\u{202e}\u{feff}"];
    for (turn, aspect_ratio) in AspectRatio::ALL.into_iter().enumerate() {
        let references = (0..turn % 5).map(|index| format!("https://img.example.com/{index}?a=\"b\",c"));
        let request = GenerateRequest {
            prompt: prompts[turn % prompts.len()].into(),
            aspect_ratio,
            n: (turn % 4 + 1) as u8,
            reference_images: references.collect(),
            settings: TaskSettings {
                preset: (turn % 3 == 0).then(|| "portrait".to_owned()),
                mask: (turn % 3 == 1).then(|| format!("upload:{ada}")),
                render: RenderSettings {
                    seed: (turn % 2 == 0).then_some(turn as u32),
                    negative_prompt: (turn % 5 == 0).then(|| "rain, \"fog\" 🌧".to_owned()),
                    steps: (turn % 4 == 0).then_some(7),
                    guidance_scale: (turn % 4 == 1).then_some(6.5),
                    strength: (turn % 4 == 1).then_some(0.8),
                    loras: (turn % 4 == 2)
                        .then(|| "detail.safetensors:0.5".parse().expect("a LoRA"))
                        .into_iter()
                        .collect(),
                    prompt: (turn % 4 == 2).then_some(PromptSyntax::Weighted),
                    quality: (turn % 4 == 3).then(|| "high".to_owned()),
                },
            },
            request_id: Some(format!("request-{turn}")),
        };
        let task = fx.submit_request(ada, Surface::Api, request.clone()).await?;
        assert_eq!(task.image_to_image, !request.reference_images.is_empty());
        let record = fx.store.inspect_task(task.id).await?.expect("the task exists");
        assert_eq!((record.task, &record.request), (task, &request));
        assert_eq!(fx.store.claim(1, LEASE).await?[0].request, request);
    }
    Ok(())
});

case!(a_submit_can_spend_the_last_credit_and_no_more, async |fx| {
    let ada = fx.account("ada", 4).await?;
    fx.submit_request(ada, Surface::Api, images(2)).await?;
    assert_eq!(fx.credits(ada).await?, 0);
    let refused = fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?;
    assert_eq!(refused, Submission::NotCharged(NotCharged::InsufficientCredits { available: 0 }));
    Ok(())
});

case!(a_submit_without_enough_credits_changes_nothing, async |fx| {
    let ada = fx.account("ada", 5).await?;
    fx.submit(ada).await?;
    let before = fx.state().await?;
    for n in [2, 3, 4] {
        let refused = fx.store.submit(ada, None, Surface::Api, images(n), 2).await?;
        assert_eq!(refused, Submission::NotCharged(NotCharged::InsufficientCredits { available: 3 }));
    }
    assert_eq!(fx.state().await?, before);
    let second = fx.store.submit(ada, None, Surface::Api, images(1), 2).await?;
    assert!(matches!(second, Submission::Accepted(_)), "refused submits are not unfinished tasks: {second:?}");
    Ok(())
});

case!(a_submit_beyond_the_limit_of_unfinished_tasks_changes_nothing, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    fx.submit_request(ada, Surface::Web, images(1)).await?;
    fx.submit(ada).await?;
    let before = fx.state().await?;
    for max_unfinished in [1, 2] {
        let refused = fx.store.submit(ada, None, Surface::Api, images(1), max_unfinished).await?;
        assert_eq!(refused, Submission::NotCharged(NotCharged::TooManyUnfinished));
    }
    assert_eq!(fx.state().await?, before);
    accepted(fx.store.submit(bob, None, Surface::Api, images(1), 2).await?);
    accepted(fx.store.submit(ada, None, Surface::Api, images(1), 3).await?);
    Ok(())
});

case!(a_task_that_ends_allows_one_more_unfinished_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    fx.submit(ada).await?;
    for end in ["complete", "fail", "fail_unleased", "expire"] {
        assert_eq!(
            fx.store.submit(ada, None, Surface::Api, images(1), 1).await?,
            Submission::NotCharged(NotCharged::TooManyUnfinished),
            "{end}"
        );
        let lease = fx.claim().await?;
        match end {
            "complete" => drop(fx.store.complete(lease, one_file()).await?),
            "fail" => drop(fx.store.fail(lease, FailureCause::Engine, "it sank").await?),
            "fail_unleased" => drop(fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "it sank").await?),
            _ => drop(fx.store.expire(fx.clock.now(), "too late").await?),
        }
        accepted(fx.store.submit(ada, None, Surface::Api, images(1), 1).await?);
        assert_eq!(
            fx.store.submit(ada, None, Surface::Api, images(1), 1).await?,
            Submission::NotCharged(NotCharged::TooManyUnfinished),
            "{end}"
        );
    }
    Ok(())
});

case!(an_unfinished_limit_of_zero_means_no_limit, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let submits = (0..150).map(|_| fx.store.submit(ada, None, Surface::Api, images(1), 0));
    try_join_all(submits).await?.into_iter().for_each(|submission| drop(accepted(submission)));
    assert_eq!(fx.credits(ada).await?, 700);
    Ok(())
});

case!(a_submit_for_a_missing_account_is_an_error_and_changes_nothing, async |fx| {
    let missing = Fixture::new(fx.backend).account("eve", 10).await?;
    let before = fx.state().await?;
    fx.store.submit(missing, None, Surface::Api, images(1), UNLIMITED).await.expect_err("there is no such account");
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(task_ids_increase_within_a_millisecond, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut last = ada;
    for _ in 0..50 {
        let id = accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?).id;
        assert!(id > last, "{id} came after {last}");
        last = id;
    }
    Ok(())
});

case!(a_thousand_tasks_of_one_millisecond_have_distinct_ids_with_that_time, async |fx| {
    let ada = fx.account("ada", 2_000).await?;
    let submits = (0..1_000).map(|_| fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED));
    let submissions = try_join_all(submits).await?;
    let mut tasks: Vec<_> = submissions.into_iter().map(accepted).collect();
    assert!(tasks.iter().all(|task| task.created_at() == NOON && task.updated_at == NOON));
    tasks.sort_by_key(|task| task.id);
    tasks.dedup_by_key(|task| task.id);
    assert_eq!(tasks.len(), 1_000);
    assert_eq!(fx.store.claim(1_000, LEASE).await?.len(), 1_000);
    Ok(())
});

case!(find_task_requires_the_account_and_surface_of_the_task, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let bob = fx.account("bob", 10).await?;
    let api = fx.submit(ada).await?;
    let web = fx.submit_request(ada, Surface::Web, images(1)).await?;
    for (account, surface, id, expected) in [
        (ada, Surface::Api, api.id, Some(&api)),
        (ada, Surface::Web, web.id, Some(&web)),
        (ada, Surface::Web, api.id, None),
        (ada, Surface::Api, web.id, None),
        (bob, Surface::Api, api.id, None),
        (bob, Surface::Web, web.id, None),
        (ada, Surface::Api, ada, None),
    ] {
        assert_eq!(fx.store.find_task(account, surface, id).await?.as_ref(), expected);
    }
    assert!(fx.store.inspect_task(ada).await?.is_none(), "the id of an account is not the id of a task");
    Ok(())
});

case!(list_tasks_returns_one_account_and_one_surface_newest_first, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    let (mut api, mut web) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        fx.submit(bob).await?;
        api.push(fx.submit(ada).await?);
        web.push(fx.submit_request(ada, Surface::Web, images(1)).await?);
        fx.submit_request(bob, Surface::Web, images(1)).await?;
    }
    api.reverse();
    web.reverse();
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 100).await?, api);
    assert_eq!(fx.store.list_tasks(ada, Surface::Web, None, 100).await?, web);
    Ok(())
});

case!(count_unfinished_counts_one_account_and_one_surface_until_each_task_ends, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
    }
    fx.submit_request(ada, Surface::Web, images(1)).await?;
    fx.submit(bob).await?;
    let counts = async || -> Result<[u64; 4]> {
        let store = &fx.store;
        Ok([
            store.count_unfinished(ada, Surface::Api).await?,
            store.count_unfinished(ada, Surface::Web).await?,
            store.count_unfinished(bob, Surface::Api).await?,
            store.count_unfinished(bob, Surface::Web).await?,
        ])
    };
    assert_eq!(counts().await?, [3, 1, 1, 0]);
    let lease = fx.claim().await?;
    assert_eq!(counts().await?, [3, 1, 1, 0], "a leased task is unfinished");
    fx.store.complete(lease, one_file()).await?;
    assert_eq!(counts().await?, [2, 1, 1, 0]);
    fx.store
        .fail_unleased(fx.store.list_task_ids(bob, Surface::Api, None, 1).await?[0], FailureCause::Operator, "no")
        .await?;
    assert_eq!(counts().await?, [2, 1, 0, 0]);
    Ok(())
});

case!(pages_of_a_list_have_no_gap_and_no_overlap, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut expected = Vec::new();
    for _ in 0..7 {
        expected.insert(0, fx.submit(ada).await?.id);
        fx.submit_request(ada, Surface::Web, images(1)).await?;
    }
    let mut listed = Vec::new();
    for expected_len in [3, 3, 1, 0] {
        let page = fx.store.list_tasks(ada, Surface::Api, listed.last().copied(), 3).await?;
        assert_eq!(page.len(), expected_len);
        listed.extend(ids(&page));
    }
    assert_eq!(listed, expected);
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, None, 0).await?, []);
    Ok(())
});

case!(a_page_may_start_at_an_id_of_no_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let first = fx.submit(ada).await?;
    let second = fx.submit(ada).await?;
    let between = Id::floor(second.created_at());
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, Some(between), 10).await?, [first]);
    let after = Id::floor(second.created_at().saturating_add(MILLISECOND));
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, Some(after), 1).await?, [second]);
    assert_eq!(fx.store.list_tasks(ada, Surface::Api, Some(Id::floor(NOON)), 10).await?, []);
    Ok(())
});

case!(recent_tasks_returns_the_newest_tasks_of_every_surface, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    let first = fx.submit(ada).await?;
    let second = fx.submit_request(bob, Surface::Web, images(1)).await?;
    let third = fx.submit_request(ada, Surface::Web, images(1)).await?;
    assert_eq!(fx.store.recent_tasks(None, 100).await?, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(fx.store.recent_tasks(None, 2).await?, [third.clone(), second]);
    let fourth = fx.submit(ada).await?;
    assert_eq!(fx.store.recent_tasks(Some(ada), 100).await?, [fourth.clone(), third.clone(), first]);
    assert_eq!(fx.store.recent_tasks(Some(ada), 2).await?, [fourth, third]);
    Ok(())
});

case!(a_submit_past_its_deadline_or_after_its_caller_hung_up_does_not_start, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let limit = || StartLimit { deadline: fx.clock.elapsed() + START_WITHIN, ..StartLimit::none() };
    let (in_time, late, gone) = (limit(), limit(), limit());
    let submit = |start| fx.store.submit_before(start, ada, None.into(), Surface::Api, images(1), UNLIMITED);
    fx.clock.advance(START_WITHIN);
    accepted(submit(in_time).await?);
    fx.clock.advance(MILLISECOND);
    assert_eq!(submit(late).await?, Submission::NotStarted);
    gone.hung_up.cancel();
    assert_eq!(submit(gone).await?, Submission::NotStarted);
    assert_eq!(fx.credits(ada).await?, 8);
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, None, 10).await?.len(), 1);
    Ok(())
});
