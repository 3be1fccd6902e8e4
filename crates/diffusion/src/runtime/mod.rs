//! Runs graphs, on rten or on ONNX Runtime. The rest of the crate knows neither.

mod ort;
mod rten;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;
use crate::graph::Graph;

pub use self::ort::OnnxRuntime;

/// The value of an input.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Fractions, in rows.
    Floats(&'a [usize], &'a [f32]),
    /// Whole numbers.
    Ids(&'a [i32]),
}

/// The program that runs graphs, and the device that it runs them on.
#[derive(Debug, Clone, Default)]
pub enum Runtime {
    /// rten, which is part of this program, on the processor.
    #[default]
    Rten,
    /// ONNX Runtime, a library of its own.
    OnnxRuntime(OnnxRuntime),
}

/// A device that ONNX Runtime runs graphs on. A library knows those with which it was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, by CUDA and cuDNN.
    Cuda,
    /// An NVIDIA GPU, by TensorRT, and by CUDA for what TensorRT cannot do.
    TensorRt,
    /// Apple's accelerators.
    CoreMl,
    /// A GPU on Windows.
    DirectMl,
}

impl Runtime {
    /// Loads the library of ONNX Runtime, and tries the device with a graph of a single number.
    ///
    /// # Errors
    /// If there is no such library, it is of an earlier version than this program needs, it was built without the device, or
    /// the device cannot be used; or if this process has loaded another library before.
    pub fn onnxruntime(library: &Path, device: Device) -> Result<Self> {
        OnnxRuntime::open(library, device).map(Self::OnnxRuntime)
    }

    /// Loads a graph.
    ///
    /// # Errors
    /// If the runtime refuses the graph.
    pub fn load(&self, graph: Graph) -> Result<Session> {
        Ok(Session(match self {
            Self::Rten => Kind::Rten(Box::new(rten::Session::load(graph)?)),
            Self::OnnxRuntime(runtime) => Kind::Ort(runtime.load(graph)?),
        }))
    }

    /// Whether graphs run elsewhere than on the processor. Their weights are then copied there when they are loaded.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::OnnxRuntime(runtime) if runtime.device() != Device::Cpu)
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Session(Kind);

#[derive(Debug)]
enum Kind {
    Rten(Box<rten::Session>),
    Ort(ort::Session),
}

impl Session {
    /// Runs the graph and gives the numbers of the named outputs.
    ///
    /// # Errors
    /// If there is no such input or output, or the runtime fails.
    pub fn run<const N: usize>(&self, inputs: &[(&str, Input<'_>)], outputs: [&str; N]) -> Result<[Vec<f32>; N]> {
        match &self.0 {
            Kind::Rten(session) => session.run(inputs, outputs),
            Kind::Ort(session) => session.run(inputs, outputs),
        }
    }
}

/// The sizes for which the graph of a part was written.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    part: &'static str,
    batch: usize,
    sizes: Vec<usize>,
}

/// The sessions of one model. On the processor a part is loaded when it is needed and dropped afterwards, so that the memory
/// is that of the largest part. On a device of its own the latest session of each part stays, because its weights would
/// have to be copied there again, and so do those of its other batches of the same sizes.
#[derive(Debug, Default)]
pub struct Sessions {
    runtime: Runtime,
    kept: Mutex<Vec<(Key, Arc<Session>)>>,
}

impl Sessions {
    /// Sessions on a runtime.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, kept: Mutex::default() }
    }

    /// The session of a part for one picture of these sizes, which `graph` writes if it has to be loaded.
    ///
    /// # Errors
    /// As of `graph`, or if the runtime refuses it.
    pub fn of(
        &self,
        part: &'static str,
        sizes: &[usize],
        graph: impl FnOnce() -> Result<Graph>,
    ) -> Result<Arc<Session>> {
        self.of_batch(part, 1, sizes, graph)
    }

    /// The same for a batch of pictures.
    ///
    /// # Errors
    /// As of [`Sessions::of`].
    pub fn of_batch(
        &self,
        part: &'static str,
        batch: usize,
        sizes: &[usize],
        graph: impl FnOnce() -> Result<Graph>,
    ) -> Result<Arc<Session>> {
        if !self.runtime.is_remote() {
            return self.runtime.load(graph()?).map(Arc::new);
        }
        let key = Key { part, batch, sizes: sizes.to_vec() };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, session)) = kept.iter().find(|(known, _)| *known == key) {
            return Ok(session.clone());
        }
        // The memory of the device does not hold a part for every size.
        kept.retain(|(known, _)| known.part != key.part || known.sizes == key.sizes);
        let session = Arc::new(self.runtime.load(graph()?)?);
        kept.push((key, session.clone()));
        Ok(session)
    }
}
