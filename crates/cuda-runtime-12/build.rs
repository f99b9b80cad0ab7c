//! Generates an export for each name of symbols.txt that the sources do not implement, and gives all of them the version of the library.

fn main() {
    sahasra_cuda_boundary::build::runtime_library("libcudart.so.12");
}
