//! The child on ONNX Runtime, and libraries that cannot be used.

use std::os::unix::fs::symlink;
use std::process::Command;

use tintype_engines::models::library::version;

use super::*;
use crate::rigs::binary::{Ran as _, Run as _};

/// Puts a file where `tintype engine library` puts the library for a device.
fn put(data: &Path, device: &str, library: &Path) {
    let folder = data.join(format!("libraries/onnxruntime-{}-{device}", version()));
    fs::create_dir_all(&folder).expect("a folder");
    symlink(library, folder.join(format!("libonnxruntime.so.{}", version()))).expect("a link");
}

/// A data directory with ONNX Runtime for the processor.
fn with_library() -> TempDir {
    let data = TempDir::new().expect("a directory");
    put(data.path(), "cpu", &library::library());
    data
}

fn assert_close(found: &Picture, expected: &Picture) {
    let apart = found.as_rgb().iter().zip(expected.as_rgb()).map(|(a, b)| a.abs_diff(*b));
    assert!(found.as_rgb().len() == expected.as_rgb().len() && apart.max() <= Some(1), "numbers may round either way");
}

#[tokio::test]
async fn a_child_renders_on_onnx_runtime_and_is_confined() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::in_data(with_library(), &model, &["--engine-runtime", "onnxruntime"]).started().await;
    let pictures = rig.render(brief("a boat", &[7, 8])).await.expect("pictures");
    for (picture, seed) in pictures.iter().zip([7, 8]) {
        assert_close(picture, &expected(&model, "a boat", seed));
    }
    let measured = rig.engine.measured().expect("measured");
    assert!(measured.processor.contains(&format!("onnxruntime {}", version())), "{measured:?}");
    assert!(rig.info.description.contains("by ONNX Runtime"), "{}", rig.info.description);
    let id = processes(&model)[0].as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("a process");
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
}

#[tokio::test]
async fn models_in_8_and_16_bits_render_almost_the_same_as_in_32_bits() {
    let (_directory, sd15) = copy_of("sd15");
    for (name, runtime, precision, bits) in [
        ("sd15", "rten", "w8a8", "8 bits"),
        ("sd15", "onnxruntime", "w8a8", "8 bits"),
        ("lcm", "onnxruntime", "f16", "16 bits"),
    ] {
        let (data, mut used) = (with_library(), model(name));
        if precision == "w8a8" {
            install(data.path(), &sd15);
            used = name.into();
        }
        let flags = ["--engine-runtime", runtime, "--engine-precision", precision];
        let rig = Rig::in_data(data, &used, &flags).started().await;
        let pictures = rig.render(brief("a boat", &[7])).await.expect("a picture");
        let wide = expected(&model(name), "a boat", 7);
        let gaps = pictures[0].as_rgb().iter().zip(wide.as_rgb()).map(|(a, b)| f64::from(a.abs_diff(*b)));
        let mean = gaps.sum::<f64>() / wide.as_rgb().len() as f64;
        // All layers of the model in 8 bits are so small that they stay in 32 bits.
        let most = if precision == "w8a8" { 0.05 } else { 1.0 };
        assert!(mean < most && (mean > 0.0 || precision == "w8a8"), "{name}: {mean}");
        let processor = rig.engine.measured().expect("measured").processor;
        assert!(processor.contains(runtime) && processor.ends_with(&format!(", {bits}")), "{processor}");
    }
}

/// The complaint of `engine check` about a data directory.
fn complaint(data: &TempDir, runtime: &str) -> String {
    let model = model("lcm");
    let flags = ["--model", model.to_str().expect("text"), "--engine-runtime", runtime];
    let output = run(data.path(), [&["engine", "check", "diffusion"][..], &flags].concat());
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
    assert!(!said.contains("panicked") && !said.contains("signal"), "{said}");
    said
}

#[test]
fn a_library_that_is_missing_is_named_with_the_command_that_fetches_it() {
    let data = TempDir::new().expect("a directory");
    for (runtime, command) in [
        ("onnxruntime", "`tintype engine library`"),
        ("onnxruntime:cuda", "`tintype engine library --cuda`"),
        ("onnxruntime:tensorrt", "`tintype engine library --cuda`"),
    ] {
        let said = complaint(&data, runtime);
        assert!(said.contains(command) && said.contains(version()), "{said}");
    }
    assert!(complaint(&data, "onnxruntime:coreml").contains("no such library for this system"));
}

#[test]
fn a_library_that_cannot_be_used_is_named_with_the_reason() {
    let files = TempDir::new().expect("a directory");
    let complaint_of = |library: &Path| {
        let data = TempDir::new().expect("a directory");
        put(data.path(), "cpu", library);
        complaint(&data, "onnxruntime")
    };
    let garbage = files.path().join("garbage.so");
    fs::write(&garbage, "no library").expect("a file");
    let said = complaint_of(&garbage);
    assert!(said.contains("is not a usable ONNX Runtime") && said.contains("too short"), "{said}");
    assert!(said.contains("`tintype engine library`") && !said.contains("--model"), "{said}");
    let other = compiled(files.path(), "other", "int other(void) { return 1; }");
    assert!(complaint_of(&other).contains("OrtGetApiBase"));
    let old = compiled(
        files.path(),
        "old",
        r#"static const void *api(unsigned version) { return 0; }
           static const char *version(void) { return "1.16.3"; }
           static const struct { const void *(*api)(unsigned); const char *(*version)(void); } base = { api, version };
           const void *OrtGetApiBase(void) { return &base; }"#,
    );
    let said = complaint_of(&old);
    assert!(said.contains("1.16.3") && said.contains("1.31 or later"), "{said}");
}

/// A shared library of a line of C.
fn compiled(folder: &Path, name: &str, code: &str) -> PathBuf {
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    fs::write(&source, code).expect("a file");
    Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).ran().succeeded();
    library
}

#[test]
fn a_library_without_the_device_is_named_with_the_device() {
    let data = TempDir::new().expect("a directory");
    put(data.path(), "cuda", &library::library());
    assert!(complaint(&data, "onnxruntime:cuda").contains("was built without CUDA"));
    assert!(complaint(&data, "onnxruntime:tensorrt").contains("was built without TensorRT"));
}
