//! JSON as Python's `json.dumps` writes it, which is what a chat template's `tojson` gives in
//! transformers: fields in their order, a space after each comma and colon, no escape of HTML.

use std::io::{Result as Io, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The filter `tojson` with the arguments that transformers gives it: `indent`, `separators`, `sort_keys` and
/// `ensure_ascii`.
#[expect(clippy::needless_pass_by_value, reason = "so does a filter take its arguments")]
pub(super) fn to_json(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let separators: Option<(String, String)> = match arguments.get::<Option<Vec<String>>>("separators")? {
        None => None,
        Some(two) => <[String; 2]>::try_from(two).map(|[item, key]| Some((item, key))).map_err(|given| {
            Error::new(ErrorKind::InvalidOperation, format!("separators: {} given, 2 needed", given.len()))
        })?,
    };
    let indentation = indent.map(|width| b" ".repeat(width));
    let style = Style {
        lines: indentation.as_deref().map(PrettyFormatter::with_indent),
        item: separators
            .as_ref()
            .map_or(if indent.is_some() { "," } else { ", " }, |(item, _)| item)
            .as_bytes(),
        key: separators.as_ref().map_or(": ", |(_, key)| key).as_bytes(),
        ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, style);
    if arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        let mut sorted = serde_json::to_value(value).map_err(failed)?;
        sorted.sort_all_objects();
        sorted.serialize(&mut serializer).map_err(failed)?;
    } else {
        value.serialize(&mut serializer).map_err(failed)?;
    }
    String::from_utf8(text).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

struct Style<'a> {
    /// Breaks lines, if an indentation is given.
    lines: Option<PrettyFormatter<'a>>,
    /// What separates the items of a list and the fields of an object.
    item: &'a [u8],
    /// What follows the name of a field.
    key: &'a [u8],
    /// Whether every character beyond ASCII is escaped.
    ascii: bool,
}

impl Style<'_> {
    /// Before an item or field. The separator of the items is written by ourselves, so each is a first one for the
    /// formatter that breaks the lines.
    fn begin<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> Io<()> {
        if !first {
            w.write_all(self.item)?;
        }
        match &mut self.lines {
            Some(lines) => lines.begin_array_value(w, true),
            None => Ok(()),
        }
    }
}

impl Formatter for Style<'_> {
    fn write_f64<W: ?Sized + Write>(&mut self, w: &mut W, value: f64) -> Io<()> {
        // Python writes the exponent from 1e16 on and below 1e-4, with its sign and two digits at least.
        let scientific = format!("{value:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        match exponent.parse::<i32>() {
            Ok(exponent) if !(-4..16).contains(&exponent) => {
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(w, "{digits}e{sign}{:02}", exponent.abs())
            }
            _ => write!(w, "{value:?}"),
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, w: &mut W, fragment: &str) -> Io<()> {
        if !self.ascii {
            return w.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for character in fragment.chars() {
            match character {
                ' '..='~' => w.write_all(&[character as u8])?,
                _ => {
                    for unit in character.encode_utf16(&mut units) {
                        write!(w, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        match &mut self.lines {
            Some(lines) => lines.begin_array(w),
            None => w.write_all(b"["),
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        match &mut self.lines {
            Some(lines) => lines.end_array(w),
            None => w.write_all(b"]"),
        }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> Io<()> {
        self.begin(w, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        self.lines.as_mut().map_or(Ok(()), |lines| lines.end_array_value(w))
    }

    fn begin_object<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        match &mut self.lines {
            Some(lines) => lines.begin_object(w),
            None => w.write_all(b"{"),
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        match &mut self.lines {
            Some(lines) => lines.end_object(w),
            None => w.write_all(b"}"),
        }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> Io<()> {
        self.begin(w, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        w.write_all(self.key)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> Io<()> {
        self.lines.as_mut().map_or(Ok(()), |lines| lines.end_object_value(w))
    }
}
