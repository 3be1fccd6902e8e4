"""Embeddings of textual inversion for the tiny models, and the pictures with them."""

import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import load_file, save_file

from shared import draw, empty, numbers, write_json

PROMPTS = [
    ("a <fox-toy> in a storm, BadHands", "badhands, blurry"),
    ("a fox", "<fox-toy>, badhands"),
    ("the storm " * 36 + "a <fox-toy> badhands sea", "sea"),
]


def vectors(count, width, seed):
    return torch.randn((count, width), generator=torch.Generator().manual_seed(seed))


def record(pipe, model, files, embed, **arguments):
    """The embeddings of prompts and the pictures, once the words are known to the pipeline."""
    cases = []
    for prompt, negative in PROMPTS:
        # diffusers finds a word of several vectors in any case, but gives all of them only in its own.
        prompts = {"prompt": prompt.replace("BadHands", "badhands"), "negative_prompt": negative}
        values = embed(pipe, prompts)
        steps, guidance, seed, height, width = 3, 3.0, 29, 56, 72
        drawn = draw(
            pipe, num_inference_steps=steps, guidance_scale=guidance, height=height, width=width,
            generator=torch.Generator().manual_seed(seed), **prompts,
        )
        values |= {"latent": drawn[f"step.{len(drawn) - 2}"], "picture": drawn["picture"]}
        case = {"model": model, "embeddings": files, "prompt": prompt, "negative": negative, "seed": seed}
        case |= {"steps": steps, "guidance": guidance, "width": width, "height": height}
        cases.append(case | {"values": {name: numbers(value) for name, value in values.items()}})
    return cases


def usual(out, folder):
    pipe = StableDiffusionPipeline.from_pretrained(out / "sd15", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    files = [{"file": "sd15_diffusers.safetensors"}, {"file": "badhands.safetensors"}]
    save_file({"<fox-toy>": vectors(1, 16, 71)[0]}, folder / files[0]["file"])
    save_file({"emb_params": vectors(3, 16, 72).to(torch.float16)}, folder / files[1]["file"])
    pipe.load_textual_inversion(folder / files[0]["file"])
    pipe.load_textual_inversion(folder / files[1]["file"], token="badhands")

    def embed(pipe, prompts):
        prompt, negative = pipe.encode_prompt(device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=True, **prompts)
        return {"embedding": prompt, "negative": negative}

    return record(pipe, "sd15", files, embed)


def xl(out, folder):
    pipe = StableDiffusionXLPipeline.from_pretrained(out / "sdxl", torch_dtype=torch.float32, add_watermarker=False)
    pipe.set_progress_bar_config(disable=True)
    files = [{"file": "sdxl.safetensors", "word": "badhands"}, {"file": "sdxl_16.safetensors", "word": "<fox-toy>"}]
    for number, (file, dtype) in enumerate(zip(files, [torch.float32, torch.bfloat16])):
        tensors = {"clip_l": vectors(2, 8, 73 + number), "clip_g": vectors(2, 12, 75 + number)}
        save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / file["file"])
        tensors = load_file(folder / file["file"])
        word = file["word"]
        pipe.load_textual_inversion(tensors["clip_l"], word, pipe.tokenizer, pipe.text_encoder)
        pipe.load_textual_inversion(tensors["clip_g"], word, pipe.tokenizer_2, pipe.text_encoder_2)

    def embed(pipe, prompts):
        prompt, negative, pooled, negative_pooled = pipe.encode_prompt(device="cpu", **prompts)
        return {"embedding": prompt, "negative": negative, "pooled": pooled, "negative_pooled": negative_pooled}

    return record(pipe, "sdxl", files, embed)


def textual_inversion(out):
    folder = empty(out / "textual_inversion")
    folder.mkdir()
    write_json(folder / "expected.json", usual(out, folder) + xl(out, folder))
