//! Text from outside is cut before it is kept, compared or returned.

/// At most `bytes` of `text`, whole characters.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// As [`cut`], with a mark if something was cut off.
#[must_use]
pub fn shown(text: &str, bytes: usize) -> String {
    let kept = cut(text, bytes);
    if kept.len() == text.len() { kept.to_owned() } else { format!("{kept}… ({} bytes)", text.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_characters_are_kept_and_the_length_is_told() {
        assert_eq!(cut("größe", 3), "gr");
        assert_eq!(cut("größe", 100), "größe");
        assert_eq!(shown("größe", 4), "grö… (7 bytes)");
        assert_eq!(shown("", 0), "");
    }
}
