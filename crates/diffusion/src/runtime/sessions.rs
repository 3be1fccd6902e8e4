//! A model's sessions: which parts are loaded, and for how long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::plan::{Need, RESERVE, plan};
use super::{Loaded, Runtime, Session};
use crate::graph::Graph;
use crate::graph::template::Template;
use crate::{Error, Result};

/// Sizes per part whose inputs are kept. The tables for a 1024x1024 picture have 2 MB.
const KEPT_SIZES: usize = 16;

/// The part of a model to load, and the size.
#[derive(Debug, Clone, Copy)]
pub struct PartKey<'a> {
    /// Its name.
    pub part: &'static str,
    /// Pictures per batch.
    pub batch: usize,
    /// All sizes that its graph depends on.
    pub sizes: &'a [usize],
    /// Two batches and lists of sizes that suit the part and have no number in common. Their graphs are merged into the
    /// graph for all sizes.
    pub examples: [(usize, &'a [usize]); 2],
}

/// What has been loaded, and how often it has run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loads {
    /// Sessions that loaded weights.
    pub sessions: usize,
    /// Their weights' bytes.
    pub bytes: usize,
    /// Runs of all sessions.
    pub runs: usize,
}

/// A session for one batch and list of sizes.
#[derive(Debug)]
struct Sized {
    batch: usize,
    sizes: Vec<usize>,
    need: Need,
    session: Arc<Session>,
}

/// A part that stays loaded.
#[derive(Debug)]
struct LoadedPart {
    part: &'static str,
    /// `None` if the graph only suits the size requested first.
    template: Option<Template>,
    loaded: Arc<Loaded>,
    /// The latest first.
    sizes: Vec<Sized>,
}

/// A model's sessions. On the processor a part is loaded when needed and dropped afterwards, so that memory is only
/// needed for the largest part. On other devices each part stays, because its weights would have to be copied there
/// again, and one session serves all sizes and batches.
#[derive(Debug, Default)]
pub struct Sessions {
    runtime: Runtime,
    keeps: bool,
    /// Device memory that can be used, in bytes; `None` for all of it.
    memory: Option<u64>,
    runs: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<LoadedPart>,
    /// What the parts requested so far need, each for its largest picture.
    needs: Vec<Need>,
    loads: Loads,
}

impl Sessions {
    /// Sessions that stay, if `keeps`, or are dropped after each use. With `memory`, in bytes, only as many stay as
    /// fit.
    pub fn new(runtime: Runtime, keeps: bool, memory: Option<u64>) -> Self {
        Self { runtime, keeps, memory, ..Self::default() }
    }

    /// What has been loaded so far.
    pub fn loads(&self) -> Loads {
        let loads = self.state.lock().unwrap_or_else(PoisonError::into_inner).loads;
        Loads { runs: self.runs.load(Ordering::Relaxed), ..loads }
    }

    /// Whether parts stay loaded, for all sizes and batches.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// A session for a part. `graph` writes the graph for a batch and sizes.
    pub fn of(&self, key: PartKey<'_>, graph: impl Fn(usize, &[usize]) -> Result<Graph>) -> Result<Arc<Session>> {
        let PartKey { part, batch, sizes, examples } = key;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { kept, needs, loads } = &mut *state;
        if !self.keeps {
            let graph = graph(batch, sizes)?;
            loads.count(&graph);
            drop(state);
            let session = self.runtime.load(graph)?;
            return Ok(Arc::new(Session { runs: self.runs.clone(), ..session }));
        }
        let known = kept.iter().filter(|kept| kept.part == part).flat_map(|kept| &kept.sizes);
        let known = known.into_iter().find(|known| (known.batch, known.sizes.as_slice()) == (batch, sizes));
        if let Some((need, session)) = known.map(|known| (known.need, known.session.clone())) {
            self.make_room(kept, needs, need)?;
            return Ok(session);
        }
        let asked = graph(batch, sizes)?;
        let need = Need::of(part, &asked);
        self.make_room(kept, needs, need)?;
        let sized = |session| Sized { batch, sizes: sizes.to_vec(), need, session };
        for kept in kept.iter_mut().filter(|kept| kept.part == part) {
            let values = kept.template.as_ref().map(|template| template.values(&asked)).transpose()?.flatten();
            if let Some(values) = values {
                let session = Arc::new(Session { loaded: kept.loaded.clone(), values, runs: self.runs.clone() });
                kept.sizes.insert(0, sized(session.clone()));
                kept.sizes.truncate(KEPT_SIZES);
                return Ok(session);
            }
        }
        let [one, other] = examples.map(|(batch, sizes)| graph(batch, sizes));
        let template = Template::of(&one?, &other?)?;
        let values = template.as_ref().map(|template| template.values(&asked)).transpose()?.flatten();
        // If the template doesn't fit, the device holds weights for this size only.
        let (template, values) = if let Some(values) = values { (template, values) } else { (None, Vec::new()) };
        kept.retain(|kept| kept.part != part);
        let onnx = template.as_ref().map_or_else(|| asked.onnx(), |template| Ok(template.onnx.clone()))?;
        loads.count(&asked);
        let loaded = Arc::new(self.runtime.load_as(onnx, &asked)?);
        let session = Arc::new(Session { loaded: loaded.clone(), values, runs: self.runs.clone() });
        kept.push(LoadedPart { part, template, loaded, sizes: vec![sized(session.clone())] });
        Ok(session)
    }

    /// Drops the parts that must go while another one runs.
    fn make_room(&self, kept: &mut Vec<LoadedPart>, needs: &mut Vec<Need>, need: Need) -> Result<()> {
        let Some(memory) = self.memory else { return Ok(()) };
        let mut all = needs.clone();
        match all.iter_mut().find(|known| known.part == need.part) {
            Some(known) => known.working = known.working.max(need.working),
            None => all.push(need),
        }
        // A picture that is too large isn't remembered, because others may fit.
        let Some(stay) = plan(&all, memory) else {
            let (part, most) = (need.part, need.weights + need.working + RESERVE);
            return Err(Error::Memory(format!("{part} needs {most} bytes on the device, which has {memory}")));
        };
        *needs = all;
        let goes = |part: &str| needs.iter().zip(&stay).any(|(known, stays)| known.part == part && !stays);
        kept.retain(|kept| kept.part == need.part || !goes(kept.part));
        Ok(())
    }
}

impl Need {
    fn of(part: &'static str, graph: &Graph) -> Self {
        Self { part, weights: graph.weight_bytes as u64, working: graph.working_bytes() as u64 }
    }
}

impl Loads {
    fn count(&mut self, graph: &Graph) {
        self.sessions += 1;
        self.bytes += graph.weight_bytes;
    }
}
