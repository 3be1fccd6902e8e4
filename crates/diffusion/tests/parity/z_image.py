"""Z-Image: without guidance, as Turbo is used, and with it."""

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

from qwen import qwen, qwen_tokenizer, record_tokens
from shared import (
    PROMPTS,
    draw,
    empty,
    numbers,
    observe,
    observe_decoder,
    randomise,
    rounded,
    save,
    write_json,
)

SIZE = (96, 64)


def record_transformer(transformer, states, latent):
    parts = {f"transformer.{kind}.{i}": block
             for kind in ["noise_refiner", "context_refiner", "layers"]
             for i, block in enumerate(getattr(transformer, kind))}
    call = lambda: transformer([latent.transpose(0, 1)], torch.tensor([0.199]), [states], return_dict=False)[0][0]
    velocity, seen = observe(transformer, parts, call)
    return {**seen, "transformer.velocity": velocity}


def z_image(out):
    folder = empty(out / "z_image")
    words, vocabulary = qwen_tokenizer(folder / "tokenizer", whole=True)
    text = rounded(randomise(qwen(vocabulary, width=12, layers=3), 21), torch.bfloat16).model
    transformer = randomise(ZImageTransformer2DModel(
        in_channels=4, dim=48, n_layers=2, n_refiner_layers=1, n_heads=3, n_kv_heads=3, cap_feat_dim=12,
        axes_dims=[4, 6, 6], axes_lens=[512, 64, 64],
    ), 22)
    # This layer has fixed sizes and most of the numbers: few different ones, which compress well.
    wide = transformer.t_embedder.mlp[0].weight
    wide.data = torch.randint(-1, 2, wide.shape, generator=torch.Generator().manual_seed(24)) / 16.0
    transformer = rounded(transformer, torch.bfloat16)
    vae = randomise(AutoencoderKL(
        block_out_channels=(4, 4, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, latent_channels=4, norm_num_groups=2,
        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False,
    ), 23)
    # As published.
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = ZImagePipeline(scheduler=scheduler, vae=vae, text_encoder=text, tokenizer=words, transformer=transformer)
    pipe.set_progress_bar_config(disable=True)
    width, height = SIZE
    # The pipeline counts guidance from 0, the tests from 1.
    expected = {"prompt": PROMPTS[1], "negative": "blurry", "seed": 77, "steps": 5, "guidance": 1.0}
    expected |= {"width": width, "height": height}
    expected["tokens"] = record_tokens(words, enable_thinking=True)
    [states], _ = pipe.encode_prompt(PROMPTS[1], do_classifier_free_guidance=False)
    values = {"embedding": states}
    latent = torch.randn((1, 4, height // 8, width // 8), generator=torch.Generator().manual_seed(7))
    values |= record_transformer(transformer, states, latent)
    values |= observe_decoder(vae, latent / 0.3611 + 0.1159)
    runs = {"": {"guidance_scale": 0.0}, "guided.": {"guidance_scale": 3.0, "negative_prompt": "blurry"}}
    for name, arguments in runs.items():
        drawn = draw(
            pipe, prompt=PROMPTS[1], height=height, width=width, num_inference_steps=5,
            generator=torch.Generator().manual_seed(77), **arguments,
        )
        values |= {name + step: value for step, value in drawn.items()}
    expected["values"] = {name: numbers(value) for name, value in values.items()}
    write_json(folder / "expected.json", expected)
    dtypes = {"text_encoder": torch.bfloat16, "transformer": torch.bfloat16}
    save(pipe, folder, ["text_encoder", "transformer", "vae"], dtypes)
