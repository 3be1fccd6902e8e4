"""Prompts with emphasis, and long ones in chunks, by the rules of AUTOMATIC1111's web UI.

They are written anew here: brackets multiply weights, each chunk is 75 tokens between the ones that begin and end a
prompt, its states are multiplied by the weights of their tokens and then scaled to the mean that they had, and prompts
with fewer chunks than others get empty ones.
"""

import re

import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline

from shared import draw, empty, numbers, write_json

WEIGHT = re.compile(r":\s*([+-]?[\d.]+)\s*\)")
LONG = "the storm on the coast, (a fox:1.4) in the snow, [waves] and ((wind)), " * 6
CASES = [
    ("a (lighthouse:1.3) in a (storm), [[oil]] painting", "(blurry:0.5), sea"),
    (r"a \(lighthouse\) and the ((sea:1.2) at (night", "[people"),
    (LONG, "(blurry)"),
    ("a fox", LONG),
]


def weighted(text):
    """The letters of a prompt, each with its weight."""
    letters, open_, at = [], [], 0

    def close(bracket, factor):
        for place in range(len(open_) - 1, -1, -1):
            if open_[place][0] == bracket:
                for letter in letters[open_.pop(place)[1]:]:
                    letter[1] *= factor
                return True
        return False

    while at < len(text):
        sign, number = text[at], WEIGHT.match(text, at)
        if sign == "\\":
            at += 1
            if at < len(text) and text[at] in "()[]\\":
                letters.append([text[at], 1.0])
                at += 1
            continue
        if sign in "([":
            open_.append((sign, len(letters)))
        elif number and close("(", float(number[1])):
            at = number.end()
            continue
        elif not (sign == ")" and close("(", 1.1) or sign == "]" and close("[", 1 / 1.1)):
            letters.append([sign, 1.0])
        at += 1
    while open_:
        close(open_[-1][0], 1.1 if open_[-1][0] == "(" else 1 / 1.1)
    return letters


def runs(letters):
    """Neighbours of one weight."""
    found = []
    for letter, weight in letters:
        if found and found[-1][1] == weight:
            found[-1][0] += letter
        else:
            found.append([letter, weight])
    return found


def chunks(tokenizer, text):
    places = []
    for part, weight in runs(weighted(text)):
        places += [(token, weight) for token in tokenizer(part, add_special_tokens=False).input_ids]
    begin, end, padding = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    found = []
    for at in range(0, max(len(places), 1), 75):
        some = places[at : at + 75]
        ids = [begin, *(token for token, _ in some), end]
        found.append((ids + [padding] * (77 - len(ids)), [1.0, *(weight for _, weight in some)] + [1.0] * (76 - len(some))))
    return found


def states(tokenizer, encoder, text, count, layer):
    """The states of a prompt in so many chunks, and the embedding of the whole first one."""
    all_states, pooled = [], None
    parts = chunks(tokenizer, text)
    for ids, weights in parts + chunks(tokenizer, "") * (count - len(parts)):
        output = encoder(torch.tensor([ids]), output_hidden_states=True)
        z = output.last_hidden_state if layer is None else output.hidden_states[layer]
        pooled = output[0] if pooled is None else pooled
        mean = z.mean()
        z = z * torch.tensor(weights)[None, :, None]
        all_states.append(z * (mean / z.mean()))
    return torch.cat(all_states, dim=1), pooled


def record(pipe, model, texts):
    cases = []
    for prompt, negative in CASES:
        count = max(len(chunks(tokenizer, text)) for tokenizer, *_ in texts for text in (prompt, negative))
        values, arguments = {}, {}
        for name, text in [("", prompt), ("negative_", negative)]:
            parts = [states(*part[:2], text, count, part[2]) for part in texts]
            arguments[f"{name}prompt_embeds"] = torch.cat([part for part, _ in parts], dim=-1)
            values[f"{name}embedding"] = arguments[f"{name}prompt_embeds"]
            if len(texts) > 1:
                arguments[f"{name}pooled_prompt_embeds"] = parts[-1][1]
                values[f"{name}pooled"] = parts[-1][1]
        drawn = draw(
            pipe, height=56, width=72, num_inference_steps=3, guidance_scale=3.0,
            generator=torch.Generator().manual_seed(37), **arguments,
        )
        values |= {"latent": drawn[f"step.{len(drawn) - 2}"], "picture": drawn["picture"]}
        case = {"model": model, "prompt": prompt, "negative": negative, "chunks": count, "seed": 37, "steps": 3}
        case |= {"guidance": 3.0, "width": 72, "height": 56}
        cases.append(case | {"values": {name: numbers(value) for name, value in values.items()}})
    return cases


def weighted_prompts(out):
    folder = empty(out / "weighted")
    folder.mkdir()
    pipe = StableDiffusionPipeline.from_pretrained(out / "sd15", torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    cases = record(pipe, "sd15", [(pipe.tokenizer, pipe.text_encoder, None)])
    pipe = StableDiffusionXLPipeline.from_pretrained(out / "sdxl", torch_dtype=torch.float32, add_watermarker=False)
    pipe.set_progress_bar_config(disable=True)
    texts = [(pipe.tokenizer, pipe.text_encoder, -2), (pipe.tokenizer_2, pipe.text_encoder_2, -2)]
    write_json(folder / "expected.json", cases + record(pipe, "sdxl", texts))
