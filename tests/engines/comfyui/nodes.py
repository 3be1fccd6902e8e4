"""A node for ComfyUI that needs no model: it paints one colour in steps, and does what its prompt says."""

import time

import torch

import comfy.model_management
import comfy.utils

SECONDS_PER_STEP = 0.1
SLOW_STEPS = 600


class TintypeSteps:
    @classmethod
    def INPUT_TYPES(cls):
        side = ("INT", {"default": 64, "min": 16, "max": 8192})
        return {
            "required": {
                "text": ("STRING", {"multiline": True}),
                "width": side,
                "height": side,
                "seed": ("INT", {"default": 0, "min": 0, "max": 2**64 - 1}),
                "steps": ("INT", {"default": 4, "min": 1, "max": 1000}),
            },
            "optional": {"image": ("IMAGE",)},
        }

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "paint"
    CATEGORY = "tintype"

    def paint(self, text, width, height, seed, steps, image=None):
        steps = SLOW_STEPS if text.startswith("slow") else steps
        bar = comfy.utils.ProgressBar(steps)
        for _ in range(steps):
            comfy.model_management.throw_exception_if_processing_interrupted()
            time.sleep(SECONDS_PER_STEP)
            bar.update(1)
        if text.startswith("fail"):
            raise RuntimeError(text)
        level = 50 / 255 if image is None else image[0, 0, 0, 0].item()
        colour = torch.tensor([(100 + seed % 100) / 255, 50 / 255, level])
        return (colour.expand(1, height, width, 3).clone(),)


NODE_CLASS_MAPPINGS = {"TintypeSteps": TintypeSteps}
