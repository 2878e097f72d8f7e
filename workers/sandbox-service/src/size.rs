//! Sizes as ROCK and docker write them: a number and a unit of 1,024, `8g`, `512m`, `50G`.

/// Bytes of a size. `None`: it is none.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix("ib").or_else(|| text.strip_suffix('b')).unwrap_or(&text);
    let unit = match text.chars().last()? {
        'k' => 1 << 10,
        'm' => 1 << 20,
        'g' => 1 << 30,
        't' => 1 << 40,
        _ => 1,
    };
    let number = if unit == 1 { text } else { &text[..text.len() - 1] };
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

/// A size as it is told: in MiB, as that is what bounds are made of.
#[must_use]
pub fn text(bytes: u64) -> String {
    format!("{}m", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_docker_writes_them() {
        for (text, value) in [
            ("8g", Some(8 << 30)),
            ("512m", Some(512 << 20)),
            ("50G", Some(50 << 30)),
            ("2GiB", Some(2 << 30)),
            ("64 mb", Some(64 << 20)),
            ("1024", Some(1024)),
            ("", None),
            ("g", None),
            ("-1g", None),
            ("1.5g", None),
            ("é", None),
            ("99999999999999t", None),
        ] {
            assert_eq!(bytes(text), value, "{text}");
        }
    }
}
