//! Processes that fork or end.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::driver::{CPU, NO_DEVICE, NOT_INITIALIZED, Program, SUCCESS, apart, cu, ok, open};

/// Runs a function in a forked child. Returns the exit status of the child.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls the library, which is what is tested, and ends without running anything of the test.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            // A child that hangs ends with SIGALRM.
            libc::alarm(20);
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
fn a_child_of_a_process_whose_initialisation_failed_is_refused() {
    let test = "processes::a_child_of_a_process_whose_initialisation_failed_is_refused";
    apart(test, &[("SAHASRA_CUDA", "127.0.0.1:1")], || {
        let library = open();
        assert_eq!(cu!(library, cuInit(0u32)), NO_DEVICE);
        // The client's threads exist in the parent only.
        assert_eq!(forked(|| cu!(library, cuInit(0u32)) as i32), NOT_INITIALIZED as i32);
        assert_eq!(cu!(library, cuInit(0u32)), NO_DEVICE);
    });
}

#[test]
fn a_child_that_is_forked_during_an_initialisation_is_refused() {
    let test = "processes::a_child_that_is_forked_during_an_initialisation_is_refused";
    apart(test, &[], || {
        let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: called before the library is opened, so that no thread of the library reads the environment.
        unsafe { std::env::set_var("SAHASRA_CUDA", gateway.local_addr().unwrap().to_string()) };
        let library = open();
        std::thread::scope(|scope| {
            let initialised = scope.spawn(|| cu!(library, cuInit(0u32)));
            // The library waits for the answer to its request.
            let (connection, _) = gateway.accept().unwrap();
            let status = forked(|| cu!(library, cuInit(0u32)) as i32);
            drop((connection, gateway));
            assert_eq!(status, NOT_INITIALIZED as i32);
            assert_eq!(initialised.join().unwrap(), NO_DEVICE);
        });
    });
}

/// Reads the next request of a gateway and answers it with an object, or keeps the connection without an answer.
fn answer(gateway: &TcpListener, object: Option<&str>) -> TcpStream {
    let (mut connection, _) = gateway.accept().expect("a connection");
    let mut request = Vec::new();
    let is_whole = |request: &[u8]| {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        (body.len() >= length.map_or(0, |length| length.parse().expect("a number"))).then_some(())
    };
    while is_whole(&request).is_none() {
        let mut part = [0; 4096];
        let read = connection.read(&mut part).expect("a request");
        assert_ne!(read, 0, "the request is cut");
        request.extend_from_slice(&part[..read]);
    }
    if let Some(object) = object {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", object.len());
        connection.write_all((head + object).as_bytes()).expect("it reads");
    }
    connection
}

#[test]
fn a_signal_ends_a_process_that_waits_for_a_device() {
    apart("processes::a_signal_ends_a_process_that_waits_for_a_device", &[], || {
        let gateway = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: called before the library is opened, so that no thread of the library reads the environment.
        unsafe { std::env::set_var("SAHASRA_CUDA", gateway.local_addr().unwrap().to_string()) };
        let library = open();
        // SAFETY: the child calls the library, which is what is tested, and ends without running anything of the test.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = cu!(library, cuInit(0u32)) as i32;
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        drop(answer(&gateway, Some(r#"{"metadata": {"name": "cuda-1"}}"#)));
        // The session is not placed.
        let _waiting = answer(&gateway, None);
        let mut status = 0;
        // SAFETY: signals the child and waits for it.
        let ended = unsafe {
            libc::kill(pid, libc::SIGTERM);
            libc::waitpid(pid, &raw mut status, 0)
        };
        assert_eq!(ended, pid);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTERM, "{status}");
    });
}

/// Whether each thread of this process, by its number, blocks the signal SIGUSR1.
fn threads() -> BTreeMap<u32, bool> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let blocks = |number: u32| {
        // A thread may end meanwhile.
        let status = std::fs::read_to_string(format!("/proc/self/task/{number}/status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        Some((number, mask >> (libc::SIGUSR1 - 1) & 1 == 1))
    };
    numbers.filter_map(blocks).collect()
}

#[test]
fn threads_of_the_library_leave_signals_to_those_of_the_program() {
    apart(
        "processes::threads_of_the_library_leave_signals_to_those_of_the_program",
        CPU,
        || {
            let before = threads();
            let program = Program::new();
            // Enough threads for two of the host.
            assert_eq!(program.launch(program.function("spin"), 128, 0, &mut []), SUCCESS);
            let of_library = loop {
                let mut now = threads();
                now.retain(|number, _| !before.contains_key(number));
                if now.len() == 2 {
                    break now;
                }
            };
            assert!(of_library.values().all(|is_blocked| *is_blocked), "{of_library:?}");
            assert!(before.keys().all(|number| threads().get(number) == Some(&false)));
        },
    );
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
