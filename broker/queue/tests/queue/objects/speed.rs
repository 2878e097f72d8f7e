//! A measurement: how long the upload and the download of 512 MB take on a real S3 server, beside curl.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use millrace_queue::testing::{S3Server, s3_settings};
use millrace_schemas::BlobRef;
use tokio::process::Command;
use tokio::time::Instant;

use super::run;

const BYTES: usize = 512 * 1024 * 1024;
const ROUNDS: usize = 3;

/// Content that is another one in each round.
fn content(round: usize) -> Bytes {
    let mut state = round as u64 + 1;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        // xorshift64: quick, and does not compress.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.into()
}

/// Seconds that curl takes.
async fn curl(words: &[&str]) -> f64 {
    let settings = s3_settings("");
    let user = format!("{}:{}", settings[3].1, settings[4].1);
    let signed = ["-sf", "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", &user, "-H"];
    let began = Instant::now();
    let mut command = Command::new("curl");
    command.args(signed).arg("x-amz-content-sha256: UNSIGNED-PAYLOAD").args(words);
    assert!(command.status().await.expect("curl starts").success(), "curl {words:?}");
    began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn upload_and_download_of_512_mb() {
    let server = S3Server::start_on_disk(8 * 1024).await;
    let objects = server.objects("speed");
    let file = server.folder().join("content");
    let file = file.to_str().expect("a plain path");
    let url = format!("{}/millrace/speed/curl", server.endpoint());
    let names = ["hash", "upload", "download", "curl PUT", "curl GET"];
    let mut seconds: [Vec<f64>; 5] = Default::default();
    for round in 0..ROUNDS {
        let bytes = content(round);
        std::fs::write(Path::new(file), &bytes).expect("written");
        let mut note = |at: usize, took: Duration| seconds[at].push(took.as_secs_f64());
        let began = Instant::now();
        let expected = BlobRef::of(&bytes);
        note(0, began.elapsed());
        let began = Instant::now();
        let blob = objects.put_blob(&run(), bytes).await.expect("stored");
        note(1, began.elapsed());
        assert_eq!(blob, expected);
        let began = Instant::now();
        assert_eq!(objects.get_blob(&run(), &blob).await.expect("read").len(), BYTES);
        note(2, began.elapsed());
        seconds[3].push(curl(&["-T", file, &url]).await);
        seconds[4].push(curl(&["-o", "/dev/null", &url]).await);
    }
    for (name, mut all) in names.into_iter().zip(seconds) {
        all.sort_by(f64::total_cmp);
        println!("{name:9} median {:.2} s of {all:.2?}", all[ROUNDS / 2]);
    }
}
