//! Malformed files of weights: read, or refused with a reason; never a panic, never memory without
//! bound.

use millrace_torch::decoder::{Config, Layout, read_tensors};

use millrace_policy::random::Stream;

use crate::support::initial;

/// Damaged files to try.
const WOUNDED: u64 = 600;

fn sound() -> (Vec<u8>, Layout) {
    let version = initial(1);
    let config = Config::read(&version.files["config.json"]).unwrap();
    (version.files["model.safetensors"].to_vec(), Layout::of(&config))
}

/// A file of a header and what follows it.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Reads as an engine does. A file that is read can be made a model; an error names the file.
fn is_read(bytes: &[u8], layout: &Layout) -> bool {
    match read_tensors("model", bytes, "", layout) {
        Ok(flat) => {
            assert_eq!(flat.size(), [layout.len]);
            assert!(bool::try_from(flat.isfinite().all()).unwrap());
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("model"), "{error}");
            false
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let (bytes, layout) = sound();
    assert!(is_read(&bytes, &layout));
    let tensor = |shape: &str, offsets: &str| {
        let entry = format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#);
        file(&format!(r#"{{"model.norm.weight":{entry},"model.embed_tokens.weight":{entry}}}"#), &[0; 64])
    };
    let nested = |open: &str, depth: usize| file(&format!("{{\"x\":{}", open.repeat(depth)), &[]);
    let one = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let hostile = [
        ("nothing", vec![]),
        ("less than a length", vec![1; 7]),
        ("a header of no bytes", file("", &[])),
        ("a header beyond the file", [&1_000_u64.to_le_bytes()[..], b"{}"].concat()),
        ("a header beyond memory", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
        ("no tensors", file("{}", &[])),
        ("no JSON", file("weights", &[0; 64])),
        ("no text", [&4_u64.to_le_bytes()[..], &[0xff; 4]].concat()),
        ("deep lists", nested("[", 100_000)),
        ("deep objects", nested("{\"x\":", 100_000)),
        ("offsets that overlap", tensor("[8]", "[0,32]")),
        ("offsets backwards", tensor("[8]", "[32,0]")),
        ("offsets beyond the file", tensor("[1000]", "[0,4000]")),
        ("offsets beyond numbers", tensor("[1]", "[0,18446744073709551616]")),
        ("negative offsets", tensor("[1]", "[-4,0]")),
        ("a shape beyond numbers", tensor("[4294967296,4294967296,4294967296]", "[0,64]")),
        ("a shape that is not that long", tensor("[3]", "[0,64]")),
        ("an axis of nothing", tensor("[0]", "[0,0]")),
        ("more bytes than tensors", file(&format!(r#"{{"model.norm.weight":{one}}}"#), &[0; 64])),
        ("fewer bytes than tensors", file(&format!(r#"{{"model.norm.weight":{one}}}"#), &[0; 2])),
        ("a kind that is none", file(&format!(r#"{{"x":{}}}"#, one.replace("F32", "F33")), &[0; 4])),
        ("its end cut off", bytes[..bytes.len() - 1].to_vec()),
        ("something at its end", [&bytes[..], &[0]].concat()),
    ];
    for (what, bytes) in hostile {
        assert!(!is_read(&bytes, &layout), "{what}");
    }
}

/// Numbers where others stood, in the header's text, and bytes where others stood, anywhere.
#[test]
fn sound_files_with_wounds_are_read_or_refused() {
    let (bytes, layout) = sound();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let numbers = [
        "0",
        "-1",
        "7",
        "1e9",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "\"1\"",
        "[[1]]",
    ];
    let (mut read, mut refused) = (0, 0);
    for case in 0..WOUNDED {
        let mut random = Stream::new(case);
        let mut wounded = bytes.clone();
        for _ in 0..=random.below(3) {
            let within = if random.below(4) == 0 { wounded.len() as u64 } else { header };
            let at = random.below(within.min(wounded.len() as u64)) as usize;
            wounded[at] ^= 1 << random.below(8);
        }
        if random.below(2) == 0 {
            // A whole number of the header, for another, and the header's length with it.
            let text: Vec<u8> = bytes[8..header as usize].to_vec();
            let digits: Vec<usize> = (1..text.len())
                .filter(|&at| text[at].is_ascii_digit() && !text[at - 1].is_ascii_alphanumeric())
                .collect();
            let from = digits[random.below(digits.len() as u64) as usize];
            let length = text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = numbers[random.below(numbers.len() as u64) as usize];
            let text = [&text[..from], number.as_bytes(), &text[from + length..]].concat();
            wounded = file(&String::from_utf8(text).unwrap(), &bytes[header as usize..]);
        }
        if is_read(&wounded, &layout) { read += 1 } else { refused += 1 }
    }
    assert!(read > 0 && refused > WOUNDED / 4, "{read} read, {refused} refused");
}
