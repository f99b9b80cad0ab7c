//! Manifests as kubectl reads them: whole numbers are integers, and a key occurs once in a map.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub(super) struct Manifest(pub(super) Value);

impl<'de> serde::Deserialize<'de> for Manifest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value of JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    #[expect(clippy::cast_precision_loss, reason = "Go reads integers beyond 64 bits as floats")]
    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok((value as f64).into())
    }

    #[expect(clippy::cast_precision_loss, reason = "Go reads integers beyond 64 bits as floats")]
    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok((value as f64).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Manifest(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = access.next_key_seed(NewKey(&fields))? {
            let Manifest(value) = access.next_value()?;
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// A key that the map does not have yet. The parser adds the place of the key to the error.
struct NewKey<'a>(&'a Map<String, Value>);

impl<'de> DeserializeSeed<'de> for NewKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NewKey<'_> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string as key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<String, E> {
        if self.0.contains_key(key) {
            return Err(E::custom(format_args!("key {key:?} is already set in this map")));
        }
        Ok(key.to_owned())
    }
}

/// A number as kubectl passes it on. A whole one that fits 64 bits is an integer; negative zero, which no integer is, stays a float.
fn number(value: f64) -> Value {
    /// 2^63.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let is_negative_zero = value == 0.0 && value.is_sign_negative();
    if value.fract() != 0.0 || !(-END..END).contains(&value) || is_negative_zero {
        return Value::from(value);
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
    let whole = value as i64;
    Value::from(whole)
}
