//! Tasks that wait for the child at the same time and take each step together.

use super::*;

/// An engine that makes four pictures at a time.
async fn rig(model: &Path) -> Rig {
    Rig::new(model, &["--engine-batch", "4"]).started().await
}

/// A picture is the expected one but for rounding, which random weights magnify.
fn assert_close(picture: &Picture, expected: &Picture) {
    assert_eq!(picture.as_rgb().len(), expected.as_rgb().len());
    let apart = picture.as_rgb().iter().zip(expected.as_rgb()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(apart <= Some(2), "{apart:?}");
}

/// Times that the child has measured in its latest turn: of steps, and of decoded pictures.
fn measured(rig: &Rig) -> (usize, usize) {
    let measured = rig.engine.measured().expect("measured");
    (measured.steps.len(), measured.decodes.len())
}

#[tokio::test]
async fn tasks_of_one_size_are_rendered_together_as_if_each_were_alone() {
    for name in ["lcm", "sd15"] {
        let rig = rig(&model(name)).await;
        assert_eq!(rig.info.slots, 4);
        rig.render(brief("a boat", &[1])).await.expect("pictures");
        let (steps, _) = measured(&rig);
        let progress = [Progress::default(), Progress::with_previews(), Progress::default()];
        let orders = [("a boat", &[1][..]), ("a house", &[1, 2]), ("a boat", &[3])];
        let renders = orders.iter().zip(&progress).map(|((prompt, seeds), progress)| {
            rig.engine.render(brief(prompt, seeds), progress.clone(), CancellationToken::new())
        });
        let answers = futures::future::join_all(renders).await;
        assert_eq!(measured(&rig), (steps, 4), "{name}: all in one turn, and as many steps as of one picture");
        for ((prompt, seeds), answer) in orders.iter().zip(answers) {
            let pictures = answer.expect("pictures");
            assert_eq!(pictures.len(), seeds.len());
            for (seed, picture) in seeds.iter().zip(&pictures) {
                assert_close(picture, &expected(&model(name), prompt, *seed));
            }
        }
        for ((_, seeds), progress) in orders.iter().zip(&progress) {
            let all = u32::try_from(seeds.len() * steps).expect("few");
            assert_eq!(progress.latest(), Some(Stage::Step { done: all, of: all }), "{name}: its own steps");
        }
        assert!(progress[1].preview().is_some() && progress[0].preview().is_none());
    }
}

#[tokio::test]
async fn pictures_with_a_reference_are_made_one_by_one() {
    let rig = rig(&model("sd15")).await;
    let reference = Picture::from_rgb(SIDE, SIDE, vec![200; (SIDE * SIDE * 3) as usize]).expect("a picture");
    for mask in [None, Some(Mask::of(reference.clone()))] {
        let edit = |seeds: &[u64]| {
            let (references, mask) = (vec![reference.clone()], mask.clone());
            Brief { references, mask, ..brief("a boat", seeds) }
        };
        let both = rig.render(edit(&[1, 2])).await.expect("pictures");
        for (seed, picture) in (1..).zip(&both) {
            assert_eq!(*picture, rig.render(edit(&[seed])).await.expect("pictures")[0], "{seed}");
        }
    }
}

#[tokio::test]
async fn tasks_beyond_a_batch_or_of_another_size_get_a_turn_of_their_own() {
    let rig = rig(&model("lcm")).await;
    let wide = Brief { width: 128, ..brief("a boat", &[9]) };
    let boats = || brief("a boat", &[1, 2, 3]);
    let (first, wide, second) = tokio::join!(rig.render(boats()), rig.render(wide), rig.render(boats()));
    let (first, second) = (first.expect("pictures"), second.expect("pictures"));
    for pictures in [&first, &second] {
        for (seed, picture) in (1..).zip(pictures) {
            assert_close(picture, &expected(&model("lcm"), "a boat", seed));
        }
    }
    let wide = wide.expect("pictures");
    assert_eq!((wide[0].width(), wide[0].height()), (128, SIDE));
    assert_eq!(measured(&rig).1, 3, "the last turn was that of three pictures");
}

#[tokio::test]
async fn a_task_that_is_cancelled_leaves_the_others_of_its_batch_alone() {
    let (_directory, model) = copy_of("sd15");
    let rig = Rig::new(&model, &["--engine-batch", "4", "--engine-steps", "200"]).started().await;
    let cancelled = cancel_once(&rig.engine, brief("a house", &[1]), async |progress| progress.latest().is_some());
    let before = processes(&model);
    let (other, outcome) = tokio::join!(rig.render(brief("a boat", &[1])), cancelled);
    assert!(matches!(&outcome, Err(EngineError::Temporary(why)) if why.contains("cancelled")), "{outcome:?}");
    assert_eq!(other.expect("pictures").len(), 1);
    assert_eq!(processes(&model), before, "the child stays");
    // The scheduler takes one step more than it is asked for.
    assert_eq!(measured(&rig), (201, 2), "it was one batch");
}

/// Makes the embedding of a token that the prompt has and the others have not no number.
fn spoil(model: &Path, prompt: &str, others: &[&str]) {
    let pipeline = Pipeline::open(model, &Options::default()).expect("a model");
    let tokens = |prompt: &str| pipeline.tokens(prompt).expect("tokens");
    let kept: Vec<_> = others.iter().flat_map(|other| tokens(other)).collect();
    let token = tokens(prompt).into_iter().find(|token| !kept.contains(token)).expect("a token of its own");
    let file = model.join("text_encoder/model.safetensors");
    let mut bytes = fs::read(&file).expect("weights");
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("eight"))).expect("small");
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let mut entries = header.as_object().expect("tensors").iter();
    let (_, entry) = entries.find(|(name, _)| name.ends_with("token_embedding.weight")).expect("embeddings");
    let numbers = |name: &str| entry[name].as_array().expect("numbers").iter().map(|x| x.as_u64().expect("a number"));
    let [from, to] = numbers("data_offsets").collect::<Vec<_>>()[..] else { panic!("{entry}") };
    let rows = numbers("shape").next().expect("rows");
    let row = usize::try_from((to - from) / rows).expect("small");
    let at = 8 + length + usize::try_from(from).expect("small") + row * usize::try_from(token).expect("an id");
    bytes[at..at + row].fill(0xff);
    fs::write(&file, bytes).expect("written");
}

#[tokio::test]
async fn a_picture_that_fails_fails_its_own_task_alone() {
    let (_directory, model) = copy_of("lcm");
    spoil(&model, "a house", &["a boat", "a lighthouse"]);
    let rig = rig(&model).await;
    let render = |prompt, seed: u64| rig.render(brief(prompt, &[seed]));
    let (one, spoiled, other) = tokio::join!(render("a boat", 1), render("a house", 1), render("a boat", 2));
    assert!(matches!(&spoiled, Err(EngineError::Permanent(why)) if why.contains("not finite")), "{spoiled:?}");
    for (seed, answer) in [(1, one), (2, other)] {
        assert_eq!(answer.expect("pictures"), [expected(&model, "a boat", seed)]);
    }
    assert!(rig.engine.probe().await.is_ok(), "the child goes on");
}

#[tokio::test]
async fn batches_are_smaller_after_one_has_lost_the_child() {
    let (_directory, model) = copy_of("sd15");
    let rig = Rig::new(&model, &["--engine-batch", "4", "--engine-steps", "200"]).started().await;
    let progress = Progress::default();
    let four =
        || (1..=4).map(|seed| rig.engine.render(brief("a boat", &[seed]), progress.clone(), CancellationToken::new()));
    let killing = async {
        until(async || progress.latest().is_some()).await;
        for id in processes(&model) {
            kill_process(id, Signal::KILL).expect("a process");
        }
    };
    let (lost, ()) = tokio::join!(futures::future::join_all(four()), killing);
    assert!(lost.iter().all(|answer| matches!(answer, Err(EngineError::Temporary(_)))), "{lost:?}");
    until(async || rig.engine.probe().await.is_ok()).await;
    let again = futures::future::join_all(four()).await;
    assert!(again.iter().all(Result::is_ok), "{again:?}");
    assert_eq!(measured(&rig).1, 2, "the last turn was one of two");
}

#[test]
fn only_models_and_sizes_that_make_batches_take_several_tasks() {
    let slots = |name: &str, flags: &[&str]| Rig::slots(&model(name), flags);
    assert_eq!(slots("lcm", &["--engine-batch", "8"]), 8);
    assert_eq!(slots("lcm", &[]), 1, "on a processor");
    assert_eq!(slots("klein", &["--engine-batch", "8"]), 1, "a model that makes one picture at a time");
    assert_eq!(slots("lcm", &["--engine-batch", "4", "--engine-sizes", "1024x1024"]), 1, "large pictures");
    assert_eq!(slots("lcm", &["--engine-batch", "8", "--engine-sizes", "1024x1024,512x768"]), 5);
    assert_eq!(slots("lcm", &["--engine-runtime", "onnxruntime:cuda"]), 4);
}

/// A number of the CLI's JSON about an account or the queue.
fn number(data: &Path, arguments: &[&str], field: &str) -> i64 {
    json(data, arguments)[field].as_i64().expect("a number")
}

/// The pictures of a completed task, as its account fetches them.
async fn fetched(server: &Server, key: &str, task: &serde_json::Value) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for image in task["images"].as_array().expect("images") {
        let url = image["url"].as_str().or(image.as_str()).expect("a URL");
        let file = send(server.address, "GET", url.strip_prefix(&server.url()).expect("a path"), key, "").await;
        pictures.push(Picture::decode(&file.body).expect("a picture"));
    }
    pictures
}

/// The picture that the crate makes of a task by itself, in so many steps.
fn alone(model: &Path, prompt: &str, task_id: &str, index: u8, steps: usize) -> Picture {
    let mut pipeline = Pipeline::open(model, &Options::default()).expect("a model");
    let mut settings = pipeline.traits().settings();
    settings.steps = steps;
    let id = task_id.strip_prefix("imgmodel-").expect("an id");
    let digest = Sha256::new().chain_update(id).chain_update([index]).finalize();
    let seed = u64::from(u32::from_le_bytes(digest[..4].try_into().expect("four bytes")) & tintype_engine::MAX_SEED);
    let side = SIDE as usize;
    let order = Order { prompt, width: side, height: side, seed, references: &[], mask: None };
    pipeline.render(&order, &settings, |_| {}, &CancellationToken::new()).expect("a picture")
}

/// The mean difference of two pictures of one size, in levels.
fn apart(one: &Picture, other: &Picture) -> f64 {
    assert_eq!(one.as_rgb().len(), other.as_rgb().len());
    let levels = one.as_rgb().iter().zip(other.as_rgb()).map(|(a, b)| f64::from(a.abs_diff(*b)));
    levels.sum::<f64>() / one.as_rgb().len() as f64
}

/// The steps of a task that are done, and all.
async fn steps_of(server: &Server, key: &str, task_id: &str) -> Option<(usize, usize)> {
    let task = send(server.address, "GET", &format!("{TASKS}/{task_id}"), key, "").await;
    let (done, of) = task.headers.get("x-steps")?.to_str().ok()?.split_once('/')?;
    Some((done.parse().ok()?, of.parse().ok()?))
}

#[tokio::test]
async fn a_service_renders_tasks_of_two_accounts_in_one_batch_and_keeps_them_apart() {
    const STEPS: usize = 400;
    let data = TempDir::new().expect("a directory");
    let (_directory, model) = copy_of("sd15");
    let mut flags = flags(&model);
    flags.extend(["--engine-batch", "4", "--engine-steps", &STEPS.to_string()].map(str::to_owned));
    let server = Server::start(data.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let first = server.first_key().expect("a key");
    json(data.path(), &["account", "create", "ada", "--credits", "100"]);
    let ada = json(data.path(), &["key", "create", "--account", "ada"])["key"].as_str().expect("a key").to_owned();
    let accounts = ["default", "ada"];
    let balance = |account: &str| number(data.path(), &["credits", "balance", account], "credits");
    // A full batch keeps the child at work until the two tasks wait for it.
    let order = |prompt: &str, n: usize| json!({ "prompt": prompt, "n": n, "aspect_ratio": "1:1" });
    let full = submit_body(&server, &first, &order("a lighthouse", 4)).await;
    until(async || steps_of(&server, &first, &full).await.is_some()).await;
    let child = processes(&model)[0];
    kill_process(child, Signal::STOP).expect("a process");
    let before = accounts.map(balance);
    let boat = submit_body(&server, &first, &order("a boat", 1)).await;
    let houses = submit_body(&server, &ada, &order("a house", 2)).await;
    until(async || number(data.path(), &["queue", "show"], "leased") == 3).await;
    kill_process(child, Signal::CONT).expect("a process");
    // The child renders one batch after the other, so two tasks under way at the same time are in one.
    until(async || {
        let [boat, houses] = [steps_of(&server, &first, &boat).await, steps_of(&server, &ada, &houses).await];
        let under_way = |steps: Option<(usize, usize)>| steps.is_some_and(|(done, of)| 0 < done && done < of);
        if let (Some((_, of_boat)), Some((_, of_houses))) = (boat, houses) {
            assert_eq!(of_houses, of_boat * 2, "the steps of its own pictures");
        }
        under_way(boat) && under_way(houses)
    })
    .await;
    let mine = [(&first, &boat, "a boat", 0), (&ada, &houses, "a house", 0), (&ada, &houses, "a house", 1)];
    let alone = mine.map(|(_, task_id, prompt, index)| alone(&model, prompt, task_id, index, STEPS));
    let mut expected = alone.iter();
    for (key, task_id, count) in [(&first, &boat, 1), (&ada, &houses, 2)] {
        let task = ended(&server, key, task_id).await;
        assert_eq!(task["status"], "completed", "{task}");
        let pictures = fetched(&server, key, &task).await;
        assert_eq!(pictures.len(), count);
        for (picture, own) in pictures.iter().zip(&mut expected) {
            let apart = |other: &Picture| apart(picture, &other.clone().fit(picture.width(), picture.height()));
            // So many steps add up roundings, but less than pictures differ.
            for other in alone.iter().filter(|other| !std::ptr::eq(*other, own)) {
                assert!(apart(own) * 8.0 < apart(other), "{} and {}", apart(own), apart(other));
            }
        }
        let other = if key == &first { &ada } else { &first };
        assert_eq!(send(server.address, "GET", &format!("{TASKS}/{task_id}"), other, "").await.status, 404);
    }
    let price = before[0] - balance("default");
    assert!(price > 0);
    assert_eq!(before[1] - balance("ada"), price * 2, "two pictures, charged once");
    server.stop();
}
