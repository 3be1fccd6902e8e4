//! A child that breaks in each stage of a render, or sends what no child sends: the real one, whose pipes these tests write
//! into. Its attempt ends with one failure, it is replaced, and the next task is rendered.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::thread;

use rustix::io::ioctl_fionread;
use tintype_engine::frames::{Event, MAX_BODY_BYTES, ResourceUsage};

use super::*;
use crate::rigs::service::Service;

fn of_process(id: Pid, name: &str) -> PathBuf {
    format!("/proc/{}/{name}", id.as_raw_nonzero()).into()
}

/// A child that computes nothing, because it is stopped, and that has received an order.
struct Stopped(Pid);

impl Stopped {
    /// Stops the only child of a model.
    async fn only(model: &Path) -> Self {
        let [id] = processes(model)[..] else { panic!("one child") };
        kill_process(id, Signal::STOP).expect("a process");
        // Each thread stops by itself: one that waits for an order could still take it.
        let stopped = |thread: fs::DirEntry| {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        };
        until(async || fs::read_dir(of_process(id, "task")).expect("a process").flatten().all(stopped)).await;
        Self(id)
    }

    /// Waits until an order lies in its standard input.
    async fn has_order(&self) {
        until(async || self.unread() > 0).await;
    }

    /// Its standard output, which the service reads.
    fn output(&self) -> File {
        OpenOptions::new().write(true).open(of_process(self.0, "fd/1")).expect("a pipe")
    }

    /// Bytes in its standard input that it has not read.
    fn unread(&self) -> u64 {
        let input = File::open(of_process(self.0, "fd/0")).expect("a pipe");
        ioctl_fionread(&input).expect("a pipe")
    }

    fn kill(&self) {
        kill_process(self.0, Signal::KILL).expect("a process");
    }

    fn go_on(&self) {
        kill_process(self.0, Signal::CONT).expect("a process");
    }
}

/// A time in which this engine could render several of these briefs, and in which a test may wait for its end.
async fn short_limit(rig: &Rig) -> Duration {
    rig.render(brief("a boat", &[1])).await.expect("pictures");
    let measured = rig.engine.measured().expect("measured");
    let took = measured.steps.iter().chain(&measured.decodes).sum::<Duration>() + measured.encode;
    (took * 8).max(Duration::from_secs(2))
}

/// The failure of a render during which something happens to the child.
async fn failure(rig: &Rig, brief: Brief, happens: impl AsyncFnOnce()) -> String {
    let (outcome, ()) = tokio::join!(rig.render(brief), happens());
    let Err(EngineError::Temporary(why)) = outcome else { panic!("{outcome:?}") };
    why
}

/// Waits until another child is ready. The engine may not have noticed yet that the broken one has ended.
async fn until_replaced(rig: &Rig, model: &Path, broken: &Stopped) {
    let is_other = || matches!(processes(model)[..], [id] if id != broken.0);
    until(async || is_other() && rig.engine.probe().await.is_ok()).await;
}

/// The engine goes on with another child, and renders.
async fn assert_goes_on(rig: &Rig, model: &Path, broken: &Stopped) {
    until_replaced(rig, model, broken).await;
    assert_eq!(rig.render(brief("a boat", &[7])).await.expect("pictures"), [expected(model, "a boat", 7)]);
}

#[tokio::test]
async fn a_child_that_is_killed_before_its_first_word_costs_the_attempt() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::new(&model, &[]).started().await;
    let child = Stopped::only(&model).await;
    let why = failure(&rig, brief("a boat", &[1]), async || {
        child.has_order().await;
        child.kill();
    });
    let why = why.await;
    assert!(why.contains("signal: 9") && why.contains("memory"), "{why}");
    assert_goes_on(&rig, &model, &child).await;
}

#[tokio::test]
async fn a_child_that_is_killed_while_it_decodes_costs_the_attempt() {
    let (_directory, model) = copy_of("sd15");
    let rig = Rig::new(&model, &["--engine-steps", "2", "--engine-sizes", "256x256"]).started().await;
    let progress = Progress::default();
    let large = Brief { width: 256, height: 256, ..brief("a boat", &[1, 2]) };
    let rendering = rig.engine.render(large, progress.clone(), CancellationToken::new());
    // The last step of the first of two pictures is done: what follows is its decoder.
    let decodes = |stage| matches!(stage, Some(Stage::Step { done, of }) if done * 2 == of);
    let killing = async {
        until(async || decodes(progress.latest())).await;
        let child = Stopped::only(&model).await;
        child.kill();
        child
    };
    let (outcome, child) = tokio::join!(rendering, killing);
    let Err(EngineError::Temporary(why)) = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("signal: 9"), "{why}");
    assert!(decodes(progress.latest()), "it was killed in another stage: {:?}", progress.latest());
    until_replaced(&rig, &model, &child).await;
}

#[tokio::test]
async fn a_child_that_sends_what_no_child_sends_is_replaced() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::new(&model, &[]).started().await;
    let frame = |event: Event| event.frame().expect("a frame");
    let painted = |side: u32| {
        let picture = Picture::from_rgb(side, side, vec![7; (side * side * 3) as usize]).expect("a picture");
        frame(Event::Painted { picture, micros: 1 })
    };
    let oversized = u32::try_from(MAX_BODY_BYTES + 1).expect("a number").to_be_bytes();
    for (bytes, reason) in [
        (vec![0, 0, 0, 2, 99, 99], "a frame cannot be read: it is no event"),
        (oversized.to_vec(), "a frame cannot be read: its length is out of range"),
        (painted(8), "it sent a picture of another size"),
        ([painted(SIDE), painted(SIDE)].concat(), "is not a valid reply"),
        (frame(Event::Done(ResourceUsage::default())), "is not a valid reply"),
    ] {
        let child = Stopped::only(&model).await;
        let why = failure(&rig, brief("a boat", &[1]), async || {
            child.has_order().await;
            child.output().write_all(&bytes).expect("a pipe");
        });
        let why = why.await;
        assert!(why.contains("was killed") && why.contains(reason), "{why}");
        until_replaced(&rig, &model, &child).await;
    }
    assert_eq!(rig.render(brief("a boat", &[7])).await.expect("pictures"), [expected(&model, "a boat", 7)]);
}

#[tokio::test]
async fn a_child_that_is_silent_or_whose_frame_never_ends_is_replaced() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::new(&model, &[]).started().await;
    for endless in [false, true] {
        let time_limit = short_limit(&rig).await;
        let child = Stopped::only(&model).await;
        let mut writer = None;
        let why = failure(&rig, Brief { time_limit, ..brief("a boat", &[1]) }, async || {
            child.has_order().await;
            let mut output = child.output();
            // Bytes go on coming, far fewer than the frame has, until nobody reads them.
            let dribble = move || {
                let mut sent = u32::try_from(MAX_BODY_BYTES).is_ok_and(|n| output.write_all(&n.to_be_bytes()).is_ok());
                while sent {
                    thread::sleep(Duration::from_millis(20));
                    sent = output.write_all(&[19]).is_ok();
                }
            };
            writer = endless.then(|| thread::spawn(dribble));
        });
        let why = why.await;
        assert!(why.contains("was killed") && why.contains("nothing was heard of its render"), "{why}");
        assert_goes_on(&rig, &model, &child).await;
        if let Some(writer) = writer {
            writer.join().expect("the pipe was closed");
        }
    }
}

#[tokio::test]
async fn a_render_whose_steps_take_far_longer_than_measured_is_made_at_a_smaller_size_in_the_same_attempt() {
    let (_directory, model) = copy_of("lcm");
    let config = model.join("unet/config.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&config).expect("a file")).expect("JSON");
    // As if it had been trained with large pictures.
    fields["sample_size"] = 512.into();
    fs::write(&config, fields.to_string()).expect("a file");
    let rig = Rig::new(&model, &[]).started().await;
    let child = Stopped::only(&model).await;
    let large = Brief { width: 512, height: 512, time_limit: Duration::from_secs(100), ..brief("a boat", &[1]) };
    let (rendered, ()) = tokio::join!(rig.render(large), async {
        child.has_order().await;
        let order = child.unread();
        let step = |done| Event::Step { picture: 0, pictures: 1, done, of: 4, micros: 60_000_000 };
        for event in [step(1), step(2)] {
            child.output().write_all(&event.frame().expect("a frame")).expect("a pipe");
        }
        until(async || child.unread() > order).await;
        child.go_on();
    });
    let side = rendered.expect("pictures")[0].width();
    assert!((256..512).contains(&side), "{side}");
    assert_eq!(processes(&model)[..], [child.0], "the child goes on");
}

/// Attempts whose child breaks each time end with a refund, in the store of whole services.
#[tokio::test]
async fn a_task_whose_child_breaks_in_every_attempt_is_refunded_and_the_next_is_rendered() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::new(&model, &[]).started().await;
    let service = Service::start().await;
    let worker = service.worker_with(Arc::new(service.renderer_with(rig.info.clone(), rig.engine.clone())));
    let caller = service.caller("ada", 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    for attempt in 0..3 {
        let child = Stopped::only(&model).await;
        let breaking = async {
            child.has_order().await;
            match attempt {
                0 => child.kill(),
                1 => child.output().write_all(&[0xff; 4]).expect("a pipe"),
                _ => child.output().write_all(&[0, 0, 0, 1, 0]).expect("a pipe"),
            }
        };
        let (worked, ()) = tokio::join!(worker.step(), breaking);
        assert_eq!(worked.expect("a store"), 1);
        let status = if attempt < 2 { "processing" } else { "failed" };
        assert_eq!(caller.task(&task_id).await["status"], status, "attempt {attempt}");
        until_replaced(&rig, &model, &child).await;
        service.clock.advance(Duration::from_secs(10));
    }
    let task = caller.task(&task_id).await;
    let message = task["error"].as_str().expect("a message");
    assert!(message.contains("refunded") && !message.contains("frame"), "{message}");
    assert_eq!(caller.credits().await, 100);
    let next = caller.submit_prompt("a boat").await;
    assert_eq!(worker.step().await.expect("a store"), 1);
    assert_eq!(caller.task(&next).await["status"], "completed");
    assert_eq!(caller.credits().await, 98);
    service.assert_sound().await;
}
