//! LoRA files of presets, which the child gets by a restart.

use super::*;

/// A LoRA file for a model of the parity tests.
fn lora(name: &str, weight: f64) -> tintype_engine::Lora {
    let path = model("lora").join(name).to_str().expect("text").to_owned();
    tintype_engine::Lora { path, weight }
}

fn with(loras: Vec<tintype_engine::Lora>) -> Brief {
    Brief { settings: RenderSettings { loras, ..RenderSettings::default() }, ..brief("a boat", &[1]) }
}

#[tokio::test]
async fn tasks_with_other_lora_files_wait_for_a_child_that_has_them() {
    let rig = Rig::new(&model("sd15"), &[]).started().await;
    let plain = rig.render(with(Vec::new())).await.expect("pictures");
    let kohya = || with(vec![lora("sd15_kohya.safetensors", 1.0)]);
    let both = || with(vec![lora("sd15_kohya.safetensors", 1.0), lora("sd15_peft.safetensors", 0.5)]);
    let changed = rig.render(kohya()).await.expect("pictures");
    assert_ne!(changed, plain);
    let engine = format!("--engine-lora={}:1", model("lora").join("sd15_kohya.safetensors").display());
    let always = Rig::new(&model("sd15"), &[&engine]).started().await;
    assert_eq!(changed, always.render(with(Vec::new())).await.expect("pictures"), "as the same file of the engine");
    // Tasks that come meanwhile wait, whatever they want.
    let (first, second, third, fourth) =
        tokio::join!(rig.render(with(Vec::new())), rig.render(both()), rig.render(kohya()), rig.render(kohya()));
    assert_eq!(first.expect("pictures"), plain);
    assert_eq!((third.expect("pictures"), fourth.expect("pictures")), (changed.clone(), changed.clone()));
    let second = second.expect("pictures");
    assert!(second != changed && second != plain);
    assert_eq!(second, always.render(with(vec![lora("sd15_peft.safetensors", 0.5)])).await.expect("pictures"));
}

#[tokio::test]
async fn a_task_chooses_how_its_prompt_is_read() {
    let asked = |prompt| {
        let settings = RenderSettings { prompt, ..RenderSettings::default() };
        Brief { settings, ..brief("a (boat:1.9)", &[1]) }
    };
    let syntaxes = [None, Some(PromptSyntax::Plain), Some(PromptSyntax::Weighted)];
    let [plain, weighted] = [&[][..], &["--engine-prompt", "weighted"]].map(|flags| Rig::new(&model("sd15"), flags));
    let [mut pictures, mut others] = [Vec::new(), Vec::new()];
    let (plain, weighted) = (plain.started().await, weighted.started().await);
    for syntax in syntaxes {
        pictures.push(plain.render(asked(syntax)).await.expect("pictures"));
        others.push(weighted.render(asked(syntax)).await.expect("pictures"));
    }
    assert_eq!(pictures[0], pictures[1]);
    assert_ne!(pictures[1], pictures[2]);
    assert_eq!(others, [pictures[2].clone(), pictures[1].clone(), pictures[2].clone()]);
    // A model that reads plain words only reads a task of any preset.
    let klein = Rig::new(&model("klein"), &[]).started().await;
    let read = [klein.render(asked(None)).await, klein.render(asked(Some(PromptSyntax::Weighted))).await];
    let [usual, asked] = read.map(|pictures| pictures.expect("pictures"));
    assert_eq!(usual, asked);
}

#[tokio::test]
async fn lora_files_that_do_not_fit_fail_their_task_and_no_other() {
    let directory = TempDir::new().expect("a directory");
    let damaged = directory.path().join("damaged.safetensors");
    fs::write(&damaged, "no tensors").expect("a file");
    let rig = Rig::new(&model("sd15"), &[]).started().await;
    let bad = [
        lora("klein_kohya.safetensors", 1.0),
        lora("missing.safetensors", 1.0),
        tintype_engine::Lora { path: damaged.to_str().expect("text").to_owned(), weight: 1.0 },
    ];
    for bad in bad {
        let name = Path::new(&bad.path).file_name().expect("a name").to_str().expect("text").to_owned();
        let (refused, plain) = tokio::join!(rig.render(with(vec![bad])), rig.render(with(Vec::new())));
        assert!(matches!(&refused, Err(EngineError::Permanent(why)) if why.contains(&name)), "{refused:?}");
        plain.expect("pictures");
    }
}

#[tokio::test]
async fn a_child_that_starts_after_a_crash_has_no_file_of_a_preset() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("ink.safetensors");
    fs::copy(model("lora").join("sd15_kohya.safetensors"), &path).expect("a file");
    let ink = || with(vec![tintype_engine::Lora { path: path.to_str().expect("text").to_owned(), weight: 1.0 }]);
    let (_copy, model) = copy_of("sd15");
    let rig = Rig::new(&model, &[]).started().await;
    let changed = rig.render(ink()).await.expect("pictures");
    fs::remove_file(&path).expect("removed");
    for process in processes(&model) {
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("killed");
    }
    until(async || rig.engine.probe().await.is_err()).await;
    until(async || rig.engine.probe().await.is_ok()).await;
    let plain = rig.render(with(Vec::new())).await.expect("pictures");
    assert_ne!(plain, changed);
    // It was opened before, so that only the start fails. The next attempt learns why.
    let refused = rig.render(ink()).await;
    assert!(matches!(refused, Err(EngineError::Temporary(_))), "{refused:?}");
    until(async || rig.engine.probe().await.is_ok()).await;
    let refused = rig.render(ink()).await;
    assert!(matches!(&refused, Err(EngineError::Permanent(why)) if why.contains("ink")), "{refused:?}");
    rig.render(with(Vec::new())).await.expect("pictures");
}
