//! `results.csv`: index, parameters, outputs (`output0`, or `output0[3]` for arrays), one row a completed chunk.

use std::{collections::BTreeMap, fmt::Write};

use sahasra_crds::burst_job::BurstJobSpec;
use sahasra_parameters::{CompileError, Program, Scalar};

use crate::{COUNTED, FAILED, IndexSet, Layout, RESULTS};

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Parameters(#[from] CompileError),
    #[error("invalid key {key}: expected a set of indices below {total}")]
    Indices { key: String, total: u64 },
    #[error("the key {RESULTS} has {found} bytes where the spec gives {expected}")]
    Size { found: usize, expected: u64 },
}

/// The columns of a burst's results.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    pub program: &'a Program,
    pub layout: &'a Layout,
}

impl Columns<'_> {
    /// The header line, with its line break: `index`, the parameters, `output0` or `output0[3]`.
    pub fn header(&self) -> String {
        let mut text = String::from("index");
        for parameter in self.program.parameters() {
            text.push(',');
            text.push_str(&parameter.name);
        }
        for (place, output) in self.layout.outputs().iter().enumerate() {
            for element in 0..output.count {
                let written = if output.count == 1 {
                    write!(text, ",output{place}")
                } else {
                    write!(text, ",output{place}[{element}]")
                };
                written.expect("a String takes all");
            }
        }
        text.push('\n');
        text
    }

    /// Appends the line of chunk `index`, whose outputs are `record`, with its line break. `values` is scratch space.
    pub fn row(&self, index: u64, record: &[u8], values: &mut Vec<Scalar>, text: &mut String) {
        text.push_str(&index.to_string());
        // A chunk that succeeded has parameters. Evaluation may fail only if the spec is not the one that the chunk ran with.
        let evaluated = self.program.evaluate(index, values).is_ok();
        if evaluated {
            for value in values.iter() {
                write!(text, ",{value}").expect("a String takes all");
            }
        } else {
            text.extend(self.program.parameters().iter().map(|_| ','));
        }
        for output in 0..self.layout.outputs().len() {
            for element in self.layout.values(output, record) {
                write!(text, ",{element}").expect("a String takes all");
            }
        }
        text.push('\n');
    }

    /// Header and rows of the completed chunks; `None` when they would exceed `limit` bytes. `records` has a record for every chunk.
    pub fn text(&self, completed: &IndexSet, records: &[u8], limit: usize) -> Option<String> {
        // Every cell takes at least two bytes. This lower bound avoids formatting a table that cannot fit.
        let cells: usize = self.layout.outputs().iter().map(|output| output.count).sum();
        let least = usize::try_from(completed.len()).unwrap_or(usize::MAX).saturating_mul(2 + 2 * cells);
        if least > limit || cells.saturating_mul(8) > limit {
            return None;
        }
        let mut text = self.header();
        let mut values = Vec::new();
        for index in completed.ranges().flat_map(|(first, count)| first..first + count) {
            if text.len() > limit {
                return None;
            }
            self.row(index, record(index, records, self.layout), &mut values, &mut text);
        }
        (text.len() <= limit).then_some(text)
    }
}

fn record<'a>(index: u64, records: &'a [u8], layout: &Layout) -> &'a [u8] {
    &records[index as usize * layout.record_bytes()..][..layout.record_bytes()]
}

/// The results of a finished burst whose records are in its ConfigMap.
#[derive(Debug)]
pub struct Table {
    program: Program,
    layout: Layout,
    completed: IndexSet,
    records: Vec<u8>,
}

impl Table {
    /// Reads the `binaryData` of the ConfigMap of a job with this spec.
    pub fn of(spec: &BurstJobSpec, mut binary_data: BTreeMap<String, Vec<u8>>) -> Result<Self, TableError> {
        let program = Program::compile(&spec.chunks)?;
        let layout = Layout::of(&spec.kernel);
        let records = binary_data.remove(RESULTS).unwrap_or_default();
        let expected = program.count().saturating_mul(layout.record_bytes() as u64);
        if records.len() as u64 != expected {
            let found = records.len();
            return Err(TableError::Size { found, expected });
        }
        let completed = completed(&binary_data, program.count())?;
        Ok(Self {
            program,
            layout,
            completed,
            records,
        })
    }

    fn columns(&self) -> Columns<'_> {
        Columns {
            program: &self.program,
            layout: &self.layout,
        }
    }

    pub fn rows(&self) -> u64 {
        self.completed.len()
    }
}

/// The indices that succeeded: those that are counted and did not fail.
fn completed(binary_data: &BTreeMap<String, Vec<u8>>, total: u64) -> Result<IndexSet, TableError> {
    let set = |key: &str| {
        let bytes = binary_data.get(key).map(Vec::as_slice).unwrap_or_default();
        IndexSet::decode(bytes, total).map_err(|_| TableError::Indices {
            key: key.to_owned(),
            total,
        })
    };
    let mut completed = set(COUNTED)?;
    for key in binary_data.keys().filter(|key| key.starts_with(FAILED)) {
        completed.subtract(&set(key)?);
    }
    Ok(completed)
}

impl IntoIterator for Table {
    type Item = String;
    type IntoIter = Box<dyn Iterator<Item = String> + Send>;

    /// The lines, header first, each with its line break. Each is formatted when it is read.
    fn into_iter(self) -> Self::IntoIter {
        let header = self.columns().header();
        let ranges: Vec<(u64, u64)> = self.completed.ranges().collect();
        let indices = ranges.into_iter().flat_map(|(first, count)| first..first + count);
        let mut values = Vec::new();
        let rows = indices.map(move |index| {
            let mut line = String::new();
            let record = record(index, &self.records, &self.layout);
            self.columns().row(index, record, &mut values, &mut line);
            line
        });
        Box::new(std::iter::once(header).chain(rows))
    }
}

#[cfg(test)]
mod tests {
    use sahasra_crds::burst_job::{Argument, Chunks, Kernel, ParameterSpec, ScalarType, kernel::OutputArgument};

    use super::*;

    fn kernel() -> Kernel {
        let output = |type_, count| Argument {
            output: Some(OutputArgument { type_, count }),
            ..Argument::default()
        };
        Kernel {
            ptx: Default::default(),
            entry: "k".into(),
            grid: vec![1],
            block: vec![1],
            dynamic_shared_bytes: 0,
            args: vec![output(ScalarType::F32, 1), output(ScalarType::U8, 2)],
        }
    }

    fn program(count: i64) -> Program {
        let rate = ParameterSpec {
            type_: ScalarType::F64,
            cel: Some("double(index) / 10.0".into()),
            list: None,
            range: None,
            random: None,
        };
        Program::compile(&Chunks {
            count: Some(count),
            parameters: BTreeMap::from([("rate".to_owned(), rate)]),
            ..Chunks::default()
        })
        .unwrap()
    }

    fn completed() -> IndexSet {
        let mut completed = IndexSet::full(2);
        completed.insert(3, 1);
        completed
    }

    fn records() -> Vec<u8> {
        let mut records = vec![0; 4 * 6];
        records[..4].copy_from_slice(&1e38_f32.to_le_bytes());
        records[4..6].copy_from_slice(&[7, 8]);
        records
    }

    const TEXT: &str = "index,rate,output0,output1[0],output1[1]\n0,0,1e38,7,8\n1,0.1,0,0,0\n3,0.3,0,0,0\n";

    #[test]
    fn each_completed_chunk_has_a_row() {
        let (program, layout) = (program(4), Layout::of(&kernel()));
        let columns = Columns {
            program: &program,
            layout: &layout,
        };
        assert_eq!(columns.text(&completed(), &records(), TEXT.len()).as_deref(), Some(TEXT));
        assert_eq!(columns.text(&completed(), &records(), TEXT.len() - 1), None);
    }

    #[test]
    fn records_are_shown_completely_regardless_of_the_length_of_their_text() {
        let (program, layout) = (program(40_000), Layout::of(&kernel()));
        let (completed, records) = (IndexSet::full(40_000), vec![0; 40_000 * 6]);
        let columns = Columns {
            program: &program,
            layout: &layout,
        };
        assert_eq!(columns.text(&completed, &records, crate::MAX_CSV_BYTES), None);
        let table = Table {
            program,
            layout,
            completed,
            records,
        };
        let lines: Vec<String> = table.into_iter().collect();
        assert_eq!((lines.len(), lines[40_000].as_str()), (40_001, "39999,3999.9,0,0,0\n"));
    }

    #[test]
    fn sets_of_another_job_are_rejected() {
        let spec = serde_json::json!({
            "kernel": {
                "ptx": {"inline": "x"}, "entry": "k", "block": [1],
                "args": [{"output": {"type": "f32", "count": 1}}, {"output": {"type": "u8", "count": 2}}],
            },
            "chunks": {"count": 4}, "slice": {"vram": "1Mi"},
        });
        let spec: BurstJobSpec = serde_json::from_value(spec).unwrap();
        let binary =
            |counted: &IndexSet, records: Vec<u8>| BTreeMap::from([(COUNTED.to_owned(), counted.encode()), (RESULTS.to_owned(), records)]);
        let mut failed = binary(&IndexSet::full(4), records());
        let mut second = IndexSet::default();
        second.insert(2, 1);
        failed.insert(format!("{FAILED}Trap"), second.encode());
        let lines: String = Table::of(&spec, failed).unwrap().into_iter().collect();
        assert_eq!(lines, "index,output0,output1[0],output1[1]\n0,1e38,7,8\n1,0,0,0\n3,0,0,0\n");
        let beyond = Table::of(&spec, binary(&IndexSet::full(5), records())).unwrap_err();
        assert_eq!(beyond.to_string(), "invalid key counted: expected a set of indices below 4");
        let mut missing = binary(&completed(), records());
        missing.remove(COUNTED);
        assert!(matches!(Table::of(&spec, missing), Err(TableError::Indices { .. })));
        assert!(matches!(
            Table::of(&spec, binary(&completed(), vec![0; 23])),
            Err(TableError::Size { found: 23, expected: 24 })
        ));
    }
}
