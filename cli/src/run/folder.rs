//! The folder of `--results`: a file NAME.json of each BurstJob, and the results of its chunks beside it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use sahasra_crds::BurstJob;

use super::results::{Lines, object};
use crate::manifests::{Kind, Manifest};

/// Ends of the names of a BurstJob's files.
const SUFFIXES: [&str; 2] = [".json", ".csv"];

/// Why results cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It is no folder, or nothing can be written into it.
    #[error("--results {}: {source}: name a folder that you can write to; one that does not exist is created", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// Two BurstJobs would write one file.
    #[error(
        "--results: BurstJob {0} and {1} would both write {2}: give one of them another metadata.name, or run them one after the other \
         into two folders"
    )]
    Twice(String, String, String),
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
}

/// The folder, once it is there.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Checks that every BurstJob has files of its own, creates the folder unless it is there, and checks that files can be created in it.
    ///
    /// # Errors
    /// [`FolderError::Twice`], [`FolderError::Unusable`].
    pub fn prepare(path: &Path, manifests: &[Manifest]) -> Result<Self, FolderError> {
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

    /// Writes NAME.json and, where there are results, NAME.csv.
    ///
    /// # Errors
    /// [`FolderError::Write`].
    pub fn keep(&self, job: &BurstJob, lines: Option<Lines>) -> Result<(), FolderError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Write { path, source }
        };
        let path = self.0.join(format!("{name}.json"));
        fs::write(&path, format!("{:#}\n", object(job))).map_err(failed(&path))?;
        let Some(lines) = lines else { return Ok(()) };
        let path = self.0.join(format!("{name}.csv"));
        let mut file = BufWriter::new(File::create(&path).map_err(failed(&path))?);
        for line in lines {
            file.write_all(line.as_bytes()).map_err(failed(&path))?;
        }
        file.flush().map_err(failed(&path))
    }
}
