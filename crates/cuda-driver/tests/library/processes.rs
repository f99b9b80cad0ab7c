//! Processes that fork or end.

use crate::driver::{CPU, NOT_INITIALIZED, Program, SUCCESS, apart, cu, ok, open};

/// Runs a function in a forked child. Returns the exit status of the child.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls the library, which is what is tested, and ends without running anything of the test.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(child());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status)
    }
}

#[test]
fn a_forked_child_is_not_initialised_and_its_parent_goes_on() {
    apart("processes::a_forked_child_is_not_initialised_and_its_parent_goes_on", CPU, || {
        let program = Program::new();
        let memory = program.allocate(4);
        assert_eq!(program.launch_one(program.function("greet"), &mut []), SUCCESS);
        let status = forked(|| {
            let mut address = 0u64;
            let codes = [
                cu!(program.library, cuInit(0u32)),
                cu!(program.library, cuMemAlloc_v2(&raw mut address, 4usize)),
                cu!(program.library, cuCtxSynchronize()),
                program.word(memory).unwrap_err(),
            ];
            i32::from(codes != [NOT_INITIALIZED; 4])
        });
        assert_eq!(status, 0);
        assert_eq!(program.word(memory), Ok(0));
    });
}

#[test]
fn a_child_of_a_process_that_was_not_initialised_may_be() {
    apart("processes::a_child_of_a_process_that_was_not_initialised_may_be", CPU, || {
        let library = open();
        assert_eq!(forked(|| cu!(library, cuInit(0u32)) as i32), 0);
        ok!(library, cuInit(0u32));
    });
}

#[test]
fn a_process_ends_with_work_in_progress() {
    apart("processes::a_process_ends_with_work_in_progress", CPU, || {
        let program = Program::new();
        assert_eq!(program.launch_one(program.function("spin"), &mut []), SUCCESS);
        // Closing the library while its threads run.
        drop(program);
    });
}
