//! How the outputs of one chunk lie in its record.

use sahasra_crds::burst_job::{Kernel, ScalarType};

/// The outputs of one chunk, in the kernel's order, each little-endian and without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    outputs: Vec<Output>,
    record_bytes: usize,
}

/// One output in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Type of an element.
    pub element: ScalarType,
    /// Elements.
    pub count: usize,
    /// Where it begins in the record, in bytes.
    pub offset: usize,
}

impl Layout {
    /// The layout that a kernel's `output` arguments give.
    pub fn of(kernel: &Kernel) -> Self {
        let mut record_bytes = 0;
        let outputs = kernel
            .args
            .iter()
            .filter_map(|argument| argument.output.as_ref())
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

    /// Bytes of one chunk's outputs.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The outputs.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Every element of an output in `record`, as `f64`.
    pub fn values<'a>(&self, output: usize, record: &'a [u8]) -> impl Iterator<Item = f64> + 'a {
        let Output { element, count, offset } = self.outputs[output];
        record[offset..offset + count * element.bytes()]
            .chunks_exact(element.bytes())
            .map(move |bytes| read(element, bytes))
    }

    /// The first element of an output in `record`, as `f64`.
    pub fn value(&self, output: usize, record: &[u8]) -> f64 {
        let Output { element, offset, .. } = self.outputs[output];
        read(element, &record[offset..offset + element.bytes()])
    }

    /// An element as text, as `results.csv` shows it: the shortest that reads back the same.
    pub fn text(element: ScalarType, bytes: &[u8]) -> String {
        match element {
            ScalarType::U8 => bytes[0].to_string(),
            ScalarType::S32 => i32::from_le_bytes(fixed(bytes)).to_string(),
            ScalarType::U32 => u32::from_le_bytes(fixed(bytes)).to_string(),
            ScalarType::S64 => i64::from_le_bytes(fixed(bytes)).to_string(),
            ScalarType::U64 => u64::from_le_bytes(fixed(bytes)).to_string(),
            ScalarType::F32 => f32::from_le_bytes(fixed(bytes)).to_string(),
            ScalarType::F64 => f64::from_le_bytes(fixed(bytes)).to_string(),
        }
    }
}

fn read(element: ScalarType, bytes: &[u8]) -> f64 {
    match element {
        ScalarType::U8 => f64::from(bytes[0]),
        ScalarType::S32 => f64::from(i32::from_le_bytes(fixed(bytes))),
        ScalarType::U32 => f64::from(u32::from_le_bytes(fixed(bytes))),
        ScalarType::S64 => i64::from_le_bytes(fixed(bytes)) as f64,
        ScalarType::U64 => u64::from_le_bytes(fixed(bytes)) as f64,
        ScalarType::F32 => f64::from(f32::from_le_bytes(fixed(bytes))),
        ScalarType::F64 => f64::from_le_bytes(fixed(bytes)),
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller cuts elements by their size")
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
        assert_eq!(layout.values(0, &record).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        assert_eq!(layout.values(1, &record).collect::<Vec<_>>(), [1.5, -2.5]);
        assert_eq!(layout.value(1, &record), 1.5);
    }
}
