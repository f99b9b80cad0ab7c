//! Compilation of `spec.chunks` to a [`Program`], or to an error with the path of the invalid field.

use std::collections::BTreeMap;

use crate::{
    CompileError, MAX_CHUNKS, NotOne, Parameter, Program,
    formula::Formula,
    random::{Stream, within},
    rules::{ORDERED_BOUNDS, POSITIVE_MINIMUM, UNIQUE_NAMES, name_message},
    scalar::{Scalar, is_integer, takes, type_name},
    source::{Refusal, Source, between, double, integer, listed, not_representable},
    spec::{
        Chunks, ChunksChoice, Interval, MAX_AXES, MAX_NAME_LENGTH, MAX_PARAMETERS, MAX_VALUES, ParameterChoice, ParameterSpec, ProductAxis,
        RandomChoice, RandomSpec, RangeChoice, RangeSpec, ScalarType,
    },
};

/// Number of chunks for which a formula is evaluated at compilation: enough to find most mistakes, in a few milliseconds at most.
const SAMPLES: u64 = 4096;

/// Largest exact integer. Numbers in manifests are binary64, in which 2^53 may also be the result of rounding 2^53 + 1.
const EXACT: f64 = 9_007_199_254_740_991.0;

fn refuse<T>(path: impl Into<String>, message: impl Into<String>) -> Result<T, CompileError> {
    Err(CompileError {
        path: path.into(),
        message: message.into(),
    })
}

/// The choice of a union at `path`.
fn one<T>(path: &str, choice: Result<T, NotOne>) -> Result<T, CompileError> {
    choice.or_else(|error| refuse(path, error.to_string()))
}

pub(crate) fn program(chunks: &Chunks) -> Result<Program, CompileError> {
    let count = count(chunks)?;
    let Ok(seed) = u64::try_from(chunks.seed) else {
        return refuse(
            "spec.chunks.seed",
            format!("{} is negative: set a whole number from 0", chunks.seed),
        );
    };
    if chunks.parameters.len() > MAX_PARAMETERS {
        return refuse(
            "spec.chunks.parameters",
            format!("{} parameters: at most {MAX_PARAMETERS} are allowed", chunks.parameters.len()),
        );
    }

    let mut compiled: BTreeMap<&str, (ScalarType, Source)> = BTreeMap::new();
    for (name, spec) in &chunks.parameters {
        let path = format!("spec.chunks.parameters.{name}");
        check_name(&path, name)?;
        let source = source(&path, name, spec, seed, count)?;
        compiled.insert(name, (spec.type_, source));
    }
    let axes = chunks.product.as_deref().unwrap_or_default();
    let mut stride = count;
    for (at, axis) in axes.iter().enumerate() {
        let path = format!("spec.chunks.product[{at}]");
        check_name(&format!("{path}.name"), &axis.name)?;
        if compiled.contains_key(axis.name.as_str()) {
            return refuse(format!("{path}.name"), UNIQUE_NAMES);
        }
        stride /= axis.list.len() as u64;
        let values = values(&format!("{path}.list"), axis.type_, &axis.list)?;
        compiled.insert(&axis.name, (axis.type_, listed(values, stride)));
    }

    let (parameters, sources) = compiled
        .into_iter()
        .map(|(name, (type_, source))| {
            let name = name.to_owned();
            (Parameter { name, type_ }, source)
        })
        .unzip();
    Ok(Program {
        count,
        parameters,
        sources,
    })
}

fn count(chunks: &Chunks) -> Result<u64, CompileError> {
    match one("spec.chunks", chunks.choice())? {
        ChunksChoice::Count(&count) => match u64::try_from(count) {
            Ok(count) if (1..=MAX_CHUNKS).contains(&count) => Ok(count),
            _ => refuse("spec.chunks.count", format!("{count} chunks: set a number from 1 to {MAX_CHUNKS}")),
        },
        ChunksChoice::Product(axes) => combinations(axes),
    }
}

fn combinations(axes: &[ProductAxis]) -> Result<u64, CompileError> {
    let path = "spec.chunks.product";
    if axes.is_empty() || axes.len() > MAX_AXES {
        return refuse(path, format!("{} lists: specify from 1 to {MAX_AXES}", axes.len()));
    }
    let mut count: u64 = 1;
    for (at, axis) in axes.iter().enumerate() {
        check_length(&format!("{path}[{at}].list"), &axis.list)?;
        // At most 16 factors of at most 4096 each, and the loop ends as soon as the product exceeds the limit, so there is no overflow.
        count *= axis.list.len() as u64;
        if count > MAX_CHUNKS {
            let lengths: Vec<String> = axes.iter().map(|axis| axis.list.len().to_string()).collect();
            return refuse(
                path,
                format!("{} combinations exceed {MAX_CHUNKS}: shorten or drop a list", lengths.join(" × ")),
            );
        }
    }
    Ok(count)
}

fn check_name(path: &str, name: &str) -> Result<(), CompileError> {
    let mut characters = name.chars();
    let first = characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    if first && characters.all(|other| other.is_ascii_alphanumeric() || other == '_') && name.len() <= MAX_NAME_LENGTH {
        return Ok(());
    }
    refuse(path, name_message())
}

fn check_length(path: &str, list: &[f64]) -> Result<(), CompileError> {
    match list.len() {
        0 => refuse(path, "the list is empty: specify at least one value"),
        length if length > MAX_VALUES => refuse(path, format!("{length} values: a list has at most {MAX_VALUES}, use cel or range")),
        _ => Ok(()),
    }
}

fn source(path: &str, name: &str, spec: &ParameterSpec, seed: u64, count: u64) -> Result<Source, CompileError> {
    match one(path, spec.choice())? {
        ParameterChoice::Cel(text) => formula(&format!("{path}.cel"), text, spec.type_, count),
        ParameterChoice::List(list) => Ok(listed(values(&format!("{path}.list"), spec.type_, list)?, 1)),
        ParameterChoice::Range(bounds) => range(&format!("{path}.range"), spec.type_, bounds, count),
        ParameterChoice::Random(distribution) => random(&format!("{path}.random"), spec.type_, distribution, Stream::new(seed, name)),
    }
}

fn formula(path: &str, text: &str, type_: ScalarType, count: u64) -> Result<Source, CompileError> {
    // `count` is at most 10 million, so the conversion is exact.
    let formula = Formula::compile(text, count as i64).or_else(|message| refuse(path, message))?;
    let source: Source = match formula {
        Formula::Integer(formula) => Box::new(move |index| {
            let value = formula(index as i64).map_err(Refusal::Fault)?;
            Scalar::from_i64(type_, value).ok_or(Refusal::Integer(value.into()))
        }),
        Formula::Double(formula) => Box::new(move |index| double(type_, formula(index as i64).map_err(Refusal::Fault)?)),
    };
    let samples = count.min(SAMPLES);
    for sample in 0..samples {
        // Samples are the first index, the last, and evenly spaced ones in between; with at most `SAMPLES` chunks, all indices.
        let index = if samples == 1 { 0 } else { sample * (count - 1) / (samples - 1) };
        if let Err(refusal) = source(index) {
            return refuse(path, format!("at index {index}: {}", refusal.message(type_)));
        }
    }
    Ok(source)
}

fn values(path: &str, type_: ScalarType, list: &[f64]) -> Result<Box<[Scalar]>, CompileError> {
    check_length(path, list)?;
    list.iter()
        .enumerate()
        .map(|(at, value)| scalar(&format!("{path}[{at}]"), type_, *value))
        .collect()
}

/// Converts a number of the manifest to the type.
fn scalar(path: &str, type_: ScalarType, value: f64) -> Result<Scalar, CompileError> {
    match Scalar::from_f64(type_, value) {
        // This check comes before that of the range, because 2^64 - 1 was read as 2^64.
        _ if matches!(type_, ScalarType::S64 | ScalarType::U64) && value.abs() > EXACT && value.is_finite() => refuse(
            path,
            format!(
                "a number in a manifest is exact below 2^53 on either side of 0, and what is written here is not (it was read as {value}): \
                 compute it with cel"
            ),
        ),
        Some(scalar) => Ok(scalar),
        None => refuse(path, not_representable(value, type_)),
    }
}

fn range(path: &str, type_: ScalarType, range: &RangeSpec, count: u64) -> Result<Source, CompileError> {
    let last = count - 1;
    scalar(&format!("{path}.start"), type_, range.start)?;
    match one(path, range.choice())? {
        RangeChoice::Step(&step) => {
            let path = format!("{path}.step");
            if !step.is_finite() || is_integer(type_) && (step.trunc() != step || step.abs() > EXACT) {
                return refuse(path, format!("{step} is not a step: {}", takes(type_)));
            }
            let source = if is_integer(type_) {
                steps(type_, range.start as i128, step as i128)
            } else {
                let start = range.start;
                Box::new(move |index| double(type_, start + step * index as f64))
            };
            match source(last) {
                Ok(_) => Ok(source),
                Err(refusal) => refuse(path, format!("at index {last}, the last: {}", refusal.message(type_))),
            }
        }
        RangeChoice::Stop(&stop) => {
            let path = format!("{path}.stop");
            scalar(&path, type_, stop)?;
            if !is_integer(type_) {
                if !(stop - range.start).is_finite() {
                    return refuse(path, "too far from start: bring them closer");
                }
                let start = range.start;
                return Ok(Box::new(move |index| double(type_, between(start, stop, index, count))));
            }
            let (start, distance) = (range.start as i128, stop as i128 - range.start as i128);
            let steps = i128::from(last.max(1));
            if distance % steps != 0 {
                return refuse(
                    path,
                    format!(
                        "{count} chunks from {start} to {stop} are {steps} steps of {}, not whole as {} demands: set step, or another stop",
                        distance as f64 / steps as f64,
                        type_name(type_)
                    ),
                );
            }
            Ok(self::steps(type_, start, distance / steps))
        }
    }
}

/// `start + step × index`, for integer types.
fn steps(type_: ScalarType, start: i128, step: i128) -> Source {
    Box::new(move |index| integer(type_, start + step * i128::from(index)))
}

fn random(path: &str, type_: ScalarType, random: &RandomSpec, stream: Stream) -> Result<Source, CompileError> {
    let rounded = move |value, min, max| within(type_, value, min, max).ok_or(Refusal::Double(f64::NAN));
    match one(path, random.choice())? {
        RandomChoice::Uniform(interval) => {
            let path = format!("{path}.uniform");
            let (min, max) = bounds(&path, type_, interval)?;
            if is_integer(type_) {
                // Both bounds are whole numbers below 2^53, so the difference fits.
                let length = (max as i128 - min as i128) as u64;
                return Ok(Box::new(move |index| {
                    integer(type_, min as i128 + i128::from(stream.pick(index, length)))
                }));
            }
            if !(max - min).is_finite() {
                return refuse(path, "max is too far from min: bring them closer");
            }
            Ok(Box::new(move |index| rounded(min + (max - min) * stream.unit(index), min, max)))
        }
        RandomChoice::LogUniform(interval) => {
            let path = format!("{path}.logUniform");
            let (min, max) = bounds(&path, type_, interval)?;
            if min <= 0.0 {
                return refuse(format!("{path}.min"), POSITIVE_MINIMUM);
            }
            let log_min = libm::log(min);
            let log_span = libm::log(max) - log_min;
            Ok(Box::new(move |index| {
                rounded(libm::exp(log_min + log_span * stream.unit(index)), min, max)
            }))
        }
        RandomChoice::Choice(choice) => {
            let values = values(&format!("{path}.choice"), type_, choice)?;
            Ok(Box::new(move |index| Ok(values[stream.pick(index, values.len() as u64) as usize])))
        }
    }
}

/// Returns the bounds, converted to the type, of an interval that is not empty.
fn bounds(path: &str, type_: ScalarType, interval: &Interval) -> Result<(f64, f64), CompileError> {
    let min = scalar(&format!("{path}.min"), type_, interval.min)?.as_f64();
    let max = match Scalar::from_f64(type_, interval.max) {
        // The upper bound is exclusive: for integer types, it may exceed the type's largest value by one.
        None if is_integer(type_) && Scalar::from_f64(type_, interval.max - 1.0).is_some() => interval.max,
        _ => scalar(&format!("{path}.max"), type_, interval.max)?.as_f64(),
    };
    if min >= max {
        return refuse(
            format!("{path}.min"),
            format!("{ORDERED_BOUNDS}: as {}, they are {min} and {max}", type_name(type_)),
        );
    }
    Ok((min, max))
}
