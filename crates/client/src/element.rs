//! Element types in XLA's notation, and the sizes of arrays.

use crate::Error;

/// Returns the size of one element in host memory in bytes, or `None` for a type that a session does not support.
pub fn element_bytes(element_type: &str) -> Option<u64> {
    Some(match element_type {
        "pred" | "s8" | "u8" | "f8e3m4" | "f8e4m3" | "f8e4m3b11fnuz" | "f8e4m3fn" | "f8e4m3fnuz" | "f8e5m2" | "f8e5m2fnuz"
        | "f8e8m0fnu" => 1,
        "s16" | "u16" | "f16" | "bf16" => 2,
        "s32" | "u32" | "f32" => 4,
        "s64" | "u64" | "f64" | "c64" => 8,
        "c128" => 16,
        _ => return None,
    })
}

/// Returns the size of a dense array in host memory in bytes. Fails for an unknown type, a negative dimension, or a size above `i64::MAX`.
pub fn array_bytes(element_type: &str, dimensions: &[i64]) -> Result<u64, Error> {
    let element = element_bytes(element_type)
        .ok_or_else(|| Error::Invalid(format!("elements of type {element_type} cannot be sent to a session")))?;
    let mut bytes = element;
    let mut empty = false;
    for &dimension in dimensions {
        let dimension = u64::try_from(dimension).map_err(|_| Error::Invalid(format!("dimension {dimension} is negative")))?;
        empty |= dimension == 0;
        bytes = bytes
            .checked_mul(dimension.max(1))
            .filter(|&bytes| bytes <= i64::MAX as u64)
            .ok_or_else(|| Error::Invalid(format!("an array of {element_type} with dimensions {dimensions:?} is too large")))?;
    }
    Ok(if empty { 0 } else { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_arrays_are_computed_and_invalid_shapes_are_rejected() {
        assert_eq!(array_bytes("f32", &[2, 3]).unwrap(), 24);
        assert_eq!(array_bytes("bf16", &[]).unwrap(), 2);
        assert_eq!(array_bytes("c128", &[5, 0, 7]).unwrap(), 0);
        assert!(array_bytes("f32", &[-1]).is_err());
        assert!(array_bytes("token", &[1]).is_err());
        assert!(array_bytes("f32", &[i64::MAX, i64::MAX]).is_err());
        assert!(array_bytes("f32", &[0, i64::MAX, i64::MAX]).is_err());
    }
}
