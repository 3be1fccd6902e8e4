"""FLUX.2 klein: distilled, and base with guidance; with and without reference pictures."""

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel

from qwen import qwen, qwen_tokenizer, record_tokens
from shared import (
    PROMPTS,
    draw,
    empty,
    numbers,
    observe,
    observe_decoder,
    picture,
    randomise,
    rounded,
    save,
    write_json,
)

SIZE = (96, 64)
REFERENCES = [(70, 100), (129, 65)]
LARGE_REFERENCE = (1300, 900)


def rows_as_map(latents, height, width):
    """Latent pictures are rows in this pipeline, but maps in the tests."""
    return latents.transpose(1, 2).reshape(1, -1, height // 16, width // 16)


def record_transformer(pipe, states, latent):
    transformer = pipe.transformer
    parts = {(f"transformer.double.{i}.text", f"transformer.double.{i}.image"): block
             for i, block in enumerate(transformer.transformer_blocks)}
    parts |= {f"transformer.single.{i}": block for i, block in enumerate(transformer.single_transformer_blocks)}
    _, _, height, width = latent.shape
    call = lambda: transformer(
        hidden_states=pipe._pack_latents(latent), encoder_hidden_states=states, timestep=torch.tensor([0.801]),
        img_ids=pipe._prepare_latent_ids(latent), txt_ids=pipe._prepare_text_ids(states), return_dict=False,
    )[0]
    velocity, seen = observe(transformer, parts, call)
    return {**seen, "transformer.velocity": rows_as_map(velocity, height * 16, width * 16)}


def record_encoder(vae, pixels):
    encoder = vae.encoder
    parts = {f"encoder.down.{i}": block for i, block in enumerate(encoder.down_blocks)} | {"encoder.mid": encoder.mid_block}
    latent, seen = observe(vae, parts, lambda: vae.encode(pixels).latent_dist.mode())
    return {**seen, "encoder.latent": latent}


def klein(out):
    folder = empty(out / "klein")
    words, vocabulary = qwen_tokenizer(folder / "tokenizer", whole=False)
    text = rounded(randomise(qwen(vocabulary, width=12, layers=28), 11), torch.bfloat16)
    transformer = randomise(Flux2Transformer2DModel(
        in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=36, timestep_guidance_channels=32, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    ), 12)
    transformer = rounded(transformer, torch.bfloat16)
    vae = randomise(AutoencoderKLFlux2(
        block_out_channels=(4, 4, 8, 8), decoder_block_out_channels=(4, 8, 8, 12), layers_per_block=1,
        latent_channels=4, norm_num_groups=2, sample_size=64,
    ), 13)
    generator = torch.Generator().manual_seed(14)
    vae.bn.running_mean = 0.3 * torch.randn(16, generator=generator)
    vae.bn.running_var = 0.5 + torch.rand(16, generator=generator)
    # As published.
    scheduler = FlowMatchEulerDiscreteScheduler(
        shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
        max_image_seq_len=4096, time_shift_type="exponential",
    )
    pipe = Flux2KleinPipeline(
        scheduler=scheduler, vae=vae, text_encoder=text, tokenizer=words, transformer=transformer, is_distilled=True,
    )
    pipe.set_progress_bar_config(disable=True)
    width, height = SIZE
    expected = {"prompt": PROMPTS[1], "negative": "", "seed": 4321, "steps": 4, "guidance": 1.0}
    expected |= {"width": width, "height": height}
    expected["tokens"] = record_tokens(words, enable_thinking=False)
    states, _ = pipe.encode_prompt(PROMPTS[1])
    layers = states.reshape(1, 512, 3, 12).unbind(2)
    values = {f"text.layer.{layer}": values for layer, values in zip([9, 18, 27], layers)} | {"embedding": states}
    latent = torch.randn((1, 16, height // 16, width // 16), generator=torch.Generator().manual_seed(7))
    values |= record_transformer(pipe, states, latent)
    values |= observe_decoder(vae, pipe._unpatchify_latents(latent))
    pixels = pipe.image_processor.preprocess(picture(96, 64), height=64, width=96, resize_mode="crop")
    values |= record_encoder(vae, pixels)

    references = [picture(*size) for size in REFERENCES]
    runs = {"": {}, "references.": {"image": references}, "base.": {"guidance_scale": 3.5}}
    for name, arguments in runs.items():
        pipe.register_to_config(is_distilled=name != "base.")
        drawn = draw(
            pipe, prompt=PROMPTS[1], height=height, width=width, num_inference_steps=4,
            generator=torch.Generator().manual_seed(4321), **arguments,
        )
        for step, value in drawn.items():
            values[name + step] = value if step == "picture" else rows_as_map(value, height, width)
    pipe.register_to_config(is_distilled=True)
    for number, reference in enumerate([*references, picture(*LARGE_REFERENCE)]):
        values[f"look.{number}"] = look(pipe, reference)
    expected["references"] = [*REFERENCES, LARGE_REFERENCE]
    expected["values"] = {name: numbers(value) for name, value in values.items()}
    write_json(folder / "expected.json", expected)
    dtypes = {"text_encoder": torch.bfloat16, "transformer": torch.bfloat16}
    save(pipe, folder, ["text_encoder", "transformer", "vae"], dtypes, {"text_encoder": "40KB"})


def look(pipe, reference):
    """An encoded reference, by the pipeline's own steps, which it does not give away."""
    seen = []
    prepare = pipe.prepare_image_latents

    def keep(images, **arguments):
        seen.append(pipe._encode_vae_image(images[0], None))
        raise StopIteration

    pipe.prepare_image_latents = keep
    try:
        pipe(prompt="", image=reference, num_inference_steps=1)
    except StopIteration:
        pass
    pipe.prepare_image_latents = prepare
    return seen[0]
