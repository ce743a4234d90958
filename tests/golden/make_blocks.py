"""Make `blocks.json`: random blocks of every type of weights that GGUF has, and the numbers that llama.cpp makes of them.

Run by hand, never in CI, with gcc and a source tree of llama.cpp (b11434 made the file):

    python tests/golden/make_blocks.py .../llama.cpp

The numbers come from the code in ggml-quants.c itself, compiled without optimisation. Blocks whose numbers are not all finite are
thrown away. A line has the type's number in GGML, the values and bytes of a block, and in base64 the blocks and the numbers.
"""

import base64
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TYPES = (
    ("q4_0", 2, 32, 18),
    ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22),
    ("q5_1", 7, 32, 24),
    ("q8_0", 8, 32, 34),
    ("q2_K", 10, 256, 84),
    ("q3_K", 11, 256, 110),
    ("q4_K", 12, 256, 144),
    ("q5_K", 13, 256, 176),
    ("q6_K", 14, 256, 210),
    ("iq2_xxs", 16, 256, 66),
    ("iq2_xs", 17, 256, 74),
    ("iq3_xxs", 18, 256, 98),
    ("iq1_s", 19, 256, 50),
    ("iq4_nl", 20, 32, 18),
    ("iq3_s", 21, 256, 110),
    ("iq2_s", 22, 256, 82),
    ("iq4_xs", 23, 256, 136),
    ("iq1_m", 29, 256, 56),
    ("tq1_0", 34, 256, 54),
    ("tq2_0", 35, 256, 66),
    ("mxfp4", 39, 32, 17),
    ("nvfp4", 40, 64, 36),
    ("q1_0", 41, 128, 18),
    ("q2_0", 42, 64, 18),
)
VALUES = 512


def compiled(source: Path, folder: Path) -> ctypes.CDLL:
    """Return the shared library of ggml's base."""
    (folder / "ggml-version.h").write_text('#define GGML_VERSION "x"\n#define GGML_COMMIT "x"\n')
    files = [source / "ggml/src" / name for name in ("ggml-quants.c", "ggml.c", "ggml-threading.cpp", "ggml.cpp")]
    includes = [f"-I{folder}", *(f"-I{source / part}" for part in ("ggml/include", "ggml/src"))]
    objects = []
    for file in files:
        objects.append(str(folder / f"{file.name}.o"))
        compiler = ["g++", "-std=c++17"] if file.suffix == ".cpp" else ["gcc", "-std=c11"]
        version = ['-DGGML_VERSION="x"', '-DGGML_COMMIT="x"', "-D_GNU_SOURCE"]
        flags = ["-w", "-O0", "-fPIC", "-ffunction-sections", "-fdata-sections"]
        subprocess.run([*compiler, *includes, *version, *flags, "-c", file, "-o", objects[-1]], check=True)
    library, names = folder / "ggml.so", folder / "names"
    names.write_text("{ global: dequantize_row_*; local: *; };")
    options = ["-shared", "-Wl,--gc-sections", f"-Wl,--version-script={names}"]
    subprocess.run(["g++", *options, *objects, "-o", library, "-lm", "-lpthread"], check=True)
    return ctypes.CDLL(str(library))


def numbers(library: ctypes.CDLL, name: str, blocks: bytes, count: int) -> np.ndarray:
    """Return the numbers that ggml makes of `blocks`."""
    out = np.empty(count, np.float32)
    function = getattr(library, f"dequantize_row_{name}")
    function(ctypes.c_char_p(blocks), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(count))
    return out


def random_blocks(library: ctypes.CDLL, name: str, values: int, size: int, random: np.random.Generator) -> bytes:
    """Return blocks for `VALUES` finite numbers."""
    blocks = b""
    while len(blocks) < VALUES // values * size:
        block = random.bytes(size)
        made = numbers(library, name, block, values)
        if np.isfinite(made).all() and np.abs(made).max() > 0:
            blocks += block
    return blocks


def text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def main() -> None:
    """Make the file again."""
    random = np.random.default_rng(20)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(sys.argv[1]), Path(folder))
        for name, kind, values, size in TYPES:
            blocks = random_blocks(library, name, values, size, random)
            made = numbers(library, name, blocks, VALUES)
            line = {"name": name, "kind": kind, "values": values, "bytes": size}
            lines.append(json.dumps({**line, "blocks": text(blocks), "numbers": text(made.tobytes())}))
    (Path(__file__).parent / "blocks.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
