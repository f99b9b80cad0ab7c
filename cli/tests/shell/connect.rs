//! Tests of `sahasra connect` with its standard input a terminal.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    net::TcpListener,
    os::unix::{fs::OpenOptionsExt, process::CommandExt, process::ExitStatusExt},
    process::{Child, Stdio},
};

use rustix::{
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::program::{Limit, Sahasra, signal, wait};

/// Signals that end the program. Whoever runs the tests may ignore some of them, as `nohup` does.
const ENDING: [(&str, Signal); 4] = [
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("TERM", Signal::TERM),
    ("HUP", Signal::HUP),
];

fn heed_signals() -> io::Result<()> {
    for signal in ENDING.map(|(_, signal)| signal.as_raw()).into_iter().chain([libc::SIGTSTP]) {
        // SAFETY: installs no handler.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// `sahasra connect`, waiting for a token in a terminal, and a server that answers nothing.
struct Prompt {
    child: Child,
    terminal: File,
    server: TcpListener,
    _home: tempfile::TempDir,
    _limit: Limit,
}

impl Prompt {
    fn begin() -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&terminal).expect("granted");
        unlockpt(&terminal).expect("unlocked");
        let name = ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("a path");
        let input = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name);
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let home = tempfile::tempdir().expect("a folder");
        let address = server.local_addr().expect("bound").to_string();
        let mut command = Sahasra::new(["connect", &address]).command();
        command
            .current_dir(home.path())
            .env("HOME", home.path())
            .env_remove("XDG_CONFIG_HOME");
        // A group of its own: processes of an orphaned one are not stopped.
        command.process_group(0).stdin(input.expect("it opens")).stderr(Stdio::null());
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(heed_signals) };
        let child = command.spawn().expect("sahasra runs");
        let prompt = Self {
            _limit: Limit::of(&child),
            child,
            terminal: File::from(terminal),
            server,
            _home: home,
        };
        prompt.shows(false);
        prompt
    }

    /// Waits until the terminal shows its input, or does not.
    fn shows(&self, is_shown: bool) {
        let looks = || tcgetattr(&self.terminal).expect("modes").local_modes.contains(LocalModes::ECHO) == is_shown;
        wait("the terminal's echo", || looks().then_some(()));
    }

    fn signal(&self, signal_name: &str) {
        signal(self.child.id(), signal_name);
    }

    /// Number of the signal that has ended the program.
    fn end(mut self) -> Option<i32> {
        let status = self.child.wait().expect("it ends");
        self.shows(true);
        status.signal()
    }
}

#[test]
fn the_terminal_shows_its_input_again_whatever_ends_the_prompt() {
    for (name, number) in ENDING {
        let prompt = Prompt::begin();
        prompt.signal(name);
        assert_eq!(prompt.end(), Some(number.as_raw()), "{name}");
    }
}

#[test]
fn the_terminal_shows_its_input_while_the_prompt_is_stopped() {
    let prompt = Prompt::begin();
    for _ in 0..2 {
        prompt.signal("TSTP");
        prompt.shows(true);
        wait("the stop", || {
            let state = fs::read_to_string(format!("/proc/{}/stat", prompt.child.id())).expect("it runs");
            state.rsplit_once(") ").expect("a state").1.starts_with('T').then_some(())
        });
        prompt.signal("CONT");
        prompt.shows(false);
    }
    prompt.signal("TERM");
    assert_eq!(prompt.end(), Some(Signal::TERM.as_raw()));
}

#[test]
fn an_interrupt_ends_the_program_after_the_token_was_pasted() {
    let mut prompt = Prompt::begin();
    prompt.terminal.write_all(b"secret\n").expect("pasted");
    let _connection = prompt.server.accept().expect("the program asks the server");
    prompt.shows(true);
    prompt.signal("INT");
    assert_eq!(prompt.end(), Some(Signal::INT.as_raw()));
}
