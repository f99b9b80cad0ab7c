//! `ptx-fuzz forms`: a module with one kernel for each instruction form, for an independent assembler to check.

use clap::Parser;
use sahasra_ptx_fuzz::{forms, inputs, model::Model, single};

/// Checks the PTX engine against independent models.
#[derive(Parser)]
enum Command {
    /// Prints a module with one kernel for each instruction form there is a model of.
    Forms,
}

fn main() {
    match Command::parse() {
        Command::Forms => print_forms(),
    }
}

fn print_forms() {
    let mut random = fastrand::Rng::with_seed(1);
    for (index, form) in forms::all().iter().enumerate() {
        let Some(model) = Model::of(form) else { continue };
        let list = inputs::lists(&model, 1, &mut random).remove(0);
        let immediates: Vec<u64> = model.immediates.iter().map(|(place, _)| list[*place]).collect();
        let text = single::kernel(form, &model, &immediates).replace(".entry k(", &format!(".entry k{index}("));
        let body = text.find(".visible").unwrap_or(0);
        println!("{}// {form}\n{}", if index == 0 { &text[..body] } else { "" }, &text[body..]);
    }
}
