//! The reference of the API, with the address of this server and the examples of one task.

use askama::Template;
use axum::http::HeaderMap;
use serde_json::Value;

use super::create::base;
use super::create::snippets::Snippets;
use super::error::PageResult;
use super::page::{Frame, html};
use super::session::Visitor;
use tintype_domain::request::GenerateRequest;

const PROMPT: &str = "A red fox in the snow at dawn";

/// The operations of the API, read from its OpenAPI document.
#[derive(Debug, Default)]
pub(super) struct Reference {
    operations: Vec<Operation>,
}

#[derive(Debug)]
struct Operation {
    method: String,
    path: String,
    summary: String,
    description: Vec<String>,
    inputs: Vec<Input>,
    /// The status of an answer, and its meaning.
    answers: Vec<(String, String)>,
}

#[derive(Debug)]
struct Input {
    name: String,
    /// `body`, `query`, `path` or `header`.
    place: String,
    required: bool,
    description: String,
}

/// The member of a value that a name or a reference within the document points to.
fn follow<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let path = value["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    path.and_then(|path| document.pointer(path)).unwrap_or(value)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

impl Reference {
    /// Reads an OpenAPI document. Whatever it lacks is left out.
    pub(super) fn read(document: &Value) -> Self {
        let paths = members(&document["paths"]);
        let operations = paths.flat_map(|(path, methods)| members(methods).map(move |(method, of)| (method, path, of)));
        let mut operations: Vec<_> =
            operations.map(|(method, path, of)| Operation::read(document, method, path, of)).collect();
        // The first call of a newcomer creates a task.
        operations.sort_by_key(|operation| operation.method != "POST");
        Self { operations }
    }
}

impl Operation {
    fn read(document: &Value, method: &str, path: &str, operation: &Value) -> Self {
        let schema = follow(document, &operation["requestBody"]["content"]["application/json"]["schema"]);
        let required =
            |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it == name));
        let fields = members(&schema["properties"]).map(|(name, field)| Input {
            name: name.clone(),
            place: "body".into(),
            required: required(name),
            description: text(&field["description"]),
        });
        let parameters = operation["parameters"].as_array().into_iter().flatten().map(|parameter| Input {
            name: text(&parameter["name"]),
            place: text(&parameter["in"]),
            required: parameter["required"] == true,
            description: text(&parameter["description"]),
        });
        let answers = members(&operation["responses"])
            .map(|(status, answer)| (status.clone(), text(&follow(document, answer)["description"])));
        let mut inputs: Vec<_> = fields.chain(parameters).collect();
        inputs.sort_by_key(|input| !input.required);
        Self {
            method: method.to_uppercase(),
            path: path.to_owned(),
            summary: text(&operation["summary"]),
            description: text(&operation["description"]).split("\n\n").map(str::to_owned).collect(),
            inputs,
            answers: answers.collect(),
        }
    }
}

#[derive(Template)]
#[template(path = "docs.html")]
struct DocsPage<'a> {
    frame: Frame<'a>,
    base: &'a str,
    snippets: Snippets,
    reference: &'a Reference,
}

impl DocsPage<'_> {
    /// The pieces of a text, each with whether it is code, which stands between backticks.
    fn pieces<'b>(&self, text: &'b str) -> impl Iterator<Item = (bool, &'b str)> {
        text.split('`').enumerate().map(|(number, piece)| (number % 2 == 1, piece))
    }
}

/// The page.
pub async fn docs(visitor: Visitor, headers: HeaderMap) -> PageResult {
    let base = base(&visitor, &headers);
    let request = GenerateRequest::new(PROMPT);
    let snippets = Snippets::new(&base, &request);
    let (frame, reference) = (Frame::new("docs", &visitor).await?, &visitor.studio.reference);
    html(&DocsPage { frame, base: &base, snippets, reference })
}
