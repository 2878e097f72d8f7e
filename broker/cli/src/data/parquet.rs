//! Rows of a Parquet file as JSONL, which is what workers read: one object for each row, its fields those of the columns.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

/// What a Parquet file begins with.
const MAGIC: &[u8] = b"PAR1";

/// The rows as JSONL where `content` is Parquet, else `content` itself. Columns that are lists or structs become arrays
/// and objects, bytes that are no text base64; what is null is left out.
///
/// # Errors
/// The file is damaged, or compressed in a way that is not known.
pub(super) fn as_jsonl(content: Bytes) -> Result<Bytes, ParquetError> {
    if !content.starts_with(MAGIC) {
        return Ok(content);
    }
    let mut lines = BytesMut::new().writer();
    for row in SerializedFileReader::new(content)?.get_row_iter(None)? {
        let mut value = row?.to_json_value();
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|_, field| !field.is_null());
        }
        writeln!(lines, "{value}")?;
    }
    Ok(lines.into_inner().freeze())
}
