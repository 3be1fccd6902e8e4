//! Low credits, of which endpoints are told.

use futures::future::try_join_all;
use tintype_domain::event::EventType;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_store::{AccountChange, Result};

use super::endpoints::{claim_one, endpoint};
use super::fixture::{Fixture, HOUR, UNLIMITED, images};

/// The number of events of low credits.
async fn told(fx: &Fixture, endpoint: Id) -> Result<usize> {
    let deliveries = fx.store.list_deliveries(endpoint, None, 100).await?;
    Ok(deliveries.iter().filter(|delivery| delivery.kind == EventType::CreditsLow).count())
}

async fn set(fx: &Fixture, account: Id, threshold: Option<i64>) -> Result<()> {
    let changed = fx.store.change_account(account, AccountChange::LowBalance(threshold)).await?;
    assert_eq!(changed.expect("the account exists").low_balance, threshold);
    Ok(())
}

case!(low_credits_are_told_once_until_the_balance_is_above_the_threshold_again, async |fx| {
    let ada = fx.account("ada", 14).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    fx.submit(ada).await?;
    set(fx, ada, Some(10)).await?;
    let first = fx.submit(ada).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (10, 0), "10 is not below 10");
    fx.submit_request(ada, Surface::Web, images(1)).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (8, 1));
    let event = claim_one(fx, endpoint).await?.event;
    assert_eq!((event.kind, event.data), (EventType::CreditsLow, serde_json::json!({ "credits": 8, "threshold": 10 })));
    fx.submit(ada).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (6, 1), "once");
    fx.store.fail_unleased(first.id, FailureCause::Operator, "it sank").await?;
    fx.store.take(ada, 1, "a mistake").await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (7, 1));
    fx.store.grant(ada, 5, None, None).await?;
    fx.submit_request(ada, Surface::Api, images(2)).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (8, 2));
    fx.store.grant(ada, 4, None, None).await?;
    fx.store.take(ada, 3, "a mistake").await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (9, 3));
    fx.store.grant(ada, 4, None, Some(fx.clock.now().saturating_add(HOUR))).await?;
    fx.clock.advance(HOUR);
    fx.store.expire_grants().await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (9, 4));
    fx.store.grant(ada, 5, None, None).await?;
    set(fx, ada, None).await?;
    fx.submit_request(ada, Surface::Api, images(4)).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (6, 4));
    Ok(())
});

case!(of_many_submits_at_once_one_tells_of_low_credits, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let endpoint = endpoint(fx, ada).await?.id;
    set(fx, ada, Some(31)).await?;
    let there = fx.another_process();
    let submits = (0..60).map(|turn| {
        let store = if turn % 2 == 0 { &fx.store } else { &there };
        store.submit(ada, None, Surface::Api, images(1), UNLIMITED)
    });
    try_join_all(submits).await?;
    assert_eq!((fx.credits(ada).await?, told(fx, endpoint).await?), (0, 1));
    Ok(())
});
