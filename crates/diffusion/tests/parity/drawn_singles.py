"""Random models of Stable Diffusion 1, 2 and XL in one file. What a file does not tell is as its readers assume."""

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from clip_vocabulary import END, clip
from single_file import VOCABULARY, old_clip, old_open_clip, old_unet, old_vae
from stable_diffusion import TRAINED

FILE = "model.safetensors"


def encoder(rng, width, activation, kind=CLIPTextModel, least=1, pooled=None):
    return kind(CLIPTextConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * rng.choice([2, 4]), hidden_act=activation,
        num_hidden_layers=rng.randint(least, 3), num_attention_heads=1, max_position_embeddings=77, eos_token_id=2,
        bos_token_id=VOCABULARY - 2, projection_dim=pooled or width, attn_implementation="eager",
    ))


def unet(rng, kind, context, pooled=None):
    levels = 3 if kind == "xl" else rng.choice([3, 4])
    blocks = [rng.choice([4, 8])] + [rng.choice([8, 16]) for _ in range(levels - 1)]
    attends = [rng.random() < 0.6 for _ in range(levels - 1)] + [rng.random() < 0.7]
    depths = [rng.randint(1, 2) for _ in range(levels)]
    fields = {}
    if kind == "xl":
        waves = rng.choice([4, 8])
        fields |= {"addition_embed_type": "text_time", "addition_time_embed_dim": waves}
        fields["projection_class_embeddings_input_dim"] = pooled + 6 * waves
    return UNet2DConditionModel(
        sample_size={"one": 64, "two": 96, "xl": 128}[kind], block_out_channels=blocks, layers_per_block=rng.randint(1, 3),
        attention_head_dim=[min(8, size) if kind == "one" else 1 for size in blocks], cross_attention_dim=context,
        down_block_types=["CrossAttnDownBlock2D" if one else "DownBlock2D" for one in attends],
        up_block_types=["CrossAttnUpBlock2D" if one else "UpBlock2D" for one in attends[::-1]],
        transformer_layers_per_block=depths, use_linear_projection=kind != "one", norm_num_groups=blocks[0], **fields,
    )


def vae(rng, scaling):
    levels = rng.choice([3, 4])
    return AutoencoderKL(
        block_out_channels=[4] + [rng.choice([4, 8]) for _ in range(levels - 1)], layers_per_block=rng.randint(1, 2),
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        latent_channels=4, norm_num_groups=4, scaling_factor=scaling,
    )


def parts(rng, kind):
    """The pipeline, and its weights by the names of one file."""
    width = rng.choice([8, 16, 24])
    if kind == "xl":
        width_2 = rng.choice([8, 12])
        pooled = rng.choice([width_2, 10])
        texts = [encoder(rng, width, "quick_gelu", least=2), encoder(rng, width_2, "gelu", CLIPTextModelWithProjection, 2, pooled)]
        model, decoder = unet(rng, kind, width + width_2, pooled), vae(rng, 0.13025)
        pipe = StableDiffusionXLPipeline(
            vae=decoder, text_encoder=texts[0], text_encoder_2=texts[1], tokenizer=clip(END), tokenizer_2=clip("!"),
            unet=model, scheduler=EulerDiscreteScheduler(**TRAINED, timestep_spacing="leading"), add_watermarker=False,
        )
        tensors = old_clip(texts[0], "conditioner.embedders.0.transformer.")
        tensors |= old_open_clip(texts[1], "conditioner.embedders.1.model.", False)
        return pipe, tensors | old_unet(model) | old_vae(decoder)
    text = encoder(rng, width, "quick_gelu" if kind == "one" else "gelu")
    model, decoder = unet(rng, kind, width), vae(rng, 0.18215)
    if kind == "one":
        scheduler = PNDMScheduler(**TRAINED, skip_prk_steps=True, set_alpha_to_one=False)
        words, tensors = clip(END), old_clip(text, "cond_stage_model.transformer.")
    else:
        scheduler = DDIMScheduler(**TRAINED, clip_sample=False, set_alpha_to_one=False, prediction_type="v_prediction")
        words, tensors = clip("!"), old_open_clip(text, "cond_stage_model.model.", True)
    pipe = StableDiffusionPipeline(
        vae=decoder, text_encoder=text, tokenizer=words, unet=model, scheduler=scheduler, safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )
    return pipe, tensors | old_unet(model) | old_vae(decoder)


def single(rng, folder, kind):
    """A model in one file. The folder `beside` tells diffusers what Tintype finds in the file itself."""
    pipe, tensors = parts(rng, kind)
    dtype = rng.choice([torch.float32, torch.float16])
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, folder / FILE)
    pipe.save_pretrained(folder / "beside")
    for weights in (folder / "beside").glob("*/*.safetensors"):
        weights.unlink()
    return type(pipe)
