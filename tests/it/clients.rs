//! Clients that generators make of the OpenAPI document compile under the strictest rules and run a task, and a checker
//! of documents finds nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tintype::http::docs::{openapi_json, other_openapi_json};

use crate::rigs::binary::Server;
use crate::rigs::packages::{npm, python, run};
use crate::rigs::service::Service;
use crate::tidy::root;

/// A folder with the document, and links to the programs and settings in `tests/it/clients/`.
fn workshop() -> TempDir {
    let folder = TempDir::new().expect("a directory");
    std::fs::write(folder.path().join("openapi.json"), openapi_json()).expect("a file");
    std::fs::write(folder.path().join("openapi-other.json"), other_openapi_json()).expect("a file");
    for entry in std::fs::read_dir(root().join("tests/it/clients")).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.path().join(path.file_name().expect("a name"))).expect("a copy");
    }
    folder
}

/// Lets scripts in the folder import npm packages.
fn link_packages(folder: &Path) {
    std::os::unix::fs::symlink(npm().join("node_modules"), folder.join("node_modules")).expect("a link");
}

/// A program of an npm package, run in the folder.
fn node_program(folder: &Path, name: &str) -> Command {
    if !folder.join("node_modules").exists() {
        link_packages(folder);
    }
    let mut command = Command::new(folder.join("node_modules/.bin").join(name));
    command.current_dir(folder);
    command
}

/// A program of a Python package, run in the folder.
fn python_program(folder: &Path, name: &str) -> Command {
    let programs: PathBuf = python();
    let inherited = std::env::join_paths([programs.clone(), "/usr/bin".into(), "/bin".into()]).expect("paths");
    let mut command = Command::new(programs.join(name));
    command.current_dir(folder).env("PATH", inherited).env_remove("PYTHONDONTWRITEBYTECODE");
    command
}

/// Checks that a client printed the URL of a PNG, and that it is there.
#[track_caller]
fn assert_image(said: &str, server: &Server) {
    let (url, content_type) = said.trim().split_once(' ').unwrap_or_else(|| panic!("no image: {said}"));
    assert_eq!(content_type, "image/png");
    assert!(url.starts_with(&server.url()) && url.ends_with(".png"), "{said}");
}

#[test]
fn a_checker_finds_nothing_in_the_documents() {
    let folder = workshop();
    link_packages(folder.path());
    for document in ["openapi.json", "openapi-other.json"] {
        run(Command::new("node").args(["lint.mjs", document]).current_dir(folder.path()));
    }
}

#[test]
fn the_typescript_client_runs_a_task() {
    let folder = workshop();
    let types = ["openapi.json", "--enum", "--output", "schema.ts"];
    run(node_program(folder.path(), "openapi-typescript").args(types));
    run(node_program(folder.path(), "tsc").args(["--project", "tsconfig.json"]));
    let (_data, server, key) = Server::install(&["--read-rate", "0"]);
    let said = run(Command::new("node").args(["built/fetch.js", &server.url(), &key]).current_dir(folder.path()));
    assert_image(&said, &server);
    server.stop();
}

#[test]
fn the_python_client_runs_a_task() {
    let folder = workshop();
    let mut generate = python_program(folder.path(), "openapi-python-client");
    generate.args(["generate", "--path", "openapi.json", "--meta", "none", "--output-path", "tintype_client"]);
    run(generate.args(["--config", "generator.yaml", "--fail-on-warning"]));
    run(python_program(folder.path(), "mypy").args(["--strict", "task.py", "tintype_client"]));
    let (_data, server, key) = Server::install(&["--read-rate", "0"]);
    let said = run(python_program(folder.path(), "python3").args(["task.py", &server.url(), &key]));
    assert_image(&said, &server);
    server.stop();
}

/// openapi-generator runs on Java, which comes with its package.
#[test]
fn clients_of_openapi_generator_run_a_task() {
    let folder = workshop();
    let without = "apiTests=false,modelTests=false,apiDocs=false,modelDocs=false";
    for (generator, output, properties) in
        [("python", "generated_client", ""), ("typescript-fetch", "generated", "importFileExtension=.js")]
    {
        let mut generate = python_program(folder.path(), "openapi-generator-cli");
        generate.args(["generate", "--input-spec", "openapi.json", "--generator-name", generator, "--output", output]);
        run(generate.args(["--global-property", without, "--additional-properties", properties]));
    }
    let strictly = [
        "--strict",
        "--skipLibCheck",
        "--module",
        "NodeNext",
        "--target",
        "ES2022",
        "--types",
        "node",
        "--outDir",
        "built",
    ];
    run(node_program(folder.path(), "tsc").args(strictly).arg("generated.ts"));
    let (_data, server, key) = Server::install(&["--read-rate", "0"]);
    let mut of_python = python_program(folder.path(), "python3");
    of_python.args(["generated.py", &server.url(), &key]).env("PYTHONPATH", folder.path().join("generated_client"));
    let mut of_typescript = Command::new("node");
    of_typescript.args(["built/generated.js", &server.url(), &key]).current_dir(folder.path());
    for program in [&mut of_python, &mut of_typescript] {
        assert_image(&run(program), &server);
    }
    server.stop();
}

/// Requests that a schema allows are accepted, all others are refused, and every answer is as documented.
///
/// `SCHEMATHESIS_SECONDS` gives it more time.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
async fn the_service_behaves_as_the_document_says() {
    // Nothing works on the tasks here, so that nothing is drawn, and no host of a reference image is looked up.
    let flags = ["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "1000000"];
    let (service, caller) = Service::with_caller(&flags, 10_000_000).await;
    let authorization = format!("Authorization: {}", caller.authorization());
    let url = format!("http://{}", service.address);
    let effort = match std::env::var("SCHEMATHESIS_SECONDS") {
        Ok(seconds) => vec!["--max-time".to_owned(), seconds, "--max-examples".to_owned(), "1000000".to_owned()],
        Err(_) => ["--max-examples", "20", "--seed", "1"].map(str::to_owned).into(),
    };
    let said = tokio::task::spawn_blocking(move || {
        let folder = workshop();
        // No task ends here, so a call that asks for a wait gets its answer only after that time. The example asks for 5 s in
        // most calls, which took 190 of 205 s.
        let document = openapi_json().replace("wait=5", "wait=0");
        std::fs::write(folder.path().join("openapi.json"), document).expect("a file");
        let mut command = python_program(folder.path(), "schemathesis");
        command.args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url", &url]);
        command.args(["--header", &authorization]);
        command.args(["--no-color", "--checks", "all", "--generation-database", "none"]).args(effort);
        run(&mut command)
    });
    let said = said.await.expect("schemathesis runs");
    println!("{said}");
    assert!(said.contains("Tested: 4"), "{said}");
}
