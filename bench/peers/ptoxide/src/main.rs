//! Measures the scalar PTX interpreter ptoxide on the kernels that it can parse, with the data and checks of
//! `kernel_times`.
//!
//! `ptoxide-times FOLDER`, the folder with the kernels' PTX. Prints one JSON object per line. Each kernel is extracted
//! from its file, because ptoxide cannot parse all of the other kernels in the file.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use ptoxide::{Argument, Context, LaunchParams};

const MILLION: usize = 1 << 20;
const RUNS: usize = 3;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Returns a module with the head of a PTX file and only the kernel `name`.
fn kernel(folder: &Path, file: &str, name: &str) -> Outcome<String> {
    let text = std::fs::read_to_string(folder.join(file))?;
    let head = text.find(".visible").ok_or("no kernel")?;
    let start = text.find(&format!(".visible .entry {name}(")).ok_or("no such kernel")?;
    let end = text[start..].find("\n}").ok_or("no end")? + start + 2;
    // ptoxide does not support the cache hint `.nc`, which does not change results.
    Ok(format!("{}{}\n", &text[..head], &text[start..end]).replace("ld.global.nc.", "ld.global."))
}

fn report(name: &str, mut times: Vec<f64>, check: f32) {
    times.sort_by(f64::total_cmp);
    println!(
        "{{\"name\": \"{name}\", \"value\": {:.3}, \"unit\": \"ms\", \"median\": {:.3}, \"worst\": {:.3}, \"runs\": {}, \"check\": {}}}",
        times[0],
        times[times.len() / 2],
        times[times.len() - 1],
        times.len(),
        f64::from(check)
    );
}

fn main() -> Outcome<()> {
    let folder = std::env::args().nth(1).ok_or("no folder")?;
    let folder = Path::new(&folder);
    let (mut x, mut y, mut state) = (Vec::new(), Vec::new(), 1u32);
    for _ in 0..MILLION {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x.push((state >> 8) as f32 / (1 << 24) as f32);
        y.push((state & 0xffff) as f32 / (1 << 16) as f32);
    }

    let mut context = Context::new_with_module(&kernel(folder, "01_saxpy.ptx", "saxpy")?)?;
    let (dx, dy) = (context.alloc::<f32>(MILLION), context.alloc::<f32>(MILLION));
    context.write(dx, &x);
    let mut times = Vec::new();
    let mut out = vec![0f32; MILLION];
    for _ in 0..RUNS {
        context.write(dy, &y);
        let start = Instant::now();
        context.run(
            LaunchParams::func("saxpy").grid1d(4096).block1d(256),
            &[
                Argument::U32(MILLION as u32),
                Argument::U32(0.5f32.to_bits()),
                Argument::ptr(dx),
                Argument::ptr(dy),
            ],
        )?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    context.read(dy, &mut out);
    let wrong = (0..MILLION).find(|at| out[*at] != 0.5f32.mul_add(x[*at], y[*at]));
    if let Some(at) = wrong {
        return Err(format!("saxpy: element {at} is {}", out[at]).into());
    }
    report("saxpy_1m", times, out[12345]);

    let mut context = Context::new_with_module(&kernel(folder, "05_matmul_tiled.ptx", "matmul")?)?;
    let (a, b, c) = (
        context.alloc::<f32>(65536),
        context.alloc::<f32>(65536),
        context.alloc::<f32>(65536),
    );
    context.write(a, &x[..65536]);
    context.write(b, &y[..65536]);
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        context.run(
            LaunchParams::func("matmul").grid2d(16, 16).block2d(16, 16),
            &[Argument::ptr(a), Argument::ptr(b), Argument::ptr(c), Argument::U32(256)],
        )?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let mut out = vec![0f32; 65536];
    context.read(c, &mut out);
    report("matmul_256", times, out[256 * 100 + 17]);
    Ok(())
}
