//! A running server and this process's jobs on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use tintype_engine::{Brief, EngineError, Lora, Picture, Progress, Stage};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::api::{Api, Cancellation, Job};
use crate::endpoint::{Fault, Reached};
use crate::prompt::for_engine;
use crate::results::Results;
use crate::supervisor::Steps;
use tintype_domain::text::counted;

/// One job renders while another waits, so that the server is never idle between a task's pictures.
const MOST_JOBS: usize = 2;
/// Wait before a job's first poll. A job can take as little as a twentieth of a second.
const FIRST_POLL: Duration = Duration::from_millis(20);
/// Longest wait between two polls of a job, and the wait between two attempts to cancel it.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Consecutive polls that can fail.
const MISSED_POLLS: u32 = 5;
/// Side of the warm-up picture, in pixels.
const FIRST_PICTURE: u32 = 256;

/// How a model uses reference pictures. The server doesn't report it: it accepts both ways for every model, and a model
/// that doesn't support one ignores it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ReferenceUse {
    /// All as `ref_images`, which editing models look at.
    Shown,
    /// The first as `init_image`, which any model paints over.
    PaintedOver {
        /// How strongly, from 0 to 1.
        strength: f64,
    },
}

#[derive(Debug)]
pub(super) struct Server {
    api: Api,
    results: Results,
    /// The operator's fields for every job.
    extra: Map<String, Value>,
    /// Abandoned jobs that the server is still rendering.
    leftovers: AtomicUsize,
}

impl Server {
    pub(super) fn new(api: Api, results: Results, extra: Map<String, Value>) -> Self {
        Self { api, results, extra, leftovers: AtomicUsize::new(0) }
    }

    pub(super) fn api(&self) -> &Api {
        &self.api
    }

    /// Renders a small picture in one step.
    ///
    /// # Errors
    /// [`EngineError`]: the server cannot render.
    pub(super) async fn warm_up(&self) -> Result<(), EngineError> {
        let job = json!({
            "prompt": "a lighthouse",
            "width": FIRST_PICTURE,
            "height": FIRST_PICTURE,
            "seed": 1,
            "batch_count": 1,
            "sample_params": { "sample_steps": 1 },
            "embed_image_metadata": false,
        });
        let id = self.api.submit(&job).await.map_err(|fault| fault.error)?;
        let progress = Progress::default();
        let report = Report::new(&progress, 1, None);
        match self.ended(&id, 0, &report).await? {
            Job::Completed(_) => Ok(()),
            Job::Failed(words) => Err(self.api.failed(&words)),
            Job::Unfinished | Job::Gone => Err(EngineError::Temporary("the server lost the job".into())),
        }
    }

    /// Checks that it renders no abandoned jobs.
    ///
    /// # Errors
    /// [`EngineError::NotAvailable`].
    pub(super) fn is_free(&self) -> Result<(), EngineError> {
        match self.leftovers.load(Ordering::SeqCst) {
            0 => Ok(()),
            jobs => {
                let pictures = counted(jobs as u64, "unwanted picture", "unwanted pictures");
                let cause = format!("{} is still rendering {pictures}", self.api.name());
                Err(EngineError::NotAvailable(cause))
            }
        }
    }

    /// Renders one picture for each seed. `kill` ends the server, if it is a child of this process: nothing else stops
    /// a job in progress.
    ///
    /// # Errors
    /// [`Fault`]. [`EngineError::NotAvailable`] only if no job has been submitted.
    pub(super) async fn render(
        self: &Arc<Self>,
        brief: &Brief,
        references: ReferenceUse,
        report: &Report<'_>,
        kill: Option<Kill>,
    ) -> Result<Vec<Picture>, Fault> {
        self.is_free()?;
        let prompt = for_engine(&brief.prompt, &[])?;
        let mut jobs = VecDeque::new();
        let mut seeds = brief.seeds.iter();
        let mut pictures = Vec::with_capacity(brief.seeds.len());
        while pictures.len() < brief.seeds.len() {
            while jobs.len() < MOST_JOBS
                && let Some(seed) = seeds.as_slice().first()
            {
                match Submitted::begin(self, body(&self.extra, brief, &prompt, *seed, references), kill.clone()).await {
                    Ok(job) => jobs.push_back(job),
                    // The server has other users too. The next job can wait until this one is done.
                    Err(Fault { error: EngineError::NotAvailable(_), .. }) if !jobs.is_empty() => break,
                    Err(fault) if pictures.is_empty() => return Err(fault),
                    Err(fault) => return Err(fault.begun()),
                }
                seeds.next();
            }
            let Some(job) = jobs.front_mut() else { continue };
            let ended = self.ended(&job.id, pictures.len(), report).await?;
            job.has_ended = true;
            jobs.pop_front();
            pictures.push(self.picture(ended).await?);
        }
        Ok(pictures)
    }

    async fn ended(&self, id: &str, index: usize, report: &Report<'_>) -> Result<Job, EngineError> {
        let (began, mut missed) = (Instant::now(), 0);
        loop {
            let pause = if missed == 0 { pause_after(began.elapsed()) } else { POLL_EVERY };
            report.pause(index, pause).await;
            match self.api.job(id).await {
                Ok(Job::Unfinished) => missed = 0,
                Ok(ended) => return Ok(ended),
                // Nothing is listening there any more, so the job died with its server.
                Err(fault @ Fault { reached: Reached::Refused, .. }) => return Err(fault.begun().error),
                Err(fault) => {
                    missed += 1;
                    if missed == MISSED_POLLS {
                        return Err(fault.begun().error);
                    }
                }
            }
        }
    }

    async fn picture(&self, ended: Job) -> Result<Picture, EngineError> {
        let name = self.api.name();
        let files = match ended {
            Job::Completed(files) => files,
            Job::Failed(words) => return Err(self.api.failed(&words)),
            Job::Unfinished | Job::Gone => {
                let cause = format!("{name} lost a job, most likely because it was started again");
                return Err(EngineError::Temporary(cause));
            }
        };
        let [file] = files.as_slice() else {
            let cause = format!("{name} answered with {} pictures instead of 1", files.len());
            return Err(EngineError::Temporary(cause));
        };
        self.results.picture(file).await
    }

    /// Cancels an abandoned job. Until the server has finished rendering, it isn't free; a child is killed instead.
    async fn abandon(&self, id: &str, kill: Option<Kill>) {
        let mut missed = 0;
        while missed < MISSED_POLLS {
            match self.api.cancel(id).await {
                Ok(Cancellation::Done) | Err(Fault { reached: Reached::Refused, .. }) => break,
                Ok(Cancellation::Rendering) => missed = 0,
                Err(_) => missed += 1,
            }
            if let Some(kill) = &kill {
                return kill("it was rendering a picture that is no longer wanted, and nothing else stops it");
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        self.leftovers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The wait before the next poll of a job: a quarter of its age, so that its end is noticed soon, whether it takes a
/// moment or minutes.
fn pause_after(waited: Duration) -> Duration {
    (waited / 4).clamp(FIRST_POLL, POLL_EVERY)
}

/// Kills the child that a server runs in, for this reason.
pub(super) type Kill = Arc<dyn Fn(&str) + Send + Sync>;

/// A job on a server. Dropping it before its end cancels it.
struct Submitted {
    server: Arc<Server>,
    id: String,
    has_ended: bool,
    kill: Option<Kill>,
}

impl Submitted {
    /// Submits a job. If the future is dropped meanwhile, the submit continues and the job is then cancelled, because
    /// only the answer contains its id.
    async fn begin(server: &Arc<Server>, body: Value, kill: Option<Kill>) -> Result<Self, Fault> {
        let server = server.clone();
        let submitting = tokio::spawn(async move {
            let id = server.api.submit(&body).await?;
            Ok(Self { server, id, has_ended: false, kill })
        });
        submitting.await.map_err(|error| EngineError::Temporary(error.to_string()))?
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Without a runtime, the process is ending.
        if let (false, Ok(runtime)) = (self.has_ended, Handle::try_current()) {
            let (server, id, kill) = (self.server.clone(), std::mem::take(&mut self.id), self.kill.take());
            server.leftovers.fetch_add(1, Ordering::SeqCst);
            runtime.spawn(async move { server.abandon(&id, kill).await });
        }
    }
}

/// A brief's progress, from finished pictures and the current picture's steps.
pub(super) struct Report<'a> {
    progress: &'a Progress,
    pictures: usize,
    /// The current picture's steps done and total steps, if the server reports them.
    steps: Option<Mutex<Steps>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(progress: &'a Progress, pictures: usize, mut steps: Option<Steps>) -> Self {
        // Left over from the previous render.
        steps.iter_mut().for_each(Steps::mark_unchanged);
        Self { progress, pictures, steps: steps.map(Mutex::new) }
    }

    /// Waits, and reports the steps of picture `index` meanwhile.
    async fn pause(&self, index: usize, time: Duration) {
        let (index, pictures) = (u32::try_from(index).unwrap_or(0), u32::try_from(self.pictures).unwrap_or(1));
        let Some(steps) = &self.steps else {
            if index > 0 {
                self.progress.report(Stage::Fraction(index as f32 / pictures as f32));
            }
            return tokio::time::sleep(time).await;
        };
        let following = async {
            let mut steps = steps.lock().await;
            while steps.changed().await.is_ok() {
                if let Some((done, of)) = *steps.borrow_and_update() {
                    let done = index.saturating_mul(of).saturating_add(done);
                    self.progress.report(Stage::Step { done, of: pictures.saturating_mul(of) });
                }
            }
            // The child has ended.
            std::future::pending::<()>().await;
        };
        drop(tokio::time::timeout(time, following).await);
    }
}

/// A job's body for one picture. Everything else is left to the server's settings.
fn body(extra: &Map<String, Value>, brief: &Brief, prompt: &str, seed: u64, references: ReferenceUse) -> Value {
    let own = json!({
        "prompt": prompt,
        "width": brief.width,
        "height": brief.height,
        "seed": seed,
        "batch_count": 1,
        "output_format": "png",
        // Otherwise, the prompt is embedded.
        "embed_image_metadata": false,
    });
    let mut body = Value::Object(extra.clone());
    for (name, value) in own.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let settings = &brief.settings;
    if let Some(negative) = settings.negative_prompt.as_deref().and_then(|words| for_engine(words, &[]).ok()) {
        body["negative_prompt"] = negative.into();
    }
    if let Some(steps) = settings.steps {
        body["sample_params"]["sample_steps"] = steps.into();
    }
    if let Some(scale) = settings.guidance_scale {
        body["sample_params"]["guidance"]["txt_cfg"] = scale.into();
    }
    if !settings.loras.is_empty() {
        let lora = |Lora { path, weight }: &Lora| json!({ "path": path, "multiplier": weight });
        body["lora"] = settings.loras.iter().map(lora).collect();
    }
    let mut pictures = brief.references.iter().map(|picture| BASE64_STANDARD.encode(picture.to_png()));
    match references {
        ReferenceUse::Shown if !brief.references.is_empty() => body["ref_images"] = pictures.collect(),
        ReferenceUse::PaintedOver { strength } => {
            if let Some(picture) = pictures.next() {
                body["init_image"] = picture.into();
                body["strength"] = strength.into();
                if let Some(steps) = settings.steps {
                    // The same number as in the strength's computation.
                    body["sample_params"]["sample_steps"] = steps.max(2).into();
                }
            }
            let others: Vec<_> = pictures.collect();
            if !others.is_empty() {
                body["ref_images"] = others.into();
            }
        }
        ReferenceUse::Shown => {}
    }
    if let Some(mask) = &brief.mask {
        body["mask_image"] = BASE64_STANDARD.encode(mask.to_png()).into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the end of the last of these jobs, rendered one after another, is noticed, and the number of polls.
    fn noticed(jobs: &[Duration]) -> (Duration, u32) {
        let (mut now, mut rendered, mut polls) = (Duration::ZERO, Duration::ZERO, 0);
        for job in jobs {
            rendered += *job;
            let began = now;
            while now == began || now < rendered {
                now += pause_after(now - began);
                polls += 1;
            }
        }
        (now, polls)
    }

    #[test]
    fn the_end_of_a_job_is_noticed_soon_whether_it_takes_a_moment_or_minutes() {
        let (took, _) = noticed(&[Duration::from_millis(50); 4]);
        assert!(took <= Duration::from_millis(300), "{took:?}");
        for (seconds, most_polls) in [(1, 25), (10, 45), (120, 150)] {
            let job = Duration::from_secs(seconds);
            let (took, polls) = noticed(&[job]);
            assert!(took - job <= (job / 4).min(POLL_EVERY) && polls <= most_polls, "{took:?} {polls}");
        }
    }
}
