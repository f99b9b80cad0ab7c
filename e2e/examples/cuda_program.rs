//! A program that uses the CUDA driver API and knows nothing of Sahasra. What it does, and prints, is chosen by its first argument.
//!
//! | Argument | |
//! |---|---|
//! | `steps N` | runs N kernels, each on the result of the one before, and checks the result |
//! | `train N` | N times: writes two arrays, runs 20 kernels, and reads a number back |
//! | `hang` | launches a kernel that does not end, prints `hanging`, and waits for it |
//! | `copies N` | copies 8 MiB to the device and back N times, prints `copying` in the first copy, and checks each byte |
//! | `pinned N` | the same from and to page-locked memory, which it frees right after the copy to the device |
//! | `hold PATTERN` | fills 16 MiB with the pattern, prints `holding`, and checks them when its standard input ends |
//! | `exhaust` | allocates 8 MiB at a time until that fails; prints the device's memory, what it got, and the code |
//! | `look` | prints what NVML says of the device's memory, without using the device |
//! | `lose` | runs kernels until one fails, and prints the code of this and the next call |

use std::io::Read;
use std::time::Instant;

use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

const KERNELS: &std::ffi::CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 x, .param .u32 n)
{
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p ret;
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r3, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r5, [%rd2];
    mad.lo.u32 %r5, %r5, 1664525, 1013904223;
    st.global.u32 [%rd2], %r5;
    ret;
}
.visible .entry endless(.param .u64 x, .param .u32 n)
{
again:
    bra again;
}
";
const ELEMENTS: u32 = 512;
const MIB: usize = 1 << 20;

fn check(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

/// Memory of the device.
fn allocate(bytes: usize) -> Result<CUdeviceptr, CUresult> {
    let mut address = 0;
    // SAFETY: the driver writes an address.
    match unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) } {
        CUresult::CUDA_SUCCESS => Ok(address),
        error => Err(error),
    }
}

fn write(address: CUdeviceptr, bytes: &[u8]) {
    // SAFETY: the driver reads this many bytes.
    check(unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) });
}

fn read(address: CUdeviceptr, bytes: &mut [u8]) {
    // SAFETY: the driver writes this many bytes.
    check(unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) });
}

fn synchronise() -> CUresult {
    // SAFETY: the call has no arguments.
    unsafe { sys::cuCtxSynchronize() }
}

/// Kernel of this program, and an array for it.
struct Steps {
    kernel: sys::CUfunction,
    /// Kernel that does not end.
    endless: sys::CUfunction,
    array: CUdeviceptr,
}

impl Steps {
    fn load() -> Self {
        let (mut module, mut kernel, mut endless) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the driver writes a handle each; the texts end with a zero byte.
        unsafe {
            check(sys::cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast()));
            check(sys::cuModuleGetFunction(&raw mut kernel, module, c"step".as_ptr()));
            check(sys::cuModuleGetFunction(&raw mut endless, module, c"endless".as_ptr()));
        }
        let array = allocate(ELEMENTS as usize * 4).expect("memory for the array");
        let elements: Vec<u8> = (0..ELEMENTS).flat_map(u32::to_le_bytes).collect();
        write(array, &elements);
        Self { kernel, endless, array }
    }

    fn launch(&self) -> CUresult {
        self.run(self.kernel)
    }

    fn run(&self, kernel: sys::CUfunction) -> CUresult {
        let (mut array, mut count) = (self.array, ELEMENTS);
        let mut parameters = [(&raw mut array).cast(), (&raw mut count).cast()];
        let null = std::ptr::null_mut();
        // SAFETY: the parameters are those that the kernel declares.
        unsafe {
            sys::cuLaunchKernel(
                kernel,
                ELEMENTS.div_ceil(256),
                1,
                1,
                256,
                1,
                1,
                0,
                null,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }
}

fn steps(count: u32) {
    let steps = Steps::load();
    (0..count).for_each(|_| check(steps.launch()));
    let mut bytes = vec![0; ELEMENTS as usize * 4];
    read(steps.array, &mut bytes);
    for (index, bytes) in bytes.chunks_exact(4).enumerate() {
        let step = |element: u32| element.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let expected = (0..count).fold(index as u32, |element, _| step(element));
        assert_eq!(
            u32::from_le_bytes(bytes.try_into().expect("four bytes")),
            expected,
            "element {index}"
        );
    }
    println!("{count} steps are right");
}

fn train(count: u32) {
    let steps = Steps::load();
    let inputs = [allocate(MIB / 16).expect("memory"), allocate(MIB / 16).expect("memory")];
    let mut number = [0; 4];
    for step in 0..count {
        inputs.iter().for_each(|input| write(*input, &vec![step as u8; MIB / 16]));
        (0..20).for_each(|_| check(steps.launch()));
        read(steps.array, &mut number);
    }
    println!("trained for {count} steps");
}

fn hang() {
    let steps = Steps::load();
    check(steps.run(steps.endless));
    println!("hanging");
    println!("{:?}", synchronise());
}

fn copies(count: u8) {
    let array = allocate(8 * MIB).expect("memory for the array");
    let mut back = vec![0; 8 * MIB];
    for round in 0..count {
        let bytes: Vec<u8> = (0..8 * MIB)
            .map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ round)
            .collect();
        write(array, &bytes);
        if round == 0 {
            println!("copying");
        }
        read(array, &mut back);
        assert!(back == bytes, "round {round}: a byte differs");
    }
    println!("{count} copies are right");
}

/// Page-locked memory of the host, which must be zero.
fn pinned(bytes: usize) -> *mut u8 {
    let mut start = std::ptr::null_mut();
    // SAFETY: the driver writes the address of this many bytes.
    unsafe {
        check(sys::cuMemHostAlloc(&raw mut start, bytes, 0));
        assert!(std::slice::from_raw_parts(start.cast::<u8>(), bytes).iter().all(|byte| *byte == 0));
    }
    start.cast()
}

fn pinned_copies(count: u8) {
    let bytes = 8 * MIB;
    let array = allocate(bytes).expect("memory for the array");
    for round in 0..count {
        let expected = |index: usize| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ round;
        let (source, target) = (pinned(bytes), pinned(bytes));
        // SAFETY: all memory has this many bytes, and the target is not freed before the copies to it have ended.
        unsafe {
            (0..bytes).for_each(|index| source.add(index).write(expected(index)));
            check(sys::cuMemcpyHtoDAsync_v2(array, source.cast(), bytes, std::ptr::null_mut()));
            check(sys::cuMemFreeHost(source.cast()));
            if round == 0 {
                println!("copying");
            }
            check(sys::cuMemcpyDtoHAsync_v2(target.cast(), array, bytes, std::ptr::null_mut()));
            check(synchronise());
            assert!(
                (0..bytes).all(|index| target.add(index).read() == expected(index)),
                "round {round}: a byte differs"
            );
            check(sys::cuMemFreeHost(target.cast()));
        }
    }
    println!("{count} copies are right");
}

fn hold(pattern: u8) {
    let array = allocate(16 * MIB).expect("memory for the array");
    // SAFETY: the array has this many bytes.
    check(unsafe { sys::cuMemsetD8_v2(array, pattern, 16 * MIB) });
    check(synchronise());
    println!("holding {array:#x}");
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).expect("standard input ends");
    let mut bytes = vec![0; 16 * MIB];
    read(array, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == pattern), "somebody else wrote here");
    println!("unchanged");
}

fn exhaust() {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two numbers.
    check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
    let mut got = 0;
    let error = loop {
        match allocate(8 * MIB) {
            Ok(_) => got += 8,
            Err(error) => break error,
        }
    };
    println!("total {} MiB, got {got} MiB, then {error:?}", total / MIB);
    check(synchronise());
}

fn look() {
    #[repr(C)]
    #[derive(Default)]
    struct Memory {
        total: u64,
        free: u64,
        used: u64,
    }
    let mut memory = Memory::default();
    // SAFETY: NVML documents these types for its functions.
    unsafe {
        let library = libloading::Library::new("libnvidia-ml.so.1").expect("the library is found");
        let init: libloading::Symbol<unsafe extern "C" fn() -> u32> = library.get(b"nvmlInit_v2\0").expect("a function");
        assert_eq!(init(), 0);
        let mut device = std::ptr::null_mut::<std::ffi::c_void>();
        let handle: libloading::Symbol<unsafe extern "C" fn(u32, *mut *mut std::ffi::c_void) -> u32> =
            library.get(b"nvmlDeviceGetHandleByIndex_v2\0").expect("a function");
        assert_eq!(handle(0, &raw mut device), 0);
        let information: libloading::Symbol<unsafe extern "C" fn(*mut std::ffi::c_void, *mut Memory) -> u32> =
            library.get(b"nvmlDeviceGetMemoryInfo\0").expect("a function");
        assert_eq!(information(device, &raw mut memory), 0);
    }
    assert_eq!(memory.free, memory.total - memory.used);
    let mib = MIB as u64;
    println!("total {} MiB, used {} MiB", memory.total / mib, memory.used / mib);
}

fn lose() {
    let steps = Steps::load();
    check(synchronise());
    println!("running");
    loop {
        let before = Instant::now();
        let launched = steps.launch();
        let error = if launched == CUresult::CUDA_SUCCESS {
            synchronise()
        } else {
            launched
        };
        if error != CUresult::CUDA_SUCCESS {
            println!("{error:?} after {} ms, then {:?}", before.elapsed().as_millis(), synchronise());
            return;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = || arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    if arguments.first().is_some_and(|argument| argument == "look") {
        return look();
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver writes a handle.
    unsafe {
        check(sys::cuInit(0));
        check(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
        check(sys::cuCtxSetCurrent(context));
    }
    match arguments.first().map(String::as_str) {
        Some("steps") => steps(number()),
        Some("train") => train(number()),
        Some("hang") => hang(),
        Some("copies") => copies(number() as u8),
        Some("pinned") => pinned_copies(number() as u8),
        Some("hold") => hold(number() as u8),
        Some("exhaust") => exhaust(),
        Some("lose") => lose(),
        _ => panic!("expected steps N, train N, hang, copies N, pinned N, hold PATTERN, exhaust, look or lose"),
    }
}
