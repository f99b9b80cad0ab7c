//! The hyperparameter search, computed on the host in double precision, one sample after another.

const UNITS: usize = 8;
const EPOCHS: usize = 6;

/// Parameters of one chunk, by the formulas of the manifest.
#[derive(Clone, Copy)]
pub(crate) struct Configuration {
    pub(crate) learning_rate: f32,
    pub(crate) batch_size: u32,
    pub(crate) dropout: f32,
}

impl Configuration {
    pub(crate) fn of(index: u32) -> Self {
        Self {
            learning_rate: (0.1 * (1.0 + f64::from(index % 100) * 0.6)) as f32,
            batch_size: 32 * (1 + index / 100),
            dropout: (0.1 + f64::from(index % 10) * 0.05) as f32,
        }
    }
}

/// Points with their labels: x, y, label.
pub(crate) struct HalfMoons {
    train: Vec<[f64; 3]>,
    validation: Vec<[f64; 3]>,
}

/// Parameters of one unit: weights of the two inputs, bias, weight of the output.
type Unit = [f64; 4];

#[derive(Clone, Default)]
struct Network {
    units: [Unit; UNITS],
    bias: f64,
}

fn uniform(position: u32) -> f64 {
    let mut x = position;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^= x >> 16;
    f64::from(x >> 8) / f64::from(1 << 24)
}

fn softsign(unit: &Unit, [x, y, _]: &[f64; 3]) -> f64 {
    let z = unit[0] * x + unit[1] * y + unit[2];
    z / (1.0 + z.abs())
}

impl HalfMoons {
    /// Parses the tables of `dataset.h`.
    pub(crate) fn parse(header: &str) -> Self {
        let table = |name: &str, count: usize| -> Vec<[f64; 3]> {
            let start = header.find(&format!(" {name}[{count}][3] = {{")).expect("the table is there");
            let text = &header[start..];
            let text = &text[text.find('{').expect("it opens") + 1..text.find("};").expect("it closes")];
            let numbers: Vec<f64> = text
                .split(|c: char| "{}, \n".contains(c))
                .filter(|word| !word.is_empty())
                .map(|word| word.trim_end_matches('f').parse().expect("a number"))
                .collect();
            assert_eq!(numbers.len(), 3 * count);
            numbers.chunks_exact(3).map(|c| [c[0], c[1], c[2]]).collect()
        };
        Self {
            train: table("TRAIN", 640),
            validation: table("VALIDATION", 256),
        }
    }

    pub(crate) fn validation_loss(&self, configuration: Configuration) -> f64 {
        let network = self.trained(configuration);
        let losses = self.validation.iter().map(|sample| {
            let logit: f64 = network.units.iter().map(|unit| unit[3] * softsign(unit, sample)).sum::<f64>() + network.bias;
            logit.max(0.0) - logit * sample[2] + (-logit.abs()).exp().ln_1p()
        });
        losses.sum::<f64>() / self.validation.len() as f64
    }

    fn trained(&self, configuration: Configuration) -> Network {
        let mut network = Network::default();
        for (u, unit) in network.units.iter_mut().enumerate() {
            for (kind, value) in unit.iter_mut().enumerate() {
                *value = 2.0 * uniform((1 + kind * UNITS + u) as u32) - 1.0;
            }
        }
        let mut stride = 1;
        for epoch in 0..EPOCHS {
            let places: Vec<usize> = (0..self.train.len()).collect();
            for batch in places.chunks(configuration.batch_size as usize) {
                let mut gradient = Network::default();
                for &place in batch {
                    let sample = &self.train[place * stride % self.train.len()];
                    let first_draw = (1 + epoch * self.train.len() + place) * 64;
                    add_gradient(&mut gradient, &network, sample, configuration.dropout.into(), first_draw as u32);
                }
                let rate = f64::from(configuration.learning_rate) / batch.len() as f64;
                for (unit, slope) in network.units.iter_mut().zip(&gradient.units) {
                    for (value, slope) in unit.iter_mut().zip(slope) {
                        *value -= rate * slope;
                    }
                }
                network.bias -= rate * gradient.bias;
            }
            stride *= 3;
        }
        network
    }
}

fn add_gradient(gradient: &mut Network, network: &Network, sample: &[f64; 3], dropout: f64, first_draw: u32) {
    let mut logit = network.bias;
    let (mut hidden, mut scale) = ([0.0; UNITS], [0.0; UNITS]);
    for (u, unit) in network.units.iter().enumerate() {
        hidden[u] = softsign(unit, sample);
        scale[u] = if uniform(first_draw + u as u32) >= dropout {
            1.0 / (1.0 - dropout)
        } else {
            0.0
        };
        logit += unit[3] * scale[u] * hidden[u];
    }
    let error = 1.0 / (1.0 + (-logit).exp()) - sample[2];
    for (u, sum) in gradient.units.iter_mut().enumerate() {
        let slope = error * network.units[u][3] * scale[u] * (1.0 - hidden[u].abs()).powi(2);
        sum[0] += slope * sample[0];
        sum[1] += slope * sample[1];
        sum[2] += slope;
        sum[3] += error * scale[u] * hidden[u];
    }
    gradient.bias += error;
}
