//! Workflows as ComfyUI exports them, and hostile ones.

use serde_json::{Value, json};

use super::*;

fn node(class: &str, inputs: Value) -> Value {
    json!({ "class_type": class, "inputs": inputs, "_meta": { "title": class } })
}

fn found(graph: &Value) -> Found {
    of(&Graph::parse(&graph.to_string(), "the file").expect("a workflow"))
}

/// Each entry as `kind key ids`.
fn lines(found: &Found) -> Vec<String> {
    let line = |entry: &NodeInputs| format!("{} {} {}", entry.kind, entry.key, entry.node_ids.join(","));
    found.nodes.iter().map(line).collect()
}

fn missing(found: &Found) -> Vec<&str> {
    found.missing.iter().map(|missing| missing.kind).collect()
}

/// A checkpoint loader (4), two prompts (6, 7), an empty latent (5), a sampler (3), and a node that saves the picture.
fn default_workflow() -> Value {
    json!({
        "3": node("KSampler", json!({
            "seed": 8566257, "steps": 20, "cfg": 8, "sampler_name": "euler", "scheduler": "normal", "denoise": 1,
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0] })),
        "4": node("CheckpointLoaderSimple", json!({ "ckpt_name": "v1-5-pruned-emaonly.safetensors" })),
        "5": node("EmptyLatentImage", json!({ "width": 512, "height": 512, "batch_size": 1 })),
        "6": node("CLIPTextEncode", json!({ "text": "a bottle", "clip": ["4", 1] })),
        "7": node("CLIPTextEncode", json!({ "text": "watermark", "clip": ["4", 1] })),
        "8": node("VAEDecode", json!({ "samples": ["3", 0], "vae": ["4", 2] })),
        "9": node("SaveImage", json!({ "filename_prefix": "ComfyUI", "images": ["8", 0] })),
    })
}

#[test]
fn the_default_workflow() {
    let found = found(&default_workflow());
    let expected = [
        "prompt text 6",
        "seed seed 3",
        "negative_prompt text 7",
        "width width 5",
        "height height 5",
        "n batch_size 5",
        "steps steps 3",
        "guidance_scale cfg 3",
        "model ckpt_name 4",
    ];
    assert_eq!(lines(&found), expected);
    assert_eq!(missing(&found), ["strength", "image", "mask"], "denoise is no strength without a picture");
    assert!(found.missing.iter().all(|missing| !missing.required) && found.notes.is_empty());
}

#[test]
fn sdxl_with_a_refiner() {
    let encoder = |text: &str| {
        node(
            "CLIPTextEncodeSDXL",
            json!({
            "width": 4096, "height": 4096, "crop_w": 0, "crop_h": 0, "target_width": 1024, "target_height": 1024,
            "text_g": text, "text_l": text, "clip": ["4", 1] }),
        )
    };
    let refined = |text: &str| {
        let inputs = json!({ "ascore": 6, "width": 1024, "height": 1024, "text": text, "clip": ["12", 1] });
        node("CLIPTextEncodeSDXLRefiner", inputs)
    };
    let sampler = |model: &str, prompts: [&str; 2], latent: &str, noise: &str, range: [u32; 2]| {
        node(
            "KSamplerAdvanced",
            json!({
            "add_noise": noise, "noise_seed": 7, "steps": 25, "cfg": 8, "sampler_name": "euler", "scheduler": "normal",
            "start_at_step": range[0], "end_at_step": range[1], "return_with_leftover_noise": "enable",
            "model": [model, 0], "positive": [prompts[0], 0], "negative": [prompts[1], 0], "latent_image": [latent, 0] }),
        )
    };
    let mut graph = json!({
        "4": node("CheckpointLoaderSimple", json!({ "ckpt_name": "sd_xl_base_1.0.safetensors" })),
        "12": node("CheckpointLoaderSimple", json!({ "ckpt_name": "sd_xl_refiner_1.0.safetensors" })),
        "5": node("EmptyLatentImage", json!({ "width": 1024, "height": 1024, "batch_size": 1 })),
        "6": encoder("a bottle"),
        "7": encoder("watermark"),
        "15": refined("a bottle"),
        "16": refined("watermark"),
        "10": sampler("4", ["6", "7"], "5", "enable", [0, 20]),
        "11": sampler("12", ["15", "16"], "10", "disable", [20, 10000]),
        "17": node("VAEDecode", json!({ "samples": ["11", 0], "vae": ["12", 2] })),
        "19": node("SaveImage", json!({ "filename_prefix": "ComfyUI", "images": ["17", 0] })),
    });
    let expected = [
        "prompt text 15",
        "prompt text_g 6",
        "prompt text_l 6",
        "seed noise_seed 11,10",
        "negative_prompt text 16",
        "negative_prompt text_g 7",
        "negative_prompt text_l 7",
        "width width 5,6,7",
        "width target_width 6,7",
        "height height 5,6,7",
        "height target_height 6,7",
        "n batch_size 5",
        "guidance_scale cfg 11,10",
        "model ckpt_name 4",
    ];
    let refining = found(&graph);
    assert_eq!(lines(&refining), expected);
    assert_eq!(refining.notes.len(), 2, "{:?}", refining.notes);
    assert!(refining.notes[0].contains("--model replaces that of node 4, and not that of node 12"));
    // With a single sampler, its steps can be set.
    graph["17"]["inputs"]["samples"] = json!(["10", 0]);
    graph["10"]["inputs"]["end_at_step"] = 10_000.into();
    let alone = found(&graph);
    assert!(lines(&alone).contains(&"steps steps 10".to_owned()) && alone.notes.is_empty(), "{:?}", lines(&alone));
}

#[test]
fn flux_1_with_its_own_sampler_a_lora_and_a_reroute() {
    let graph = json!({
        "6": node("CLIPTextEncode", json!({ "text": ["40", 0], "clip": ["38", 1] })),
        "10": node("VAELoader", json!({ "vae_name": "ae.safetensors" })),
        "11": node("DualCLIPLoader", json!({
            "clip_name1": "t5xxl_fp16.safetensors", "clip_name2": "clip_l.safetensors", "type": "flux" })),
        "12": node("UNETLoader", json!({ "unet_name": "flux1-dev.safetensors", "weight_dtype": "default" })),
        "38": node("LoraLoader", json!({
            "lora_name": "style.safetensors", "strength_model": 1, "strength_clip": 1, "model": ["12", 0],
            "clip": ["11", 0] })),
        "40": node("PrimitiveStringMultiline", json!({ "value": "a fox" })),
        "41": node("Reroute", json!({ "": ["26", 0] })),
        "42": node("PrimitiveInt", json!({ "value": 1024 })),
        "13": node("SamplerCustomAdvanced", json!({
            "noise": ["25", 0], "guider": ["22", 0], "sampler": ["16", 0], "sigmas": ["17", 0],
            "latent_image": ["27", 0] })),
        "16": node("KSamplerSelect", json!({ "sampler_name": "euler" })),
        "17": node("BasicScheduler", json!({
            "scheduler": "simple", "steps": 20, "denoise": 1, "model": ["30", 0] })),
        "22": node("BasicGuider", json!({ "model": ["30", 0], "conditioning": ["41", 0] })),
        "25": node("RandomNoise", json!({ "noise_seed": 219670278747233_u64 })),
        "26": node("FluxGuidance", json!({ "guidance": 3.5, "conditioning": ["6", 0] })),
        "27": node("EmptySD3LatentImage", json!({ "width": ["42", 0], "height": 768, "batch_size": 1 })),
        "30": node("ModelSamplingFlux", json!({
            "max_shift": 1.15, "base_shift": 0.5, "width": ["42", 0], "height": 768, "model": ["38", 0] })),
        "8": node("VAEDecode", json!({ "samples": ["13", 0], "vae": ["10", 0] })),
        "9": node("SaveImage", json!({ "filename_prefix": "ComfyUI", "images": ["8", 0] })),
    });
    let found = found(&graph);
    let expected = [
        "prompt value 40",
        "seed noise_seed 25",
        "width value 42",
        "height height 27,30",
        "n batch_size 27",
        "steps steps 17",
        "guidance_scale guidance 26",
        "model unet_name 12",
    ];
    assert_eq!(lines(&found), expected);
    assert_eq!(missing(&found), ["negative_prompt", "strength", "image", "mask"]);
}

/// FLUX.2 \[klein\] with two references, from a subgraph, whose node ids have two numbers.
#[test]
fn flux_2_klein_with_references() {
    let reference = |conditioning: &str, latent: &str| {
        node("ReferenceLatent", json!({ "conditioning": [conditioning, 0], "latent": [latent, 0] }))
    };
    let encode = |image: &str| node("VAEEncode", json!({ "pixels": [image, 0], "vae": ["75:72", 0] }));
    let graph = json!({
        "9": node("SaveImage", json!({ "filename_prefix": "Flux2-Klein", "images": ["75:65", 0] })),
        "76": node("LoadImage", json!({ "image": "one.png" })),
        "81": node("LoadImage", json!({ "image": "two.png" })),
        "75:61": node("KSamplerSelect", json!({ "sampler_name": "euler" })),
        "75:62": node("Flux2Scheduler", json!({ "steps": 4, "width": ["75:68", 0], "height": ["75:69", 0] })),
        "75:63": node("CFGGuider", json!({
            "cfg": 1, "model": ["75:70", 0], "positive": ["75:79", 0], "negative": ["75:83", 0] })),
        "75:64": node("SamplerCustomAdvanced", json!({
            "noise": ["75:73", 0], "guider": ["75:63", 0], "sampler": ["75:61", 0], "sigmas": ["75:62", 0],
            "latent_image": ["75:66", 0] })),
        "75:65": node("VAEDecode", json!({ "samples": ["75:64", 0], "vae": ["75:72", 0] })),
        "75:66": node("EmptyFlux2LatentImage", json!({
            "width": ["75:68", 0], "height": ["75:69", 0], "batch_size": 1 })),
        "75:68": node("PrimitiveInt", json!({ "value": 1024 })),
        "75:69": node("PrimitiveInt", json!({ "value": 1024 })),
        "75:70": node("UNETLoader", json!({ "unet_name": "flux-2-klein-4b.safetensors", "weight_dtype": "default" })),
        "75:71": node("CLIPLoader", json!({ "clip_name": "qwen_3_4b.safetensors", "type": "flux2" })),
        "75:72": node("VAELoader", json!({ "vae_name": "flux2-vae.safetensors" })),
        "75:73": node("RandomNoise", json!({ "noise_seed": 432262096973490_u64 })),
        "75:74": node("CLIPTextEncode", json!({ "text": "a hedgehog", "clip": ["75:71", 0] })),
        "75:77": reference("75:74", "75:90"),
        "75:79": reference("75:77", "75:91"),
        "75:82": node("ConditioningZeroOut", json!({ "conditioning": ["75:74", 0] })),
        "75:83": reference("75:82", "75:90"),
        "75:90": encode("76"),
        "75:91": encode("81"),
    });
    let mut graph = graph;
    let expected = [
        "prompt text 75:74",
        "seed noise_seed 75:73",
        "width value 75:68",
        "height value 75:69",
        "n batch_size 75:66",
        "steps steps 75:62",
        "guidance_scale cfg 75:63",
        "image image 76,81",
        "model unet_name 75:70",
    ];
    assert_eq!(lines(&found(&graph)), expected);
    // A size taken from a reference isn't set.
    graph["75:68"] = node("GetImageSize", json!({ "image": ["76", 0] }));
    graph["75:69"] = graph["75:68"].clone();
    let sized = found(&graph);
    assert!(["width", "height", "strength"].iter().all(|kind| missing(&sized).contains(kind)), "{:?}", lines(&sized));
}

#[test]
fn z_image_turbo_with_a_fixed_addition_to_the_prompt() {
    let graph = json!({
        "9": node("SaveImage", json!({ "filename_prefix": "z-image-turbo", "images": ["57:8", 0] })),
        "57:30": node("CLIPLoader", json!({ "clip_name": "qwen_3_4b.safetensors", "type": "lumina2" })),
        "57:29": node("VAELoader", json!({ "vae_name": "ae.safetensors" })),
        "57:33": node("ConditioningZeroOut", json!({ "conditioning": ["57:27", 0] })),
        "57:28": node("UNETLoader", json!({ "unet_name": "z_image_turbo_bf16.safetensors" })),
        "57:11": node("ModelSamplingAuraFlow", json!({ "shift": 3, "model": ["57:28", 0] })),
        "57:27": node("CLIPTextEncode", json!({ "text": "harbor boats", "clip": ["57:30", 0] })),
        "57:62": node("CLIPTextEncode", json!({ "text": "family friendly", "clip": ["57:30", 0] })),
        "57:63": node("ConditioningCombine", json!({ "conditioning_1": ["57:27", 0], "conditioning_2": ["57:62", 0] })),
        "57:13": node("EmptySD3LatentImage", json!({ "width": 1024, "height": 1024, "batch_size": 1 })),
        "57:3": node("KSampler", json!({
            "seed": 0, "steps": 8, "cfg": 1, "sampler_name": "res_multistep", "scheduler": "simple", "denoise": 1,
            "model": ["57:11", 0], "positive": ["57:63", 0], "negative": ["57:33", 0], "latent_image": ["57:13", 0] })),
        "57:8": node("VAEDecode", json!({ "samples": ["57:3", 0], "vae": ["57:29", 0] })),
    });
    let found = found(&graph);
    assert_eq!(lines(&found)[..2], ["prompt text 57:27", "seed seed 57:3"]);
    assert_eq!(missing(&found), ["negative_prompt", "strength", "image", "mask"]);
    assert_eq!(found.notes, ["the prompt goes to node 57:27; node 57:62 keeps its text"]);
}

#[test]
fn inpainting() {
    let mut graph = default_workflow();
    graph["10"] = node("LoadImage", json!({ "image": "bench.png", "upload": "image" }));
    graph["11"] = node("LoadImageMask", json!({ "image": "mask.png", "channel": "red" }));
    graph["12"] = node("GrowMask", json!({ "mask": ["11", 0], "expand": 4, "tapered_corners": true }));
    graph["13"] = node(
        "VAEEncodeForInpaint",
        json!({
        "grow_mask_by": 6, "pixels": ["10", 0], "vae": ["4", 2], "mask": ["12", 0] }),
    );
    graph["3"]["inputs"]["latent_image"] = json!(["13", 0]);
    let erased = found(&graph);
    assert_eq!(lines(&erased)[5..], ["image image 10", "mask image 11", "model ckpt_name 4"]);
    assert_eq!(missing(&erased), ["width", "height", "n", "strength"], "the sampler begins with noise in the mask");

    // A mask in the colours of a separate picture.
    graph["11"] = node("LoadImage", json!({ "image": "mask.png" }));
    graph["12"] = node("ImageToMask", json!({ "image": ["17", 0], "channel": "red" }));
    graph["17"] = node("ImageBlur", json!({ "image": ["11", 0], "blur_radius": 4, "sigma": 1 }));
    graph["13"] = node("SetLatentNoiseMask", json!({ "samples": ["14", 0], "mask": ["12", 0] }));
    graph["14"] = node("VAEEncode", json!({ "pixels": ["15", 0], "vae": ["4", 2] }));
    graph["15"] = node(
        "ImageScale",
        json!({
        "upscale_method": "lanczos", "width": 768, "height": 768, "crop": "center", "image": ["10", 0] }),
    );
    let masked = found(&graph);
    let expected = [
        "width width 15",
        "height height 15",
        "steps steps 3",
        "guidance_scale cfg 3",
        "strength denoise 3",
        "image image 10",
        "mask image 11",
        "model ckpt_name 4",
    ];
    assert_eq!(lines(&masked)[3..], expected);

    // Both prompts pass through a node that takes the picture and its mask, with one output for each prompt.
    graph["13"] = node(
        "InpaintModelConditioning",
        json!({
        "noise_mask": true, "positive": ["6", 0], "negative": ["7", 0], "vae": ["4", 2], "pixels": ["10", 0],
        "mask": ["10", 1] }),
    );
    for (input, output) in [("positive", 0), ("negative", 1), ("latent_image", 2)] {
        graph["3"]["inputs"][input] = json!(["13", output]);
    }
    let both = lines(&found(&graph));
    assert_eq!(both[..3], ["prompt text 6", "seed seed 3", "negative_prompt text 7"]);
    assert_eq!(both[both.len() - 3..], ["image image 10", "mask image 10", "model ckpt_name 4"]);

    // A mask that another node finds in the picture, or makes for it, isn't the caller's.
    graph["13"]["inputs"]["mask"] = json!(["16", 0]);
    graph["16"] = node("CLIPSegMasking", json!({ "image": ["10", 0], "text": "the bench" }));
    let sought = found(&graph);
    graph["13"]["inputs"]["mask"] = json!(["18", 1]);
    graph["18"] = node("ImagePadForOutpaint", json!({ "image": ["10", 0], "left": 64, "feathering": 40 }));
    assert_eq!(lines(&found(&graph)), lines(&sought));
    assert!(missing(&sought).contains(&"mask") && lines(&sought).contains(&"image image 10".to_owned()));
}

#[test]
fn qwen_image_edit() {
    let encoder = |prompt: &str| {
        node(
            "TextEncodeQwenImageEditPlus",
            json!({
            "prompt": prompt, "clip": ["38", 0], "vae": ["39", 0], "image1": ["117", 0], "image2": ["106", 0] }),
        )
    };
    let graph = json!({
        "3": node("KSampler", json!({
            "seed": 1, "steps": 20, "cfg": 2.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1,
            "model": ["75", 0], "positive": ["111", 0], "negative": ["110", 0], "latent_image": ["88", 0] })),
        "8": node("VAEDecode", json!({ "samples": ["3", 0], "vae": ["39", 0] })),
        "37": node("UNETLoader", json!({ "unet_name": "qwen_image_edit_2509_fp8_e4m3fn.safetensors" })),
        "38": node("CLIPLoader", json!({ "clip_name": "qwen_2.5_vl_7b_fp8_scaled.safetensors", "type": "qwen_image" })),
        "39": node("VAELoader", json!({ "vae_name": "qwen_image_vae.safetensors" })),
        "60": node("SaveImage", json!({ "filename_prefix": "ComfyUI", "images": ["8", 0] })),
        "66": node("ModelSamplingAuraFlow", json!({ "shift": 3, "model": ["37", 0] })),
        "75": node("CFGNorm", json!({ "strength": 1, "model": ["66", 0] })),
        "78": node("LoadImage", json!({ "image": "one.png" })),
        "88": node("VAEEncode", json!({ "pixels": ["117", 0], "vae": ["39", 0] })),
        "106": node("LoadImage", json!({ "image": "two.png" })),
        "110": encoder(""),
        "111": encoder("put the hat on the cat"),
        "117": node("FluxKontextImageScale", json!({ "image": ["78", 0] })),
    });
    let expected = [
        "prompt prompt 111",
        "seed seed 3",
        "negative_prompt prompt 110",
        "steps steps 3",
        "guidance_scale cfg 3",
        "strength denoise 3",
        "image image 78,106",
        "model unet_name 37",
    ];
    assert_eq!(lines(&found(&graph)), expected);
}

#[test]
fn a_second_pass_keeps_its_strength_and_a_leftover_sampler_is_none() {
    let mut graph = default_workflow();
    graph["20"] = node("LatentUpscaleBy", json!({ "samples": ["3", 0], "upscale_method": "bislerp", "scale_by": 1.5 }));
    graph["21"] = graph["3"].clone();
    graph["21"]["inputs"]["latent_image"] = json!(["20", 0]);
    graph["21"]["inputs"]["denoise"] = json!(0.5);
    graph["8"]["inputs"]["samples"] = json!(["21", 0]);
    graph["30"] = graph["3"].clone();
    let found = lines(&found(&graph));
    assert!(found.contains(&"seed seed 21,3".to_owned()) && found.contains(&"steps steps 3".to_owned()), "{found:?}");
    assert!(!found.iter().any(|line| line.starts_with("strength")), "{found:?}");
}

#[test]
fn a_control_net_with_a_sampler_of_its_own_for_the_depth() {
    let mut graph = default_workflow();
    graph["10"] = node("LoadImage", json!({ "image": "room.png" }));
    graph["11"] = node("VAEEncode", json!({ "pixels": ["10", 0], "vae": ["4", 2] }));
    graph["12"] = node("LotusConditioning", json!({}));
    graph["13"] = node("BasicGuider", json!({ "model": ["19", 0], "conditioning": ["12", 0] }));
    graph["14"] = node(
        "SamplerCustomAdvanced",
        json!({
        "noise": ["18", 0], "guider": ["13", 0], "sampler": ["16", 0], "sigmas": ["17", 0], "latent_image": ["11", 0] }),
    );
    graph["15"] = node("VAEDecode", json!({ "samples": ["14", 0], "vae": ["4", 2] }));
    graph["16"] = node("KSamplerSelect", json!({ "sampler_name": "euler" }));
    graph["17"] =
        node("BasicScheduler", json!({ "model": ["19", 0], "steps": 1, "denoise": 1, "scheduler": "normal" }));
    graph["18"] = node("RandomNoise", json!({ "noise_seed": 1 }));
    graph["19"] = node("UNETLoader", json!({ "unet_name": "lotus-depth-d-v1-1.safetensors" }));
    graph["20"] = node(
        "ControlNetApplyAdvanced",
        json!({
        "positive": ["6", 0], "negative": ["7", 0], "control_net": ["21", 0], "image": ["15", 0], "strength": 1,
        "start_percent": 0, "end_percent": 1 }),
    );
    graph["21"] = node("ControlNetLoader", json!({ "control_net_name": "depth.safetensors" }));
    graph["3"]["inputs"]["positive"] = json!(["20", 0]);
    graph["3"]["inputs"]["negative"] = json!(["20", 1]);
    // A number for another input of the latent doesn't count as a picture size.
    graph["5"]["inputs"]["batch_size"] = json!(["22", 2]);
    graph["22"] = node("GetImageSize", json!({ "image": ["15", 0] }));
    let mut expected = lines(&found(&default_workflow()));
    expected.insert(8, "image image 10".into());
    expected.remove(5);
    assert_eq!(lines(&found(&graph)), expected);
}

#[test]
fn a_switch_passes_on_what_it_chooses() {
    let mut graph = default_workflow();
    let switch = |on_false: Value, on_true: Value| {
        node("ComfySwitchNode", json!({ "switch": ["20", 0], "on_false": on_false, "on_true": on_true }))
    };
    graph["20"] = node("PrimitiveBoolean", json!({ "value": false }));
    graph["21"] = switch(json!(["4", 0]), json!(["22", 0]));
    graph["22"] = node("LoraLoaderModelOnly", json!({ "lora_name": "fast.safetensors", "model": ["30", 0] }));
    graph["23"] = switch(json!(["24", 0]), json!(4));
    graph["24"] = node("PrimitiveInt", json!({ "value": 50 }));
    graph["25"] = switch(json!(["6", 0]), json!(["7", 0]));
    graph["30"] = node("UNETLoader", json!({ "unet_name": "other.safetensors" }));
    graph["3"]["inputs"]["model"] = json!(["21", 0]);
    graph["3"]["inputs"]["steps"] = json!(["23", 0]);
    graph["3"]["inputs"]["positive"] = json!(["25", 0]);
    let off = lines(&found(&graph));
    for line in ["prompt text 6", "steps value 24", "model ckpt_name 4"] {
        assert!(off.contains(&line.to_owned()), "{off:?}");
    }
    graph["20"]["inputs"]["value"] = true.into();
    let on = lines(&found(&graph));
    for line in ["prompt text 7", "steps on_true 23", "model unet_name 30"] {
        assert!(on.contains(&line.to_owned()), "{on:?}");
    }
}

#[test]
fn a_node_that_does_everything() {
    let graph = json!({
        "1": node("TintypeSteps", json!({ "text": "", "width": 512, "height": 512, "seed": 0, "steps": 4 })),
        "9": node("SaveImage", json!({ "images": ["1", 0], "filename_prefix": "a" })),
    });
    let expected = ["prompt text 1", "seed seed 1", "width width 1", "height height 1", "steps steps 1"];
    assert_eq!(lines(&found(&graph)), expected);
    let nothing = found(&json!({ "9": node("SaveImage", json!({ "images": ["1", 0] })) }));
    assert!(nothing.nodes.is_empty() && nothing.missing[..2].iter().all(|missing| missing.required));
    // A computed number or text cannot be set.
    let mut graph = default_workflow();
    graph["5"]["inputs"]["width"] = json!(["20", 0]);
    graph["20"] = node("MathExpression", json!({ "expression": "a * 2", "a": ["21", 0] }));
    graph["21"] = node("PrimitiveInt", json!({ "value": 512 }));
    assert!(missing(&found(&graph)).contains(&"width"));
}

#[test]
fn hostile_files_are_refused_or_come_to_an_end() {
    let refused = |text: &str| Graph::parse(text, "the file").expect_err(text);
    for (text, reason) in [
        ("[]", "not a JSON object"),
        (r#"{"nodes": [{"id": 1}], "links": []}"#, "Export (API)"),
        (r#"{"1": "text"}"#, "node \"1\" has no class_type"),
        (r#"{"1": {"class_type": 3}}"#, "has no class_type"),
        (&"[".repeat(1_000), "not a JSON object"),
        (r#"{"1": {"class_type": "A", "inputs": {"a": ["1", 0]}}}"#, "node \"1\" lead back"),
    ] {
        assert!(refused(text).contains(reason), "{}", refused(text));
    }
    let mut graph = default_workflow();
    graph["4"]["inputs"]["vae"] = json!(["8", 0]);
    assert!(refused(&graph.to_string()).contains("lead back to it"));
    let many: serde_json::Map<_, _> = (0..2_001).map(|id| (id.to_string(), node("A", json!({})))).collect();
    assert!(refused(&Value::from(many).to_string()).contains("at most 2000"));

    // A long chain doesn't exhaust the stack, and many paths through the same nodes take no time.
    let mut graph = default_workflow();
    for id in 100..1_900 {
        let next = if id == 1_899 { "6".to_owned() } else { (id + 1).to_string() };
        let inputs = json!({ "conditioning_1": [next, 0], "conditioning_2": [next, 0] });
        graph[id.to_string()] = node("ConditioningCombine", inputs);
    }
    graph["3"]["inputs"]["positive"] = json!(["100", 0]);
    assert_eq!(lines(&found(&graph))[0], "prompt text 6");
    let mut graph = default_workflow();
    for id in 100..1_900 {
        let next = if id == 1_899 { "6".to_owned() } else { (id + 1).to_string() };
        graph[id.to_string()] = node("ComfySwitchNode", json!({ "switch": [next, 0], "on_true": [next, 0] }));
    }
    graph["3"]["inputs"]["positive"] = json!(["100", 0]);
    graph["3"]["inputs"]["steps"] = json!(["100", 0]);
    graph["3"]["inputs"]["model"] = json!(["100", 0]);
    assert_eq!(lines(&found(&graph))[0], "prompt text 6");
    // Links to missing nodes, and nonsensical inputs.
    for odd in [json!(["99", 0]), json!([1, 2, 3]), json!(null), json!({ "a": 1 }), json!([["3", 0], 0])] {
        let mut graph = default_workflow();
        graph["3"]["inputs"]["positive"] = odd.clone();
        graph["5"]["inputs"] = odd;
        assert!(found(&graph).missing.iter().any(|missing| missing.required));
    }
}
