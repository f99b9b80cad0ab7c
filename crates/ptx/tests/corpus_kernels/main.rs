//! Kernels of the corpus, as two compilers made them, against host computations written independently of the engine.

mod compilers;
mod device;
mod mathematics;
mod numeric;
mod patterns;
mod runtime;
mod tensor;
