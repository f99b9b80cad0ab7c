//! Every instruction form against its model, on every instruction set: combinations of edge cases, and random values.

use std::process::Command;

use sahasra_ptx::{InstructionSet, instruction_set, limit_instruction_set};
use sahasra_ptx_fuzz::model::Model;
use sahasra_ptx_fuzz::single::{compare, run};
use sahasra_ptx_fuzz::{forms, inputs};

/// Environment variable that tells a child process of this test which instruction set to use.
const CHILD: &str = "SAHASRA_PTX_EXACTNESS";
/// Number of random operand lists per form.
const RANDOM: usize = 500;

/// Checks all forms. Returns the differences, and the number of results compared.
fn wrong() -> (Vec<String>, usize) {
    let mut random = fastrand::Rng::with_seed(0x5eed);
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for form in forms::all() {
        let model = Model::of(&form).expect("forms have models");
        // A form with an immediate has a kernel for each value.
        let kernels = if model.immediates.is_empty() { 1 } else { 40 };
        for _ in 0..kernels {
            let mut lists = inputs::lists(&model, RANDOM / kernels, &mut random);
            for (index, _) in &model.immediates {
                let value = lists[random.usize(..lists.len())][*index];
                lists.iter_mut().for_each(|list| list[*index] = value);
            }
            match run(&form, &model, &lists) {
                Ok(found) => {
                    checked += lists.len();
                    if let Err(difference) = compare(&form, &model, &lists, &found) {
                        wrong.push(difference);
                        break;
                    }
                }
                Err(error) => {
                    wrong.push(format!("{form}: {error}"));
                    break;
                }
            }
        }
    }
    (wrong, checked)
}

fn check() {
    let (wrong, checked) = wrong();
    println!("{:?}: {} forms, {checked} results", instruction_set(), forms::all().len());
    assert!(wrong.is_empty(), "{} forms differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Runs [`check`] in a separate process, which an instruction set requires.
fn check_on(name: &str, limit: InstructionSet, test: &str) {
    if std::env::var(CHILD).is_ok_and(|wanted| wanted == name) {
        assert!(limit_instruction_set(limit));
        return check();
    }
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, name)
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&child.stdout);
    println!("{text}");
    assert!(child.status.success(), "{text}{}", String::from_utf8_lossy(&child.stderr));
    assert!(text.contains(" results"), "the child ran no test of the name {test}");
}

#[test]
fn forms_are_exact_in_the_baseline() {
    check_on("baseline", InstructionSet::Baseline, "exactness::forms_are_exact_in_the_baseline");
}

#[test]
fn forms_are_exact_in_v3() {
    check_on("v3", InstructionSet::V3, "exactness::forms_are_exact_in_v3");
}

#[test]
fn forms_are_exact_in_avx512() {
    check_on("avx512", InstructionSet::Avx512, "exactness::forms_are_exact_in_avx512");
}
