"""Stable Diffusion 1 and 2, and a model distilled from it."""

import json

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LatentConsistencyModelImg2ImgPipeline,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    PNDMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import pre_tokenizers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from shared import (
    PROMPTS,
    TEXT,
    draw,
    empty,
    learn_merges,
    numbers,
    observe,
    observe_decoder,
    picture,
    randomise,
    rename,
    rounded,
    save,
    write_json,
)

TRAINED = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
TURBO = {**TRAINED, "timestep_spacing": "trailing"}


def tokenizer(folder, padding, special):
    words = [[*word[:-1], word[-1] + "</w>"] for word in TEXT.replace(",", " ,").split()]
    merges = learn_merges(words, 100)
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


def text_encoder(vocabulary, width, activation, seed, kind=CLIPTextModel, layers=2):
    config = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 4, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=77, hidden_act=activation, projection_dim=width,
        bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1, attn_implementation="eager",
    )
    return randomise(kind(config), seed)


def autoencoder(channels, layers, seed, **more):
    return randomise(AutoencoderKL(
        block_out_channels=channels, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=layers, latent_channels=4,
        **{"norm_num_groups": 2, **more},
    ), seed)


def pipeline(kind, words, text, unet, vae, scheduler):
    pipe = kind(
        vae=vae, text_encoder=text, tokenizer=words, unet=unet, scheduler=scheduler, safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


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
    condition = None
    if unet.config.time_cond_proj_dim:
        condition = pipe.get_guidance_scale_embedding(torch.tensor([guidance - 1]), unet.config.time_cond_proj_dim)
    call = lambda: unet(latent, torch.tensor(801), states, timestep_cond=condition).sample
    noise, seen = observe(unet, unet_parts(unet), call)
    values |= {**seen, "unet.noise": noise}
    values |= observe_decoder(pipe.vae, latent / pipe.vae.config.scaling_factor)

    extra = {"negative_prompt": negative} if isinstance(pipe, StableDiffusionPipeline) else {}
    settings = {"prompt": prompt, "guidance_scale": guidance, **extra}
    values |= draw(
        pipe, height=height, width=width, num_inference_steps=steps, generator=torch.Generator().manual_seed(seed),
        **settings,
    )
    values |= from_picture(pipe, size, max(steps, 2), 0.5 if steps == 1 else 0.8, seed, settings)
    expected |= {"width": width, "height": height}
    expected["values"] = {name: numbers(value) for name, value in values.items()}
    write_json(folder / "expected.json", expected)


def from_picture(pipe, size, steps, strength, seed, settings):
    """The same with a reference, made noisy, in place of pure noise."""
    height, width = size
    distilled = isinstance(pipe, LatentConsistencyModelPipeline)
    kind = LatentConsistencyModelImg2ImgPipeline if distilled else StableDiffusionImg2ImgPipeline
    same = kind(**pipe.components, **({} if distilled else {"requires_safety_checker": False}))
    same.set_progress_bar_config(disable=True)
    drawn = draw(
        same, image=picture(width, height), num_inference_steps=steps, strength=strength,
        generator=torch.Generator().manual_seed(seed), **settings,
    )
    return {"from." + name: value for name, value in drawn.items()}


def unet_parts(unet):
    parts = {f"unet.down.{i}": block for i, block in enumerate(unet.down_blocks)}
    middle = {"unet.mid": unet.mid_block} if unet.mid_block is not None else {}
    return parts | middle | {f"unet.up.{i}": block for i, block in enumerate(unet.up_blocks)}


def sd15(out):
    """Everything as in the published Stable Diffusion 1.5, also its older names; but few channels."""
    folder = empty(out / "sd15")
    pipe = sd15_pipe(folder)
    # 72 x 56 pixels are 9 x 7 latent ones: odd sizes on every level.
    record(pipe, folder, (56, 72), 5, 2.5, PROMPTS[1], "blurry", 1234)
    save(pipe, folder, ["unet", "vae", "text_encoder"], {"unet": torch.float16})
    path = folder / "text_encoder" / "model.safetensors"
    rename(path, lambda name: name if name.startswith("text_model.") else "text_model." + name)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    def older(name):
        for new, before in old.items():
            name = name.replace(f"mid_block.attentions.0.{new}.", f"mid_block.attentions.0.{before}.")
        return name
    rename(folder / "vae" / "diffusion_pytorch_model.safetensors", older)


def sd15_pipe(folder):
    words, vocabulary = tokenizer(folder / "tokenizer", "<|endoftext|>", added)
    text = text_encoder(vocabulary, 16, "quick_gelu", 1)
    unet = randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 4, 8, 8), layers_per_block=2, attention_head_dim=2,
        cross_attention_dim=16, norm_num_groups=2,
    ), 2)
    unet = rounded(unet, torch.float16)
    vae = autoencoder((4, 4, 8, 8), 2, 3, sample_size=64)
    scheduler = PNDMScheduler(**TRAINED, skip_prk_steps=True, set_alpha_to_one=False)
    return pipeline(StableDiffusionPipeline, words, text, unet, vae, scheduler)


def lcm(out):
    """A distilled model in the style of Stable Diffusion 2: guidance as an input, linear projections, a tiny decoder."""
    folder = empty(out / "lcm")
    pipe = lcm_pipe(folder)
    record(pipe, folder, (64, 96), 4, 8.5, PROMPTS[1], "", 99)
    save(pipe, folder, ["unet", "vae", "text_encoder"], {"text_encoder": torch.bfloat16})


def lcm_pipe(folder):
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
    return pipeline(LatentConsistencyModelPipeline, words, text, unet, vae, scheduler)


def turbo(out):
    """Everything as in the published Stable Diffusion Turbo, but few channels."""
    folder = empty(out / "turbo")
    words, vocabulary = tokenizer(folder / "tokenizer", "!", str)
    text = rounded(text_encoder(vocabulary, 24, "gelu", 51), torch.float16)
    unet = rounded(randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 8, 8, 8), layers_per_block=2, attention_head_dim=(1, 2, 4, 4),
        cross_attention_dim=24, norm_num_groups=2, use_linear_projection=True,
    ), 52), torch.float16)
    vae = rounded(autoencoder((4, 4, 4, 8), 1, 53), torch.float16)
    scheduler = EulerDiscreteScheduler(**TURBO)
    pipe = pipeline(StableDiffusionPipeline, words, text, unet, vae, scheduler)
    record(pipe, folder, (64, 96), 1, 0.0, PROMPTS[1], "", 21)
    save(pipe, folder, ["unet", "vae", "text_encoder"], {name: torch.float16 for name in ["unet", "vae", "text_encoder"]})


def sdxs(out):
    """A model of one step in the style of SDXS: few layers, none in the middle, and a tiny autoencoder."""
    folder = empty(out / "sdxs")
    words, vocabulary = tokenizer(folder / "tokenizer", "<|endoftext|>", str)
    text = rounded(text_encoder(vocabulary, 16, "quick_gelu", 61), torch.float16)
    unet = rounded(randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 8, 8), layers_per_block=1, attention_head_dim=2, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), mid_block_type=None,
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), norm_num_groups=2,
    ), 62), torch.float16)
    vae = randomise(AutoencoderTiny(
        encoder_block_out_channels=(4, 4, 4, 4), decoder_block_out_channels=(4, 4, 4, 4),
        num_encoder_blocks=(1, 2, 1, 1), num_decoder_blocks=(1, 1, 2, 1), latent_channels=4,
    ), 63)
    scheduler = EulerDiscreteScheduler(**TURBO)
    pipe = pipeline(StableDiffusionPipeline, words, text, unet, vae, scheduler)
    record(pipe, folder, (48, 64), 1, 0.0, PROMPTS[1], "", 22)
    save(pipe, folder, ["unet", "vae", "text_encoder"], {"unet": torch.float16, "text_encoder": torch.float16})


def sdxl(out):
    """Everything as in the published Stable Diffusion XL Turbo, but few channels."""
    folder = empty(out / "sdxl")
    pipe = sdxl_pipe(folder)
    words, unet, vae = pipe.tokenizer, pipe.unet, pipe.vae
    height, width = 56, 72
    prompt = PROMPTS[1]
    expected = {"prompt": prompt, "negative": "", "seed": 5, "steps": 3, "guidance": 0.0, "width": width, "height": height}
    tokens = words(PROMPTS, padding="max_length", max_length=77, truncation=True).input_ids
    expected["tokens"] = [{"prompt": text, "ids": ids} for text, ids in zip(PROMPTS, tokens)]
    states, _, pooled, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
    values = {"embedding": states, "pooled": pooled}
    latent = torch.randn((1, 4, height // 8, width // 8), generator=torch.Generator().manual_seed(7))
    more = {"text_embeds": pooled, "time_ids": torch.tensor([[height, width, 0, 0, height, width]])}
    call = lambda: unet(latent, torch.tensor(801), states, added_cond_kwargs=more).sample
    noise, seen = observe(unet, unet_parts(unet), call)
    values |= {**seen, "unet.noise": noise}
    values |= observe_decoder(vae, latent / vae.config.scaling_factor)
    runs = {
        "": {"guidance_scale": 0.0},
        "guided.": {"guidance_scale": 3.0, "negative_prompt": "blurry"},
        "zeros.": {"guidance_scale": 3.0},
    }
    for name, arguments in runs.items():
        drawn = draw(
            pipe, prompt=prompt, height=height, width=width, num_inference_steps=3,
            generator=torch.Generator().manual_seed(5), **arguments,
        )
        values |= {name + step: value for step, value in drawn.items()}
    expected["values"] = {name: numbers(value) for name, value in values.items()}
    write_json(folder / "expected.json", expected)
    parts = ["text_encoder", "text_encoder_2", "unet", "vae"]
    save(pipe, folder, parts, {part: torch.float16 for part in parts})
    for part in ["text_encoder", "text_encoder_2"]:
        path = folder / part / "model.safetensors"
        rename(path, lambda name: name if name.startswith("text_") else "text_model." + name)


def sdxl_pipe(folder):
    words, vocabulary = tokenizer(folder / "tokenizer", "<|endoftext|>", str)
    words_2, _ = tokenizer(folder / "tokenizer_2", "!", str)
    text = rounded(text_encoder(vocabulary, 8, "quick_gelu", 31, layers=3), torch.float16)
    text_2 = rounded(text_encoder(vocabulary, 12, "gelu", 32, CLIPTextModelWithProjection, layers=3), torch.float16)
    unet = randomise(UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 8, 8), layers_per_block=2, attention_head_dim=(1, 2, 4),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 3), cross_attention_dim=20, norm_num_groups=2, use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=60,
    ), 33)
    unet = rounded(unet, torch.float16)
    vae = rounded(autoencoder((4, 4, 4, 8), 1, 34, scaling_factor=0.13025), torch.float16)
    scheduler = EulerAncestralDiscreteScheduler(**TURBO)
    pipe = StableDiffusionXLPipeline(
        vae=vae, text_encoder=text, text_encoder_2=text_2, tokenizer=words, tokenizer_2=words_2, unet=unet,
        scheduler=scheduler, add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
