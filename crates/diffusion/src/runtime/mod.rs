//! Runs graphs, on rten or on ONNX Runtime. The rest of the crate knows neither.

mod ort;
pub mod plan;
mod rten;
mod sessions;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::graph::Graph;
use crate::graph::template::Value;

pub use self::ort::OnnxRuntime;
pub use self::sessions::{Loads, PartKey, Sessions};

/// The value of an input.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Fractions, in rows.
    Floats(&'a [usize], &'a [f32]),
    /// Whole numbers.
    Ids(&'a [i32]),
    /// Whole numbers of 64 bits, such as a shape.
    Sizes(&'a [i64]),
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
        let onnx = graph.onnx()?;
        Ok(Session { loaded: Arc::new(self.load_as(onnx, &graph)?), values: Vec::new(), runs: Arc::default() })
    }

    /// Loads an ONNX file over the weights of a graph.
    fn load_as(&self, onnx: Vec<u8>, graph: &Graph) -> Result<Loaded> {
        Ok(match self {
            Self::Rten => Loaded::Rten(Box::new(rten::Session::load(onnx, graph)?)),
            Self::OnnxRuntime(runtime) => Loaded::Ort(runtime.load(&onnx, graph)?),
        })
    }

    /// Whether graphs run elsewhere than on the processor. Their weights are then copied there when they are loaded.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::OnnxRuntime(runtime) if runtime.device() != Device::Cpu)
    }
}

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Session {
    loaded: Arc<Loaded>,
    /// Inputs that make a graph for all sizes one for a size.
    values: Vec<(String, Value)>,
    /// How often sessions of a model have run.
    runs: Arc<AtomicUsize>,
}

/// A graph with its weights, as a runtime holds it.
#[derive(Debug)]
enum Loaded {
    Rten(Box<rten::Session>),
    Ort(ort::Session),
}

impl Session {
    /// Runs the graph and gives the numbers of the named outputs.
    ///
    /// # Errors
    /// If there is no such input or output, or the runtime fails.
    pub fn run<const N: usize>(&self, inputs: &[(&str, Input<'_>)], outputs: [&str; N]) -> Result<[Vec<f32>; N]> {
        let values = self.values.iter().map(|(name, value)| {
            let input = match value {
                Value::Whole(numbers) => Input::Sizes(numbers),
                Value::Fractions(shape, numbers) => Input::Floats(shape, numbers),
            };
            (name.as_str(), input)
        });
        let inputs: Vec<_> = inputs.iter().copied().chain(values).collect();
        self.runs.fetch_add(1, Ordering::Relaxed);
        match &*self.loaded {
            Loaded::Rten(session) => session.run(&inputs, outputs),
            Loaded::Ort(session) => session.run(&inputs, outputs),
        }
    }
}
