//! The shape of what is encoded: where lists and maps are, and how long each is. It is read from the bytes that a snapshot
//! holds, so nothing that is kept is left out, whatever it is called.

/// Calls `visit` with the path and the length of each list and map of a MessagePack value. A path has field names, and `*`
/// for the elements of a list and for keys that are no words. Gives `None` where the bytes end too early.
pub(super) fn collections(bytes: &[u8], visit: &mut impl FnMut(&[String], usize)) -> Option<()> {
    let mut reader = Reader { rest: bytes, path: Vec::new() };
    reader.value(visit)
}

struct Reader<'a> {
    rest: &'a [u8],
    path: Vec<String>,
}

/// What a value is.
enum Kind {
    /// Nothing follows.
    Flat,
    /// A text of so many bytes.
    Text(usize),
    List(usize),
    Map(usize),
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    /// A big-endian number of so many bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn flat(&mut self, bytes: usize) -> Option<Kind> {
        self.take(bytes).map(|_| Kind::Flat)
    }

    /// Reads the head of a value, and all of one that holds no other.
    fn kind(&mut self) -> Option<Kind> {
        let head = self.number(1)? as u8;
        match head {
            0x00..=0x7f | 0xc0..=0xc3 | 0xe0..=0xff => Some(Kind::Flat),
            0x80..=0x8f => Some(Kind::Map(usize::from(head & 0x0f))),
            0x90..=0x9f => Some(Kind::List(usize::from(head & 0x0f))),
            0xa0..=0xbf => Some(Kind::Text(usize::from(head & 0x1f))),
            0xc4..=0xc6 => {
                let bytes = self.number(1 << (head - 0xc4))?;
                self.flat(bytes)
            }
            0xc7..=0xc9 => {
                let bytes = self.number(1 << (head - 0xc7))?;
                self.flat(bytes + 1)
            }
            0xca => self.flat(4),
            0xcb => self.flat(8),
            0xcc..=0xcf => self.flat(1 << (head - 0xcc)),
            0xd0..=0xd3 => self.flat(1 << (head - 0xd0)),
            0xd4..=0xd8 => self.flat(1 + (1 << (head - 0xd4))),
            0xd9..=0xdb => self.number(1 << (head - 0xd9)).map(Kind::Text),
            0xdc | 0xdd => self.number(2 << (head - 0xdc)).map(Kind::List),
            0xde | 0xdf => self.number(2 << (head - 0xde)).map(Kind::Map),
        }
    }

    fn value(&mut self, visit: &mut impl FnMut(&[String], usize)) -> Option<()> {
        match self.kind()? {
            Kind::Flat => Some(()),
            Kind::Text(bytes) => self.take(bytes).map(|_| ()),
            Kind::List(length) => {
                visit(&self.path, length);
                (0..length).try_for_each(|_| self.below("*".to_owned(), visit))
            }
            Kind::Map(length) => {
                visit(&self.path, length);
                (0..length).try_for_each(|_| {
                    let key = self.key()?;
                    self.below(key, visit)
                })
            }
        }
    }

    /// A key: a word, or `*` for anything else.
    fn key(&mut self) -> Option<String> {
        match self.kind()? {
            Kind::Text(bytes) => Some(String::from_utf8_lossy(self.take(bytes)?).into_owned()),
            Kind::Flat => Some("*".to_owned()),
            Kind::List(length) => {
                (0..length).try_for_each(|_| self.value(&mut |_, _| {})).map(|()| "*".to_owned())
            }
            Kind::Map(length) => {
                (0..2 * length).try_for_each(|_| self.value(&mut |_, _| {})).map(|()| "*".to_owned())
            }
        }
    }

    fn below(&mut self, step: String, visit: &mut impl FnMut(&[String], usize)) -> Option<()> {
        self.path.push(step);
        let read = self.value(visit);
        self.path.pop();
        read
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_schemas::RolloutId;
    use millrace_schemas::envelope::encode;
    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct Sample {
        name: String,
        numbers: Vec<i64>,
        rollouts: BTreeMap<RolloutId, Vec<f64>>,
        nested: BTreeMap<u64, BTreeMap<String, Option<u8>>>,
    }

    #[test]
    fn lists_and_maps_are_seen_with_their_lengths() {
        let rollout = RolloutId { group: 300, index: 70_000, attempt: 0 };
        let sample = Sample {
            name: "x".repeat(300),
            numbers: vec![-1, 1 << 40, 200, -70_000],
            rollouts: BTreeMap::from([(rollout, vec![0.5; 20])]),
            nested: BTreeMap::from([(
                7,
                BTreeMap::from([("k".to_owned(), None), ("l".to_owned(), Some(1))]),
            )]),
        };
        let (bytes, mut seen) = (encode(&sample), BTreeMap::new());
        collections(&bytes, &mut |path, length| {
            seen.insert(path.join("."), length);
        })
        .expect("it is whole");
        let expected =
            [("", 4), ("nested", 1), ("nested.*", 2), ("numbers", 4), ("rollouts", 1), ("rollouts.*", 20)];
        assert_eq!(seen, expected.map(|(path, length)| (path.to_owned(), length)).into());
        assert_eq!(collections(&bytes[..bytes.len() - 1], &mut |_, _| {}), None);
    }
}
