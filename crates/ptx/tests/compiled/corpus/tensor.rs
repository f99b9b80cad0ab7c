//! Matrix instructions, asynchronous copies, cooperative groups.

use sahasra_ptx::{ArgumentList, Launch};

use super::load;
use crate::device::{Device, Noise};

/// Returns the f16 of a small multiple of 1/16, which is exact in f16.
pub(crate) fn half(value: f64) -> u16 {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        return 0;
    }
    let exponent = magnitude.log2().floor() as i32;
    let fraction = ((magnitude / 2f64.powi(exponent) - 1.0) * 1024.0) as u16;
    (u16::from(value < 0.0) << 15) | ((exponent + 15) as u16) << 10 | fraction
}

pub(crate) fn sixteenths(noise: &mut Noise, count: usize) -> Vec<f64> {
    (0..count).map(|_| (noise.below(64) as f64 - 32.0) / 16.0).collect()
}

#[test]
fn wmma_of_sixteen_squared_is_exact() {
    let device = load("23_coop_async_mma");
    let mut noise = Noise::new(23);
    let (a, b) = (sixteenths(&mut noise, 256), sixteenths(&mut noise, 256));
    let halves = |values: &[f64]| values.iter().map(|value| half(*value)).collect::<Vec<_>>();
    let (da, db, dc) = (device.upload(&halves(&a)), device.upload(&halves(&b)), device.zeros::<f32>(256));
    let arguments = ArgumentList::new().pointer(da).pointer(db).pointer(dc);
    device.run("wmma16", [1, 1, 1], [32, 1, 1], arguments);
    // b is in column-major order.
    let expected: Vec<f32> = (0..256)
        .map(|at| (0..16).map(|k| a[at / 16 * 16 + k] * b[at % 16 * 16 + k]).sum::<f64>() as f32)
        .collect();
    assert_eq!(device.download::<f32>(dc, 256), expected);
}

#[test]
fn asynchronous_copies_arrive() {
    let device = load("23_coop_async_mma");
    let input: Vec<f32> = (0..512).map(|index| index as f32).collect();
    let (source, target) = (device.upload(&input), device.zeros::<f32>(512));
    device.run(
        "asynccp",
        [1, 1, 1],
        [128, 1, 1],
        ArgumentList::new().pointer(source).pointer(target),
    );
    let expected: Vec<f32> = (0..128).rev().flat_map(|row| (0..4).map(move |at| (4 * row + at) as f32)).collect();
    assert_eq!(device.download::<f32>(target, 512), expected);
}

#[test]
fn tiles_of_sixteen_and_coalesced_groups_work() {
    let device = load("23_coop_async_mma");
    let mut noise = Noise::new(24);
    let input: Vec<i32> = (0..64).map(|_| noise.below(9) as i32 - 4).collect();
    let (source, target) = (device.upload(&input), device.zeros::<i32>(8));
    device.run("coop", [1, 1, 1], [64, 1, 1], ArgumentList::new().pointer(source).pointer(target));
    let found = device.download::<i32>(target, 8);
    // Every thread sums its own value and those of the lanes above it in its tile, as shuffles within 16 lanes do.
    let mut values = input.clone();
    for step in [8, 4, 2, 1] {
        let before = values.clone();
        for (at, value) in values.iter_mut().enumerate() {
            *value += before[if at % 16 + step < 16 { at + step } else { at }];
        }
    }
    assert_eq!(found[2..6], [values[0], values[16], values[32], values[48]]);
    assert_eq!(found[1], values.iter().filter(|value| **value > 3).count() as i32);
}

#[test]
fn tritons_tensor_core_product_is_exact() {
    let device = load("triton/mm");
    let n = 128;
    let mut noise = Noise::new(25);
    let (a, b) = (sixteenths(&mut noise, n * n), sixteenths(&mut noise, n * n));
    let halves = |values: &[f64]| values.iter().map(|value| half(*value)).collect::<Vec<_>>();
    let (da, db, dc) = (device.upload(&halves(&a)), device.upload(&halves(&b)), device.zeros::<f32>(n * n));
    let arguments = ArgumentList::new().pointer(da).pointer(db).pointer(dc).u32(n as u32).u64(0).u64(0);
    let launch = Launch {
        dynamic_shared_bytes: 16 << 10,
        ..Launch::new([2, 2, 1], [128, 1, 1])
    };
    device.launch("mm", &launch, &arguments);
    let expected: Vec<f32> = (0..n * n)
        .map(|at| (0..n).map(|k| a[at / n * n + k] * b[k * n + at % n]).sum::<f64>() as f32)
        .collect();
    assert_eq!(device.download::<f32>(dc, n * n), expected);
}

/// Code that cooperative groups generate for `this_grid().sync()`: thread 0 of each block counts its arrival in the workspace and waits
/// until the top bit changes. Block 0 adds the difference that makes it change.
const GRID_SYNC: &str = "
    bar.sync 0;
    setp.ne.u32 %p1, %thread, 0;
    @%p1 bra DONE;
    mov.u32 %r1, %envreg2;
    mov.u32 %r2, %envreg1;
    mov.b64 %rd9, {%r1, %r2};
    mov.u32 %r3, %nctaid.x;
    mov.u32 %r4, %ctaid.x;
    sub.s32 %r5, -2147483647, %r3;
    setp.eq.u32 %p2, %r4, 0;
    selp.b32 %r6, %r5, 1, %p2;
    membar.gl;
    atom.global.add.u32 %r7, [%rd9+4], %r6;
WAIT:
    ld.volatile.global.u32 %r8, [%rd9+4];
    xor.b32 %r9, %r8, %r7;
    setp.ge.s32 %p3, %r9, 0;
    @%p3 bra WAIT;
    membar.gl;
DONE:
    bar.sync 0;";

#[test]
fn blocks_of_a_synchronised_grid_see_each_others_results() {
    let ptx = format!(
        ".version 8.0 .target sm_80 .address_size 64
        .visible .entry grid_sum(.param .u64 partial, .param .u64 out) {{
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>; .reg .b32 %thread;
            mov.u32 %thread, %tid.x;
            ld.param.u64 %rd1, [partial];
            ld.param.u64 %rd2, [out];
            mov.u32 %r10, %ctaid.x;
            mul.wide.u32 %rd3, %r10, 4;
            add.u64 %rd4, %rd1, %rd3;
            red.global.add.u32 [%rd4], %thread;
            {{ {GRID_SYNC} }}
            mov.u32 %r11, 0;
            mov.u32 %r12, 0;
            mov.u32 %r13, %nctaid.x;
        SUM:
            ld.volatile.global.u32 %r14, [%rd1];
            add.u64 %rd1, %rd1, 4;
            add.u32 %r11, %r11, %r14;
            add.u32 %r12, %r12, 1;
            setp.lt.u32 %p4, %r12, %r13;
            @%p4 bra SUM;
            {{ {GRID_SYNC} }}
            add.u64 %rd5, %rd2, %rd3;
            add.u32 %r11, %r11, %r10;
            st.global.u32 [%rd5], %r11;
            ret;
        }}"
    );
    let device = Device::new(&ptx);
    for threads in [1usize, 2] {
        let (partial, out) = (device.zeros::<u32>(12), device.zeros::<u32>(12));
        let launch = Launch {
            threads: threads.try_into().expect("not zero"),
            ..Launch::new([12, 1, 1], [100, 1, 1])
        };
        device.launch("grid_sum", &launch, &ArgumentList::new().pointer(partial).pointer(out));
        let expected: Vec<u32> = (0..12).map(|block| 12 * 4950 + block).collect();
        assert_eq!(device.download::<u32>(out, 12), expected);
    }
}
