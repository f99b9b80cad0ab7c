//! A program in C that does what compilers emit.

use crate::libraries::{CPU, Folder, VERSIONS, text};

/// Runs a part of the program with each version of the runtime, and returns what it wrote to stderr.
fn passes(part: &str) -> Vec<String> {
    passes_in("program", part)
}

/// The same, of a program that is given by its name.
fn passes_in(program: &str, part: &str) -> Vec<String> {
    let folder = Folder::new();
    let errors = VERSIONS.iter().map(|version| {
        let output = folder.run(&folder.compile(program, *version), part, CPU);
        let (written, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success() && written.ends_with("done\n"),
            "{version}: {written}{errors}"
        );
        // The loader complains here if a library lacks the version of its symbols.
        assert!(!errors.contains("no version information"), "{errors}");
        errors
    });
    errors.collect()
}

#[test]
fn kernels_are_launched_in_every_way() {
    passes("launches");
}

#[test]
fn functions_that_run_at_exit_use_the_device_before_it_is_closed() {
    passes("exit");
}

#[test]
fn memory_is_allocated_copied_and_filled() {
    passes("memory");
}

#[test]
fn graphs_are_captured_made_and_launched() {
    passes("graphs");
}

#[test]
fn arrays_are_created_and_copied() {
    passes_in("textures", "arrays");
}

#[test]
fn textures_and_surfaces_are_read_and_written_by_kernels() {
    passes_in("textures", "objects");
}

#[test]
fn a_child_that_is_forked_during_an_initialisation_is_refused() {
    passes_in("forks", "");
}

#[test]
fn errors_have_the_documented_codes() {
    for errors in passes("errors") {
        assert_eq!(
            errors.matches("cudaGraphConditionalHandleCreate is not supported").count(),
            1,
            "{errors}"
        );
        assert_eq!(errors.matches("the managed variable total is not supported").count(), 1, "{errors}");
        assert_eq!(errors.matches("machine code for a GPU").count(), 1, "{errors}");
        assert_eq!(errors.matches("snap: trap").count(), 1, "{errors}");
    }
}

#[test]
fn a_program_without_a_device_is_told_what_to_set() {
    let folder = Folder::new();
    let output = folder.run(&folder.program(12), "launches", &[]);
    let errors = text(&output.stderr);
    assert!(text(&output.stdout).contains("100 cudaErrorNoDevice"), "{}", text(&output.stdout));
    assert_eq!(errors.matches("set SAHASRA_CUDA=cpu:").count(), 1, "{errors}");
}

#[test]
fn a_program_without_a_driver_is_told_where_to_look() {
    let folder = Folder::without_driver();
    let output = folder.run(&folder.program(12), "launches", CPU);
    assert!(
        text(&output.stdout).contains("35 cudaErrorInsufficientDriver"),
        "{}",
        text(&output.stdout)
    );
    assert!(
        text(&output.stderr).contains("libcuda.so.1 is not found"),
        "{}",
        text(&output.stderr)
    );
}
