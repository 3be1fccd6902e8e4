//! Bodies as programs send them: with a byte order mark, compressed, in other encodings, and as long as they may be.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use crate::mcp::task_in;
use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service};

const BODY: &[u8] = r#"{"prompt": "ein Füchslein 🦊"}"#.as_bytes();

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).expect("a vector");
    encoder.finish().expect("a vector")
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).expect("a vector");
    encoder.finish().expect("a vector")
}

fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).expect("a vector");
    encoder.finish().expect("a vector")
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// The prompt that arrived, or the status and the message of the error.
async fn arrived(caller: &Caller, coding: &str, body: Vec<u8>) -> Result<Value, (u16, String)> {
    let headers = [("content-encoding", coding)];
    let headers = if coding.is_empty() { &[][..] } else { &headers };
    let answer = caller.post_with(headers, body).await;
    if answer.status != 200 {
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!(answer.json()["error"]["code"], "INVALID_REQUEST");
        return Err((answer.status.as_u16(), message));
    }
    let task = answer.json()["data"]["id"].as_str().expect("an id").parse().expect("an id");
    let found = caller.service.shared.store.inspect_task(task).await.expect("a store").expect("a task");
    Ok(found.request.prompt.into())
}

/// A name, the `Content-Encoding`, the body, and the status and the beginning of the message if it is refused.
type Quirk = (&'static str, &'static str, Vec<u8>, Result<(), (u16, &'static str)>);

fn quirks() -> Vec<Quirk> {
    let with_mark = [b"\xef\xbb\xbf", BODY].concat();
    let unknown = Err((415, "The Content-Encoding of the body must be gzip or deflate"));
    let broken = Err((400, "The body is not compressed as its Content-Encoding says."));
    let bomb = format!(r#"{{"prompt": "a boat", "pad": "{}"}}"#, "a".repeat(1 << 20));
    let text = std::str::from_utf8(BODY).expect("text");
    vec![
        ("the REST Client of VS Code, for a file with a mark (Pode, issue 1604)", "", with_mark.clone(), Ok(())),
        ("a compressed file with a mark", "gzip", gzip(&with_mark), Ok(())),
        ("OkHttp's and Apache's interceptors for requests", "gzip", gzip(BODY), Ok(())),
        ("an old name of gzip", "X-GZIP", gzip(BODY), Ok(())),
        ("pigz and others that write several members", "gzip", [gzip(&BODY[..9]), gzip(&BODY[9..])].concat(), Ok(())),
        ("a proxy that names no compression", "identity", BODY.into(), Ok(())),
        ("Python's zlib.compress", "deflate", zlib(BODY), Ok(())),
        ("the deflate of .NET before 5, without its frame", "deflate", deflate(BODY), Ok(())),
        ("a proxy that names the coding again", "identity, gzip", gzip(BODY), Ok(())),
        ("a browser's or a CDN's Brotli", "br", BODY.into(), unknown),
        ("zstd of curl 8 with --compressed", "zstd", BODY.into(), unknown),
        ("two codings", "gzip, gzip", gzip(&gzip(BODY)), unknown),
        ("a header without the compression", "gzip", BODY.into(), broken),
        ("a body that broke off", "gzip", gzip(BODY)[..30].into(), broken),
        ("another body after it", "deflate", [zlib(BODY), zlib(BODY)].concat(), broken),
        ("letters after it", "deflate", [deflate(BODY), b"{}".into()].concat(), broken),
        ("a bomb", "gzip", gzip(bomb.as_bytes()), Err((413, "The body is larger than 512 KiB."))),
        (
            "> of Windows PowerShell 5.1",
            "",
            [b"\xff\xfe", utf16(text).as_slice()].concat(),
            Err((400, "The body is in UTF-16; it must be JSON in UTF-8.")),
        ),
        (
            "Invoke-RestMethod of Windows PowerShell 5.1, which writes Latin-1",
            "",
            b"{\"prompt\": \"ein F\xfcchslein\"}".into(),
            Err((400, "The body must be JSON in UTF-8; its byte 18 is not UTF-8.")),
        ),
        ("a mark alone", "", b"\xef\xbb\xbf".into(), Err((400, "The body is not a valid JSON object: EOF"))),
    ]
}

#[tokio::test]
async fn a_body_is_read_as_programs_send_it_or_refused_with_the_reason() {
    let (_, caller) = Service::with_caller(&[], 1_000).await;
    for (what, coding, body, expected) in quirks() {
        match (arrived(&caller, coding, body).await, expected) {
            (Ok(prompt), Ok(())) => assert_eq!(prompt, "ein Füchslein 🦊", "{what}"),
            (Err((status, message)), Err((expected, beginning))) => {
                assert_eq!(status, expected, "{what}: {message}");
                assert!(message.starts_with(beginning), "{what}: {message}");
            }
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

/// Sends a body to OpenAI's dialect.
async fn to_openai(caller: &Caller, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
    caller.post_json(path, headers, body).await
}

#[tokio::test]
async fn the_dialect_of_openai_and_the_tools_read_bodies_alike() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let packed = [("content-encoding", "gzip")];
    let generated = to_openai(&caller, "/v1/images/generations/async", &packed, gzip(BODY)).await;
    assert_eq!(generated.status, 202, "{generated:?}");
    let edit =
        json!({ "prompt": "a boat", "image": format!("data:image/png;base64,{}", BASE64_STANDARD.encode(PIXEL)) });
    let with_mark = format!("\u{feff}{edit}").into_bytes();
    let edited = to_openai(&caller, "/v1/images/edits/async", &[], with_mark).await;
    assert_eq!(edited.status, 202, "{edited:?}");
    let refused = to_openai(&caller, "/v1/images/edits/async", &packed, gzip(edit.to_string().as_bytes())).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["type"]), (415, &json!("invalid_request_error")));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let answered = to_openai(&caller, "/mcp", &packed, gzip(ping.to_string().as_bytes())).await;
    assert_eq!((answered.status.as_u16(), answered.json()["id"].clone()), (200, json!(1)), "{answered:?}");
}

/// A PNG of one pixel.
const PIXEL: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8\xcf\xc0\
    \0\0\x03\x01\x01\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82";

/// JSON in ASCII alone, with every character of the texts as an escape.
fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

#[tokio::test]
async fn the_longest_prompt_and_the_longest_references_fit_in_every_script_and_spelling() {
    let (_, caller) = Service::with_caller(&[], 1_000).await;
    let host = "https://example.com/";
    let url = format!("{host}{}", "a".repeat(4_096 - host.len()));
    for letter in ["a", "ü", "海", "🦊"] {
        let prompt = letter.repeat(32_000);
        let plain = json!({ "prompt": prompt, "reference_images": [url, url, url, url] }).to_string();
        let urls = [escaped(&url), escaped(&url), escaped(&url), escaped(&url)].join("\",\"");
        let ascii = format!(r#"{{"prompt":"{}","reference_images":["{urls}"]}}"#, escaped(&prompt));
        for body in [plain, ascii] {
            assert_eq!(arrived(&caller, "", body.into_bytes()).await, Ok(prompt.clone().into()), "{letter}");
        }
        let ascii = format!(r#"{{"prompt":"{}"}}"#, escaped(&prompt)).into_bytes();
        let generated = to_openai(&caller, "/v1/images/generations/async", &[], ascii).await;
        assert_eq!(generated.status, 202, "{letter}");
        let call = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "generate_image", "arguments": { "prompt": "PROMPT", "wait_seconds": 0 } },
        });
        let message = call.to_string().replace("PROMPT", &escaped(&prompt)).into_bytes();
        let made = to_openai(&caller, "/mcp", &[], message).await;
        assert_eq!(task_in(&made.json()["result"])["status"], "processing", "{letter}");
    }
}
