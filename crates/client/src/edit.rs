//! Submits tasks whose reference images are files on this machine.

use std::time::Duration;

use reqwest::header;
use serde::{Deserialize, Serialize};

use super::{
    ANSWER_LIMIT, Accepted, Client, ClientError, MAX_ANSWER_BYTES, Processing, processing::ignored_fields, read,
    success,
};

/// Time limit for a submit with files. The server gives up after 5 minutes.
const UPLOAD_LIMIT: Duration = Duration::from_secs(6 * 60);

const MODEL_NAME: &str = "imgmodel";

/// A reference image of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// The server downloads it.
    Url(String),
    /// The bytes of a file.
    File(Vec<u8>),
}

/// A preset and settings. The server checks them against the preset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Choices {
    /// The name of the preset.
    #[serde(rename = "model", skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The seed of the first image; those after it count up from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// Words for things that the images should not show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub negative_prompt: Option<String>,
    /// Steps from noise to image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// How strongly the images follow the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance_scale: Option<f64>,
    /// How far the images may be from a reference image, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
}

impl Choices {
    /// Whether all is left to the server.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn fields(&self) -> Vec<(String, String)> {
        let all = serde_json::to_value(self).expect("our own types are always JSON");
        let fields = all.as_object().into_iter().flatten();
        fields.map(|(name, value)| (name.clone(), value.as_str().map_or(value.to_string(), str::to_owned))).collect()
    }
}

#[derive(Serialize)]
struct GenerationBody<'a> {
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<i64>,
    #[serde(flatten)]
    choices: &'a Choices,
}

/// A submit with reference images, including files. The server validates it.
#[derive(Debug, Clone)]
pub struct EditRequest {
    /// Description of the images.
    pub prompt: String,
    /// One of the 13 ratios; `None` leaves it to the server.
    pub aspect_ratio: Option<String>,
    /// Number of images; `None` leaves it to the server.
    pub n: Option<i64>,
    /// The reference images, in order.
    pub references: Vec<Reference>,
    /// The preset and the settings.
    pub choices: Choices,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

#[derive(Deserialize)]
struct ModelsBody {
    data: Vec<Named>,
}

impl Client {
    /// The names that mean something to the server as a preset: its presets, and its names for engines. The name of the
    /// model itself chooses nothing.
    pub async fn presets(&self) -> Result<Vec<String>, ClientError> {
        let request = self.api.get(&self.models_url).header(header::AUTHORIZATION, self.authorization.clone());
        let response = success(request.timeout(ANSWER_LIMIT).send().await?).await?;
        let body = read(response, MAX_ANSWER_BYTES, |_, _| ()).await?.ok_or(ClientError::NotThisApi)?;
        let ModelsBody { data } = serde_json::from_slice(&body).map_err(|_| ClientError::NotThisApi)?;
        let names: Vec<_> = data.into_iter().map(|Named { id }| id).collect();
        // It comes first, and a preset after it may have the same name.
        let has_model = names.first().is_some_and(|name| name == MODEL_NAME);
        Ok(names.into_iter().skip(usize::from(has_model)).collect())
    }

    /// Creates a task with files among its reference images, or with a preset or settings. Never sends more than one
    /// request.
    pub async fn submit_edit(&self, request: &EditRequest) -> Result<Accepted, ClientError> {
        let boundary = request.boundary();
        let (url, kind, body) = match request.references.is_empty() {
            true => (&self.generations_url, "application/json".to_owned(), request.json()),
            false => (&self.edits_url, format!("multipart/form-data; boundary={boundary}"), request.form(&boundary)),
        };
        let request = self
            .uploads
            .post(url)
            .header(header::AUTHORIZATION, self.authorization.clone())
            .header(header::CONTENT_TYPE, kind)
            .body(body)
            .timeout(UPLOAD_LIMIT);
        let response = success(request.send().await?).await?;
        let (state, ignored_fields) = (Processing::read(response.headers()), ignored_fields(response.headers()));
        let body = read(response, MAX_ANSWER_BYTES, |_, _| ()).await?.ok_or(ClientError::NotThisApi)?;
        let Named { id } = serde_json::from_slice(&body).map_err(|_| ClientError::NotThisApi)?;
        Ok(Accepted { task_id: id.parse().map_err(|_| ClientError::NotThisApi)?, state, ignored_fields })
    }
}

impl EditRequest {
    /// A text that is in no part of the form.
    fn boundary(&self) -> String {
        let mut boundary = "tintype-edit".to_owned();
        let contains =
            |bytes: &[u8], boundary: &str| bytes.windows(boundary.len()).any(|part| part == boundary.as_bytes());
        let in_reference = |reference: &Reference, boundary: &str| match reference {
            Reference::Url(url) => contains(url.as_bytes(), boundary),
            Reference::File(bytes) => contains(bytes, boundary),
        };
        let negative = self.choices.negative_prompt.as_deref().unwrap_or_default();
        while contains(self.prompt.as_bytes(), &boundary)
            || contains(negative.as_bytes(), &boundary)
            || self.references.iter().any(|reference| in_reference(reference, &boundary))
        {
            boundary.push('-');
        }
        boundary
    }

    fn size(&self) -> Option<String> {
        self.aspect_ratio.as_ref().map(|ratio| ratio.replace(':', "x"))
    }

    fn json(&self) -> Vec<u8> {
        let body = GenerationBody { prompt: &self.prompt, size: self.size(), n: self.n, choices: &self.choices };
        serde_json::to_vec(&body).expect("our own types are always JSON")
    }

    fn form(&self, boundary: &str) -> Vec<u8> {
        let mut form = Vec::new();
        let mut part = |parameters: &str, bytes: &[u8]| {
            let header = format!("--{boundary}\r\nContent-Disposition: form-data; {parameters}\r\n\r\n");
            form.extend_from_slice(header.as_bytes());
            form.extend_from_slice(bytes);
            form.extend_from_slice(b"\r\n");
        };
        part("name=\"prompt\"", self.prompt.as_bytes());
        if let Some(size) = self.size() {
            part("name=\"size\"", size.as_bytes());
        }
        for (name, value) in self.choices.fields() {
            part(&format!("name=\"{name}\""), value.as_bytes());
        }
        if let Some(n) = self.n {
            part("name=\"n\"", n.to_string().as_bytes());
        }
        for (index, reference) in self.references.iter().enumerate() {
            match reference {
                Reference::Url(url) => part("name=\"image[]\"", url.as_bytes()),
                Reference::File(bytes) => part(&format!("name=\"image[]\"; filename=\"{index}\""), bytes),
            }
        }
        form.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        form
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boundary_is_in_no_part() {
        let mut request = EditRequest {
            prompt: "a".into(),
            aspect_ratio: None,
            n: None,
            references: vec![Reference::Url("b".into())],
            choices: Choices::default(),
        };
        assert_eq!(request.boundary(), "tintype-edit");
        request.references.push(Reference::File(b"--tintype-edit--".to_vec()));
        assert_eq!(request.boundary(), "tintype-edit---");
        request.prompt = "tintype-edit----".into();
        assert_eq!(request.boundary(), "tintype-edit-----");
    }
}
