//! Temporary folder of a control plane: removed when it is dropped, and also when this process ends without dropping it.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Environment variable that, set to any value, keeps the folders of passing tests too.
const KEEP_VARIABLE: &str = "SAHASRA_E2E_KEEP";
/// Name of a file whose presence in the folder keeps the folder.
const KEEP_MARKER: &str = "keep";

/// Shell script that waits for the end of its input, which comes when this process ends in any way, and then removes the folder `$1`, or only
/// etcd's data (the largest part) if the folder is kept. It retries for a second, because processes that are being killed may still write.
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
            // A process group of its own, so that Ctrl-C in a terminal does not end it.
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

    /// Keeps the folder except etcd's data, and prints its path.
    pub(crate) fn keep(&self) {
        if std::fs::write(self.path.join(KEEP_MARKER), "").is_ok() {
            eprintln!("kept: {}", self.path.display());
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        // Waiting makes sure that the folder is removed before the test ends; a failure cannot be reported here.
        let _ = self.remover.wait();
    }
}
