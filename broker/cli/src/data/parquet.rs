//! Rows of a Parquet file as JSONL, which workers read: one object per row, one field per column.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

/// The first bytes of a Parquet file.
const MAGIC: &[u8] = b"PAR1";

/// The rows as JSONL if `content` is Parquet, else `content` itself. Columns that are lists or
/// structs become arrays and objects; bytes that are not text become base64; nulls are left out.
///
/// # Errors
/// The file is damaged, or its compression is not supported.
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
        // The rows go by their hash, which does not depend on the order of the columns.
        value.sort_all_objects();
        writeln!(lines, "{value}")?;
    }
    Ok(lines.into_inner().freeze())
}
