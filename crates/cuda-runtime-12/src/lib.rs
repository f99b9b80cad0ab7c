//! `libcudart.so.12`: the CUDA runtime API of [`sahasra_cuda_runtime`], with the forms of its functions that version 12 has.

mod api;

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
