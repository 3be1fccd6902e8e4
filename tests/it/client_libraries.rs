//! The clients in `clients/`, as packages that are built and installed, against the real server.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tintype_domain::key::KeySecret;
use tintype_store::{NewKey, sqlite};
use tintype_system::clock::Clock;

use crate::rigs::binary::Server;
use crate::rigs::browser::Browser;
use crate::rigs::packages::{npm, python, run};
use crate::tidy::root;

/// Accounts with 100 credits that a program needs, so that what one of its parts does is not seen by the others.
const ACCOUNTS: usize = 12;

/// A server, the keys of an account without credits and of [`ACCOUNTS`] with 100, and a folder for images.
struct Workplace {
    server: Server,
    keys: Vec<String>,
    folder: TempDir,
    _data: TempDir,
}

impl Workplace {
    fn start() -> Self {
        let (data, folder) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let keys = runtime.block_on(async {
            let store = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a database");
            let mut keys = Vec::new();
            for index in 0..=ACCOUNTS {
                let (name, credits) = (format!("account-{index}"), if index == 0 { 0 } else { 100 });
                let Some(account) = store.create_account(&name, credits).await.expect("a store") else {
                    panic!("{name} is taken")
                };
                let secret = KeySecret::random();
                store.create_key(account.id, NewKey::new(&secret)).await.expect("a store").expect("a key");
                keys.push(secret.reveal().to_owned());
            }
            keys
        });
        let server = Server::start(data.path(), &["--read-rate", "0", "--submit-rate", "0"]);
        Self { server, keys, folder, _data: data }
    }

    /// Runs a program that calls the server; it fails if the client does anything wrong.
    fn run(self, program: &mut Command) {
        let said = run(program.arg(self.server.url()).arg(self.folder.path()).args(&self.keys));
        assert!(said.contains("keys left"), "{said}");
        self.server.stop();
    }
}

/// Copies a folder with the folders in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied)
        } else {
            let _ = std::fs::copy(&path, &copied).expect("a copy");
        }
    }
}

#[test]
fn the_python_client_is_built_and_never_repeats_a_lost_submit() {
    let (tools, folder) = (python(), TempDir::new().expect("a directory"));
    let (sources, built, user) =
        (folder.path().join("sources"), folder.path().join("built"), folder.path().join("user"));
    copy(&root().join("clients/python"), &sources);
    // The source distribution first, and the wheel from it, so that both are complete.
    let build = "import sys; from flit_core.buildapi import build_sdist; build_sdist(sys.argv[1])";
    std::fs::create_dir(&built).expect("a folder");
    run(Command::new(tools.join("python")).args(["-c", build]).arg(&built).current_dir(&sources));
    let flags = ["wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir"];
    run(Command::new(tools.join("pip")).args(flags).arg(&built).arg(built.join("tintype-0.1.0.tar.gz")));

    // A user's environment, which has the packages of the tests and the wheel.
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&user));
    let (program, lookup) = (user.join("bin/python"), "import site; print(site.getsitepackages()[0])");
    let packages = |python: &Path| run(Command::new(python).args(["-c", lookup])).trim().to_owned();
    let link = Path::new(&packages(&program)).join("tests.pth");
    std::fs::write(link, packages(&tools.join("python"))).expect("a file");
    let mut install = Command::new(tools.join("pip"));
    install.arg("--python").arg(&program).args(["install", "--quiet", "--no-index", "--no-deps"]);
    run(install.arg(built.join("tintype-0.1.0-py3-none-any.whl")));

    let calls = root().join("tests/it/clients/tintype_calls.py");
    // The second run needs not read the standard library again.
    let mypy = || {
        let mut mypy = Command::new(tools.join("mypy"));
        mypy.args(["--strict", "--cache-dir"]).arg(folder.path().join("types"));
        mypy.arg("--python-executable").arg(&program);
        mypy
    };
    run(mypy().arg(sources.join("src/tintype")));
    // It reads types of the package only if they are marked as part of it.
    run(mypy().arg(&calls));
    Workplace::start().run(Command::new(&program).arg("-B").arg(calls));
}

#[test]
fn the_typescript_client_is_built_and_never_repeats_a_lost_submit() {
    let (tools, folder) = (npm().join("node_modules"), TempDir::new().expect("a directory"));
    let (sources, user) = (folder.path().join("sources"), folder.path().join("user"));
    let compile = |folder: &Path, flags: &[&str]| {
        let mut compiler = Command::new(tools.join(".bin/tsc"));
        run(compiler.args(flags).arg("--typeRoots").arg(tools.join("@types")).current_dir(folder));
    };
    copy(&root().join("clients/typescript"), &sources);
    std::os::unix::fs::symlink(&tools, sources.join("node_modules")).expect("a link");
    run(Command::new("npm").args(["pack", "--loglevel=error"]).current_dir(&sources));
    // The parts for browsers know nothing of Node.js.
    let settings = json!({
        "extends": "./tsconfig.json", "compilerOptions": { "types": [], "noEmit": true },
        "include": [], "files": ["src/index.ts"],
    });
    std::fs::write(sources.join("browser.json"), settings.to_string()).expect("a file");
    compile(&sources, &["--project", "browser.json"]);

    std::fs::create_dir(&user).expect("a folder");
    std::fs::write(user.join("package.json"), r#"{"type": "module", "private": true}"#).expect("a file");
    let flags = ["install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    run(Command::new("npm").args(flags).arg(sources.join("tintype-0.1.0.tgz")).current_dir(&user));
    std::fs::copy(root().join("tests/it/clients/tintype_calls.ts"), user.join("calls.ts")).expect("a copy");
    let strict = ["--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--noUnusedLocals"];
    let target = ["--target", "ES2022", "--module", "NodeNext", "--types", "node", "calls.ts"];
    compile(&user, &[&strict[..], &target].concat());
    Workplace::start().run(Command::new("node").arg(user.join("calls.js")));
    a_page_of_another_origin_uses_it(&sources);
}

/// A page in a browser generates an image, and finds the task of a submit whose answer was lost.
fn a_page_of_another_origin_uses_it(package: &Path) {
    // `setpriv`, from util-linux, ends the server of files with this test.
    let mut pages = Command::new("setpriv");
    pages.args(["--pdeathsig", "KILL", "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]);
    pages.current_dir(package);
    let mut pages = pages.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a server of files");
    let mut said = String::new();
    BufReader::new(pages.stdout.as_mut().expect("a pipe")).read_line(&mut said).expect("its address");
    let origin = said.split(['(', ')']).nth(1).expect("a URL").trim_end_matches('/').to_owned();
    let (_data, server, key) = Server::install(&["--cors-origin", &origin]);
    let mut browser = Browser::start();
    browser.open(&format!("{origin}/package.json"));
    let script = r#"(async () => {
        const { Tintype } = await import("/dist/index.js");
        let loses = false;
        const fetch = async (url, init) => {
            const answer = await window.fetch(url, init);
            if (loses && init.method === "POST") throw new TypeError("lost");
            return answer;
        };
        const options = { baseUrl: URL_OF_SERVER, apiKey: KEY, fetch };
        const client = new Tintype(options);
        const { task, images } = await client.generate("a boat", { n: 2 });
        loses = true;
        const wait = window.setTimeout;
        window.setTimeout = (call, ms) => wait(call, ms === 7000 ? 0 : ms);
        const found = await client.submit("a boat");
        const listed = [];
        for await (const { taskId } of client.list()) listed.push(taskId);
        const wrong = await new Tintype({ ...options, apiKey: "tt_wrong" }).credits().catch((error) => error.name);
        const bitmaps = await Promise.all(images.map((image) => createImageBitmap(new Blob([image]))));
        return { bitmaps: bitmaps.length, right: listed.join() === [found.taskId, task.taskId].join(), wrong };
    })()"#;
    let script = script.replace("URL_OF_SERVER", &format!("{:?}", server.url())).replace("KEY", &format!("{key:?}"));
    let seen = browser.evaluate(&script);
    assert_eq!(seen, json!({ "bitmaps": 2, "right": true, "wrong": "Unauthorized" }));
    server.stop();
    pages.kill().and_then(|()| pages.wait()).expect("a child");
}

/// A package has its own copy of the licence and of the version, because it is distributed without the repository.
#[test]
fn the_packages_have_the_licence_and_the_version_of_the_repository() {
    let read =
        |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    for package in ["clients/python", "clients/typescript", "crates/client"] {
        assert_eq!(read(&format!("{package}/LICENSE")), read("LICENSE"), "{package}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(read("clients/python/src/tintype/_version.py").trim(), format!("__version__ = \"{version}\""));
    let json = |path| serde_json::from_str::<Value>(&read(path)).expect("JSON");
    let (package, tests) = (json("clients/typescript/package.json"), json("tests/it/clients/package.json"));
    assert_eq!(package["version"], version);
    for (name, tool) in package["devDependencies"].as_object().expect("tools") {
        assert_eq!(tool, &tests["dependencies"][name], "the tests build it with {name} of their lock");
    }
}
