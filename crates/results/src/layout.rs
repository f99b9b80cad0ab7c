//! Layout of a record: the outputs of one chunk.

use sahasra_crds::burst_job::{ArgumentChoice, Kernel, ScalarType};
use sahasra_parameters::Scalar;
use serde::{Deserialize, Serialize};

/// The outputs of one chunk, in the kernel's order, each little-endian and without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    outputs: Vec<Output>,
    record_bytes: usize,
}

/// One output. Serialized in manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    #[serde(rename = "type")]
    pub element: ScalarType,
    pub count: usize,
    /// Offset in the record, in bytes.
    pub offset: usize,
}

impl Layout {
    /// The layout of a kernel's `output` arguments.
    pub fn of(kernel: &Kernel) -> Self {
        let mut record_bytes = 0;
        let outputs = kernel
            .args
            .iter()
            .filter_map(|argument| match argument.choice().ok()? {
                ArgumentChoice::Output(output) => Some(output),
                ArgumentChoice::Parameter(_)
                | ArgumentChoice::Input(_)
                | ArgumentChoice::Constant(_)
                | ArgumentChoice::ChunkIndex(_)
                | ArgumentChoice::Scalar(_) => None,
            })
            .map(|output| {
                let count = usize::try_from(output.count).unwrap_or_default();
                let placed = Output {
                    element: output.type_,
                    count,
                    offset: record_bytes,
                };
                record_bytes += count * output.type_.bytes();
                placed
            })
            .collect();
        Self { outputs, record_bytes }
    }

    /// The layout of records that have one output of this layout, or none.
    pub fn only(&self, output: Option<usize>) -> Self {
        let output = output.map(|output| Output {
            offset: 0,
            ..self.outputs[output]
        });
        Self {
            outputs: output.into_iter().collect(),
            record_bytes: output.map_or(0, |output| output.count * output.element.bytes()),
        }
    }

    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Every element of one output of `record`. `output` is its position in [`Layout::outputs`].
    ///
    /// # Panics
    /// When there is no such output, or `record` is shorter than [`Layout::record_bytes`].
    pub fn values<'a>(&self, output: usize, record: &'a [u8]) -> impl Iterator<Item = Scalar> + 'a {
        let Output { element, count, offset } = self.outputs[output];
        record[offset..offset + count * element.bytes()]
            .chunks_exact(element.bytes())
            .map(move |bytes| Scalar::read_le(element, bytes).expect("chunks_exact cuts elements by their size"))
    }
}

#[cfg(test)]
mod tests {
    use sahasra_crds::burst_job::{Argument, kernel::OutputArgument};

    use super::*;

    #[test]
    fn outputs_follow_each_other_without_padding() {
        let output = |type_, count| Argument {
            output: Some(OutputArgument { type_, count }),
            ..Argument::default()
        };
        let kernel = Kernel {
            ptx: Default::default(),
            entry: "k".into(),
            grid: vec![1],
            block: vec![1],
            dynamic_shared_bytes: 0,
            args: vec![
                output(ScalarType::U8, 3),
                Argument {
                    parameter: Some("x".into()),
                    ..Argument::default()
                },
                output(ScalarType::F64, 2),
            ],
        };
        let layout = Layout::of(&kernel);
        assert_eq!(layout.record_bytes(), 19);
        let mut record = vec![1, 2, 3];
        record.extend_from_slice(&1.5_f64.to_le_bytes());
        record.extend_from_slice(&(-2.5_f64).to_le_bytes());
        assert_eq!(layout.values(0, &record).collect::<Vec<_>>(), [1, 2, 3].map(Scalar::U8));
        assert_eq!(layout.values(1, &record).collect::<Vec<_>>(), [1.5, -2.5].map(Scalar::F64));
        let second = layout.only(Some(1));
        assert_eq!((second.outputs().len(), second.record_bytes()), (1, 16));
        assert_eq!(second.values(0, &record[3..]).collect::<Vec<_>>(), [1.5, -2.5].map(Scalar::F64));
        assert_eq!(layout.only(None).record_bytes(), 0);
    }
}
