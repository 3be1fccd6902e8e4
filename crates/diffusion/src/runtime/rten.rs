//! Graphs on rten.

use rten::{Model, ModelOptions, NodeId, RunOptions, Value, ValueOrView};

use super::Input;
use crate::graph::{CONVERTED, Graph, mapped_name};
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct Session {
    model: Model,
}

impl Session {
    /// Loads a graph. 32-bit weights stay in their mapped file.
    pub(super) fn load(onnx: Vec<u8>, graph: &Graph) -> Result<Self> {
        let converted = graph.converted();
        let mut options = ModelOptions::with_all_ops();
        for (number, file) in graph.mapped.iter().enumerate() {
            options.external_data_static(&mapped_name(number), file);
        }
        options.external_data(CONVERTED, converted);
        let model = options.load(onnx).map_err(|error| Error::Run(error.to_string()))?;
        Ok(Self { model })
    }

    /// Runs the graph and returns the named outputs.
    pub(super) fn run<const N: usize>(
        &self,
        inputs: &[(&str, Input<'_>)],
        outputs: [&str; N],
    ) -> Result<[Vec<f32>; N]> {
        let failed = |error: &dyn std::fmt::Display| Error::Run(error.to_string());
        let id = |name: &str| self.model.node_id(name).map_err(|error| failed(&error));
        let mut values: Vec<(NodeId, ValueOrView<'_>)> = Vec::new();
        for (name, input) in inputs {
            let value = match *input {
                Input::Floats(shape, numbers) => Value::from_shape(shape, numbers.to_vec()).map_err(|e| failed(&e))?,
                Input::Ids(ids) => Value::from_shape([ids.len()], ids.to_vec()).map_err(|e| failed(&e))?,
                // rten's integers have 32 bits.
                Input::Sizes(sizes) => {
                    let sizes =
                        sizes.iter().map(|size| i32::try_from(*size)).collect::<std::result::Result<Vec<_>, _>>();
                    let sizes = sizes.map_err(|error| failed(&error))?;
                    Value::from_shape([sizes.len()], sizes).map_err(|e| failed(&e))?
                }
            };
            values.push((id(name)?, value.into()));
        }
        let mut ids = Vec::new();
        for name in outputs {
            ids.push(id(name)?);
        }
        let results = self.model.run(values, &ids, None::<RunOptions>).map_err(|error| failed(&error))?;
        let mut numbers = Vec::new();
        for result in results {
            let tensor =
                result.into_tensor::<f32>().ok_or_else(|| Error::Run("an output holds no 32-bit floats".into()))?;
            numbers.push(tensor.into_data());
        }
        numbers.try_into().map_err(|_| Error::Run("an output is missing".into()))
    }
}
