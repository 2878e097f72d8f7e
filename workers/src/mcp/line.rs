//! Lines of a server's output, of which none takes more memory than it may.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Bytes of a message at most.
pub(super) const MAX_LINE: usize = 4 * 1024 * 1024;
/// Bytes that are kept of a longer one.
const HEAD: usize = 1024;

/// A line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A whole one.
    Whole(Vec<u8>),
    /// The beginning of one that is longer than [`MAX_LINE`].
    TooLong(Vec<u8>),
}

/// The next line; `None` once the output has ended. What follows the last end of a line is none.
///
/// # Errors
/// The output cannot be read.
pub(super) async fn next(output: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Line>> {
    let (mut line, mut is_too_long) = (Vec::new(), false);
    loop {
        let chunk = output.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(None);
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        if is_too_long || line.len() + part.len() > MAX_LINE {
            is_too_long = true;
            line.extend_from_slice(&part[..part.len().min(HEAD)]);
            line.truncate(HEAD);
        } else {
            line.extend_from_slice(part);
        }
        let used = end.map_or(chunk.len(), |end| end + 1);
        output.consume(used);
        if end.is_some() {
            return Ok(Some(if is_too_long { Line::TooLong(line) } else { Line::Whole(line) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    #[tokio::test]
    async fn a_long_line_costs_its_beginning_and_nothing_of_the_next() {
        let long = [b"{\"id\":7,".to_vec(), vec![b'x'; 3 * MAX_LINE]].concat();
        let text = [b"a\n".to_vec(), long.clone(), b"\n\nb\nrest".to_vec()].concat();
        let mut output = BufReader::with_capacity(64 * 1024, &text[..]);
        let mut lines = Vec::new();
        while let Some(line) = next(&mut output).await.unwrap() {
            lines.push(line);
        }
        let whole = |text: &[u8]| Line::Whole(text.to_vec());
        assert_eq!(lines, [whole(b"a"), Line::TooLong(long[..HEAD].to_vec()), whole(b""), whole(b"b")]);
        let longest = [vec![b'y'; MAX_LINE], b"\n".to_vec()].concat();
        let line = next(&mut BufReader::new(&longest[..])).await.unwrap();
        assert!(matches!(line, Some(Line::Whole(line)) if line.len() == MAX_LINE));
    }
}
