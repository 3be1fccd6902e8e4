"""Drawn shapes with the words for them: the data that train.py learns from."""

import numpy
from PIL import Image, ImageDraw

SIDE = 64
# Drawn larger and made smaller, for smooth edges.
SCALE = 4
COLOURS = {
    "red": (225, 30, 35),
    "green": (30, 160, 60),
    "blue": (35, 75, 220),
    "yellow": (250, 220, 40),
    "orange": (250, 135, 25),
    "purple": (130, 45, 165),
    "pink": (250, 150, 195),
    "cyan": (60, 210, 225),
    "black": (20, 20, 25),
    "white": (250, 250, 250),
}
OTHER_WORDS = {
    "red": ["scarlet", "crimson"],
    "blue": ["cobalt"],
    "purple": ["violet"],
    "cyan": ["turquoise"],
    "circle": ["disc", "ball", "round dot"],
    "square": ["box", "block"],
    "triangle": ["pyramid"],
}
SHAPES = ["circle", "square", "triangle"]
# Half of the width of a shape, in pixels.
SIZES = {"": (14, 19), "small": (8, 11), "big": (20, 24)}
SIZE_WORDS = {"small": ["small", "little", "tiny"], "big": ["big", "large", "huge"]}
# How far from the middle a shape lies.
PLACES = {"": (0, 0), "left": (-15, 0), "right": (15, 0), "top": (0, -15), "bottom": (0, 15)}
PLACE_WORDS = {
    "left": ["on the left", "at the left", "on the left side"],
    "right": ["on the right", "at the right", "on the right side"],
    "top": ["at the top", "on top"],
    "bottom": ["at the bottom"],
}
PHRASES = [
    "{a} {thing}", "{a} {thing}", "{a} {thing}", "{a} {thing}", "{thing}", "the {thing}", "a picture of {a} {thing}",
    "a drawing of {a} {thing}", "a photo of {a} {thing}", "one {thing}", "draw {a} {thing}", "simple art, {thing}",
]
GROUND_PHRASES = [" on a {} background", " on a {} background", " on {}", ", {} background"]
# An outline leaves this part of a shape open.
HOLE = 0.6


def choose(chance):
    """What a picture shows: shape, colour, size, place and background."""
    shape, colour = chance.choice(SHAPES), chance.choice(list(COLOURS))
    size = chance.choices(list(SIZES), [5, 1, 2])[0]
    place = chance.choices(list(PLACES), [6, 1, 1, 1, 1])[0]
    ground = None if chance.random() < 0.4 else chance.choice(list(COLOURS))
    if ground == colour or (ground is None and colour == "white"):
        ground = "black" if colour == "white" else None
    return shape, colour, size, place, ground


def drawing(chance, outline=False):
    """A picture as bytes, and its prompt."""
    shape, colour, size, place, ground = choose(chance)
    picture = paint(chance, shape, colour, (SIZES[size], PLACES[place]), ground, outline)
    # A prompt that does not say the place lets a reference say it.
    said = place if chance.random() < 0.65 else ""
    return picture, prompt(chance, shape, colour, size, said, ground)


def paint(chance, shape, colour, where, ground, outline):
    """Paints a shape. Without a background it is on white paper."""
    (least, most), (across, down) = where
    half = chance.uniform(least, most)
    jitter = lambda: chance.uniform(-3, 3)
    limit = SIDE / 2 - half - 1
    middle = numpy.array([SIDE / 2 + max(-limit, min(limit, shift + jitter())) for shift in (across, down)])
    shade = lambda rgb: tuple(max(0, min(255, round(part + chance.uniform(-8, 8)))) for part in rgb)
    paper = (248, 248, 248) if ground is None else COLOURS[ground]
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), shade(paper))
    draw, paper = ImageDraw.Draw(image), image.getpixel((0, 0))
    draw.polygon(corners(shape, middle, half), shade(COLOURS[colour]))
    if outline:
        draw.polygon(corners(shape, middle, half, HOLE), paper)
    return numpy.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))


def corners(shape, middle, half, part=1.0):
    """The corners of a shape, or of a part of it: smaller, around the point that is as far from all edges."""
    if shape == "circle":
        angles = numpy.linspace(0, 2 * numpy.pi, 64, endpoint=False)
        points, centre = numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1), (0, 0)
    elif shape == "square":
        points, centre = numpy.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]), (0, 0)
    else:
        points, centre = numpy.array([(-1, 1), (1, 1), (0, -1)]), (0, 0.382)
    points = (points - centre) * part + centre
    return [tuple((middle + point * half) * SCALE) for point in points]


def prompt(chance, shape, colour, size, place, ground):
    """One of many ways to say what a picture shows."""
    other = lambda word: chance.choice([word] * 3 + OTHER_WORDS.get(word, []))
    shape, colour = other(shape), other(colour)
    size = chance.choice(SIZE_WORDS[size]) if size else ""
    thing = " ".join(word for word in (size, colour, shape) if word)
    if not size and chance.random() < 0.1:
        thing = f"{shape} that is {colour}"
    a = "an" if thing[0] in "aeiou" else "a"
    words = chance.choice(PHRASES).format(a=a, thing=thing)
    if place:
        words += " " + chance.choice(PLACE_WORDS[place])
    if ground:
        words += chance.choice(GROUND_PHRASES).format(ground)
    return words


def with_other_words(chance, words):
    """The same with a word that means nothing, now and then, wherever it stands."""
    if chance.random() > 0.15:
        return words
    words = words.split()
    words.insert(chance.randrange(len(words) + 1), chance.choice(["lovely", "wooden", "cat,", "oil"]))
    return " ".join(words)
