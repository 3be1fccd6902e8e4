"""LoRA files for the tiny models, with the names of several programs, and the pictures with them."""

import json

import torch
from diffusers import Flux2KleinPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline, ZImagePipeline
from safetensors.torch import save_file

import flux2_klein
import lora_forms
import single_file
from shared import draw, empty, numbers, write_json

CONTENTS = "lora_adapter_metadata"


def layers(model, kept):
    """The linear layers and convolutions of a model that `kept` names, by their names."""
    kinds = (torch.nn.Linear, torch.nn.Conv2d)
    return {name: part for name, part in model.named_modules() if isinstance(part, kinds) and kept(name)}


def matrices(layer, rank, generator):
    """Random matrices for a change that is about a third of the layer."""
    inputs, *kernel = layer.weight.shape[1:]
    ones = [1] * len(kernel)
    down = torch.randn((rank, inputs, *kernel), generator=generator) * layer.weight[0].numel() ** -0.5
    up = torch.randn((layer.weight.shape[0], rank, *ones), generator=generator) * 0.3 * rank ** -0.5
    return down.to(torch.float16), up.to(torch.float16)


def kohya(path, parts, rank, alpha, seed):
    """As kohya's scripts write them: `parts` are models by prefixes, with the layers and a change of their names."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for prefix, (model, kept, change) in parts.items():
        for name, layer in layers(model, kept).items():
            down, up = matrices(layer, rank, generator)
            name = f"{prefix}_{change(name)}".replace(".", "_")
            tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
            tensors[f"{name}.alpha"] = torch.tensor(alpha)
    save_file(tensors, path)


def peft(path, parts, rank, alpha, seed, lengths=False):
    """As `diffusers` writes them: the scale is in the header."""
    generator, tensors, notes = torch.Generator().manual_seed(seed), {}, {}
    for part, (model, kept) in parts.items():
        found = layers(model, kept)
        for name, layer in found.items():
            down, up = matrices(layer, rank, generator)
            tensors |= {f"{part}.{name}.lora_A.weight": down, f"{part}.{name}.lora_B.weight": up}
            if lengths:
                rows = layer.weight.flatten(1).norm(dim=1)
                rows = rows * (1 + 0.2 * torch.randn(rows.shape, generator=generator))
                shape = [1, -1, 1, 1] if layer.weight.dim() == 4 else [-1]
                tensors[f"{part}.{name}.lora_magnitude_vector"] = rows.reshape(shape)
        notes |= {f"{part}.r": rank, f"{part}.lora_alpha": alpha, f"{part}.target_modules": sorted(found)}
        # Without it, PEFT leaves the lengths out.
        notes |= {f"{part}.use_dora": True} if lengths else {}
    save_file(tensors, path, metadata={CONTENTS: json.dumps(notes)})


def processors(path, unet, rank, seed):
    """As the first versions of `diffusers` wrote them, without a scale."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for name, layer in layers(unet, lambda name: "up_blocks.1" in name and ".attn2.to_" in name).items():
        down, up = matrices(layer, rank, generator)
        name = name.replace(".attn2.", ".attn2.processor.").removesuffix(".0")
        tensors |= {f"unet.{name}_lora.down.weight": down, f"unet.{name}_lora.up.weight": up}
    save_file(tensors, path)


def text_name(name):
    return name if name.startswith("text_model.") else f"text_model.{name}"


def old_names(unet):
    """The names of a UNet's layers in its first programs."""
    new = [name.removesuffix(".weight") for name in unet.state_dict()]
    old = [name.removeprefix("model.diffusion_model.").removesuffix(".weight") for name in single_file.old_unet(unet)]
    return dict(zip(new, old)).__getitem__


def joined(path, transformer, inputs, others, rank, alpha, seed):
    """The first names of a transformer: `inputs` are three layers in one matrix, `others` have a matrix each."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    parts = dict(transformer.named_modules())
    for name, names in {**inputs, **{name: [other] for name, other in others.items()}}.items():
        pairs = [matrices(parts[other], rank, generator) for other in names]
        tensors |= {f"{name}.lora_down.weight": pairs[0][0], f"{name}.alpha": torch.tensor(alpha)}
        tensors[f"{name}.lora_up.weight"] = torch.cat([up for _, up in pairs])
    save_file(tensors, path)


def record(pipe, folder, model, loras, arguments, embed=None, latent=lambda rows, height, width: rows):
    """The picture with some files, each with its weight. `embed` is given if they may change the text encoders."""
    plain = embed(pipe) if embed else None
    for number, file in enumerate(loras):
        pipe.load_lora_weights(folder / file, adapter_name=f"lora_{number}")
    pipe.set_adapters([f"lora_{number}" for number in range(len(loras))], list(loras.values()))
    texts = any("text" in part for part in pipe.get_list_adapters())
    return drawn_with(pipe, pipe.unload_lora_weights, model, loras, arguments, plain, texts, embed, latent)


def changed(pipe, make, file, weight, model, arguments, embed):
    """The picture with a file of LyCORIS, which `make` writes and applies."""
    plain = embed(pipe)
    modules = make(weight)
    undo = lambda: [module.restore() for module in reversed(modules)]
    return drawn_with(pipe, undo, model, {file: weight}, arguments, plain, True, embed, lambda rows, height, width: rows)


def drawn_with(pipe, undo, model, loras, arguments, plain, texts, embed, latent):
    """The picture with the files that are on."""
    values = {}
    if embed:
        values["embedding"] = embed(pipe)
        assert texts == bool((values["embedding"] - plain).abs().max() > 1e-2), "it has a LoRA, or it has none"
    height, width, seed, steps = arguments.pop("height"), arguments.pop("width"), 23, arguments.pop("steps")
    render = lambda: draw(
        pipe, height=height, width=width, num_inference_steps=steps, generator=torch.Generator().manual_seed(seed),
        **arguments,
    )
    drawn = render()
    undo()
    assert (render()["picture"] - drawn["picture"]).abs().mean() > 1, "the files change the picture"
    values |= {"latent": latent(drawn[f"step.{len(drawn) - 2}"], height, width), "picture": drawn["picture"]}
    case = {"model": model, "loras": [{"file": file, "weight": weight} for file, weight in loras.items()]}
    case |= {"seed": seed, "steps": steps, "width": width, "height": height}
    case |= {"prompt": arguments["prompt"], "negative": "", "guidance": arguments["guidance_scale"]}
    return case | {"values": {name: numbers(value) for name, value in values.items()}}


def usual(out, folder):
    pipe = StableDiffusionPipeline.from_pretrained(out / "sd15", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    blocks = ("down_blocks.0", "up_blocks.2", "mid_block.resnets", "conv_", "time_")
    some = lambda name: ".attn1." not in name and name.startswith(blocks)
    text = lambda name: True
    parts = {"lora_unet": (pipe.unet, some, str), "lora_te": (pipe.text_encoder, text, text_name)}
    kohya(folder / "sd15_kohya.safetensors", parts, 2, 3.0, 91)
    attention = lambda name: ".attn1." in name and "up_blocks.1" not in name or "mid_block" in name
    parts = {"unet": (pipe.unet, attention), "text_encoder": (pipe.text_encoder, lambda name: "self_attn" in name)}
    peft(folder / "sd15_peft.safetensors", parts, 3, 5, 92)
    processors(folder / "sd15_processors.safetensors", pipe.unet, 2, 93)
    embed = lambda pipe: pipe.encode_prompt("a fox", "cpu", 1, False)[0]
    runs = [
        {"sd15_kohya.safetensors": 0.7}, {"sd15_peft.safetensors": 1.0}, {"sd15_processors.safetensors": 0.9},
        {"sd15_kohya.safetensors": 0.7, "sd15_peft.safetensors": -0.4},
    ]
    lengths = lambda name: ".attn2." in name or "resnets.0" in name or name == "conv_out"
    # `diffusers` cannot read one for a text encoder.
    peft(folder / "sd15_dora.safetensors", {"unet": (pipe.unet, lengths)}, 2, 3, 100, lengths=True)
    runs.append({"sd15_dora.safetensors": 1.0})
    arguments = {"prompt": "a fox", "guidance_scale": 3.0, "height": 64, "width": 72, "steps": 3}
    cases = [record(pipe, folder, "sd15", loras, dict(arguments), embed) for loras in runs]
    parts = {"lora_unet": (layers(pipe.unet, some), str), "lora_te": (layers(pipe.text_encoder, text), text_name)}
    for file, weight, seed in [("sd15_lycoris.safetensors", 0.7, 101), ("sd15_lengths.safetensors", 1.0, 102)]:
        make = lambda weight: lora_forms.lycoris(folder / file, parts, weight, seed, "lengths" in file)
        cases.append(changed(pipe, make, file, weight, "sd15", dict(arguments), embed))
    return cases


def xl(out, folder):
    pipe = StableDiffusionXLPipeline.from_pretrained(out / "sdxl", torch_dtype=torch.float32, add_watermarker=False)
    pipe.set_progress_bar_config(disable=True)
    blocks = ("down_blocks.1", "up_blocks.0.resnets", "up_blocks.1", "mid_block.resnets", "conv_", "time_")
    some = lambda name: ".attn1." not in name and name.startswith(blocks) or name == "add_embedding.linear_2"
    text = lambda name: name != "text_projection"
    old = old_names(pipe.unet)
    parts = {"lora_unet": (pipe.unet, some, old), "lora_te1": (pipe.text_encoder, text, text_name)}
    parts |= {"lora_te2": (pipe.text_encoder_2, text, lambda name: name)}
    kohya(folder / "sdxl_kohya.safetensors", parts, 2, 1.0, 94)
    attention = lambda name: ".attn1." in name and "up_blocks.1" in name or "mid_block.attentions" in name
    parts = {"unet": (pipe.unet, attention), "text_encoder_2": (pipe.text_encoder_2, lambda name: "self_attn" in name)}
    peft(folder / "sdxl_peft.safetensors", parts, 3, 5, 95)
    embed = lambda pipe: pipe.encode_prompt("a fox", do_classifier_free_guidance=False)[0]
    arguments = {"prompt": "a fox", "guidance_scale": 0.0, "height": 56, "width": 72, "steps": 3}
    runs = [{"sdxl_kohya.safetensors": 0.7}, {"sdxl_kohya.safetensors": 0.7, "sdxl_peft.safetensors": 0.5}]
    cases = [record(pipe, folder, "sdxl", loras, dict(arguments), embed) for loras in runs]
    pipe, *_ = single_file.sdxl()
    arguments["guidance_scale"] = 2.5
    return cases + [record(pipe, folder, "single/sdxl", runs[0], dict(arguments), embed)]


def klein(out, folder):
    pipe = Flux2KleinPipeline.from_pretrained(out / "klein", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    some = lambda name: name.startswith(("transformer_blocks.1", "single_transformer_blocks.0", "x_embedder"))
    peft(folder / "klein_peft.safetensors", {"transformer": (pipe.transformer, some)}, 2, 3, 96)
    old, new = "lora_unet_double_blocks_0", "transformer_blocks.0"
    inputs = {f"{old}_img_attn_qkv": [f"{new}.attn.to_{part}" for part in "qkv"]}
    inputs |= {f"{old}_txt_attn_qkv": [f"{new}.attn.add_{part}_proj" for part in "qkv"]}
    others = {f"{old}_img_attn_proj": f"{new}.attn.to_out.0", f"{old}_txt_attn_proj": f"{new}.attn.to_add_out"}
    others |= {f"{old}_img_mlp_0": f"{new}.ff.linear_in", f"{old}_txt_mlp_2": f"{new}.ff_context.linear_out"}
    old, new = "lora_unet_single_blocks_0", "single_transformer_blocks.0"
    others |= {f"{old}_linear1": f"{new}.attn.to_qkv_mlp_proj", f"{old}_linear2": f"{new}.attn.to_out"}
    others["lora_unet_txt_in"] = "context_embedder"
    joined(folder / "klein_kohya.safetensors", pipe.transformer, inputs, others, 2, 1.0, 97)
    arguments = {"prompt": "a fox", "guidance_scale": 1.0, "height": 64, "width": 96, "steps": 4}
    runs = [{"klein_peft.safetensors": 0.7}, {"klein_kohya.safetensors": 0.7, "klein_peft.safetensors": -0.5}]
    latent = flux2_klein.rows_as_map
    return [record(pipe, folder, "klein", loras, dict(arguments), latent=latent) for loras in runs]


def z_image(out, folder):
    pipe = ZImagePipeline.from_pretrained(out / "z_image", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    some = lambda name: name.startswith(("layers.1", "noise_refiner.0", "cap_embedder"))
    peft(folder / "z_image_peft.safetensors", {"transformer": (pipe.transformer, some)}, 2, 3, 98)
    old, new = "lora_unet_layers_0", "layers.0"
    inputs = {f"{old}_attention_qkv": [f"{new}.attention.to_{part}" for part in "qkv"]}
    others = {f"{old}_attention_out": f"{new}.attention.to_out.0", f"{old}_feed_forward_w2": f"{new}.feed_forward.w2"}
    others |= {f"{old}_adaLN_modulation_0": f"{new}.adaLN_modulation.0"}
    joined(folder / "z_image_kohya.safetensors", pipe.transformer, inputs, others, 2, 1.0, 99)
    # The pipeline counts guidance from 0, the tests from 1.
    arguments = {"prompt": "a fox", "guidance_scale": 0.0, "height": 64, "width": 96, "steps": 5}
    runs = [{"z_image_peft.safetensors": 0.7}, {"z_image_kohya.safetensors": 0.7, "z_image_peft.safetensors": -0.5}]
    cases = [record(pipe, folder, "z_image", loras, dict(arguments)) for loras in runs]
    return [case | {"guidance": 1.0} for case in cases]


def lora(out):
    folder = empty(out / "lora")
    folder.mkdir()
    write_json(folder / "expected.json", usual(out, folder) + xl(out, folder) + klein(out, folder) + z_image(out, folder))
