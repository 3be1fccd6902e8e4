//! Model names that map to an engine.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;

use tintype_domain::images_api_request::MAX_MODEL_CHARS;
use tintype_domain::model::MODEL_NAME;

/// Longest engine name, in bytes: it can contain its server's URL.
const MAX_ENGINE: usize = 1_024;
/// Most aliases. All of them are in the model list.
const MAX_ALIASES: usize = 256;

/// The flag for model aliases.
#[derive(Debug, Clone, Default, Args)]
pub struct ModelAliasSettings {
    /// Map a model name in OpenAI calls to an engine: only workers with that engine serve such a call, and any engine
    /// serves other names. In the config file also a table [model-alias] of NAME = "ENGINE"
    #[arg(long, env = "TINTYPE_MODEL_ALIAS", value_name = "NAME=ENGINE", num_args = 1.., value_delimiter = ',')]
    pub model_alias: Vec<ModelAlias>,
}

/// A model alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAlias {
    /// The name as written by callers.
    pub name: String,
    /// The engine's name, as shown by `tintype engine list`.
    pub engine: String,
}

/// Engines by alias.
pub type ModelAliases = BTreeMap<String, String>;

impl FromStr for ModelAlias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, engine) =
            text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=ENGINE, such as dall-e-3=comfyui"))?;
        let (name, engine) = (name.trim(), engine.trim());
        let (characters, plain) = (name.chars().count(), |text: &str| !text.chars().any(char::is_control));
        if !(1..=MAX_MODEL_CHARS).contains(&characters) || !plain(name) {
            return Err(format!("the name of a model has 1 to {MAX_MODEL_CHARS} characters"));
        }
        if name == MODEL_NAME {
            return Err(format!("{MODEL_NAME} is the model of every engine and cannot stand for one"));
        }
        if !(1..=MAX_ENGINE).contains(&engine.len()) || !plain(engine) {
            return Err(format!("{name:?} needs the name of its engine, such as {name}=comfyui"));
        }
        Ok(Self { name: name.to_owned(), engine: engine.to_owned() })
    }
}

impl ModelAliasSettings {
    /// Engines by alias.
    ///
    /// # Errors
    /// A message for the operator: a name maps to two engines, or there are too many.
    pub fn aliases(&self) -> Result<ModelAliases, String> {
        let mut aliases = ModelAliases::new();
        for ModelAlias { name, engine } in &self.model_alias {
            if let Some(other) = aliases.insert(name.clone(), engine.clone()).filter(|other| other != engine) {
                return Err(format!("--model-alias {name:?} stands for two engines, {other} and {engine}: leave one"));
            }
        }
        match aliases.len() {
            ..=MAX_ALIASES => Ok(aliases),
            more => Err(format!("{more} names of models are too many: give at most {MAX_ALIASES} as --model-alias")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(texts: &[&str]) -> Result<ModelAliases, String> {
        let model_alias = texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        ModelAliasSettings { model_alias }.aliases()
    }

    #[test]
    fn an_alias_is_a_name_and_an_engine() {
        let found = aliases(&["dall-e-3=comfyui", "b = openai:http://127.0.0.1:8000/v1", "dall-e-3=comfyui"]);
        let expected = [("b", "openai:http://127.0.0.1:8000/v1"), ("dall-e-3", "comfyui")];
        let expected = expected.map(|(name, engine)| (name.to_owned(), engine.to_owned()));
        assert_eq!(found, Ok(ModelAliases::from(expected)));
        for (texts, reason) in [
            (&["dall-e-3"][..], "is not NAME=ENGINE"),
            (&["=comfyui"], "1 to 200 characters"),
            (&["a\nb=comfyui"], "1 to 200 characters"),
            (&["a="], "needs the name of its engine"),
            (&["imgmodel=comfyui"], "the model of every engine"),
            (&["a=comfyui", "a=sketch"], "stands for two engines"),
        ] {
            let refusal = aliases(texts).expect_err(texts[0]);
            assert!(refusal.contains(reason), "{refusal}");
        }
    }
}
