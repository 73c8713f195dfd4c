"""Writes one file per quantised format: the raw bytes of 2 rows of 512 random elements, then their values as
little-endian f32 according to `gguf.quants.dequantize` (PyPI gguf). Run: python make.py"""

import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

FLOATS = {  # byte offsets of the half-precision numbers in a block
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}
ROWS, COLS = 2, 512
here = pathlib.Path(__file__).parent
rng = np.random.default_rng(20240607)
for name, offsets in FLOATS.items():
    kind = T[name]
    length, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLS // length, size), dtype=np.uint8)
    for offset in offsets:
        halves = rng.uniform(-0.1, 0.1, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    raw = blocks.reshape(ROWS, -1)
    values = dequantize(raw, kind).astype("<f4")
    assert values.shape == (ROWS, COLS)
    (here / f"{name}.bin").write_bytes(raw.tobytes() + values.tobytes())
