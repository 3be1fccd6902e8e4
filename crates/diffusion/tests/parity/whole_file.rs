//! Models in one file: the recorded tensors, to which the tables of words are added. They are too large to record.

use std::path::Path;

use serde_json::{Map, Value, json};
use tintype_diffusion::noise::Noise;
use tintype_diffusion::weights::Weights;

/// Words in the vocabulary of CLIP.
const VOCABULARY: usize = 49_408;

/// Writes the model `name` of the folder `single/` in `recorded`.
pub fn write_whole_file(recorded: &Path, name: &str, path: &Path) {
    let expected = std::fs::read_to_string(recorded.join(format!("single/{name}.json"))).expect("a fixture");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let weights = Weights::open(&recorded.join(format!("single/{name}.safetensors"))).expect("weights");
    let (mut header, mut data) = (Map::new(), Vec::<u8>::new());
    let mut add = |name: &str, dtype: String, shape: &[usize], bytes: &[u8]| {
        let begin = data.len();
        data.extend(bytes);
        header.insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]}));
    };
    for (table, seed) in expected["tables"].as_object().expect("tables") {
        let places = table.replace("token_embedding", "position_embedding");
        let places = places.replace("model.position_embedding.weight", "model.positional_embedding");
        let width = weights.get(&places).expect("a table of places").shape[1];
        let words = Noise::new(seed.as_u64().expect("a seed")).normal(VOCABULARY * width);
        let bytes: Vec<u8> = words.into_iter().flat_map(f32::to_le_bytes).collect();
        add(table, "F32".into(), &[VOCABULARY, width], &bytes);
    }
    for name in weights.names() {
        let entry = weights.get(name).expect("a tensor");
        add(name, format!("{:?}", entry.dtype), &entry.shape, weights.bytes(entry));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path, file).expect("a file");
}
