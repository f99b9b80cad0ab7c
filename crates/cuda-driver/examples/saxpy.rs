//! A program that knows nothing of Sahasra: cudarc on whatever `libcuda` the machine has.
//!
//! ```console
//! $ SAHASRA_CUDA=cpu: LD_LIBRARY_PATH=$(crates/cuda-driver/library) target/debug/examples/saxpy
//! Sahasra CPU: 2 * 999 + 1 = 1999
//! ```

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 out, .param .u64 x, .param .f32 a, .param .u32 n)
{
    .reg .pred %p1;
    .reg .b32 %r<5>;
    .reg .f32 %f<5>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [x];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 ret;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    ld.global.f32 %f3, [%rd5];
    fma.rn.f32 %f4, %f1, %f3, %f2;
    st.global.f32 [%rd4], %f4;
    ret;
}";

/// Computes `2 x + 1` for 1000 values, on a second stream.
pub(crate) fn main() -> Result<(), DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(PTX))?;
    let saxpy = module.load_function("saxpy")?;
    let x: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let x_device = stream.clone_htod(&x)?;
    let mut out = stream.clone_htod(&vec![1.0f32; x.len()])?;
    let other = stream.fork()?;
    let (a, n) = (2.0f32, x.len() as u32);
    let mut arguments = other.launch_builder(&saxpy);
    arguments.arg(&mut out).arg(&x_device).arg(&a).arg(&n);
    // SAFETY: the arguments are those that the kernel declares, and both arrays have n elements.
    unsafe { arguments.launch(LaunchConfig::for_num_elems(n)) }?;
    let result = stream.clone_dtoh(&out)?;
    for (x, result) in x.iter().zip(&result) {
        assert_eq!(*result, 2.0 * x + 1.0);
    }
    println!("{}: 2 * {} + 1 = {}", context.name()?, x[999], result[999]);
    Ok(())
}
