"""Text and recall data for the example checkpoint.

Text: Jane Austen's six novels (public domain), as the Debian package `r-cran-janeaustenr` ships them.
Recall: facts such as `<QX4071>` planted between the words of a text, asked for later by their beginning, `<QX`.

Everything is bytes: token = byte, and byte 0 (never in the text) is the beginning-of-sequence token.
"""

import argparse
import dataclasses
import json
import pathlib
import struct
import subprocess
import zlib

import numpy as np

PACKAGE = "r-cran-janeaustenr"
RDB = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
BOOKS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")
HELD_OUT = ("emma", "persuasion")  # the last tenth of these two books is never trained on

BOS = 0
ITEM = 9  # bytes of `<QX4071> `, the space included
ANSWER = slice(3, 7)  # where the four digits lie in an item
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


# --- the novels -------------------------------------------------------------------------------------------------------


def package_file(cache: pathlib.Path) -> pathlib.Path:
    """The R data file: from the installed package, else from a download unpacked below `cache` (needs apt and dpkg)."""
    for root in (pathlib.Path("/"), cache / PACKAGE):
        if (root / RDB).exists():
            return root / RDB
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", PACKAGE], cwd=cache, check=True)
    deb = next(cache.glob(f"{PACKAGE}_*.deb"))
    subprocess.run(["dpkg-deb", "-x", deb, cache / PACKAGE], check=True)
    return cache / PACKAGE / RDB


def read_rdb(path: pathlib.Path) -> list[list[str]]:
    """The character vectors of an R lazy-load database: records of a 4-byte length and a zlib stream, one per object."""
    raw, at, vectors = path.read_bytes(), 0, []
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at)
        # The record's length includes its own four-byte header, which holds the inflated size.
        stream = zlib.decompressobj()
        blob = stream.decompress(raw[at + 4 :])
        if len(blob) != size:
            raise ValueError(f"{path}: record at byte {at} inflates to {len(blob)} bytes, its header says {size}")
        vectors.append(read_strings(blob))
        at = len(raw) - len(stream.unused_data)
    return vectors


def read_strings(blob: bytes) -> list[str]:
    """One character vector in R's XDR serialisation, version 2 or 3."""

    def integer() -> int:
        nonlocal at
        (value,) = struct.unpack_from(">i", blob, at)
        at += 4
        return value

    if blob[:2] != b"X\n":
        raise ValueError("not R's XDR serialisation")
    at = 2
    version, _, _ = integer(), integer(), integer()
    if version == 3:
        name = integer()
        at += name  # the native encoding
    if integer() & 0xFF != 16:
        raise ValueError("not a character vector")
    strings = []
    for _ in range(integer()):
        integer()  # the flags of the string
        length = max(0, integer())  # -1 is NA
        strings.append(blob[at : at + length].decode("utf-8", "replace"))
        at += length
    return strings


def normalise(lines: list[str]) -> str:
    """Plain ASCII with one paragraph per line: no italics marks, no hard wraps, and no `<` `>`, which facts use."""
    text = "\n".join(line.strip() for line in lines)
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    text = "\n".join(paragraph for paragraph in paragraphs if paragraph)
    plain = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-",
             "\u00e9": "e", "\u00e8": "e", "\u00ea": "e", "\u00e0": "a", "\u00a3": "L", "_": "", "<": "", ">": ""}
    return text.translate(str.maketrans(plain)).encode("ascii", "ignore").decode()


def load_text(cache: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """(training text, held-out text) as bytes."""
    train, held_out = [], []
    for name, lines in zip(BOOKS, read_rdb(package_file(cache)), strict=True):
        text = normalise(lines)
        cut = len(text)
        if name in HELD_OUT:
            cut = text.index("\n", len(text) * 9 // 10) + 1
            held_out.append(text[cut:])
        train.append(text[:cut])
    as_bytes = lambda parts: np.frombuffer("\n".join(parts).encode(), np.uint8)
    return as_bytes(train), as_bytes(held_out)


# --- sequences --------------------------------------------------------------------------------------------------------


def slice_of(rng: np.random.Generator, text: np.ndarray, length: int, end: bytes = b"") -> np.ndarray:
    """`length` bytes of the text from a random place, starting with a word; the last byte is `end` where given."""
    start = int(rng.integers(0, len(text) - length - 64))
    while text[start] != ord(" ") and text[start] != ord("\n"):
        start += 1
    piece = text[start + 1 : start + 1 + length].copy()
    piece[length - len(end) :] = list(end)
    return piece


def random_facts(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    """Distinct keys of two capitals, each with four random digits."""
    keys = rng.choice(len(LETTERS) ** 2, size=count, replace=False)
    values = rng.integers(0, 10_000, size=count)
    return [(LETTERS[k // 26] + LETTERS[k % 26], f"{v:04d}") for k, v in zip(keys, values, strict=True)]


def plant(rng: np.random.Generator, text: np.ndarray, items: list[str], span: float) -> list[bytes]:
    """The text cut at random spaces within its first `span`, with the items put there in order."""
    spaces = np.flatnonzero(text[: max(1, int(len(text) * span))] == ord(" ")) + 1
    if len(spaces) == 0:
        spaces = np.array([0])
    cuts = np.sort(rng.choice(spaces, size=len(items), replace=len(spaces) < len(items)))
    pieces, before = [], 0
    for cut, item in zip(cuts, items, strict=True):
        pieces += [text[before:cut].tobytes(), item.encode()]
        before = cut
    return pieces + [text[before:].tobytes()]


def recall_sequence(rng, text, length, facts, scattered, tail, span, answer_weight):
    """`length` bytes that end with `tail` queries, and the loss weight of every byte.

    `scattered` further queries lie between the facts. Only text and answers carry weight: where a fact stands, and what
    it says, cannot be predicted.
    """
    known = random_facts(rng, facts)
    first = max(1, facts // 4)  # a quarter of the facts comes before the first scattered query
    order = [True] * first + list(rng.permutation([True] * (facts - first) + [False] * scattered))
    items, planted = [], 0
    for is_fact in order:
        if is_fact:
            key, value = known[planted]
            items.append(f"<{key}{value}> ")
            planted += 1
        else:
            key, value = known[int(rng.integers(planted))]
            items.append(f"<{key}{value}> ")
    body = slice_of(rng, text, length - ITEM * (len(items) + tail), end=b" ")
    pieces = plant(rng, body, items, span)
    asked = rng.choice(facts, size=tail, replace=False)
    pieces += [f"<{known[i][0]}{known[i][1]}> ".encode() for i in asked]
    weights, met = [], set()
    for piece in pieces:
        weight = np.ones(len(piece), np.float32)
        if piece[:1] == b"<":
            weight[:] = 0
            if piece in met:  # not the fact but a query
                weight[ANSWER] = answer_weight
                weight[ANSWER.start] = 2 * answer_weight  # finding the fact is the hard part
                weight[7] = 1  # the closing bracket
            met.add(piece)
        weights.append(weight)
    return np.frombuffer(b"".join(pieces), np.uint8), np.concatenate(weights)


# --- batches ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of the curriculum: until this share of the training, this context, this share of rows that hold recall
    sequences, and these numbers of facts."""

    until: float
    context: int
    rows: int
    recall: float
    facts: tuple[int, int]
    scattered: tuple[int, int]
    tail: tuple[int, int]
    answer_weight: float


@dataclasses.dataclass(frozen=True)
class Batch:
    """inputs and targets [rows, context], weights of the targets, and the SPEED prompt's length (0: full visibility)."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    prompt: int


def make_batch(rng: np.random.Generator, text: np.ndarray, stage: Stage, speed: bool) -> Batch:
    """Rows of text and of recall, for full visibility mixed, for SPEED of one kind, with one prompt length for all."""
    rows, context = stage.rows, stage.context
    recall_rows = int(rng.binomial(rows, stage.recall))
    prompt = 0
    tail = int(rng.integers(stage.tail[0], stage.tail[1] + 1))
    if speed:
        recall_rows = rows if rng.random() < stage.recall else 0
        # Quantised so that few distinct shapes occur.
        prompt = context * int(rng.integers(4, 15)) // 16
        if recall_rows and rng.random() < 0.8:
            # Inputs are BoS + bytes: the prompt ends with the key of the first query of the tail.
            prompt = 1 + context - ITEM * tail + 3
    sequences, weights = [], []
    for row in range(rows):
        if row < recall_rows:
            facts = max(tail, int(rng.integers(stage.facts[0], stage.facts[1] + 1)))
            scattered = int(rng.integers(stage.scattered[0], stage.scattered[1] + 1))
            span = 1.0 if rng.random() < 0.5 else float(rng.uniform(0.2, 0.9))
            sequence, weight = recall_sequence(rng, text, context, facts, scattered, tail, span, stage.answer_weight)
        else:
            sequence, weight = slice_of(rng, text, context), np.ones(context, np.float32)
        sequences.append(sequence)
        weights.append(weight)
    targets = np.stack(sequences).astype(np.int64)
    inputs = np.concatenate([np.full((rows, 1), BOS), targets[:, :-1]], axis=1)
    return Batch(inputs, targets, np.stack(weights), prompt)


# --- the shipped evaluation set and prompt ----------------------------------------------------------------------------


def recall_items(text: np.ndarray, count: int, facts: int = 8, seed: int = 2026) -> list[dict[str, str]]:
    """Held-out long-range items: text of 1,500 to 1,900 bytes with facts in its first 80 %, ending with a query."""
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        known = random_facts(rng, facts)
        body = slice_of(rng, text, int(rng.integers(1500, 1900)) - ITEM * facts - 3, end=b" ")
        prompt = b"".join(plant(rng, body, [f"<{key}{value}> " for key, value in known], 0.8))
        key, value = known[int(rng.integers(facts))]
        items.append({"prompt": f"{prompt.decode()}<{key}", "answer": value})
    return items


def shipped_prompt(text: np.ndarray, length: int = 1600, facts: int = 4, seed: int = 2026) -> str:
    """Held-out prose from the beginning of a paragraph, a few facts in its first quarter, cut off after a word."""
    rng = np.random.default_rng(seed)
    start = int(rng.choice(np.flatnonzero(text[: -2 * length] == ord("\n")))) + 1
    end = start + length
    while text[end] != ord(" "):
        end -= 1
    items = [f"<{key}{value}> " for key, value in random_facts(rng, facts)]
    return b"".join(plant(rng, text[start:end], items, 0.25)).decode()


def paragraphs_from(text: np.ndarray, start: int, length: int) -> str:
    """Whole paragraphs, from the first that begins at `start` or later, at least `length` bytes."""
    first = start + int(np.flatnonzero(text[start:] == ord("\n"))[0]) + 1
    end = first + length + int(np.flatnonzero(text[first + length :] == ord("\n"))[0]) + 1
    return text[first:end].tobytes().decode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write recall.jsonl, prompt.txt and evaluation.txt from the held-out text, calibration.txt from the other."
    )
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/decant-model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    args = parser.parse_args()
    train, held_out = load_text(args.cache)
    print(f"{len(train)} bytes of training text, {len(held_out)} held out")
    with open(args.out / "recall.jsonl", "w") as file:
        for item in recall_items(held_out, 200):
            file.write(json.dumps(item) + "\n")
    (args.out / "prompt.txt").write_text(shipped_prompt(held_out))
    # What weight quantizers look at, and what they are judged on.
    (args.out / "calibration.txt").write_text(paragraphs_from(train, len(train) // 2, 1 << 16))
    (args.out / "evaluation.txt").write_text(paragraphs_from(held_out, len(held_out) // 2, 1 << 15))


if __name__ == "__main__":
    main()
