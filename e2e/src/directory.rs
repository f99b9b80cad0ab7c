//! The folder of one control plane: removed when it is dropped, and also when this process dies without dropping it.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Set to anything, it keeps the folders of passing tests too.
const KEEP_VARIABLE: &str = "SAHASRA_E2E_KEEP";
/// A file of this name in the folder keeps it.
const KEEP_MARKER: &str = "keep";

/// Waits until its input ends, which it does when this process does, however that ends; then removes the folder `$1`, or
/// only etcd's data (the one large thing) if the folder is to be kept. Processes that were killed at that moment may still
/// write, so it tries again for a while.
const REMOVER: &str = r#"
cat >/dev/null
target=$1
[ -e "$1/keep" ] && target=$1/etcd
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf "$target" 2>/dev/null && exit 0
  sleep 0.1
done
"#;

/// A temporary folder that a shell removes when the pipe to it closes.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    remover: Child,
}

impl Directory {
    pub(crate) fn create() -> io::Result<Self> {
        let path = tempfile::Builder::new().prefix("sahasra-e2e.").tempdir()?.keep();
        let remover = Command::new("sh")
            .args(["-c", REMOVER, "sh"])
            .arg(&path)
            // Its own process group: Ctrl-C in a terminal is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let directory = Self { path, remover };
        std::fs::create_dir(directory.path().join("logs"))?;
        if std::env::var_os(KEEP_VARIABLE).is_some() {
            directory.keep();
        }
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps what is in it, but for etcd's data, and says where it is.
    pub(crate) fn keep(&self) {
        if std::fs::write(self.path.join(KEEP_MARKER), "").is_ok() {
            eprintln!("kept: {}", self.path.display());
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        // Waiting for it makes sure that the folder is gone when the test is over; there is nobody to tell of a failure.
        let _ = self.remover.wait();
    }
}
