//! JSON in which no table has a field twice: serde_json would keep the last of the two.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::RunFileError;
use crate::limits::MAX_SHOWN_BYTES;
use crate::text::shown;

/// Reads a document, which nothing may follow.
///
/// # Errors
/// It is not JSON, or a field is given twice.
pub(super) fn read(bytes: &[u8]) -> Result<Value, RunFileError> {
    let mut document = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut document).map(|Unique(value)| value);
    let value = value.map_err(|e| RunFileError::Shape {
        field: shown(&e.path().to_string(), MAX_SHOWN_BYTES),
        reason: e.inner().to_string(),
    })?;
    let shape = |e: serde_json::Error| RunFileError::Shape { field: ".".into(), reason: e.to_string() };
    document.end().map(|()| value).map_err(shape)
}

/// Any value.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(document: D) -> Result<Self, D::Error> {
        document.deserialize_any(AnyValue).map(Self)
    }
}

/// The value of a field.
struct Field {
    /// The table has a field of its name already.
    repeated: bool,
}

impl<'de> DeserializeSeed<'de> for Field {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Value, D::Error> {
        if self.repeated {
            return Err(D::Error::custom("this field is given twice; remove one of them"));
        }
        Unique::deserialize(document).map(|Unique(value)| value)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = table.next_key::<String>()? {
            let value = table.next_value_seed(Field { repeated: fields.contains_key(&name) })?;
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}
