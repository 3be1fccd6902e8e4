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
mod drawing;
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

use self::directive::{Ending, Rehearsal};
use self::painting::Painting;
use self::reference::Reference;
use self::scene::Scene;
use tintype_engine::{Brief, Engine, EngineError, EngineInfo, Picture};

/// Renders prompts as illustrated scenes, without any model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sketch;

impl Sketch {
    /// Creates the engine. Its word lists are built when the first prompt needs them.
    pub fn new() -> Self {
        Self
    }

    /// The description of the engine.
    pub fn info() -> EngineInfo {
        EngineInfo {
            name: "sketch".into(),
            description: "the built-in sketch engine: illustrated scenes for development and demos, no diffusion model"
                .into(),
            typical_duration: Duration::from_millis(300),
        }
    }
}

#[async_trait]
impl Engine for Sketch {
    async fn render(&self, brief: Brief) -> Result<Vec<Picture>, EngineError> {
        let rehearsal = Rehearsal::read(&brief.prompt);
        if !rehearsal.delay.is_zero() {
            tokio::time::sleep(rehearsal.delay).await;
        }
        match rehearsal.ending {
            Some(Ending::Fail) => return Err(EngineError::Permanent("the prompt rehearses a failure".into())),
            Some(Ending::Policy) => return Err(EngineError::Refused("the prompt rehearses a refusal".into())),
            Some(Ending::Panic) => panic!("the prompt rehearses a panic"),
            Some(Ending::Hang) => std::future::pending::<()>().await,
            None => {}
        }
        let Brief { width, height, seeds, references, .. } = brief;
        let painting = off_thread(move || Painting {
            scene: Scene::read(&rehearsal.words),
            references: references.iter().map(Reference::study).collect(),
            width,
            height,
        })
        .await;
        let painting = Arc::new(painting);
        // One blocking call per picture: after this future is dropped, at most one picture is still being painted.
        let mut pictures = Vec::with_capacity(seeds.len());
        for seed in seeds {
            let painting = Arc::clone(&painting);
            pictures.push(off_thread(move || painting.paint(seed)).await);
        }
        Ok(pictures)
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

    fn brief(prompt: &str, width: u32, height: u32, seeds: &[u64]) -> Brief {
        let seeds = seeds.to_vec();
        let time_limit = Duration::from_secs(30);
        Brief { prompt: prompt.into(), width, height, seeds, references: Vec::new(), time_limit }
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_pixels_and_another_one_does_not() {
        let brief = brief("two foxes by a lake at dawn", 160, 96, &[1, 2]);
        let first = Sketch::new().render(brief.clone()).await.unwrap();
        let second = Sketch::new().render(brief).await.unwrap();
        assert_eq!(first, second);
        assert_ne!(first[0], first[1]);
    }

    #[tokio::test]
    async fn every_size_and_style_is_exact() {
        let styles = ["watercolour", "oil", "neon", "pixel art", "sepia", "tintype", "noir", "pencil", "comic"];
        let prompts = styles.into_iter().chain(["pastel", "flat", "mosaic", "", "[[nonsense]]"]);
        for (index, prompt) in prompts.enumerate() {
            let (width, height) = [(64, 64), (131, 67), (64, 200)][index % 3];
            let pictures =
                Sketch.render(brief(&format!("a cat at night, {prompt}"), width, height, &[7])).await.unwrap();
            assert_eq!((pictures[0].width(), pictures[0].height()), (width, height), "{prompt}");
        }
    }

    #[tokio::test]
    async fn references_change_the_picture() {
        let mut with = brief("a boat", 96, 64, &[1]);
        let without = Sketch.render(with.clone()).await.unwrap();
        with.references = vec![Picture::from_rgb(1, 1, vec![200, 20, 20]).unwrap()];
        assert_ne!(Sketch.render(with).await.unwrap(), without);
    }

    #[tokio::test]
    async fn rehearsed_endings_end_as_named() {
        let render = |prompt| Sketch.render(brief(prompt, 64, 64, &[1]));
        assert!(matches!(render("[[fail]]").await, Err(EngineError::Permanent(_))));
        assert!(matches!(render("a cat [[policy]]").await, Err(EngineError::Refused(_))));
        assert!(tokio::spawn(render("[[panic]]")).await.unwrap_err().is_panic());
        assert!(tokio::time::timeout(Duration::from_millis(20), render("[[hang]]")).await.is_err());
    }
}
