#!/usr/bin/env python3
"""Compiles the examples' CUDA C to PTX with NVRTC. Needed only after a change of a .cu file.

    python3 -m venv target/cuda && target/cuda/bin/pip install \\
        nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-nvcc-cu12==12.9.86
    target/cuda/bin/python examples/compile.py            # every example, or: compile.py FILE.cu ...
    target/cuda/bin/python examples/compile.py --check    # fails when a committed .ptx differs from the output for its .cu

Neither a GPU nor a driver is needed. If the wheels contain ptxas, it also checks each result.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHITECTURE = "80"


def wheel(*parts):
    """Returns the first matching file of the NVIDIA wheels, or None."""
    for place in map(pathlib.Path, sys.path):
        found = sorted(place.glob("/".join(("nvidia", *parts))))
        if found:
            return found[0]
    return None


class Compiler:
    def __init__(self):
        library = wheel("cuda_nvrtc", "lib", "libnvrtc.so.*")
        if library is None:
            sys.exit("NVRTC not found: install the packages named at the top of compile.py")
        self.nvrtc = ctypes.CDLL(str(library))
        self.include = wheel("cuda_runtime", "include")

    def call(self, name, *arguments):
        code = getattr(self.nvrtc, name)(*arguments)
        if code != 0:
            self.nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.nvrtc.nvrtcGetErrorString(code).decode()}")

    def text(self, size_of, read, program):
        size = ctypes.c_size_t()
        self.call(size_of, program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(read, program, text)
        return text.value.decode()

    def ptx(self, source):
        options = [f"--gpu-architecture=compute_{ARCHITECTURE}", f"--include-path={source.parent}"]
        if self.include is not None:
            options.append(f"--include-path={self.include}")
        program = ctypes.c_void_p()
        # The program's name is the file name without its folder, so that the PTX does not reveal where it was compiled.
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
        try:
            self.call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
        except RuntimeError as error:
            log = self.text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
            sys.exit(f"{source}: {error}\n{log}")
        return self.text("nvrtcGetPTXSize", "nvrtcGetPTX", program).rstrip() + "\n"


def assemble(name, ptx):
    """Checks the PTX with NVIDIA's assembler, if it is installed. Returns the register usage that it reports."""
    ptxas = wheel("cuda_nvcc", "bin", "ptxas")
    if ptxas is None:
        return "ptxas not installed"
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, name)
        source.write_text(ptx)
        result = subprocess.run(
            [ptxas, "-v", f"--gpu-name=sm_{ARCHITECTURE}", source, "-o", source.with_suffix(".cubin")],
            capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"ptxas refuses {name}:\n{result.stderr}")
    return " ".join(line.split(":", 1)[1].strip() for line in result.stderr.splitlines() if "registers" in line)


def main(arguments):
    check = "--check" in arguments
    sources = [pathlib.Path(a).resolve() for a in arguments if a != "--check"] or sorted(HERE.glob("*/*.cu"))
    compiler, stale = Compiler(), []
    for source in sources:
        ptx = compiler.ptx(source)
        target = source.with_suffix(".ptx")
        if check and (not target.exists() or target.read_text() != ptx):
            stale.append(target.name)
        elif not check:
            target.write_text(ptx)
        print(f"{target.name}: {len(ptx)} bytes; {assemble(target.name, ptx)}")
    if stale:
        sys.exit(f"stale: {', '.join(stale)}: run examples/compile.py")


if __name__ == "__main__":
    main(sys.argv[1:])
