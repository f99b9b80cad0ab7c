//! Instruction forms that occur only in `forms.ptx`, if the reference machine in `crates/ptx/fuzz` does not run them. Results must be
//! exact.

use sahasra_ptx::ArgumentList;

use super::load;
use crate::device::Noise;

#[test]
fn arrivals_are_waited_for_by_state_and_by_parity() {
    let device = load("forms");
    for threads in [1, 32, 50, 64u32] {
        let out = device.zeros::<u32>(128);
        device.run("meet", [1, 1, 1], [threads, 1, 1], ArgumentList::new().pointer(out));
        let mut expected: Vec<u32> = (0..threads).flat_map(|thread| [threads - 1 - thread, thread + 1000]).collect();
        expected.resize(128, 0);
        assert_eq!(device.download::<u32>(out, 128), expected);
    }
}

#[test]
fn tensor_cores_take_untyped_registers() {
    let device = load("forms");
    let mut noise = Noise::new(41);
    // Numbers from 0 to 3 in sixteen bits, whose sums are exact.
    let mut numbers = || (0..256).map(|_| noise.below(4) as usize).collect::<Vec<_>>();
    let (a, b) = (numbers(), numbers());
    let halves = |numbers: &[usize]| {
        numbers
            .iter()
            .map(|number| [0u16, 0x3c00, 0x4000, 0x4200][*number])
            .collect::<Vec<_>>()
    };
    let (da, db, dc) = (device.upload(&halves(&a)), device.upload(&halves(&b)), device.zeros::<f32>(256));
    device.run(
        "tile",
        [1, 1, 1],
        [32, 1, 1],
        ArgumentList::new().pointer(da).pointer(db).pointer(dc),
    );
    // b is in column-major order.
    let expected: Vec<f32> = (0..256)
        .map(|at| (0..16).map(|k| a[at / 16 * 16 + k] * b[at % 16 * 16 + k]).sum::<usize>() as f32)
        .collect();
    assert_eq!(device.download::<f32>(dc, 256), expected);
}
