//! A program that behaves like stable-diffusion.cpp's sd-server and obeys words in the prompt. The tests compile it by
//! itself, with nothing but the standard library, and run it as an engine's child process.
//!
//! usage: program --picture FILE [--words TEXT] [--end] --listen-ip 127.0.0.1 --listen-port PORT
//!
//! FILE holds a picture in base64. In a prompt, "crash" makes it abort, "hang" never ends its first step, and "again" paints
//! in four steps like any other prompt. It prints every prompt to standard output, as sd-server does when verbose.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Jobs by id, and whether each is done.
type Jobs = Arc<Mutex<HashMap<String, bool>>>;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().rposition(|it| it == name).map(|at| arguments[at + 1].clone());
    if let Some(words) = after("--words") {
        eprintln!("[ERROR] {words}");
    }
    let secrets = std::env::vars().any(|(name, _)| name.starts_with("TINTYPE_") || name.starts_with("AWS_"));
    if secrets || arguments.iter().any(|it| it == "--end") {
        std::process::exit(3);
    }
    println!("[INFO ] devices {:?}", std::env::var("CUDA_VISIBLE_DEVICES"));
    let picture = std::fs::read_to_string(after("--picture").expect("--picture")).expect("a picture");
    let address = format!("{}:{}", after("--listen-ip").expect("--listen-ip"), after("--listen-port").expect("a port"));
    let listener = TcpListener::bind(address).expect("a free port");
    let jobs = Jobs::default();
    for connection in listener.incoming().flatten() {
        let (jobs, picture) = (jobs.clone(), picture.clone());
        std::thread::spawn(move || answer(connection, &jobs, &picture));
    }
}

fn answer(mut connection: TcpStream, jobs: &Jobs, picture: &str) {
    let mut reader = BufReader::new(connection.try_clone().expect("a connection"));
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request");
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        match line.trim().to_ascii_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().expect("a length"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body = String::from_utf8(body).expect("text");
    let path = first.split(' ').nth(1).expect("a path");
    let (status, answer) = route(path, &body, jobs, picture);
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
    // A caller that has gone needs no answer.
    drop(connection.write_all((head + &answer).as_bytes()));
}

fn route(path: &str, body: &str, jobs: &Jobs, picture: &str) -> (u16, String) {
    if path.ends_with("/capabilities") {
        return (200, r#"{"model":{"name":"test.gguf"},"supported_modes":["img_gen"]}"#.into());
    }
    let mut jobs_now = jobs.lock().expect("jobs");
    if path.ends_with("/img_gen") {
        let id = format!("job_{}", jobs_now.len());
        jobs_now.insert(id.clone(), false);
        let (body, jobs, painted) = (body.to_owned(), jobs.clone(), id.clone());
        std::thread::spawn(move || paint(&body, &jobs, painted));
        return (202, format!(r#"{{"id":"{id}","status":"queued"}}"#));
    }
    let id = path.split('/').nth(4).unwrap_or_default();
    match jobs_now.get(id) {
        None => (404, r#"{"error":"job not found"}"#.into()),
        Some(false) if path.ends_with("/cancel") => (409, r#"{"error":"job is currently generating"}"#.into()),
        Some(false) => (200, r#"{"status":"generating","result":null,"error":null}"#.into()),
        Some(true) => {
            let images = format!(r#"{{"index":0,"b64_json":"{picture}"}}"#);
            (200, format!(r#"{{"status":"completed","error":null,"result":{{"images":[{images}]}}}}"#))
        }
    }
}

fn paint(body: &str, jobs: &Jobs, id: String) {
    println!("[DEBUG] parse '{body}'");
    if body.contains("crash") {
        eprintln!("[ERROR] GGML_ASSERT(false) failed");
        std::process::abort();
    }
    for step in 1..=4 {
        print!("\r  |=====>      | {step}/4 - 10.00it/s\x1b[K");
        std::io::stdout().flush().expect("standard output");
        while body.contains("hang") {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    jobs.lock().expect("jobs").insert(id, true);
}
