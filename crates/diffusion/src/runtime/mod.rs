//! Runs graphs on rten or ONNX Runtime. The rest of the crate knows neither.

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

/// An input's value.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Floats in rows.
    Floats(&'a [usize], &'a [f32]),
    /// Integers.
    Ids(&'a [i32]),
    /// 64-bit integers, such as a shape.
    Sizes(&'a [i64]),
}

/// The runtime for graphs, and its device.
#[derive(Debug, Clone, Default)]
pub enum Runtime {
    /// rten, built into this program, on the processor.
    #[default]
    Rten,
    /// ONNX Runtime, an external library.
    OnnxRuntime(OnnxRuntime),
}

/// A device that ONNX Runtime runs graphs on. A library supports the devices that it was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU, with CUDA and cuDNN.
    Cuda,
    /// An NVIDIA GPU, with TensorRT, and CUDA for whatever TensorRT doesn't support.
    TensorRt,
    /// Apple's accelerators.
    CoreMl,
    /// A GPU on Windows.
    DirectMl,
}

impl Runtime {
    /// Loads the ONNX Runtime library, and tries out the device with a graph of a single number.
    ///
    /// # Errors
    /// If there is no such library, it is older than this program requires, it was built without the device, the device
    /// cannot be used, or this process has already loaded another library.
    pub fn onnxruntime(library: &Path, device: Device) -> Result<Self> {
        OnnxRuntime::open(library, device).map(Self::OnnxRuntime)
    }

    /// Loads a graph.
    pub fn load(&self, graph: Graph) -> Result<Session> {
        let onnx = graph.onnx()?;
        Ok(Session { loaded: Arc::new(self.load_as(onnx, &graph)?), values: Vec::new(), runs: Arc::default() })
    }

    /// Loads an ONNX file that uses a graph's weights.
    fn load_as(&self, onnx: Vec<u8>, graph: &Graph) -> Result<Loaded> {
        Ok(match self {
            Self::Rten => Loaded::Rten(Box::new(rten::Session::load(onnx, graph)?)),
            Self::OnnxRuntime(runtime) => Loaded::Ort(runtime.load(&onnx, graph)?),
        })
    }

    /// Whether graphs run on a device other than the processor. Weights are then copied there when loaded.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::OnnxRuntime(runtime) if runtime.device() != Device::Cpu)
    }
}

/// A graph ready to run.
#[derive(Debug)]
pub struct Session {
    loaded: Arc<Loaded>,
    /// Inputs that specialise a graph for all sizes to one size.
    values: Vec<(String, Value)>,
    /// How often the model's sessions have run.
    runs: Arc<AtomicUsize>,
}

/// A graph with its weights, loaded in a runtime.
#[derive(Debug)]
enum Loaded {
    Rten(Box<rten::Session>),
    Ort(ort::Session),
}

impl Session {
    /// Runs the graph and returns the named outputs.
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
