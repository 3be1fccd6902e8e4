//! Random configurations of each family: each is equal to what `diffusers` makes of it, or refused by file, field and value.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use flate2::read::GzDecoder;
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tintype_diffusion::{Error, Lora, Options, Pipeline, Settings};

use crate::parity::rig::{Model, TOLERANCE, count, errors, floats, folder, guide, runtimes};

const FAMILIES: [&str; 4] = ["sd15", "sdxl", "flux2_klein", "z_image"];

/// Odd multiples of 1/32 between -1 and 1, by splitmix64, as `generated.py` makes them.
fn steps(seed: u64, count: usize) -> impl Iterator<Item = f64> {
    (1..=count as u64).map(move |at| {
        let z = seed.wrapping_add(at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let z = z ^ (z >> 31);
        ((z >> 59) as f64 * 2.0 - 31.0) / 32.0
    })
}

/// The name of the type in a file, and the bytes of numbers.
fn encoded(kind: &str, numbers: impl Iterator<Item = f64>) -> (&'static str, Vec<u8>) {
    match kind {
        "F32" | "torch.float32" => ("F32", numbers.flat_map(|x| (x as f32).to_le_bytes()).collect()),
        "F16" | "torch.float16" => ("F16", numbers.flat_map(|x| f16::from_f64(x).to_le_bytes()).collect()),
        "BF16" | "torch.bfloat16" => ("BF16", numbers.flat_map(|x| bf16::from_f64(x).to_le_bytes()).collect()),
        "torch.int64" => ("I64", numbers.flat_map(|x| (x as i64).to_le_bytes()).collect()),
        _ => panic!("numbers of {kind}"),
    }
}

/// Writes a file of weights by the list of its tensors.
fn write_weights(path: &Path, listed: &Value) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut seed = listed["seed"].as_u64().expect("a seed");
    if listed["metadata"].is_object() {
        header.insert("__metadata__".into(), listed["metadata"].clone());
    }
    for tensor in listed["tensors"].as_array().expect("tensors") {
        let [name, kind] = [0, 1].map(|at| tensor[at].as_str().expect("a name"));
        let (kind, bytes) = match tensor[3].as_i64() {
            None => encoded(kind, floats(&tensor[4]).into_iter()),
            Some(power) => {
                let (scale, more) = (2_f64.powi(power as i32), tensor[4].as_f64().expect("a number"));
                let all = tensor[2].as_array().expect("sizes").iter().map(count).product();
                let numbers = steps(seed, all).map(|x| x * scale + more);
                seed += 1_000_003;
                encoded(kind, numbers)
            }
        };
        let begin = data.len();
        data.extend(bytes);
        let entry = json!({"dtype": kind, "shape": tensor[2], "data_offsets": [begin, data.len()]});
        header.insert(name.into(), entry);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(path, file).expect("a file");
}

/// What became of a configuration.
enum Outcome {
    /// The largest error.
    Equal(f64),
    /// The message.
    Refused(String),
    Wrong(String),
}

/// A configuration in a folder of its own.
struct Case<'a> {
    case: &'a Value,
    texts: &'a [Value],
    made: TempDir,
}

impl<'a> Case<'a> {
    fn write(case: &'a Value, texts: &'a [Value]) -> Self {
        let made = TempDir::new().expect("a folder");
        let path = |name: &str| {
            let path = made.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            path
        };
        for (name, text) in case["files"].as_object().expect("files") {
            fs::write(path(name), texts[count_or_0(text)].as_str().expect("a text")).expect("a file");
        }
        for (name, listed) in case["weights"].as_object().expect("files") {
            write_weights(&path(name), listed);
        }
        Self { case, texts, made }
    }

    fn options(&self) -> impl Iterator<Item = Options> {
        let loras = self.case["loras"].as_object().expect("files").iter();
        let lora = |(name, weight): (&String, &Value)| Lora {
            path: self.made.path().join(name),
            weight: weight.as_f64().expect("a number"),
        };
        let loras: Vec<_> = loras.map(lora).collect();
        runtimes().into_iter().map(move |runtime| Options { runtime, loras: loras.clone(), ..Options::default() })
    }

    /// The picture on every runtime.
    fn compared(&self) -> Outcome {
        let mut worst = 0.0;
        for options in self.options() {
            match self.rendered(&options) {
                Ok((error, apart)) if error < TOLERANCE && apart <= 1.0 => worst = f64::max(worst, error),
                Ok((error, apart)) => {
                    let on = options.runtime;
                    return Outcome::Wrong(format!("an error of {error:.1e}, and {apart} of 255, on {on:?}"));
                }
                Err(error) => {
                    let message = error.to_string().replace(&format!("{}/", self.made.path().display()), "");
                    return if self.names(&message) {
                        Outcome::Refused(message)
                    } else {
                        Outcome::Wrong(format!("refused without file, field and value: {message}"))
                    };
                }
            }
        }
        Outcome::Equal(worst)
    }

    /// The largest error of the latent picture, and how far colours are apart.
    fn rendered(&self, options: &Options) -> Result<(f64, f64), Error> {
        let single = self.case["single"].as_str().expect("a name");
        let mut pipeline = Pipeline::open(&self.made.path().join(single), options)?;
        let model = Model { name: "generated", expected: self.case.clone() };
        let (order, settings) = (model.order(), Settings { strength: 1.0, ..model.settings() });
        let guide = guide(&mut pipeline, &order, &settings)?;
        let shape = pipeline.latent_shape(order.width, order.height)?;
        let latent = pipeline.denoise(shape, order.seed, settings.steps, &guide, |_, _, _| Ok(()))?;
        let values = &self.case["values"];
        let error = errors(&latent.numbers, &values["latent"]).into_iter().fold(0.0, worse);
        let picture = pipeline.decode(&latent)?;
        // Numbers that lie between two bytes may be rounded to either.
        let bytes = picture.as_rgb().iter().copied().step_by(count(&values["picture"]["stride"]));
        let apart = bytes.zip(floats(&values["picture"]["numbers"])).map(|(a, b)| (f64::from(a) - b).abs());
        Ok((error, apart.fold(0.0, worse)))
    }

    /// Whether a message names a file, a field and its value, as they are.
    fn names(&self, message: &str) -> bool {
        self.case["files"].as_object().expect("files").iter().any(|(name, text)| {
            let text = self.texts[count_or_0(text)].as_str().expect("a text");
            // Python writes a number that is not in JSON.
            let text = text.replace("-Infinity", "\"-Infinity\"");
            let Ok(Value::Object(fields)) = serde_json::from_str(&text) else { return false };
            let within = fields.iter().filter_map(|(key, inner)| Some((format!("{name}: {key}"), inner.as_object()?)));
            let mut objects = within.chain([(name.clone(), &fields)]);
            objects.any(|(path, fields)| {
                let named = |field: &str, value: &str| message.contains(&format!("{path}: \"{field}\" is {value}"));
                let mut each = fields.iter().filter(|(_, value)| !value.is_null());
                each.any(|(field, value)| named(field, &value.to_string().chars().take(80).collect::<String>()))
                    || first_field(message).is_some_and(|field| !fields.contains_key(field) && named(field, "nothing"))
            })
        })
    }
}

/// The first field that a message names.
fn first_field(message: &str) -> Option<&str> {
    message.split('"').nth(1)
}

/// The worse of two errors; a number that is none is the worst.
fn worse(one: f64, other: f64) -> f64 {
    if other <= one { one } else { other }
}

fn count_or_0(value: &Value) -> usize {
    if *value == json!(0) { 0 } else { count(value) }
}

#[test]
fn generated_configurations_are_equal_or_refused_by_name() {
    let (mut rows, mut wrong) = (String::new(), Vec::new());
    for family in FAMILIES {
        let Ok(file) = File::open(folder().join(format!("configurations/{family}.json.gz"))) else { continue };
        let recorded: Value = serde_json::from_reader(GzDecoder::new(file)).expect("JSON");
        let texts = recorded["texts"].as_array().expect("texts");
        let cases = recorded["cases"].as_array().expect("cases");
        let (mut equal, mut refused, mut most) = (0, BTreeMap::<String, usize>::new(), 0.0);
        for case in cases {
            let name = format!("{family} {} {}", case["number"], case["odd"]);
            match Case::write(case, texts).compared() {
                Outcome::Equal(error) => {
                    println!("{name}: equal, {error:.1e}");
                    (equal, most) = (equal + 1, worse(most, error));
                }
                Outcome::Refused(message) => {
                    println!("{name}: refused, {message}");
                    *refused.entry(message).or_default() += 1;
                }
                Outcome::Wrong(what) => {
                    println!("{name}: WRONG, {what}");
                    wrong.push(format!("{name}: {what}"));
                }
            }
        }
        let refused: usize = refused.values().sum();
        rows += &format!("| {family} | {} | {equal} | {refused} | {:.4} % |\n", cases.len(), most * 100.0);
    }
    println!("\n| Family | Configurations | Equal | Refused | Worst error |\n|---|---|---|---|---|\n{rows}");
    assert!(!rows.is_empty(), "no configurations");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
