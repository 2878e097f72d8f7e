//! Entries of the log as Parquet: one column per field, one row group per write.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::Row;

/// Rows of a group, at least.
const GROUP: usize = 16_384;

const SCHEMA: &str = "message log {
    required int64 seq (INTEGER(64, false));
    required int64 stored_ns (INTEGER(64, false));
    required binary run (UTF8);
    required binary kind (UTF8);
    optional binary task (UTF8);
    required binary event (JSON);
}";

/// Writes rows to a file.
pub(super) struct ParquetRows<W: Write + Send> {
    file: SerializedFileWriter<W>,
    waiting: Vec<[Column; 6]>,
}

/// A value of a row; `None` is null.
enum Column {
    Number(u64),
    Text(Option<ByteArray>),
}

impl<W: Write + Send> ParquetRows<W> {
    pub(super) fn new(out: W) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
        Ok(Self { file, waiting: Vec::new() })
    }

    pub(super) fn write(&mut self, rows: &[Row]) -> Result<(), ParquetError> {
        let text = |text: &str| Column::Text(Some(ByteArray::from(text)));
        self.waiting.extend(rows.iter().map(|row| {
            [
                Column::Number(row.seq),
                Column::Number(row.stored_ns),
                text(&row.run),
                text(row.kind),
                Column::Text(row.task.as_deref().map(ByteArray::from)),
                text(&row.event.to_string()),
            ]
        }));
        if self.waiting.len() >= GROUP { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.waiting);
        let mut group = self.file.next_row_group()?;
        for at in 0..6 {
            write_column(&mut group, rows.iter().map(|row| &row[at]))?;
        }
        group.close()?;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), ParquetError> {
        if !self.waiting.is_empty() {
            self.flush()?;
        }
        self.file.close()?;
        Ok(())
    }
}

fn write_column<'a, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = &'a Column>,
) -> Result<(), ParquetError> {
    let (mut numbers, mut texts, mut defined) = (Vec::new(), Vec::new(), Vec::new());
    for value in values {
        match value {
            // Unsigned: the same bits.
            Column::Number(number) => numbers.push(number.cast_signed()),
            Column::Text(text) => {
                defined.push(i16::from(text.is_some()));
                texts.extend(text.clone());
            }
        }
    }
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    if numbers.is_empty() {
        let levels = (texts.len() < defined.len() || is_optional(&mut column)).then_some(&*defined);
        column.typed::<ByteArrayType>().write_batch(&texts, levels, None)?;
    } else {
        column.typed::<Int64Type>().write_batch(&numbers, None, None)?;
    }
    column.close()
}

fn is_optional(column: &mut parquet::file::writer::SerializedColumnWriter<'_>) -> bool {
    use parquet::column::writer::ColumnWriter;
    match column.untyped() {
        ColumnWriter::ByteArrayColumnWriter(writer) => writer.get_descriptor().max_def_level() > 0,
        _ => false,
    }
}
