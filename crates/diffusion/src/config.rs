//! The JSON files in a model's folder.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::formats::unreadable;
use crate::{Error, Result};

/// Bytes of the largest file that is read. A vocabulary of 150,000 words has 3 MB, a whole tokenizer about 11 MB.
const MAX_BYTES: u64 = 64 << 20;

/// The largest number that a configuration may hold. Every shape is then compared with the weights, so the limit only
/// keeps products within 64 bits.
const MAX_NUMBER: u64 = 1 << 20;

/// Reads a text file of a model.
///
/// # Errors
/// If it cannot be read, is longer than 64 MiB or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let unreadable = |error| unreadable(path, &error);
    let file = File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::Files(format!("{} is larger than 64 MiB", path.display())));
    }
    // Some editors write a byte order mark first, which is not JSON.
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// One JSON object, with the name of its file for messages.
#[derive(Debug, Clone)]
pub struct Config {
    path: String,
    fields: Map<String, Value>,
}

impl Config {
    /// Reads the object in a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let path = path.display().to_string();
        match serde_json::from_str(&text).or_else(|error| serde_json::from_str(&quoted(&text).ok_or(error)?)) {
            Ok(Value::Object(fields)) => Ok(Self { path, fields }),
            Ok(_) => Err(Error::Files(format!("{path} holds no JSON object"))),
            Err(error) => Err(Error::Files(format!("{path} is not JSON: {error}"))),
        }
    }

    /// An object that isn't from a file, for tests and defaults.
    pub fn of(path: &str, fields: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), fields }
    }

    /// The file, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// This object with one field's value replaced.
    pub fn with(&self, key: &str, value: Value) -> Self {
        let mut config = self.clone();
        config.fields.insert(key.to_owned(), value);
        config
    }

    /// This object with only these fields.
    pub fn only_with(&self, keys: &[&str]) -> Self {
        let fields = self.fields.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        Self { path: self.path.clone(), fields: fields.map(|(key, value)| (key.clone(), value.clone())).collect() }
    }

    /// The object in a field, whose error messages name the field and the file; this object itself if the field is
    /// absent.
    pub fn within(&self, key: &str) -> Self {
        match self.get(key) {
            Some(Value::Object(fields)) => Self { path: format!("{}: {key}", self.path), fields: fields.clone() },
            _ => self.clone(),
        }
    }

    /// The value of a field; `None` if it is absent or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    /// Whether a field is null, and not absent.
    pub fn is_null(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(Value::is_null)
    }

    /// The error of a field.
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or_else(|| "nothing".to_owned(), Value::to_string);
        let found: String = found.chars().take(80).collect();
        Error::Model(format!("{}: \"{key}\" is {found}, but {expected}", self.path))
    }

    /// A number from 1 to 1,048,576.
    pub fn number(&self, key: &str) -> Result<usize> {
        self.get(key).and_then(count).ok_or_else(|| self.wrong(key, "a positive number is needed"))
    }

    /// A number like [`Config::number`], or `default` if it is absent.
    pub fn number_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.get(key).is_some() { self.number(key) } else { Ok(default) }
    }

    /// A number like [`Config::number`], or 0 if it is absent or 0.
    pub fn number_or_none(&self, key: &str) -> Result<usize> {
        if self.get(key).and_then(Value::as_u64) == Some(0) { Ok(0) } else { self.number_or(key, 0) }
    }

    /// A list of `len` numbers; a single number stands for all of them.
    pub fn numbers(&self, key: &str, len: usize) -> Result<Vec<usize>> {
        let found = match self.get(key) {
            Some(Value::Array(list)) => list.iter().map(count).collect(),
            Some(one) => count(one).map(|one| vec![one; len]),
            None => None,
        };
        found
            .filter(|list: &Vec<_>| list.len() == len)
            .ok_or_else(|| self.wrong(key, &format!("a list of {len} positive numbers is needed")))
    }

    /// A list like [`Config::numbers`], or `default` if it is absent.
    pub fn numbers_or(&self, key: &str, default: &[usize]) -> Result<Vec<usize>> {
        if self.get(key).is_some() { self.numbers(key, default.len()) } else { Ok(default.to_vec()) }
    }

    /// A list of 1 to 8 strings.
    pub fn names(&self, key: &str) -> Result<Vec<String>> {
        let list = self.get(key).and_then(Value::as_array);
        let names: Option<Vec<_>> = list.and_then(|list| list.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        names
            .filter(|names| (1..=8).contains(&names.len()))
            .ok_or_else(|| self.wrong(key, "a list of 1 to 8 names is needed"))
    }

    /// A list like [`Config::names`], or `default` if it is absent.
    pub fn names_or(&self, key: &str, default: &[&str]) -> Result<Vec<String>> {
        if self.get(key).is_some() { self.names(key) } else { Ok(default.iter().map(|&name| name.into()).collect()) }
    }

    /// A finite number, or `default` if it is absent.
    pub fn fraction(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => {
                value.as_f64().filter(|x| x.is_finite()).ok_or_else(|| self.wrong(key, "a number is needed"))
            }
        }
    }

    /// A boolean, or `default` if it is absent.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false is needed")),
        }
    }

    /// A string, or `default` if it is absent.
    pub fn text<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_str().ok_or_else(|| self.wrong(key, "a string is needed")),
        }
    }

    /// Rejects every value of `key` except these. Absent and null always pass.
    pub fn one_of(&self, key: &str, values: &[&str]) -> Result<()> {
        let is_known = |value: &Value| value.as_str().is_some_and(|value| values.contains(&value));
        match self.get(key) {
            Some(value) if !is_known(value) => {
                Err(self.wrong(key, &format!("only {} are supported", values.join(", "))))
            }
            _ => Ok(()),
        }
    }

    /// Rejects every value of `key` except `only`. Absent and null always pass.
    pub fn only(&self, key: &str, only: &Value) -> Result<()> {
        match self.get(key) {
            Some(value) if value != only => Err(self.wrong(key, &format!("only {only} is supported"))),
            _ => Ok(()),
        }
    }
}

/// `text` with the numbers that only Python takes for JSON (`Infinity`, `-Infinity` and `NaN`) as strings; `None` if it
/// has none.
fn quoted(text: &str) -> Option<String> {
    let mut whole = String::with_capacity(text.len());
    let (mut in_string, mut escaped, mut found) = (false, false, false);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let name = ["-Infinity", "Infinity", "NaN"].into_iter().find(|name| !in_string && rest.starts_with(name));
        if let Some(name) = name {
            whole.extend(["\"", name, "\""]);
            (rest, found) = (&rest[name.len()..], true);
            continue;
        }
        in_string ^= letter == '"' && !escaped;
        escaped = in_string && letter == '\\' && !escaped;
        whole.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    found.then_some(whole)
}

fn count(value: &Value) -> Option<usize> {
    let number = value.as_u64().filter(|number| (1..=MAX_NUMBER).contains(number))?;
    usize::try_from(number).ok()
}
