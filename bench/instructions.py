"""Instructions of the products' inner loops per tile of 16 outputs x 32 inputs, counted by Valgrind's callgrind.

    cargo build --release -p kernels --example tiles
    python bench/instructions.py PATH/TO/release/examples/tiles

Two runs that differ only in how often they multiply: the difference is the product alone (its activations' way to
eight bits included, 1/32 of a conversion a tile). Valgrind has no AVX-512: cycles for that are what the example
itself prints.
"""

import re
import subprocess
import sys

TILES = 512 // 16 * 1024 // 32
FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
ROWS = [1, 16]


def instructions(binary, isa, dtype, rows, repeats):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary, isa, dtype, str(rows), str(repeats)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return int(re.search(r"Collected : (\d+)", out)[1])


def main():
    (binary,) = sys.argv[1:]
    print(f"{'':8}" + "".join(f"{f'{isa}, {rows} rows':>16}" for isa in ["AVX2", "scalar"] for rows in ROWS))
    for dtype in FORMATS:
        line = f"{dtype:8}"
        for isa in ["AVX2", "scalar"]:
            for rows in ROWS:
                once, thrice = (instructions(binary, isa, dtype, rows, n) for n in (1, 3))
                line += f"{(thrice - once) / 2 / TILES:16.0f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
