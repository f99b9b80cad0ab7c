//! Quantiles of Student's t-distribution, for the confidence interval of the mean of a few results.

use std::f64::consts::{FRAC_PI_2, PI};

/// Maximum degrees of freedom for which the distribution is inverted numerically. Beyond it, its asymptotic expansion is exact to 12
/// digits.
const INVERTED_UP_TO: u64 = 200;
/// 97.5 % quantile of the normal distribution, the limit for many degrees of freedom.
const NORMAL_QUANTILE_975: f64 = 1.959_963_984_540_054;

/// 97.5 % quantile of the t-distribution with `degrees` of freedom, at least one: half the width of a 95 % confidence interval, in standard
/// errors.
pub(crate) fn quantile_975(degrees: u64) -> f64 {
    if degrees > INVERTED_UP_TO {
        return expansion(degrees as f64);
    }
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    // Each step halves the interval. There are more steps than an `f64` has bits.
    for _ in 0..64 {
        let middle = 0.5 * (low + high);
        if within(middle, degrees) < 0.95 {
            low = middle;
        } else {
            high = middle;
        }
    }
    (degrees as f64).sqrt() * (0.5 * (low + high)).tan()
}

/// Probability that |t| is at most √degrees × tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4.
fn within(angle: f64, degrees: u64) -> f64 {
    let square = angle.cos() * angle.cos();
    let is_odd = degrees % 2 == 1;
    let mut term = if is_odd { angle.cos() } else { 1.0 };
    let mut sum = 0.0;
    for step in 1..=degrees / 2 {
        sum += term;
        let (above, below) = if is_odd {
            (2 * step, 2 * step + 1)
        } else {
            (2 * step - 1, 2 * step)
        };
        term *= square * above as f64 / below as f64;
    }
    if is_odd {
        2.0 / PI * (angle + angle.sin() * sum)
    } else {
        angle.sin() * sum
    }
}

/// Asymptotic expansion of the quantile: Abramowitz and Stegun, 26.7.5.
fn expansion(degrees: f64) -> f64 {
    let x = NORMAL_QUANTILE_975;
    let odd = |coefficients: &[f64]| coefficients.iter().fold(0.0, |sum, coefficient| sum * x * x + coefficient) * x;
    let terms = [
        odd(&[1.0]),
        odd(&[1.0, 1.0]) / 4.0,
        odd(&[5.0, 16.0, 3.0]) / 96.0,
        odd(&[3.0, 19.0, 17.0, -15.0]) / 384.0,
        odd(&[79.0, 776.0, 1482.0, -1920.0, -945.0]) / 92_160.0,
    ];
    terms.iter().rev().fold(0.0, |sum, term| sum / degrees + term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, quantile) in [
            (1, 12.706_205),
            (2, 4.302_653),
            (3, 3.182_446),
            (4, 2.776_445),
            (5, 2.570_582),
            (9, 2.262_157),
            (30, 2.042_272),
            (120, 1.979_930),
        ] {
            assert!(
                (quantile_975(degrees) - quantile).abs() < 1e-6,
                "{degrees}: {}",
                quantile_975(degrees)
            );
        }
    }

    #[test]
    fn the_expansion_continues_the_distribution() {
        let inverted = quantile_975(INVERTED_UP_TO);
        assert!((inverted - expansion(INVERTED_UP_TO as f64)).abs() < 1e-11, "{inverted}");
        assert!((quantile_975(10_000_000) - NORMAL_QUANTILE_975).abs() < 1e-6);
        let falls = (1..1000).all(|degrees| quantile_975(degrees) > quantile_975(degrees + 1));
        assert!(falls, "more results, narrower");
    }
}
