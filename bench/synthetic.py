"""Writes Llama-shaped GGUF files with random weights, for speed alone, and requantised ones, with llama.cpp's own tool.

    python -m venv venv && venv/bin/pip install -r bench/requirements.txt
    venv/bin/python bench/synthetic.py --tokenizer SmolLM2.Q4_1.gguf --quantize PATH/TO/llama-quantize --to FOLDER

Makes what is not there yet:
  llama-3b-random.Q4_0.gguf   28 layers of 3,072 (24 query and 8 key heads, feed-forward 8,192), 1.8 GB
  llama-1b-random.Q8_0.gguf   16 layers of 2,048 (32 query and 8 key heads, feed-forward 8,192), 1.2 GB
  NAME.Q4_0.gguf, NAME.Q8_0.gguf   the tokenizer's model, requantised
Random weights say nothing, but every byte of them has to be read and multiplied. Both engines get the same file.
"""
import argparse
import subprocess
from pathlib import Path

import gguf
import numpy

SHAPES = {
    "llama-3b-random.Q4_0.gguf": (gguf.GGMLQuantizationType.Q4_0, 28, 3072, 24, 8, 8192),
    "llama-1b-random.Q8_0.gguf": (gguf.GGMLQuantizationType.Q8_0, 16, 2048, 32, 8, 8192),
}
# Element scales of a unit-variance product of about 2,048 inputs, whatever the codes' range is.
SCALE = {gguf.GGMLQuantizationType.Q4_0: 0.005, gguf.GGMLQuantizationType.Q8_0: 0.0003}


def random_rows(rng, kind, rows, columns):
    """Blocks of a half-precision scale and random codes, as bytes [rows, bytes of a row]."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // block, size), dtype=numpy.uint8)
    blocks[:, :2] = numpy.frombuffer(numpy.float16(SCALE[kind]).tobytes(), dtype=numpy.uint8)
    return blocks.reshape(rows, columns // block * size)


def field(reader, name):
    return reader.fields[name].contents()


def write(path, tokenizer, kind, layers, width, heads, kv_heads, hidden):
    rng = numpy.random.default_rng(1)
    reader = gguf.GGUFReader(tokenizer)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_name(path.stem)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model(field(reader, "tokenizer.ggml.model"))
    writer.add_tokenizer_pre(field(reader, "tokenizer.ggml.pre"))
    writer.add_token_list(field(reader, "tokenizer.ggml.tokens"))
    writer.add_token_types(field(reader, "tokenizer.ggml.token_type"))
    writer.add_token_merges(field(reader, "tokenizer.ggml.merges"))
    for name in ("bos", "eos"):
        getattr(writer, f"add_{name}_token_id")(int(field(reader, f"tokenizer.ggml.{name}_token_id")))
    vocab, key = len(field(reader, "tokenizer.ggml.tokens")), width // heads * kv_heads

    def matrix(name, rows, columns):
        writer.add_tensor(name, random_rows(rng, kind, rows, columns), raw_dtype=kind)

    def norm(name):
        writer.add_tensor(name, numpy.ones(width, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, width)
    norm("output_norm.weight")
    for layer in range(layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        matrix(block + "attn_q.weight", width, width)
        matrix(block + "attn_k.weight", key, width)
        matrix(block + "attn_v.weight", key, width)
        matrix(block + "attn_output.weight", width, width)
        norm(block + "ffn_norm.weight")
        matrix(block + "ffn_gate.weight", hidden, width)
        matrix(block + "ffn_up.weight", hidden, width)
        matrix(block + "ffn_down.weight", width, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, type=Path, help="a GGUF file whose tokenizer the synthetic ones get")
    parser.add_argument("--quantize", type=Path, help="llama.cpp's llama-quantize; without it nothing is requantised")
    parser.add_argument("--to", required=True, type=Path)
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name, shape in SHAPES.items():
        if not (options.to / name).exists():
            print(f"writing {name}")
            write(options.to / name, options.tokenizer, *shape)
    if options.quantize:
        stem = options.tokenizer.name.removesuffix(".gguf").rsplit(".", 1)[0]
        for kind in ("Q4_0", "Q8_0"):
            path = options.to / f"{stem}.{kind}.gguf"
            if not path.exists():
                part = path.with_suffix(".part")
                subprocess.run([options.quantize, "--allow-requantize", options.tokenizer, part, kind], check=True, stdout=subprocess.DEVNULL)
                part.rename(path)


if __name__ == "__main__":
    main()
