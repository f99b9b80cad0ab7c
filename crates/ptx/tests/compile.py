#!/usr/bin/env python3
"""Makes the PTX of the .cu files in corpus/ and kernels/ with NVRTC; no GPU is needed.

    compile.py LIBNVRTC INCLUDE_FOLDERS                                   regenerate the texts made by this release, in place
    compile.py LIBNVRTC INCLUDE_FOLDERS --architecture sm_100 --out DIR   all of it, for one architecture

Tests run from the committed PTX, whose header names the release and the target: use this after changing a kernel, or to
see the text of another compiler. Several include folders are separated by colons. The wheels are, of release 12.9,
nvidia-cuda-nvrtc-cu12==12.9.86, nvidia-cuda-runtime-cu12==12.9.79, nvidia-cuda-cccl-cu12==12.9.27 and
nvidia-cuda-nvcc-cu12==12.9.86 (crt/mma.h); of release 13.5, nvidia-cuda-nvrtc, nvidia-cuda-runtime and nvidia-cuda-crt
13.5.37 and nvidia-cuda-cccl 13.3.5.0.6, whose include/cccl is a folder of its own.
"""

import argparse
import ctypes
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = ["--std=c++17", "--device-int128"]


class Nvrtc:
    def __init__(self, library, includes):
        self.library = ctypes.CDLL(library)
        self.options = OPTIONS + [f"--include-path={include}" for include in includes]

    def release(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def _text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, text)
        return text.value

    def ptx(self, source, architecture):
        """The PTX of a file, or None where it has errors, which are printed."""
        # Assertions and internal names hold the file's name: those of the corpus were compiled under this one.
        name = "k.cu" if source.parent.name == "corpus" else source.name
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), name.encode(), 0, None, None)
        options = [f"--gpu-architecture={architecture.replace('sm_', 'compute_')}", *self.options]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        log = self._text(program, "ProgramLog").decode().strip()
        if log:
            print(f"{source.name}: {log}")
        return None if failed else without_unused(self._text(program, "PTX"))


def without_unused(text):
    """A text without the hundreds of constants of CUDA's C++ headers that it declares and does not use."""
    declared = re.compile(rb"^\.global \.align \d+ \.u\d+ (_ZN4cuda3std\w+)( = \d+)?;\n", re.MULTILINE)
    return declared.sub(lambda found: found[0] if text.count(found[1]) > 1 else b"", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", metavar="LIBNVRTC")
    parser.add_argument("includes", metavar="INCLUDE_FOLDERS")
    parser.add_argument("--architecture", metavar="NAME", help="with --out: sm_80, for example")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, help="folder for the PTX of every file")
    arguments = parser.parse_args()
    if (arguments.out is None) != (arguments.architecture is None):
        parser.error("--out and --architecture go together")
    nvrtc = Nvrtc(arguments.library, arguments.includes.split(":"))
    failed, compiled = False, 0
    for source in sorted(HERE.glob("*/*.cu")):
        target, architecture = source.with_suffix(".ptx"), arguments.architecture
        if arguments.out:
            target = arguments.out / source.parent.name / target.name
            target.parent.mkdir(parents=True, exist_ok=True)
        else:
            text = target.read_text()
            if f"release {nvrtc.release()}," not in text:
                continue
            architecture = re.search(r"^\.target (\w+)", text, re.MULTILINE)[1]
        compiled += 1
        ptx = nvrtc.ptx(source, architecture)
        if ptx is None:
            failed = True
        else:
            target.write_bytes(ptx)
    if not compiled:
        sys.exit(f"no text in {HERE} was made by release {nvrtc.release()}: use --out to compile into another folder")
    sys.exit(failed)


if __name__ == "__main__":
    main()
