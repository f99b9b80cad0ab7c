#!/usr/bin/env python3
"""Compiles the .cu files beside it to PTX with NVRTC: compile.py LIBNVRTC INCLUDE_FOLDERS ARCHITECTURE FOLDER

The library and the headers come with the wheels nvidia-cuda-nvrtc-cu12, nvidia-cuda-runtime-cu12 and nvidia-cuda-cccl-cu12; no GPU
is needed. Several include folders are separated by colons.
Tests run from the committed PTX: this is only for who changes a kernel.
"""

import ctypes
import pathlib
import sys

library, includes, architecture, folder = sys.argv[1:]
nvrtc = ctypes.CDLL(library)
here = pathlib.Path(__file__).resolve().parent
target = here / folder
target.mkdir(exist_ok=True)
failed = False
for source in sorted(here.glob("*.cu")):
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--device-int128"]
    options += [f"--include-path={include}" for include in includes.split(":")]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    result = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if log.value.strip():
        print(source.name, log.value.decode())
    if result != 0:
        failed = True
        continue
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    (target / source.with_suffix(".ptx").name).write_bytes(text.value)
sys.exit(failed)
