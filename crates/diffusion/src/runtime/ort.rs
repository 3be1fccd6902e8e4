//! Graphs on ONNX Runtime, whose library is loaded at run time.
//!
//! ONNX Runtime copies all weights when it loads a graph, and repacks the weights of matrix multiplications and
//! convolutions for its kernels. Without repacking it could use the mapped files directly, but would take a third
//! longer for 8 bits and a tenth longer for convolutions.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use ort::ep::{self, ExecutionProvider, ExecutionProviderDispatch};
use ort::session::builder::SessionBuilder;
use ort::session::{OutputSelector, RunOptions, SessionInputValue};
use ort::value::TensorRef;
use ort::{AsPointer, environment::Environment};

use super::{Device, Input};
use crate::graph::{Builder, CONVERTED, Graph, mapped_name};
use crate::weights::Weights;
use crate::{Error, Result};

/// This process's library and its environment. There can be only one.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

/// The ONNX Runtime library, with a device.
#[derive(Clone)]
pub struct OnnxRuntime {
    environment: Environment,
    library: Arc<PathBuf>,
    device: Device,
}

impl fmt::Debug for OnnxRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnnxRuntime({} on {})", self.library.display(), self.device)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU",
            Self::Cuda => "CUDA",
            Self::TensorRt => "TensorRT",
            Self::CoreMl => "CoreML",
            Self::DirectMl => "DirectML",
        })
    }
}

impl Device {
    /// Whether the library was built with this device.
    fn is_in_library(self) -> ort::Result<bool> {
        match self {
            Self::Cpu => Ok(true),
            Self::Cuda => ep::CUDA::is_available(),
            Self::TensorRt => ep::TensorRT::is_available(),
            Self::CoreMl => ep::CoreML::is_available(),
            Self::DirectMl => ep::DirectML::is_available(),
        }
    }

    /// Its execution providers, in the order in which operators try them. The processor is always last.
    fn providers(self, short_products: bool) -> Vec<ExecutionProviderDispatch> {
        // Otherwise every shape of a convolution would be tried with all algorithms.
        let search = ep::cuda::ConvAlgorithmSearch::Heuristic;
        let cuda = || ep::CUDA::default().with_tf32(short_products).with_conv_algorithm_search(search.clone()).build();
        let providers = match self {
            Self::Cpu => Vec::new(),
            Self::Cuda => vec![cuda()],
            Self::TensorRt => vec![ep::TensorRT::default().build(), cuda()],
            Self::CoreMl => vec![ep::CoreML::default().build()],
            Self::DirectMl => vec![ep::DirectML::default().build()],
        };
        providers.into_iter().map(ExecutionProviderDispatch::error_on_failure).collect()
    }
}

/// Messages of the library and of CUDA for failed allocations, which have no error code of their own.
const OUT_OF_MEMORY: [&str; 5] =
    ["bad_alloc", "bad allocation", "Failed to allocate memory", "out of memory", "ALLOC_FAILED"];

/// Turns the library's errors into ours, with a message that begins with `what`.
fn failed(what: &str) -> impl Fn(&dyn fmt::Display) -> Error {
    move |error| {
        let text = error.to_string();
        // The message starts with a C++ template signature, and logs truncate long lines.
        let cause = text.find("CUDA failure").map_or(text.as_str(), |at| &text[at..]);
        let message = format!("{what}: {cause}");
        match OUT_OF_MEMORY.iter().any(|words| message.contains(words)) {
            true => Error::Memory(message),
            false => Error::Run(message),
        }
    }
}

/// The environment, created from the library on first use.
fn environment(library: &Path) -> Result<Environment> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((path, environment)) = loaded.as_ref() {
        if path == library {
            return Ok(environment.clone());
        }
        return Err(Error::Run(format!("this process has loaded another ONNX Runtime: {}", path.display())));
    }
    let unusable = |error: &dyn fmt::Display| {
        Error::Model(format!(
            "{} is not a usable ONNX Runtime (1.{} or later is needed): {error}",
            library.display(),
            ort::MINOR_VERSION
        ))
    };
    if !library.is_file() {
        return Err(unusable(&"there is no such file"));
    }
    let made = ort::init_from(library).map_err(|error| match error {
        // The error's own message omits the reason.
        ort::LoadDynamicError::Dlopen { error, .. } => match std::error::Error::source(&error) {
            Some(reason) => unusable(&reason),
            None => unusable(&error),
        },
        other => unusable(&other),
    })?;
    let made = made.with_name("tintype").with_telemetry(false).build().map_err(|error| unusable(&error))?;
    *loaded = Some((library.to_owned(), made.clone()));
    Ok(made)
}

impl OnnxRuntime {
    pub(super) fn open(library: &Path, device: Device) -> Result<Self> {
        let environment = environment(library)?;
        let there =
            device.is_in_library().map_err(|error| failed("the devices of ONNX Runtime are not known")(&error))?;
        if !there {
            let library = library.display();
            return Err(Error::Model(format!("the ONNX Runtime at {library} was built without {device}")));
        }
        let runtime = Self { environment, library: Arc::new(library.to_owned()), device };
        runtime.try_out().map_err(|error| Error::Model(format!("{device} cannot be used: {error}")))?;
        Ok(runtime)
    }

    /// The device on which graphs run.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Adds two numbers, which shows whether the device and its libraries are there.
    fn try_out(&self) -> Result<()> {
        let weights = Weights::default();
        let mut b = Builder::new(&weights, "");
        let x = b.input("x", &[1]);
        let y = b.add(&x, &x);
        b.output("y", &y);
        let graph = b.finish(|_| true)?;
        let session = self.load(&graph.onnx()?, &graph)?;
        match session.run(&[("x", Input::Floats(&[1], &[1.5]))], ["y"])? {
            [sum] if sum == [3.0] => Ok(()),
            [sum] => Err(Error::Run(format!("1.5 + 1.5 gave {sum:?}"))),
        }
    }

    /// Loads an ONNX file that uses a graph's weights.
    pub(super) fn load(&self, onnx: &[u8], graph: &Graph) -> Result<Session> {
        let refused = failed("ONNX Runtime refused a graph");
        let converted = graph.converted();
        let files = graph.mapped.iter().enumerate().map(|(number, file)| (mapped_name(number), *file));
        let files: Vec<_> = files.chain([(CONVERTED.to_owned(), converted.as_slice())]).collect();
        let mut options = self.options(graph.short_products).map_err(|error| refused(&error))?;
        for (name, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            lend(&mut options, name, bytes).map_err(|error| refused(&error))?;
        }
        let session = options.commit_from_memory(onnx).map_err(|error| refused(&error))?;
        Ok(Session { session: Mutex::new(session) })
    }

    fn options(&self, short_products: bool) -> ort::Result<SessionBuilder> {
        let threads = available_parallelism().map_or(1, usize::from);
        Ok(ort::session::Session::builder(&self.environment)?
            .with_execution_providers(self.device.providers(short_products))?
            // ONNX Runtime would use all of the machine's processors, even in a container that is allowed fewer.
            .with_intra_threads(threads)?
            // Threads that busy-wait for work would take processor time from the service.
            .with_intra_op_spinning(false)?)
    }
}

/// Registers bytes as an external weights file of the graph that is loaded next.
fn lend(options: &mut SessionBuilder, name: &str, bytes: &[u8]) -> ort::Result<()> {
    let name = std::ffi::CString::new(name)?;
    let (names, starts) = (name.as_ptr(), bytes.as_ptr().cast_mut().cast());
    #[expect(unsafe_code, reason = "the safe function takes only bytes on the heap; see below")]
    // SAFETY: the four pointers are valid and of one element each. The library copies the name in this call, and reads the
    // bytes when it loads the graph, in `load`, whose caller still borrows them then; it copies them, and never writes there.
    let status = unsafe {
        let add = ort::api().AddExternalInitializersFromMemory;
        ort::Error::result_from_status(add(options.ptr_mut(), &names, &starts, &bytes.len(), 1))
    };
    status
}

#[derive(Debug)]
pub(super) struct Session {
    /// Two threads must not run it at the same time.
    session: Mutex<ort::session::Session>,
}

impl Session {
    pub(super) fn run<const N: usize>(
        &self,
        inputs: &[(&str, Input<'_>)],
        outputs: [&str; N],
    ) -> Result<[Vec<f32>; N]> {
        let failed = failed("ONNX Runtime failed");
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let mut values: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
        for (name, input) in inputs {
            let value = match *input {
                Input::Floats(shape, numbers) => TensorRef::from_array_view((shape, numbers)).map(Into::into),
                Input::Ids(ids) => TensorRef::from_array_view(([ids.len()], ids)).map(Into::into),
                Input::Sizes(sizes) => TensorRef::from_array_view(([sizes.len()], sizes)).map(Into::into),
            };
            values.push((name, value.map_err(|error| failed(&error))?));
        }
        let selected = outputs.iter().fold(OutputSelector::no_default(), |all, name| all.with(*name));
        let options = RunOptions::new().map_err(|error| failed(&error))?.with_outputs(selected);
        let results = session.run_with_options(values, &options).map_err(|error| failed(&error))?;
        let mut numbers = Vec::new();
        for name in outputs {
            let result = results.get(name).ok_or_else(|| failed(&format!("there is no output {name}")))?;
            let (_, found) = result.try_extract_tensor::<f32>().map_err(|error| failed(&error))?;
            numbers.push(found.to_vec());
        }
        numbers.try_into().map_err(|_| failed(&"an output is missing"))
    }
}
