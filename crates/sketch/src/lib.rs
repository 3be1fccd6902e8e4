//! The built-in engine for development and demos: it parses the prompt, finds emoji for its nouns and paints a small
//! scene around them. It is **not** a diffusion model.
//!
//! The same prompt, seed and references give the same pixels on every run.

mod abstraction;
mod canvas;
mod colour;
mod deep;
mod dice;
mod directive;
mod figure;
mod glyph;
mod ground;
mod interior;
mod layout;
mod lexicon;
mod light;
mod painting;
mod prompt;
mod reference;
mod scene;
mod setting;
mod shape;
mod sky;
mod sprite;
mod stroke;
mod style;
mod town;
mod vocabulary;
mod weather;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use self::directive::{Ending, Rehearsal};
use self::painting::Painting;
use self::reference::Reference;
use self::scene::Scene;
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Picture, Progress, Setting, Stage};

/// Tasks at the same time. While some paint, others store their files or sit out a delay that they rehearse.
const SLOTS: usize = 8;
/// Steps that a rehearsed delay is reported in, as diffusion models report theirs.
const REHEARSED_STEPS: u32 = 20;

/// Renders prompts as illustrated scenes, without any model.
#[derive(Debug, Clone)]
pub struct Sketch {
    /// One permit for each core: more painters at a time would take longer and hold more memory.
    cores: Arc<Semaphore>,
}

impl Default for Sketch {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { cores: Arc::new(Semaphore::new(cores)) }
    }
}

impl Sketch {
    /// Creates the engine. Its word lists are built when the first prompt needs them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` on the blocking pool once a core is free for it; `None` if the render is cancelled before.
    async fn paint<T: Send + 'static>(
        &self,
        cancel: &CancellationToken,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let core = cancel.run_until_cancelled(self.cores.acquire()).await?;
        let _core = core.expect("the semaphore is never closed");
        Some(off_thread(work).await)
    }

    /// The description of the engine.
    pub fn info() -> EngineInfo {
        let description =
            "the built-in sketch engine: illustrated scenes for development and demos, not a diffusion model";
        EngineInfo {
            max_references: 4,
            // The service keeps what a mask keeps of any picture.
            masks: true,
            settings: vec![Setting::Seed],
            slots: SLOTS,
            ..EngineInfo::new("sketch", description, Duration::from_millis(300))
        }
    }
}

#[async_trait]
impl Engine for Sketch {
    async fn render(
        &self,
        brief: Brief,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Vec<Picture>, EngineError> {
        let rehearsal = Rehearsal::read(&brief.prompt);
        if !rehearsal.delay.is_zero() {
            let delay = sit_out(rehearsal.delay, &progress);
            cancel.run_until_cancelled(delay).await.ok_or_else(EngineError::cancelled)?;
        }
        match rehearsal.ending {
            Some(Ending::Fail) => return Err(EngineError::Permanent("the prompt rehearses a failure".into())),
            Some(Ending::Policy) => return Err(EngineError::Refused("the prompt rehearses a refusal".into())),
            // Without a report of the panic, which would ask for a report of a bug.
            Some(Ending::Panic) => std::panic::resume_unwind(Box::new("the prompt rehearses a panic")),
            Some(Ending::Hang) => {
                cancel.cancelled().await;
                return Err(EngineError::cancelled());
            }
            None => {}
        }
        let Brief { width, height, seeds, references, .. } = brief;
        let study = move || Painting {
            scene: Scene::read(&rehearsal.words),
            references: references.iter().map(Reference::study).collect(),
            width,
            height,
        };
        let painting = Arc::new(self.paint(&cancel, study).await.ok_or_else(EngineError::cancelled)?);
        // One blocking job per picture: after a cancellation at most one picture is still being painted.
        let of = u32::try_from(seeds.len()).unwrap_or(u32::MAX);
        let mut pictures = Vec::with_capacity(seeds.len());
        for (seed, done) in seeds.into_iter().zip(1..) {
            let painting = Arc::clone(&painting);
            pictures.push(self.paint(&cancel, move || painting.paint(seed)).await.ok_or_else(EngineError::cancelled)?);
            // After a delay, which was nearly all of the work, the few milliseconds of the painting are no step.
            if rehearsal.delay.is_zero() {
                progress.report(Stage::Step { done, of });
            }
        }
        Ok(pictures)
    }
}

/// Sits out a rehearsed delay, and reports it in steps.
async fn sit_out(delay: Duration, progress: &Progress) {
    let mut steps = tokio::time::interval((delay / REHEARSED_STEPS).max(Duration::from_nanos(1)));
    // The first tick is at once.
    steps.tick().await;
    for done in 1..=REHEARSED_STEPS {
        steps.tick().await;
        progress.report(Stage::Step { done, of: REHEARSED_STEPS });
    }
}

/// Runs `work` on the blocking pool; a panic in it becomes a panic of the caller.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => std::panic::resume_unwind(payload),
            // Only a runtime that is shutting down cancels blocking work, and then no caller is waiting.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn render(brief: Brief) -> Result<Vec<Picture>, EngineError> {
        Sketch::new().render(brief, Progress::default(), CancellationToken::new()).await
    }

    fn brief(prompt: &str, width: u32, height: u32, seeds: &[u64]) -> Brief {
        let time_limit = Duration::from_secs(30);
        Brief { prompt: prompt.into(), width, height, seeds: seeds.to_vec(), time_limit, ..Brief::default() }
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_pixels_and_another_one_does_not() {
        let brief = brief("two foxes by a lake at dawn", 160, 96, &[1, 2]);
        let first = render(brief.clone()).await.unwrap();
        let second = render(brief).await.unwrap();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }

    #[tokio::test]
    async fn every_size_and_style_is_exact() {
        let styles = ["watercolour", "oil", "neon", "pixel art", "sepia", "tintype", "noir", "pencil", "comic"];
        let prompts = styles.into_iter().chain(["pastel", "flat", "mosaic", "", "[[nonsense]]"]);
        for (index, prompt) in prompts.enumerate() {
            let (width, height) = [(64, 64), (131, 67), (64, 200)][index % 3];
            let pictures = render(brief(&format!("a cat at night, {prompt}"), width, height, &[7])).await.unwrap();
            assert_eq!((pictures[0].width(), pictures[0].height()), (width, height), "{prompt}");
        }
    }

    #[tokio::test]
    async fn references_change_the_picture() {
        let mut with = brief("a boat", 96, 64, &[1]);
        let without = render(with.clone()).await.unwrap();
        with.references = vec![Picture::from_rgb(1, 1, vec![200, 20, 20]).unwrap()];
        assert_ne!(render(with).await.unwrap(), without);
    }

    #[tokio::test]
    async fn rehearsed_endings_end_as_named() {
        let render = |prompt| render(brief(prompt, 64, 64, &[1]));
        assert!(matches!(render("[[fail]]").await, Err(EngineError::Permanent(_))));
        assert!(matches!(render("a cat [[policy]]").await, Err(EngineError::Refused(_))));
        assert!(tokio::spawn(render("[[panic]]")).await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn a_cancelled_render_stops() {
        for prompt in ["[[hang]]", "a cat [[delay 10m]]", "a cat"] {
            let (progress, cancel) = (Progress::default(), CancellationToken::new());
            let (brief, reported, token) = (brief(prompt, 64, 64, &[1, 2]), progress.clone(), cancel.clone());
            let rendering = tokio::spawn(async move { Sketch::new().render(brief, reported, token).await });
            tokio::task::yield_now().await;
            cancel.cancel();
            assert!(matches!(rendering.await.unwrap(), Err(EngineError::Temporary(_))), "{prompt}");
            assert_eq!(progress.latest(), None, "{prompt}");
        }
    }

    #[tokio::test]
    async fn every_picture_is_reported() {
        let progress = Progress::default();
        let seeds = brief("a cat", 64, 64, &[1, 2]);
        Sketch::new().render(seeds, progress.clone(), CancellationToken::new()).await.unwrap();
        assert_eq!(progress.latest(), Some(Stage::Step { done: 2, of: 2 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rehearsed_delay_is_reported_in_steps() {
        let progress = Progress::default();
        let begun = tokio::time::Instant::now();
        sit_out(Duration::from_secs(10), &progress.clone()).await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        let delayed = brief("a cat [[delay 1s]]", 64, 64, &[1, 2]);
        Sketch::new().render(delayed, progress.clone(), CancellationToken::new()).await.unwrap();
        assert_eq!(progress.latest(), Some(Stage::Step { done: REHEARSED_STEPS, of: REHEARSED_STEPS }));
    }
}
