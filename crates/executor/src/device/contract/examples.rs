//! Tests of the kernels in `examples/` against independent computations.

use sahasra_ptx::Cancel;

use super::{Prepared, shape, words};
use crate::device::{Arguments, Device};

const ESTIMATE_PI: &str = include_str!("../../../../../examples/monte-carlo/estimate_pi.ptx");
const SAXPY: &str = include_str!("../../../../../examples/saxpy/saxpy.ptx");
const EVAL_CONFIG: &str = include_str!("../../../../../examples/hyperparameter-search/eval_config.ptx");

/// `estimate_pi(float *estimate, unsigned *inside, unsigned chunk, unsigned samplesPerThread, unsigned seed)`: the count must be
/// statistically plausible, the same in each run, and agree with the estimate to the last bit.
pub(super) fn pi_is_counted_alike_each_time<D: Device>(device: &D) {
    let (threads, samples) = (256u32, 64u32);
    let count = |chunk: u32| {
        let values = [chunk.to_le_bytes(), samples.to_le_bytes(), 1u32.to_le_bytes()];
        let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
        let mut kernel = Prepared::new(
            device,
            ESTIMATE_PI,
            "estimate_pi",
            shape([1, 1, 1], [threads, 1, 1]),
            &[4, 4],
            &values,
        );
        let bytes = kernel.run(&Cancel::new()).unwrap();
        assert_eq!(bytes, kernel.run(&Cancel::new()).unwrap());
        (f32::from_le_bytes(bytes[..4].try_into().unwrap()), words(&bytes[4..])[0])
    };
    let all = threads * samples;
    let mut seen = std::collections::BTreeSet::new();
    for chunk in 0..8 {
        let (estimate, inside) = count(chunk);
        assert_eq!(estimate, 4.0 * inside as f32 / all as f32);
        // Five standard errors of a count with probability pi / 4.
        let (expected, error) = (
            f64::from(all) * std::f64::consts::FRAC_PI_4,
            (f64::from(all) * 0.785 * 0.215).sqrt(),
        );
        assert!((f64::from(inside) - expected).abs() < 5.0 * error, "{inside} of {all}");
        seen.insert(inside);
    }
    assert!(seen.len() > 4, "chunks throw different points: {seen:?}");
}

/// `saxpy(float *out, const float *x, const float *y, float a, unsigned chunk)`: every element must be exact.
pub(super) fn saxpy_is_exact<D: Device>(device: &D) {
    let x: Vec<f32> = (0..256).map(|place| place as f32 * 0.5 - 20.0).collect();
    let y: Vec<f32> = (0..32).map(|place| 1000.0 - place as f32).collect();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let module = std::sync::Arc::new(device.load(SAXPY).unwrap());
    let (output, inputs) = (device.allocate(&[128]).unwrap(), device.allocate(&[1024, 128]).unwrap());
    let mut stream = device.stream().unwrap();
    device.write(&mut stream, &inputs, 0, &bytes(&x)).unwrap();
    device.write(&mut stream, &inputs, 1, &bytes(&y)).unwrap();
    let mut arguments = Arguments::new(&[8, 8, 8, 4, 4]);
    arguments.set(0, &device.address(&output, 0).to_le_bytes());
    arguments.set(1, &device.address(&inputs, 0).to_le_bytes());
    arguments.set(2, &device.address(&inputs, 1).to_le_bytes());
    arguments.set(3, &2.5f32.to_le_bytes());
    let kernel = super::kernel(device, &module, "saxpy", shape([1, 1, 1], [32, 1, 1]), &arguments).unwrap();
    for chunk in 0..8u32 {
        arguments.set(4, &chunk.to_le_bytes());
        device.launch(&mut stream, &kernel, &arguments, &Cancel::new()).unwrap();
        let mut out = Vec::new();
        device.read(&mut stream, &output, &mut out).unwrap();
        let expected: Vec<f32> = (0..32)
            .map(|place| 2.5f32.mul_add(x[chunk as usize * 32 + place], y[place]))
            .collect();
        assert_eq!(out, bytes(&expected), "chunk {chunk}");
    }
}

/// `eval_config(float *output, float learningRate, unsigned batchSize, float dropout)`: the losses must match those that `verify.c`
/// computes in double precision, within the tolerance that its README states.
pub(super) fn a_training_ends_with_the_loss_of_the_host<D: Device>(device: &D) {
    for (index, expected) in super::backends::HOST_LOSSES {
        let rate = (0.1 * (1.0 + f64::from(index % 100) * 0.6)) as f32;
        let batch = 32 * (1 + index / 100);
        let dropout = (0.1 + f64::from(index % 10) * 0.05) as f32;
        let values = [rate.to_le_bytes(), batch.to_le_bytes(), dropout.to_le_bytes()];
        let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
        let mut kernel = Prepared::new(device, EVAL_CONFIG, "eval_config", shape([1, 1, 1], [256, 1, 1]), &[4], &values);
        let bytes = kernel.run(&Cancel::new()).unwrap();
        let loss = f32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert!(
            (f64::from(loss) - expected).abs() < 1e-5,
            "configuration {index}: {loss}, the host says {expected}"
        );
    }
}
