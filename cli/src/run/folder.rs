//! Folder of `--results`: NAME.json with each BurstJob, and the results of its chunks beside it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use sahasra_crds::{BurstJob, burst_job::KeptResults};

use super::results::{Lines, object};
use crate::manifests::{Kind, Manifest};

const SUFFIXES: [&str; 3] = [".json", ".csv", ".failed.csv"];

#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    #[error("--results {}: {source}: name a folder that you can write to; one that does not exist is created", path.display())]
    Unusable { path: PathBuf, source: std::io::Error },
    #[error(
        "--results: BurstJob {0} and {1} would both write {2}: set another metadata.name for one of them, or run them one after the other \
         into two folders"
    )]
    Twice(String, String, String),
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Checks that no two BurstJobs share a file, creates the folder unless it exists, and checks that files can be created in it.
    pub(super) fn prepare(path: &Path, manifests: &[Manifest]) -> Result<Self, FolderError> {
        let mut writers: BTreeMap<String, String> = BTreeMap::new();
        for manifest in manifests.iter().filter(|manifest| manifest.kind == Kind::BurstJob) {
            let job = format!("{}/{}", manifest.namespace, manifest.name);
            for suffix in SUFFIXES {
                let file = format!("{}{suffix}", manifest.name);
                if let Some(other) = writers.insert(file.clone(), job.clone()) {
                    return Err(FolderError::Twice(other, job, file));
                }
            }
        }
        let unusable = |source| FolderError::Unusable {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(unusable)?;
        let probe = path.join(format!(".probe.{}", std::process::id()));
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(unusable)?;
        Ok(Self(path.to_owned()))
    }

    /// Writes NAME.json, and the results if there are any as NAME.csv, or NAME.failed.csv for `results: Failed`. Each file is written
    /// completely or not at all. Files of an earlier run under these names are replaced, or removed if this run has no content for them.
    pub(super) fn keep(&self, job: &BurstJob, lines: Option<Lines>) -> Result<(), FolderError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let [json, csv, failed] = SUFFIXES.map(|suffix| self.0.join(format!("{name}{suffix}")));
        // Files of an earlier run are removed first, so that they are never beside a NAME.json of this run.
        for path in [&csv, &failed] {
            if let Err(source) = fs::remove_file(path)
                && source.kind() != io::ErrorKind::NotFound
            {
                let path = path.clone();
                return Err(FolderError::Write { path, source });
            }
        }
        write(&json, std::iter::once(format!("{:#}\n", object(job))))?;
        let results = if job.spec.results == KeptResults::Failed { failed } else { csv };
        lines.map_or(Ok(()), |lines| write(&results, lines))
    }
}

/// Writes to a temporary file and renames it: readers never see an incomplete file, and none remains when the disk is full.
fn write(path: &Path, text: impl Iterator<Item = String>) -> Result<(), FolderError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = File::create(&temporary).and_then(|file| {
        let mut file = BufWriter::new(file);
        for line in text {
            file.write_all(line.as_bytes())?;
        }
        // Some file systems report a full disk only when the file is synced.
        file.into_inner()?.sync_all()?;
        fs::rename(&temporary, path)
    });
    written.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        FolderError::Write {
            path: path.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_fit_is_not_left_in_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.csv");
        let rows = || std::iter::repeat_n("0,1\n".to_owned(), 60_000);
        write(&path, rows()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 240_000);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join(format!(".b.csv.{}", std::process::id()))).unwrap();
        let told = write(&path, rows()).unwrap_err().to_string();
        assert!(told.contains("b.csv: No space left on device"), "{told}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
