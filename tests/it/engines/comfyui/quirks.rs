//! Servers as people run them: slow disks, many nodes, caches, and folders that somebody cleans up.

use super::*;
use crate::rigs::service::pass;

#[tokio::test]
async fn a_server_that_is_silent_while_it_loads_a_model_is_waited_for() {
    for age in [Age::New, Age::Old] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        let routes = ["GET /ws", "GET /api/jobs", "GET /queue"];
        server.outcome(Outcome::Endless);
        let engine = files.engine(&server.url(), &[]);
        let cancel = CancellationToken::new();
        let patient = Brief { time_limit: Duration::from_secs(180), ..brief(&[1]) };
        routes.iter().for_each(|route| server.reply(route, Reply::Silence));
        let rendering = engine.render(patient, Progress::default(), cancel);
        let loading = async {
            // The websocket is given two seconds.
            while server.graphs().is_empty() {
                pass(Duration::from_millis(500)).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Each poll is given as much time as the server has been silent.
            for (polls, seconds) in [(1, 10), (2, 10), (3, 20), (4, 40)] {
                let asked = async || server.asked("GET /api/jobs").len();
                while asked().await < polls {
                    pass(Duration::from_millis(500)).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                pass(Duration::from_secs(seconds)).await;
            }
            server.recover();
            server.outcome(Outcome::Painted);
            let polls = server.asked("GET /api/jobs").len();
            while server.asked("GET /api/jobs").len() == polls {
                pass(Duration::from_secs(1)).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let (outcome, ()) = in_time("the render does not end", async { tokio::join!(rendering, loading) }).await;
        assert_eq!(outcome.expect("a picture").len(), 1, "{age:?}");
        assert_eq!(server.graphs().len(), 1, "{age:?}: it was queued once");
    }
}

#[tokio::test]
async fn a_server_that_is_slow_to_describe_its_nodes_takes_work() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    server.reply("GET /object_info", Reply::Silence);
    let engine = files.engine(&server.url(), &[]);
    let slow = async {
        until(async || !server.asked("GET /object_info").is_empty()).await;
        pass(Duration::from_secs(4)).await;
    };
    let (probed, ()) = tokio::join!(engine.probe(), slow);
    probed.expect("it takes work");
    render(&engine, brief(&[1])).await.expect("a picture");
}

#[tokio::test]
async fn a_run_from_the_cache_is_repeated_with_another_seed() {
    // github.com/replicate/cog-comfyui/issues/79 and github.com/Comfy-Org/ComfyUI/issues/1019.
    for (age, outcome) in [
        (Age::New, Outcome::Cached),
        (Age::Old, Outcome::Cached),
        (Age::New, Outcome::Removed),
        (Age::Old, Outcome::Removed),
    ] {
        let (server, files) = (FakeComfyUi::start(age).await, Files::new());
        server.outcome(outcome.clone());
        let engine = files.engine(&server.url(), &[]);
        for runs in [1, 3, 5] {
            render(&engine, brief(&[1])).await.expect("a picture");
            assert_eq!(server.graphs().len(), runs, "{age:?} {outcome:?}");
        }
        let mut seeds: Vec<_> = server.graphs().iter().map(|graph| graph["3"]["inputs"]["seed"].as_u64()).collect();
        assert_eq!((seeds[0], seeds[1], seeds[3]), (Some(1), Some(1), Some(1)), "the task's own seed comes first");
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 3);
    }
}
