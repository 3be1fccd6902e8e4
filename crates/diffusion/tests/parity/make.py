"""Makes the tiny models beside this file, with random weights, and records their pictures by diffusers in 32 bits.

    python -m venv V && V/bin/pip install -r requirements.txt && V/bin/python make.py

Nothing is downloaded. The Rust tests in ../parity.rs compare with `expected.json` of each model, `schedulers.json` and
`noise.json`.
"""

import json
import math
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    DDIMScheduler,
    EulerDiscreteScheduler,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

HERE = pathlib.Path(__file__).parent
PROMPTS = [
    "",
    "a lighthouse in a storm, oil painting",
    "A LIGHTHOUSE,   with\tstrange \n\n white space   ",
    "it's 1984: they'll say we've 'quoted' it, i'd'nt",
    "naïve café, Ωmega, ﬁne ligatures, e\u0301 decomposed",
    "日本語の風景画、夕焼け",
    "🦊🏔️ 👩‍🚀 emoji",
    "<|endoftext|> in the middle <|startoftext|>",
    "<|ENDOFTEXT|> shouted",
    "a_b-c.d/e (f:1.3) [g] {h} \\i *** !!! ???",
    "word " * 100,
    "x" * 300,
    "\u00a0no-break\u2003em\u200bzero\u0007bell",
    "İstanbul ẞTRASSE ǅ",
]
TEXT = """a painting of a lighthouse in the storm on the coast, with the waves and the wind
an oil painting of the sea, a watercolour of a fox in the snow, a photo of an astronaut riding a horse
the house on the hill, the light of the evening, they say it is the best of all worlds, words and pictures
"""


def numbers(tensor):
    """At most 256 numbers of a tensor, evenly spread, and two sums over all of them."""
    flat = tensor.detach().to(torch.float64).flatten()
    stride = max(1, math.ceil(len(flat) / 256)) | 1
    short = lambda x: float(f"{x:.8g}")
    return {
        "length": len(flat),
        "stride": stride,
        "numbers": [short(x) for x in flat[::stride].tolist()],
        "mean": short(flat.mean().item()),
        "square": short((flat**2).mean().item()),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("},", "},\n") + "\n")


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            scale = 1.0 if "embedding" in name and "time" not in name else (parameter[0].numel()) ** -0.5
            parameter.data = noise * scale
        elif "norm" in name and name.endswith("weight"):
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.1 * noise
    return model.eval()


def rounded(model, dtype):
    """The model with weights that the type can hold, still in 32 bits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).to(torch.float32)
    return model


def learn_merges(count):
    """The most frequent pairs of neighbours, one after the other. The library's own trainer breaks ties at random."""
    words = [[*word[:-1], word[-1] + "</w>"] for word in TEXT.replace(",", " ,").split()]
    merges = []
    for _ in range(count):
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def tokenizer(folder, padding, special):
    merges = learn_merges(100)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = letters + [letter + "</w>" for letter in letters]
    words += ["".join(merge) for merge in merges] + ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in merges) + "\n")
    config = {
        "bos_token": special("<|startoftext|>"),
        "eos_token": special("<|endoftext|>"),
        "model_max_length": 77,
        "pad_token": padding,
        "tokenizer_class": "CLIPTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return CLIPTokenizer.from_pretrained(folder), len(vocabulary)


def added(name):
    """A special token as the published Stable Diffusion 1.5 describes it."""
    return {
        "__type": "AddedToken", "content": name, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False
    }


def text_encoder(vocabulary, width, activation, seed):
    config = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 4, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=77, hidden_act=activation, projection_dim=width,
        bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1, attn_implementation="eager",
    )
    return randomise(CLIPTextModel(config), seed)


def observe(model, parts, call):
    """Calls the model and gives the results of its parts."""
    seen = {}
    hooks = []
    for name, part in parts.items():
        def keep(_module, _inputs, output, name=name):
            seen[name] = output[0] if isinstance(output, tuple) else output
        hooks.append(part.register_forward_hook(keep))
    with torch.no_grad():
        result = call()
    for hook in hooks:
        hook.remove()
    return result, seen


def rename(path, change):
    tensors = load_file(path)
    save_file({change(name): tensor for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def record(pipe, folder, size, steps, guidance, prompt, negative, seed):
    expected = {"prompt": prompt, "negative": negative, "seed": seed, "steps": steps, "guidance": guidance}
    height, width = size
    tokens = pipe.tokenizer(PROMPTS, padding="max_length", max_length=77, truncation=True).input_ids
    expected["tokens"] = [{"prompt": text, "ids": ids} for text, ids in zip(PROMPTS, tokens)]
    ids = torch.tensor(pipe.tokenizer([prompt], padding="max_length", max_length=77, truncation=True).input_ids)
    encoder = pipe.text_encoder
    layers = (getattr(encoder, "text_model", encoder)).encoder.layers
    states, seen = observe(encoder, {f"text.layer.{i}": layer for i, layer in enumerate(layers)}, lambda: encoder(ids)[0])
    values = {**seen, "text.states": states}

    unet = pipe.unet
    factor = pipe.vae_scale_factor
    shape = (1, unet.config.in_channels, height // factor, width // factor)
    latent = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    parts = {f"unet.down.{i}": block for i, block in enumerate(unet.down_blocks)}
    parts |= {"unet.mid": unet.mid_block} | {f"unet.up.{i}": block for i, block in enumerate(unet.up_blocks)}
    condition = None
    if unet.config.time_cond_proj_dim:
        condition = pipe.get_guidance_scale_embedding(torch.tensor([guidance - 1]), unet.config.time_cond_proj_dim)
    call = lambda: unet(latent, torch.tensor(801), states, timestep_cond=condition).sample
    noise, seen = observe(unet, parts, call)
    values |= {**seen, "unet.noise": noise}

    decoder = pipe.vae.decoder
    parts = {}
    if isinstance(pipe.vae, AutoencoderKL):
        parts = {"vae.mid": decoder.mid_block} | {f"vae.up.{i}": block for i, block in enumerate(decoder.up_blocks)}
    picture, seen = observe(pipe.vae, parts, lambda: pipe.vae.decode(latent / pipe.vae.config.scaling_factor).sample)
    values |= {**seen, "vae.picture": picture}

    def after(_pipe, step, _time, state):
        values[f"step.{step}"] = state["latents"].clone()
        return {}

    extra = {"negative_prompt": negative} if isinstance(pipe, StableDiffusionPipeline) else {}
    result = pipe(
        prompt, height=height, width=width, num_inference_steps=steps, guidance_scale=guidance, output_type="np",
        generator=torch.Generator().manual_seed(seed), callback_on_step_end=after, **extra,
    )
    values["picture"] = torch.tensor((result.images[0] * 255).round())
    expected |= {"width": width, "height": height}
    expected["values"] = {name: numbers(value) for name, value in values.items()}
    write_json(folder / "expected.json", expected)


def sd15():
    """Everything as in the published Stable Diffusion 1.5, also its older names; but few channels."""
    folder = HERE / "sd15"
    shutil.rmtree(folder, ignore_errors=True)
    words, vocabulary = tokenizer(folder / "tokenizer", "<|endoftext|>", added)
    text = text_encoder(vocabulary, 16, "quick_gelu", 1)
    unet = randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 4, 8, 8), layers_per_block=2, attention_head_dim=2,
        cross_attention_dim=16, norm_num_groups=2,
    ), 2)
    unet = rounded(unet, torch.float16)
    vae = randomise(AutoencoderKL(
        block_out_channels=(4, 4, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=4, norm_num_groups=2, sample_size=64,
    ), 3)
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1,
        set_alpha_to_one=False,
    )
    pipe = StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=words, unet=unet, scheduler=scheduler, safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    # 72 x 56 pixels are 9 x 7 latent ones: odd sizes on every level.
    record(pipe, folder, (56, 72), 5, 2.5, PROMPTS[1], "blurry", 1234)
    save(pipe, folder)
    UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=torch.float16).save_pretrained(folder / "unet")
    path = folder / "text_encoder" / "model.safetensors"
    rename(path, lambda name: name if name.startswith("text_model.") else "text_model." + name)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    def older(name):
        for new, before in old.items():
            name = name.replace(f"mid_block.attentions.0.{new}.", f"mid_block.attentions.0.{before}.")
        return name
    rename(folder / "vae" / "diffusion_pytorch_model.safetensors", older)


def lcm():
    """A distilled model in the style of Stable Diffusion 2: guidance as an input, linear projections, a tiny decoder."""
    folder = HERE / "lcm"
    shutil.rmtree(folder, ignore_errors=True)
    words, vocabulary = tokenizer(folder / "tokenizer", "!", str)
    text = rounded(text_encoder(vocabulary, 24, "gelu", 4), torch.bfloat16)
    unet = randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 8), layers_per_block=1, attention_head_dim=(2, 4),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=24, norm_num_groups=2, use_linear_projection=True, time_cond_proj_dim=12,
        transformer_layers_per_block=(1, 2),
    ), 5)
    vae = randomise(AutoencoderTiny(
        encoder_block_out_channels=(4, 4, 4, 4), decoder_block_out_channels=(4, 4, 4, 4),
        num_encoder_blocks=(1, 1, 1, 1), num_decoder_blocks=(2, 1, 1, 1), latent_channels=4,
    ), 6)
    scheduler = LCMScheduler(clip_sample=False)
    pipe = LatentConsistencyModelPipeline(
        vae=vae, text_encoder=text, tokenizer=words, unet=unet, scheduler=scheduler, safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    record(pipe, folder, (64, 96), 4, 8.5, PROMPTS[1], "", 99)
    save(pipe, folder)
    CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.bfloat16).save_pretrained(folder / "text_encoder")


def save(pipe, folder):
    """Saves the parts, but keeps the tokenizer's files as the published models have them."""
    for name in ["unet", "vae", "text_encoder"]:
        getattr(pipe, name).save_pretrained(folder / name)
    pipe.scheduler.save_pretrained(folder / "scheduler")
    pipe.save_config(folder)


def answer(sample, time):
    """Stands for a model; the tests know the same formula."""
    return torch.tanh(sample) * 0.7 + 0.1 * torch.sin(time / 100 + torch.arange(len(sample.flatten())).reshape(sample.shape))


def schedulers():
    trained = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    cases = [
        (DDIMScheduler, {**trained, "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}, [1, 4, 7]),
        (DDIMScheduler, {}, [3]),
        (DDIMScheduler, {"timestep_spacing": "linspace", "clip_sample_range": 0.5}, [1, 6]),
        (DDIMScheduler, {**trained, "timestep_spacing": "trailing", "prediction_type": "v_prediction", "clip_sample": False}, [1, 4]),
        (DDIMScheduler, {"prediction_type": "sample"}, [3]),
        (EulerDiscreteScheduler, {**trained, "timestep_spacing": "leading", "steps_offset": 1}, [1, 7]),
        (EulerDiscreteScheduler, {**trained}, [1, 5]),
        (EulerDiscreteScheduler, {**trained, "timestep_spacing": "trailing"}, [1, 4]),
        (EulerDiscreteScheduler, {"prediction_type": "v_prediction", "timestep_spacing": "leading"}, [4]),
        (EulerDiscreteScheduler, {"final_sigmas_type": "sigma_min"}, [4]),
        (LCMScheduler, {"clip_sample": False}, [1, 2, 4, 8]),
        (LCMScheduler, {"original_inference_steps": 30, "prediction_type": "v_prediction"}, [4]),
        (PNDMScheduler, {**trained, "skip_prk_steps": True, "steps_offset": 1}, [1, 2, 3, 6]),
        (PNDMScheduler, {"skip_prk_steps": True, "set_alpha_to_one": True, "timestep_spacing": "trailing"}, [5]),
        (PNDMScheduler, {"skip_prk_steps": True, "prediction_type": "v_prediction", "timestep_spacing": "linspace"}, [5]),
    ]
    recorded = []
    for kind, options, counts in cases:
        for steps in counts:
            scheduler = kind(**options)
            config = json.loads(scheduler.to_json_string())
            scheduler.set_timesteps(steps)
            generator = torch.Generator().manual_seed(5)
            sample = torch.randn((1, 4, 2, 3), generator=generator) * scheduler.init_noise_sigma
            after = []
            for time in scheduler.timesteps:
                shown = scheduler.scale_model_input(sample, time)
                extra = {"generator": generator} if kind in (LCMScheduler, EulerDiscreteScheduler) else {}
                sample = scheduler.step(answer(shown, time), time, sample, **extra).prev_sample
                after.append([float(f"{x:.8g}") for x in sample.flatten().tolist()])
            times = [float(time) for time in scheduler.timesteps]
            recorded.append({"config": config, "steps": steps, "times": times, "after": after})
    write_json(HERE / "schedulers.json", recorded)


def noise():
    recorded = []
    for seed, count in [(0, 16), (1, 20), (2**32 - 1, 37), (123456789, 256), (42, 700)]:
        values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        recorded.append({"seed": seed, **numbers(values)})
    write_json(HERE / "noise.json", recorded)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    noise()
    schedulers()
    sd15()
    lcm()
