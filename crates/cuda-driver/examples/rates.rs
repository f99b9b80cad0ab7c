//! Time of single calls of the CUDA driver API, on whatever `libcuda` the machine has.
//!
//! ```console
//! $ SAHASRA_CUDA=cpu: LD_LIBRARY_PATH=$(crates/cuda-driver/library --release) target/release/examples/rates
//! ```
//!
//! With `--json` each line is a JSON object with the name, the value and its unit. With `--tcp` it measures plain TCP on loopback instead, with
//! `--training` the start of a program and a loop of 100 steps, each of two uploads, 20 launches and a number that is read back. With
//! `--until-lost` it prints `running`, uses the device until a call fails, and prints the error.

use std::ffi::c_void;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

const PTX: &std::ffi::CStr = c".version 7.0 .target sm_70 .address_size 64 .visible .entry empty(.param .u64 out, .param .u32 n) { ret; }";

/// Round trips of plain TCP that are measured, and bytes of a copy.
const TRIPS: u32 = 20_000;
const BULK: usize = 64 << 20;
/// Steps of the training program.
const STEPS: u32 = 100;

fn check(result: CUresult) {
    assert_eq!(result, CUresult::CUDA_SUCCESS);
}

fn print(name: &str, value: f64, unit: &str) {
    if std::env::args().any(|argument| argument == "--json") {
        println!(r#"{{"name": "{name}", "value": {value:.4}, "unit": "{unit}"}}"#);
    } else {
        println!("{name:32} {value:10.2} {unit}");
    }
}

/// Prints the time of one of `count` calls.
fn time(name: &str, count: u32, mut call: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..count {
        call();
    }
    let each = start.elapsed().as_secs_f64() / f64::from(count);
    print(name, each * 1e6, "us");
}

/// Prints the bytes per second of one of `count` copies.
fn rate(name: &str, bytes: usize, count: u32, mut copy: impl FnMut()) {
    copy();
    let start = Instant::now();
    for _ in 0..count {
        copy();
    }
    let each = start.elapsed().as_secs_f64() / f64::from(count);
    print(name, bytes as f64 / each / 1e9, "GB/s");
}

/// Measures plain TCP between two threads: a round trip of a byte, and bytes in one direction that are confirmed at the end.
fn tcp() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        for _ in 0..TRIPS {
            server.read_exact(&mut buffer[..1])?;
            server.write_all(&buffer[..1])?;
        }
        loop {
            let mut left = BULK;
            while left > 0 {
                let most = left.min(buffer.len());
                left -= server.read(&mut buffer[..most])?;
            }
            server.write_all(&[1])?;
        }
    });
    let mut byte = [0];
    time("round trip", TRIPS, || {
        client
            .write_all(&byte)
            .and_then(|()| client.read_exact(&mut byte))
            .expect("an echo");
    });
    let bytes = vec![1; BULK];
    rate("copy", BULK, 10, || {
        client
            .write_all(&bytes)
            .and_then(|()| client.read_exact(&mut byte))
            .expect("a confirmation");
    });
    Ok(())
}

/// Initialises the driver and loads the kernel.
fn start() -> sys::CUfunction {
    let (mut context, mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: each pointer is to a local of the type that the driver writes; the texts end with a zero byte.
    unsafe {
        check(sys::cuInit(0));
        check(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        check(sys::cuCtxSetCurrent(context));
        check(sys::cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        check(sys::cuModuleGetFunction(&mut function, module, c"empty".as_ptr()));
    }
    function
}

fn launch(function: sys::CUfunction) {
    let null = std::ptr::null_mut();
    let (mut out, mut n) = (0u64, 7u32);
    let mut parameters = [(&raw mut out).cast::<c_void>(), (&raw mut n).cast()];
    let pointers = parameters.as_mut_ptr();
    // SAFETY: the parameters are those that the kernel declares.
    unsafe {
        check(sys::cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            null,
            pointers,
            std::ptr::null_mut(),
        ))
    };
}

/// Measures the start of a program, and a loop of a training program.
fn training() {
    let began = Instant::now();
    let function = start();
    print("start", began.elapsed().as_secs_f64() * 1e3, "ms");
    let input = vec![1u8; 64 << 10];
    let (mut inputs, mut loss, mut value) = ([0; 2], 0, 0u32);
    // SAFETY: the driver writes addresses.
    unsafe {
        inputs
            .iter_mut()
            .for_each(|address| check(sys::cuMemAlloc_v2(address, input.len())));
        check(sys::cuMemAlloc_v2(&mut loss, 4));
    }
    let began = Instant::now();
    for _ in 0..STEPS {
        for address in inputs {
            // SAFETY: both have this many bytes.
            unsafe { check(sys::cuMemcpyHtoD_v2(address, input.as_ptr().cast(), input.len())) };
        }
        (0..20).for_each(|_| launch(function));
        // SAFETY: both have four bytes.
        unsafe { check(sys::cuMemcpyDtoH_v2((&raw mut value).cast(), loss, 4)) };
    }
    print("loop of 100 steps", began.elapsed().as_secs_f64() * 1e3, "ms");
}

/// Fills memory and waits for it until the device is lost.
fn until_lost() {
    start();
    let mut word = 0;
    // SAFETY: the driver writes an address.
    unsafe { check(sys::cuMemAlloc_v2(&mut word, 4)) };
    println!("running");
    loop {
        // SAFETY: the memory has four bytes.
        let filled = unsafe { sys::cuMemsetD32_v2(word, 1, 1) };
        // SAFETY: the context is current.
        let done = unsafe { sys::cuCtxSynchronize() };
        if let Some(error) = [filled, done].into_iter().find(|result| *result != CUresult::CUDA_SUCCESS) {
            println!("{error:?}");
            return;
        }
    }
}

/// Bytes that no connection compresses, by xorshift.
fn incompressible(bytes: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..bytes / size_of::<u64>()).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

fn main() {
    let is_asked_for = |option: &str| std::env::args().any(|argument| argument == option);
    if is_asked_for("--tcp") {
        return tcp().expect("sockets on loopback");
    }
    if is_asked_for("--training") {
        return training();
    }
    if is_asked_for("--until-lost") {
        return until_lost();
    }
    let function = start();
    let launch = || launch(function);
    // SAFETY: the context is current.
    let synchronise = || unsafe { check(sys::cuCtxSynchronize()) };
    time("attribute", 1_000_000, || {
        let mut value = 0;
        // SAFETY: the driver writes a number.
        unsafe {
            check(sys::cuDeviceGetAttribute(
                &mut value,
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
                0,
            ))
        };
    });
    time("current context", 1_000_000, || {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        unsafe { check(sys::cuCtxGetCurrent(&mut current)) };
    });
    time("memory information", 1_000_000, || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        unsafe { check(sys::cuMemGetInfo_v2(&mut free, &mut total)) };
    });
    time("allocate and free", 200_000, || {
        let mut address = 0;
        // SAFETY: the driver writes an address, which is freed once.
        unsafe {
            check(sys::cuMemAlloc_v2(&mut address, 4096));
            check(sys::cuMemFree_v2(address));
        }
    });
    time("synchronise, idle", 1_000_000, synchronise);
    time("launch, 1000 in a row", 1000, launch);
    synchronise();
    time("launch, with all executed", 200_000, launch);
    synchronise();
    time("launch and synchronise", 50_000, || {
        launch();
        synchronise();
    });
    let mut word = 0u32;
    let mut small = 0;
    // SAFETY: the driver writes an address, and then a word.
    unsafe { check(sys::cuMemAlloc_v2(&mut small, 4)) };
    time("read 4 bytes", 20_000, || {
        // SAFETY: both have four bytes.
        unsafe { check(sys::cuMemcpyDtoH_v2((&raw mut word).cast(), small, 4)) };
    });
    time("fill and synchronise", 20_000, || {
        // SAFETY: the memory has four bytes.
        unsafe { check(sys::cuMemsetD32_v2(small, 1, 1)) };
        synchronise();
    });
    let bytes = BULK;
    let content = incompressible(bytes);
    let mut host = content.clone();
    let (mut first, mut second) = (0, 0);
    // SAFETY: the driver writes two addresses.
    unsafe {
        check(sys::cuMemAlloc_v2(&mut first, bytes));
        check(sys::cuMemAlloc_v2(&mut second, bytes));
    }
    // SAFETY: all memory has this many bytes.
    rate("copy to the device", bytes, 10, || unsafe {
        check(sys::cuMemcpyHtoD_v2(first, host.as_ptr().cast(), bytes))
    });
    // SAFETY: all memory has this many bytes.
    rate("copy to the host", bytes, 10, || unsafe {
        check(sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), first, bytes))
    });
    let mut pinned = std::ptr::null_mut();
    // SAFETY: the driver writes the address of this many bytes.
    unsafe {
        check(sys::cuMemHostAlloc(&mut pinned, bytes, 0));
        pinned.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), bytes);
        host.fill(0);
    }
    // SAFETY: all memory has this many bytes.
    rate("copy pinned memory to the device", bytes, 10, || unsafe {
        check(sys::cuMemcpyHtoD_v2(first, pinned, bytes))
    });
    // SAFETY: all memory has this many bytes.
    unsafe { check(sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), first, bytes)) };
    assert!(host == content, "a copy is complete when it returns");
    // SAFETY: all memory has this many bytes.
    rate("copy to pinned memory of the host", bytes, 10, || unsafe {
        check(sys::cuMemcpyDtoH_v2(pinned, first, bytes))
    });
    rate("copy on the device", bytes, 10, || {
        // SAFETY: all memory has this many bytes.
        unsafe { check(sys::cuMemcpyDtoD_v2(second, first, bytes)) };
        synchronise();
    });
    let mut other = vec![0u8; bytes];
    rate("copy in the host, for comparison", bytes, 10, || {
        other.copy_from_slice(&host);
        std::hint::black_box(&mut other);
    });
}
