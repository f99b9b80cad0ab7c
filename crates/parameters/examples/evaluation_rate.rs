//! Prints the evaluation time of one chunk's parameters: `cargo run --release --example evaluation_rate`.

use std::{hint::black_box, time::Instant};

use sahasra_crds::burst_job::Chunks;
use sahasra_parameters::Program;

const PROGRAMS: [(&str, &str); 4] = [
    (
        "three formulas",
        r#"{"count": 1000000, "parameters": {
            "learningRate": {"type": "f32", "cel": "0.0001 * (1.0 + double(index % 100) * 0.01)"},
            "batchSize": {"type": "u32", "cel": "32 * (1 + index / 10000)"},
            "dropout": {"type": "f32", "cel": "0.1 + double(index % 10) * 0.05"}}}"#,
    ),
    (
        "formula with pow and list",
        r#"{"count": 1000000, "parameters": {
            "learningRate": {"type": "f32", "cel": "math.pow(10.0, -5.0 + 4.0 * double(index) / double(count))"},
            "batchSize": {"type": "u32", "cel": "[16, 32, 64, 128][index % 4]"}}}"#,
    ),
    (
        "three random",
        r#"{"count": 1000000, "seed": 1, "parameters": {
            "learningRate": {"type": "f32", "random": {"logUniform": {"min": 0.00001, "max": 0.1}}},
            "batchSize": {"type": "u32", "random": {"choice": [16, 32, 64]}},
            "dropout": {"type": "f32", "random": {"uniform": {"min": 0, "max": 0.5}}}}}"#,
    ),
    (
        "product of three",
        r#"{"product": [
            {"name": "a", "type": "u32", "list": [1, 2, 3, 4, 5, 6, 7, 8]},
            {"name": "b", "type": "f32", "list": [0.1, 0.2, 0.3, 0.4]},
            {"name": "c", "type": "f32", "list": [1, 2]}]}"#,
    ),
];

fn main() {
    const EVALUATIONS: u64 = 2_000_000;
    for (name, chunks) in PROGRAMS {
        let chunks: Chunks = serde_json::from_str(chunks).expect("the program is written above");
        let started = Instant::now();
        let program = Program::compile(&chunks).expect("the program is right");
        let compiled = started.elapsed();
        let mut values = Vec::new();
        let started = Instant::now();
        for evaluation in 0..EVALUATIONS {
            program
                .evaluate(evaluation % program.count(), &mut values)
                .expect("every chunk has values");
            black_box(&values);
        }
        let nanoseconds = started.elapsed().as_nanos() as f64 / EVALUATIONS as f64;
        println!(
            "{name}: {nanoseconds:.0} ns a chunk, compiled in {:.2} ms",
            compiled.as_secs_f64() * 1e3
        );
    }
}
